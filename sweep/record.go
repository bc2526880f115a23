package sweep

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// loadRecord reads the target record, and creates it where the target is new.
// The cursors were read before, so a record that is older than one of them is a
// copy that somebody put back.
func (p *pass) loadRecord(ctx context.Context) error {
	for began := p.Now(); ; {
		var rec generation.Record
		err := patiently(ctx, func(ctx context.Context) (err error) {
			rec, _, err = generation.Load(ctx, p.Store, p.target.Name)
			return err
		})
		missing := errors.Is(err, generation.ErrMissing)
		if err != nil && !missing {
			return err
		}
		if err := p.suits(rec, missing); err != nil {
			return err
		}
		next, steps := p.wanted(rec, missing)
		if !missing && rec.Says(next) {
			p.record = rec
			return nil
		}
		if !p.Apply {
			p.record = next // as it would be
			return nil
		}
		p.record, err = generation.Save(ctx, p.Store, next)
		if errors.Is(err, store.ErrConflict) {
			continue // another worker was first: see what it wrote
		}
		if store.Transient(err) && p.Now().Sub(began) < recordPatience && throttle.Sleep(ctx, time.Second) == nil {
			continue // with the time as it is then: see what came of it
		}
		if err == nil {
			p.tell(ctx, rec, next, steps)
		}
		return err
	}
}

// reloadRecord reads the target record again.
func (p *pass) reloadRecord(ctx context.Context) error {
	return patiently(ctx, func(ctx context.Context) error {
		rec, _, err := generation.Load(ctx, p.Store, p.target.Name)
		if err == nil {
			p.record = rec
		}
		return err
	})
}

// tell says what became of the target record.
func (p *pass) tell(ctx context.Context, was, is generation.Record, steps []generation.Step) {
	for _, s := range steps {
		p.Log.InfoContext(ctx, "generation is "+string(s.State), "generation", s.Generation)
	}
	if n := len(is.Generations); n > 0 && was.Target != "" && (was.Staleness != is.Staleness || was.Slack != is.Slack) {
		p.Log.InfoContext(ctx, "the bounds for writers changed; for generations that are open already the larger ones count",
			"staleness", is.Staleness, "slack", is.Slack, "before_staleness", was.Staleness, "before_slack", was.Slack)
	}
}

// suits refuses a target record that cannot be the one its cursors belong to.
func (p *pass) suits(rec generation.Record, missing bool) error {
	for _, c := range p.table {
		if missing {
			return fmt.Errorf("the target record %s %q is missing, but there are %d cursor records (such as %s %q): somebody removed it. Restore it or, to begin anew, remove the cursor records as well",
				store.TargetRecord, p.target.Name, len(p.table), store.CursorRecord, c.Key())
		}
		if c.TargetRevision > revisionCount(rec.Revision) {
			return fmt.Errorf("the target record %s %q has revision %s, but cursor record %q was written with revision %d: an old copy was put back. Restore the newer one or, to begin anew, remove the target's cursor records",
				store.TargetRecord, p.target.Name, rec.Revision, c.Key(), c.TargetRevision)
		}
	}
	return nil
}

// wanted returns the target record as the configuration and the time want it, and
// what the time did to it.
func (p *pass) wanted(rec generation.Record, missing bool) (generation.Record, []generation.Step) {
	t, now := p.target, p.clock.Now()
	if missing {
		rec = FirstRecord(t, now)
	}
	if missing {
		return rec, nil
	}
	if t.Generations {
		rec = rec.OpenFirst(t.Shards, now)
	}
	if n := len(rec.Generations); n > 0 && t.Generations {
		newest := rec.Generations[n-1]
		if newest.Shards != t.Shards {
			p.Log.Warn("the configured shards are for the next generation", "shards", t.Shards,
				"generation", newest.Number, "generation_shards", newest.Shards)
		}
		if newest.Ramp != t.Policy.Ramp && newest.Number != generation.First {
			p.Log.Warn("the configured ramp is for the next generation", "ramp", t.Policy.Ramp,
				"generation", newest.Number, "generation_ramp", newest.Ramp)
		}
	}
	rec.Kind, rec.Property = t.Kind, t.Property
	rec.NurseryShards = max(rec.NurseryShards, t.Shards)
	rec = rec.Follow(t.Policy)
	if p.still {
		return rec, nil
	}
	return rec.Next(t.policy(), now)
}

// policy returns how generations follow each other: not at all where the layout
// has none, though some may be left of another layout.
func (t Target) policy() generation.Policy {
	policy := t.Policy
	policy.Shards = t.Shards
	if !t.Generations {
		policy.Every = 0
	}
	return policy
}

func revisionCount(revision string) int64 {
	count, _, _ := strings.Cut(revision, "-")
	n, _ := strconv.ParseInt(count, 10, 64) // a text that is no count is older than any
	return n
}

// scope names the layout with all that a position depends on: shards of another
// property, or integers in place of texts, are other shards.
func (t Target) scope() string {
	if t.ShardProperty == "" || len(t.ShardValues) == 0 {
		return t.Layout
	}
	values := "texts"
	if t.ShardValues[0].Type != store.Text {
		values = "integers"
	}
	return fmt.Sprintf("%s by %s in %s", t.Layout, values, t.ShardProperty)
}

// FirstRecord returns the target record that a target without one would get.
func FirstRecord(t Target, now time.Time) generation.Record {
	return generation.New(t.Name, t.Kind, t.Property, t.Shards, t.Generations, now).Follow(t.Policy)
}

// EnsureRecord returns the target record, as the configuration wants it, and
// writes it where it is missing or other: what a writer stamps by must be what
// the sweep goes by. It refuses what a sweep would refuse.
func EnsureRecord(ctx context.Context, c Config, t Target) (generation.Record, error) {
	p, err := ensured(ctx, c, t)
	return p.record, err
}

// ensured returns a pass that has read the records and written the target's.
func ensured(ctx context.Context, c Config, t Target) (*pass, error) {
	c.Apply, c.Progress = true, new(Progress)
	p := newPass(c, t, nil)
	p.still = true
	if err := p.loadTable(ctx); err != nil {
		return p, err
	}
	return p, p.loadRecord(ctx)
}
