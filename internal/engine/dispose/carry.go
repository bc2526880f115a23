package dispose

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/pace"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Carrier gives entities that are not due a key in another generation. Its writes
// count against the pace of the ranges that it writes into. A part of each such pace is
// reserved for it, so that all carriers and the range's own deletes together stay within
// the limit, in whichever processes they run.
type Carrier struct {
	c         *site.Site
	isSource  func(number int) bool // whether entities leave this generation
	stamperOf func(r generation.Record, id string) generation.Stamper
	paceShare func(to expirykey.Key, shards int) float64 // of a range's limit, for this carrier

	record generation.Record // the last one used
	pacers map[destRange]*throttle.Pacer
}

// A destRange is a range that is written into; the namespace stays as it is.
type destRange struct{ generation, shard int }

// NewDrainCarrier returns a carrier that moves the survivors of a range to the newest
// generation, with the keys that a follower would stamp.
func NewDrainCarrier(c *site.Site, p *plan.Plan, r shardquery.Range) *Carrier {
	shards, past := 1, 0
	for _, g := range c.Viewer.View().Record.Generations {
		if g.Number == r.Generation {
			shards, past = g.Shards, len(p.ExtraShards(r.Namespace, g))
		}
	}
	return &Carrier{c: c, pacers: map[destRange]*throttle.Pacer{},
		isSource:  func(number int) bool { return number == r.Generation },
		stamperOf: func(rec generation.Record, id string) generation.Stamper { return rec.StamperFor(id, c.Clock.Now()) },
		// If shards come from hashes, as they should, only a few source ranges carry
		// into one destination: those with the same remainder by the common divisor.
		// They share one half of the reserved part. All others share the other half,
		// also ranges past the last shard, which come from another shard count.
		paceShare: func(to expirykey.Key, newShards int) float64 {
			common := gcd(shards, newShards)
			if r.Shard < shards && (to.Shard-r.Shard)%common == 0 {
				return pace.DrainPart / 2 * float64(common) / float64(shards)
			}
			return pace.DrainPart / 2 / float64(shards+past)
		},
	}
}

// NewStrayCarrier returns a carrier that moves strays from spans that should be empty to
// the nursery.
func NewStrayCarrier(c *site.Site, spans []plan.KeySpan) *Carrier {
	return &Carrier{c: c, pacers: map[destRange]*throttle.Pacer{},
		isSource: func(number int) bool {
			for _, s := range spans {
				if s.Has(number) {
					return true
				}
			}
			return false
		},
		stamperOf: func(rec generation.Record, _ string) generation.Stamper {
			return generation.Stamper{Shards: max(1, rec.NurseryShards)}
		},
		paceShare: func(expirykey.Key, int) float64 { return pace.NurseryPart },
	}
}

// Close unregisters the carrier's pacers.
func (c *Carrier) Close() {
	if c == nil {
		return
	}
	for _, pacer := range c.pacers {
		c.c.Pacing.Close(pacer)
	}
}

// shards returns how many shards a generation has.
func (c *Carrier) shards(number int) int {
	for _, g := range c.record.Generations {
		if g.Number == number {
			return g.Shards
		}
	}
	return max(1, c.record.NurseryShards)
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// refresh takes the target record to stamp by. If that is too old it asks for a
// newer one, and the step has to wait.
func (c *Carrier) refresh() error {
	rec, ok := c.c.StampBy()
	if !ok && c.c.Cfg.Apply {
		c.c.Viewer.WantRecord()
		return &throttle.Pause{Wait: view.ReadAtMost, Why: throttle.ReasonRecord}
	}
	c.record = rec
	return nil
}

// key returns the new key of an entity, by the record that was used last.
func (c *Carrier) key(entity string, expires time.Time) (expirykey.Key, error) {
	keyer, ok := c.c.Cfg.Store.(store.Keyer)
	if !ok {
		return expirykey.Key{}, fmt.Errorf("carry %s: this store cannot tell an entity's id from its key", entity)
	}
	id, err := keyer.ID(entity)
	if err != nil {
		return expirykey.Key{}, err
	}
	return c.stamperOf(c.record, id).Name(id, expires)
}

// newKey returns the key that an op's entity is to be carried to.
func (c *Carrier) newKey(op *store.Op) (expirykey.Key, error) {
	expires, err := layout.Keys.Expires(op.Entry.Value)
	if err != nil {
		return expirykey.Key{}, err
	}
	return c.key(op.Entry.Key, expires)
}

// take takes tokens of the ranges that the carried entities are written into. If one
// range has too few, the tokens already taken from others are lost. That costs only
// time, and is rare because [Carrier.Ready] has asked before.
func (c *Carrier) take(ops []store.Op) error {
	if err := c.refresh(); err != nil {
		return err
	}
	counts := map[destRange]int{}
	var order []destRange // of the ops
	for i := range ops {
		if !ops[i].IsCarry() {
			continue
		}
		k, err := c.newKey(&ops[i])
		if err != nil {
			return err
		}
		at := destRange{k.Generation, k.Shard}
		if counts[at]++; counts[at] == 1 {
			order = append(order, at)
		}
	}
	for _, at := range order {
		if wait, why := c.pacer(at).Take(counts[at]); wait > 0 {
			return &throttle.Pause{Wait: wait, Why: why}
		}
	}
	return nil
}

// pacer returns the pacer for this carrier's writes into a range.
func (c *Carrier) pacer(at destRange) *throttle.Pacer {
	pacer := c.pacers[at]
	if pacer == nil {
		part := c.paceShare(expirykey.Key{Generation: at.generation, Shard: at.shard}, c.shards(at.generation))
		pacer = c.c.Pacing.Open(throttle.State{}, func(l throttle.Limits) throttle.Limits { return l.Part(part) })
		c.pacers[at] = pacer
	}
	return pacer
}

// Ready returns how many of the ops, from the first on, the ranges that they are
// carried into can take now.
func (c *Carrier) Ready(ops []store.Op) (n int, err error) {
	if err := c.refresh(); err != nil {
		return 0, err
	}
	left := map[destRange]int{}
	for i := range ops {
		if !ops[i].IsCarry() {
			continue
		}
		k, err := c.newKey(&ops[i])
		if err != nil {
			return 0, err
		}
		at := destRange{k.Generation, k.Shard}
		if _, known := left[at]; !known {
			ready, wait, why := c.pacer(at).Ready(len(ops))
			if wait > 0 && i == 0 {
				return 0, &throttle.Pause{Wait: wait, Why: why}
			}
			left[at] = ready
		}
		if left[at] == 0 {
			return i, nil
		}
		left[at]--
	}
	return len(ops), nil
}

// stamp gives the entities to be carried their new keys, which are valid for the slack.
// Those that have become due meanwhile are deleted instead: they would be written behind
// the cursor of their new range.
func (c *Carrier) stamp(ops []store.Op) error {
	if err := c.refresh(); err != nil {
		return err
	}
	horizon := c.c.Clock.Now().Add(-c.c.Target.Retention)
	for i := range ops {
		if !ops[i].IsCarry() {
			continue
		}
		if c.c.Index.Decide(ops[i].Entry.Value, horizon) == index.Due {
			ops[i].To = store.Value{}
			continue
		}
		k, err := c.newKey(&ops[i])
		if err != nil {
			return err
		}
		ops[i].To = store.TextValue(k.String())
	}
	return nil
}
