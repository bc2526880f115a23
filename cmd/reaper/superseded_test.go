package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/adopt"
)

const finishedTarget = `targets:
  - name: sessions
    kind: Session
    shards: 4
    pace: {max: unlimited}
    breaker: {floor: 50}
    adopt: {from: {property: created, plus: 30d}, rate: unlimited, spread: 0s}
`

// adopted loads sessions of which 150 have expired by the rule, and finishes their adoption.
func adopted(t *testing.T, targets string, finish bool) *workdir {
	b := newEmbedded(t, targets)
	var in strings.Builder
	for i := range 300 {
		age := time.Duration(i) * 60 * 24 * time.Hour / 300
		fmt.Fprintf(&in, `{"id":"s-%03d","data":{"created":%q}}`+"\n", i, time.Now().Add(-age).UTC().Format(time.RFC3339))
	}
	b.must(strings.NewReader(in.String()), "load")
	b.adopts("sessions", "--apply")
	if finish {
		if res := b.adopts("finish", "sessions", "--apply"); res.Phase != adopt.Finished {
			t.Fatalf("%+v", res)
		}
	}
	return b
}

// What is due at the first sweep after an adoption was verified: it goes without another
// approval. Without finish, and with a shorter retention than the one with which it was
// finished, the breaker trips.
func TestFinishApprovesTheSwitch(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	t.Run("finished", func(t *testing.T) {
		t.Parallel()
		b := adopted(t, finishedTarget, true)
		if res := b.sweep("--apply"); res.Deleted < 149 || res.Held != "" || !res.Complete {
			t.Errorf("%+v", res)
		}
		if st := b.breaker(); st.Trip != "" {
			t.Errorf("%+v", st)
		}
		if r := b.must(nil, "history", "--actions"); !strings.Contains(r.out, "the adoption is finished") {
			t.Errorf("the history: %s", r.out)
		}
	})
	t.Run("not finished", func(t *testing.T) {
		t.Parallel()
		b := adopted(t, finishedTarget, false)
		if r := b.run(nil, "sweep", "--apply"); r.code != exitBreaker || !strings.Contains(r.out, "held: breaker new-ground") {
			t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
		}
	})
	t.Run("another retention", func(t *testing.T) {
		t.Parallel()
		b := adopted(t, strings.Replace(finishedTarget, "    shards: 4\n", "    shards: 4\n    retention: 10d\n", 1), true)
		b.write("reaper.yaml", finishedTarget)
		if r := b.run(nil, "sweep", "--apply"); r.code != exitBreaker || !strings.Contains(r.out, "held: breaker new-ground") {
			t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
		}
	})
}

// The target that is swept by the old property is named, in the log of sweeps and in the
// status, from finish on, and not before.
func TestSupersededTarget(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := adopted(t, finishedTarget, false)
	b.write("reaper.yaml", finishedTarget+`  - name: by-creation
    kind: Session
    layout: timestamp
    property: created
    retention: 30d
`)
	const warning = "target superseded: remove it from the targets file"
	for _, finished := range []bool{false, true} {
		if finished {
			b.adopts("finish", "--target", "sessions", "--apply")
		}
		r := b.run(nil, "sweep", "--target", "by-creation")
		if n := strings.Count(r.log, warning); (n == 1) != finished || n > 1 {
			t.Errorf("finished %v: the sweep warns %d times: %s", finished, n, r.log)
		}
		if r := b.run(nil, "sweep", "--target", "sessions"); strings.Contains(r.log, warning) {
			t.Errorf("finished %v: the new target is called superseded: %s", finished, r.log)
		}
		out := b.must(nil, "status", "--target", "by-creation", "--json").out
		if strings.Contains(out, `"superseded_by": "sessions"`) != finished {
			t.Errorf("finished %v: %s", finished, out)
		}
		out = b.must(nil, "status", "--target", "by-creation").out
		if strings.Contains(out, "the adoption of sessions is finished") != finished {
			t.Errorf("finished %v: %s", finished, out)
		}
	}
}
