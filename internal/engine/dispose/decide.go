package dispose

import (
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/store"
)

// A Decider decides what becomes of an entity by its expiry.
type Decider struct {
	Horizon time.Time // what expires at or before it is due
	Carry   *Carrier  // of what is not due; nil if that is kept
	// Compared is what the target's comparer said of the page at hand; whether it is active holds for
	// the visit.
	Compared   site.Comparison
	c          *site.Site
	generation int // of the range at hand
}

// NewDecider returns a decider for a range of a generation.
func NewDecider(c *site.Site, generation int, horizon time.Time, carry *Carrier) Decider {
	return Decider{c: c, generation: generation, Horizon: horizon, Carry: carry}
}

// Decide says what an expiry means for its entity.
func (d *Decider) Decide(value store.Value) index.Judgement {
	return d.c.Index.Decide(value, d.Horizon)
}

// Verdict decides by an expiry that was read in the entity itself. The expiry may lie in
// another range by now; if no sweep reads its generation, the entity is kept.
func (d *Decider) Verdict(key string, value store.Value) (index.Judgement, store.Verdict) {
	j := d.Decide(value)
	if j == index.Due && d.Compared.Active {
		return index.Early, store.Keep // it changed, and was not compared: the next read from the start meets it
	}
	if !d.c.Rules.Form.HasGenerations() {
		if j == index.Due {
			return j, store.Delete
		}
		return j, store.Keep
	}
	k, err := expirykey.Parse(value.Text)
	if value.Type != store.Text || err != nil {
		return j, store.Keep // never, or malformed
	}
	mine := d.Carry != nil && d.Carry.isSource(k.Generation)
	// What lies in the visit's own range is deleted though the record no longer lists its generation,
	// as what a page shows of it: else the cursor would pass it.
	if j == index.Due && (mine || k.Generation == d.generation || d.c.Lives(k.Generation)) {
		return j, store.Delete
	}
	if mine && (j == index.Early || j == index.Suspect) {
		if to, err := d.Carry.key(key, k.Expires); err == nil {
			return j, store.CarryTo(store.TextValue(to.String()))
		}
	}
	if j == index.Due {
		j = index.Early
	}
	return j, store.Keep
}

// IsDue reports whether an entity is to be deleted by what it held last.
func (d *Decider) IsDue(op *store.Op) bool {
	_, do := d.Verdict(op.Entry.Key, op.Held())
	return do == store.Delete
}
