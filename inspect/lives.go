package inspect

import (
	"context"
	"math"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A GenerationLife is the state of a generation, and a forecast that assumes the
// present settings, in the form that `reaper generation list --json` prints.
type GenerationLife struct {
	GenerationStatus
	Left    *int64     `json:"left"`     // index entries; nil if the store cannot count
	NextDue *time.Time `json:"next_due"` // of a sealed generation: when its first survivor is due
	Emptied *time.Time `json:"emptied"`  // since when nothing is left that could be due
	Drains  *time.Time `json:"drains"`   // when sweeps begin to carry its survivors; nil for the nursery
	Retires *time.Time `json:"retires"`  // forecast: by then at the latest; nil if that is not known
	Refused bool       `json:"refused"`  // it cannot retire: the store refuses to delete or carry some entities
}

// Lives lists the live generations of a target. It writes nothing and costs a
// COUNT for each.
func Lives(ctx context.Context, cfg sweep.Config, t sweep.Target) ([]GenerationLife, error) {
	s, err := sweep.TakeSnapshot(ctx, cfg, t)
	if err != nil || s.New {
		return nil, err
	}
	lives := []GenerationLife{}
	for _, g := range generationsOf(s) {
		life := GenerationLife{GenerationStatus: g}
		from, to := expirykey.GenerationRange(g.Number)
		left, ok, err := s.Count(ctx, store.Between(from, to))
		if err != nil {
			return nil, err
		}
		if ok {
			life.Left = &left
		}
		life.addRemaining(s)
		if g.Number != expirykey.Nursery {
			life.forecast(s)
		}
		lives = append(lives, life)
	}
	return lives, nil
}

// addRemaining fills in what the cursors of the generation's ranges say about the
// entities that are left there.
func (life *GenerationLife) addRemaining(s *sweep.Snapshot) {
	var next earliest
	for _, r := range s.Plan.Ranges() {
		if r.Generation != life.Number {
			continue
		}
		stock := s.Plan.Cursor(r).Stock
		next.add(stock.Next)
		life.Refused = life.Refused || stock.Refused
	}
	if !next.at.IsZero() {
		life.NextDue = timePtr(dueAt(next.at, s.Target.Retention))
	}
}

// forecast fills in when the generation drains and when it retires.
func (life *GenerationLife) forecast(s *sweep.Snapshot) {
	record, policy := s.View.Record, s.Target.Rules().Policy
	staleness, slack := record.Bounds()
	if sealed := s.Plan.Stage(life.Number).Sealed; !sealed.IsZero() {
		if ready, empty := s.Plan.EmptySince(life.Number, sealed); empty {
			life.Emptied, life.Retires = timePtr(ready.Add(-slack)), &ready
			return
		}
	}
	for _, g := range record.Generations {
		if g.Number == life.Number && !g.Draining.IsZero() {
			life.Drains = timePtr(g.Draining)
			return // how long that takes depends on the pace
		}
	}
	if policy.Every <= 0 {
		return
	}
	// It drains once policy.Keep later ones are live in addition to the newest, and
	// the writers have moved to the newest.
	newest := record.Generations[len(record.Generations)-1]
	last := life.Number + policy.Keep + 1
	drains := newest.Opened.Add(newest.Ramp)
	if ahead := last - newest.Number; ahead > 0 {
		if time.Duration(ahead) > (math.MaxInt64-policy.Ramp)/policy.Every {
			return // in more than 292 years, the longest time.Duration
		}
		drains = newest.Opened.Add(time.Duration(ahead)*policy.Every + policy.Ramp)
	}
	life.Drains = &drains
	if !life.Refused { // a refused entity stays, so its generation cannot retire
		life.Retires = timePtr(drains.Add(staleness + slack))
	}
}
