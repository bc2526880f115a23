package step_test

import (
	"slices"
	"testing"

	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/store"
)

func ops(outcomes ...store.Outcome) (list []store.Op) {
	for _, o := range outcomes {
		list = append(list, store.Op{Outcome: o})
	}
	return list
}

// The outcomes of a batch come to its own ops, whether these are neighbours or not. The first
// open op is where the cursor has to stop.
func TestOutcomesComeToTheirOps(t *testing.T) {
	for _, before := range [][]store.Outcome{
		{store.Unknown, store.Unknown, store.Unknown},
		{store.Unknown, store.Deleted, store.Unknown, store.Changed},
		{store.Deleted, store.Unknown, store.Gone, store.Unknown, store.Unknown},
	} {
		s := &step.Scratch{Ops: ops(before...)}
		batch := s.Pick(2)
		for i := range batch {
			batch[i].Outcome = store.Deleted
		}
		s.PutBack(batch)
		want, left, first := slices.Clone(before), 2, len(before)
		for i, o := range before {
			if o == store.Unknown && left > 0 {
				want[i] = store.Deleted
				left--
			}
			if want[i] == store.Unknown || want[i] == store.Changed {
				first = min(first, i)
			}
		}
		for i, op := range s.Ops {
			if op.Outcome != want[i] {
				t.Errorf("%v: op %d is %v, want %v", before, i, op.Outcome, want[i])
			}
		}
		if got := s.FirstOpen(); got != first {
			t.Errorf("%v: the first open op is %d, want %d", before, got, first)
		}
	}
}

// An entity that is gone was deleted by this process only if an earlier try was unsure.
func TestOnlyDoubtsBecomeDeletes(t *testing.T) {
	s := &step.Scratch{Ops: ops(store.Unknown, store.Gone, store.Unknown)}
	batch := s.Pick(1)
	s.Doubt()
	batch[0].Outcome = store.Gone // found by the next try
	s.PutBack(batch)
	s.ResolveDoubts()
	if s.Ops[0].Outcome != store.Deleted || s.Ops[1].Outcome != store.Gone || s.Ops[2].Outcome != store.Unknown {
		t.Errorf("got %v, %v, %v", s.Ops[0].Outcome, s.Ops[1].Outcome, s.Ops[2].Outcome)
	}
}
