package sweep

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A carrier gives entities that are not due a key in another generation. What it
// writes counts against the pace of the ranges that it writes into: each has a
// part set aside for it there, so that all carriers and the range's own deletes
// together stay within the limit, whichever processes they are in.
type carrier struct {
	w      *worker
	leaves func(number int) bool // whether entities leave this generation
	to     func(r generation.Record, id string) generation.Stamper
	part   func(to expirykey.Key) float64 // of a range's limit, for this carrier

	record generation.Record // the last one used
	pacers map[into]*throttle.Pacer
}

// into names a range that is written into; the namespace stays as it is.
type into struct{ generation, shard int }

// The parts of a range's limit. A generation that is drained has one carrier for
// each of its ranges; the audit has one in all.
const (
	drainPart   = 0.5
	nurseryPart = 0.1
)

// ownPart returns the part of a range's limits that is for its own deletes.
func (p *pass) ownPart(r shardquery.Range) func(throttle.Limits) throttle.Limits {
	return func(l throttle.Limits) throttle.Limits {
		rec := p.governor.record
		n := len(rec.Generations)
		switch {
		case n == 0:
		case r.Generation == expirykey.Nursery:
			return l.Part(1 - nurseryPart)
		case r.Generation == rec.Generations[n-1].Number && rec.Draining():
			return l.Part(1 - drainPart)
		}
		return l
	}
}

// drainer returns what carries the survivors of a range to the newest generation,
// as a follower would stamp them.
func (w *worker) drainer() *carrier {
	shards := 1
	for _, g := range w.record.Generations {
		if g.Number == w.r.Generation {
			shards = g.Shards
		}
	}
	past := 0 // ranges past the last shard
	for _, r := range w.all {
		if r.Namespace == w.r.Namespace && r.Generation == w.r.Generation && r.Shard >= shards {
			past++
		}
	}
	c := &carrier{w: w, pacers: map[into]*throttle.Pacer{},
		leaves: func(number int) bool { return number == w.r.Generation },
		to: func(r generation.Record, id string) generation.Stamper {
			return r.StamperFor(id, w.clock.Now())
		},
	}
	// Where shards are taken from hashes, as they should be, few ranges lead to
	// another one: those that agree in the remainder by a common divisor. They
	// share one half of what is set aside. Any others share the other half, and so do
	// ranges past the last shard, into which somebody stamped by another number.
	c.part = func(to expirykey.Key) float64 {
		common := gcd(shards, c.shards(to.Generation))
		if w.r.Shard < shards && (to.Shard-w.r.Shard)%common == 0 {
			return drainPart / 2 * float64(common) / float64(shards)
		}
		return drainPart / 2 / float64(shards+past)
	}
	return c
}

// close gives up what the carrier paces by.
func (c *carrier) close() {
	for _, pacer := range c.pacers {
		c.w.governor.close(pacer)
	}
}

// shards returns how many shards a generation has.
func (c *carrier) shards(number int) int {
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

// key returns the new key of an entity, by the record that was used last.
func (c *carrier) key(entity string, expires time.Time) (expirykey.Key, error) {
	keyer, ok := c.w.Store.(store.Keyer)
	if !ok {
		return expirykey.Key{}, fmt.Errorf("carry %s: this store cannot tell an entity's id from its key", entity)
	}
	id, err := keyer.ID(entity)
	if err != nil {
		return expirykey.Key{}, err
	}
	return c.to(c.record, id).Name(id, expires)
}

// await waits for the pace of the ranges that the entities to be carried are
// written into.
func (c *carrier) await(ops []store.Op) (err error) {
	if c.record, err = c.w.stampBy(c.w.ctx); err != nil {
		return err
	}
	counts := map[into]int{}
	var places []into // in the order of the ops
	for i := range ops {
		if ops[i].To.Type == store.Missing {
			continue
		}
		k, err := c.newKey(&ops[i])
		if err != nil {
			return err
		}
		at := into{k.Generation, k.Shard}
		if counts[at]++; counts[at] == 1 {
			places = append(places, at)
		}
	}
	for _, at := range places {
		pacer := c.pacers[at]
		if pacer == nil {
			part := c.part(expirykey.Key{Generation: at.generation, Shard: at.shard})
			pacer = c.w.governor.open(throttle.State{}, func(l throttle.Limits) throttle.Limits { return l.Part(part) })
			c.pacers[at] = pacer
		}
		if err := pacer.Await(c.w.ctx, counts[at], c.w.waited); err != nil {
			return errStopped
		}
	}
	return nil
}

// stamp gives the entities to be carried their new keys, which are then good for
// the slack. Those that have become due while they waited are to be deleted
// instead: they would come down behind the cursor of the range they are written
// into.
func (c *carrier) stamp(ops []store.Op) (err error) {
	if c.record, err = c.w.stampBy(c.w.ctx); err != nil {
		return err
	}
	c.w.horizon = c.w.clock.Now().Add(-c.w.target.Retention)
	for i := range ops {
		if ops[i].To.Type == store.Missing {
			continue
		}
		if c.w.decide(ops[i].Entry.Value, c.w.horizon) == due {
			if err := c.w.spend(1); err != nil {
				return err
			}
			ops[i].To = store.Value{}
			c.w.expired.Add(1)
			c.w.Progress.Expired.Add(1)
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

// newKey returns the key that an op's entity is to be carried to.
func (c *carrier) newKey(op *store.Op) (expirykey.Key, error) {
	expires, err := c.w.r.Expires(op.Entry.Value)
	if err != nil {
		return expirykey.Key{}, err
	}
	return c.key(op.Entry.Key, expires)
}
