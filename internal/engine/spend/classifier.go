package spend

import (
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
)

// An Asker is a range that asks for deletes while it is in work.
type Asker struct {
	// LateFrom is the instant before which whatever is found has expired unnoticed.
	LateFrom  time.Time
	Shortfall Shortfall // what it could not delete by the budget
	Settles   bool      // what is to be carried may be deleted instead, by what it holds in the transaction
	Below     bool      // it deletes descendants of the entities that the ops show
}

// A Shortfall is what a visit needs, and the budget has not granted yet.
type Shortfall struct {
	first *breaker.Key // of the first entity that it could not delete
	n     int64
	since time.Time
	Until time.Time // when a reading that needs it asks again
}

// A demand is what a batch needs: the key of each of its ops, and how much under each key.
type demand struct {
	keys Keys
	need map[breaker.Key]int64
}

// Keys are the keys under which a batch was counted, for each of its ops. The key of a carry is nil.
type Keys []*breaker.Key

// A classifier determines under which key each delete counts, by one state of budget and approvals.
type classifier struct {
	rules    breaker.Rules
	form     layout.Form
	approved []breaker.Approval
	budget   breaker.Budget
	now      time.Time // the store's time
}

// A source returns a classifier by the present budget and approvals.
type source struct {
	rules  breaker.Rules
	form   layout.Form
	viewer *view.Viewer
	ledger *ledger
	clock  *storeclock.Clock
}

func (s source) classifier() *classifier {
	return &classifier{rules: s.rules, form: s.form, approved: s.viewer.View().Record.Approvals, budget: s.ledger.known(),
		now: s.clock.Now()}
}

// demandOf returns what a batch needs. Left is how much this process may still delete under a key.
func (c *classifier) demandOf(w *Asker, ops []store.Op, left func(breaker.Key) int64) demand {
	d := demand{make(Keys, len(ops)), map[breaker.Key]int64{}}
	for i := range ops {
		if ops[i].IsCarry() && !w.Settles {
			continue
		}
		k := c.keyOf(w, &ops[i], func(k breaker.Key) int64 { return c.approvedRest(k, left) - d.need[k] })
		k.Below = w.Below
		d.need[k]++
		d.keys[i] = &k
	}
	return d
}

// keyOf returns the key of an op. Rest is how much of an approval the ops before it leave.
func (c *classifier) keyOf(w *Asker, op *store.Op, rest func(breaker.Key) int64) breaker.Key {
	if !c.rules.On {
		return breaker.Late() // the limits make no difference between keys
	}
	at, number, ok := c.expiry(op.Held())
	if !ok {
		at = w.LateFrom // it is not due
	}
	spent := func(id string) bool { return rest(breaker.Key{Approval: id}) <= 0 }
	return c.rules.KeyOf(c.approved, spent, at, number, at.Before(w.LateFrom))
}

// expiry returns when an entity expires, and the generation of its key if it has one.
func (c *classifier) expiry(value store.Value) (at time.Time, generation int, ok bool) {
	if k, err := expirykey.Parse(value.Text); err == nil && value.Type == store.Text {
		generation = k.Generation
	}
	at, err := c.form.Expires(value)
	return at, generation, err == nil
}

// approvedRest returns how much of an approval this process may still use.
func (c *classifier) approvedRest(k breaker.Key, left func(breaker.Key) int64) (rest int64) {
	i := slices.IndexFunc(c.approved, func(a breaker.Approval) bool { return a.ID == k.Approval })
	if i >= 0 && !c.budget.IsSpent(c.rules, c.approved[i], c.now) {
		rest = c.approved[i].Count - c.budget.At(k).Granted
	}
	return rest + left(k)
}

// chargedTo returns the approval that covers a delete which was counted under another key.
func (c *classifier) chargedTo(k breaker.Key, op *store.Op) (to breaker.Key, ok bool) {
	if !c.rules.On || k.Below || k.Approval != "" || len(c.approved) == 0 {
		return to, false
	}
	at, number, ok := c.expiry(op.Held())
	if !ok {
		return to, false
	}
	return c.budget.ChargedTo(c.rules, c.approved, c.now, at, number)
}

// lifeOf returns for how long a deleted entity had been meant to live, as a bucket. Ok is false
// if the store does not say when the entity was last written.
func (c *classifier) lifeOf(op *store.Op) (bucket int, ok bool) {
	at, err := c.form.Expires(op.Entry.Value)
	isOther := !op.Held().Equal(op.Entry.Value) // it was written again since then
	if err != nil || isOther || op.Entry.Written.IsZero() || !c.rules.On {
		return 0, false
	}
	return breaker.BucketOf(at.Sub(op.Entry.Written)), true
}
