package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// What goes of an approved event by other keys is charged to its approval: else what a process gives
// back of the approval would let as much of the next event pass. A budget record tells what each
// process reports, and the oracle knows what it has deleted.

// A chargeFact is what the oracle knows of the charges of one process.
type chargeFact struct {
	deleted  int64            // in all
	covered  map[string]int64 // by approval: of these, what is to be charged to it if it went by another key
	charged  map[string]int64 // by approval: of what was covered, so much was charged at most
	reported int64            // by other keys than approvals
	doubtful bool             // an answer was lost: it may report twice
}

// A seenApproval is an approval, and since when the target record has it as it is.
type seenApproval struct {
	breaker.Approval
	seen time.Time
}

func (b *budgetFact) charge(by string) *chargeFact {
	if b.charges == nil {
		b.charges = map[string]*chargeFact{}
	}
	c := b.charges[by]
	if c == nil {
		c = &chargeFact{covered: map[string]int64{}, charged: map[string]int64{}}
		b.charges[by] = c
	}
	return c
}

// seesApprovals notes the approvals that a target record has.
func (o *oracle) seesApprovals(new store.Record) {
	list, _ := new.Fields["approvals"].([]store.Fields)
	b := o.budget(new.Key)
	var present []seenApproval
	for _, a := range list {
		is := seenApproval{seen: time.Now(), Approval: breaker.Approval{ID: text(a, "id"),
			Rule: breaker.Rule(text(a, "rule")), Hour: instant(a, "hour"), Through: instant(a, "through"),
			Generation: number(a, "generation"), Count: int64(number(a, "count")), At: instant(a, "at")}}
		is.Part, _ = a["part"].(bool)
		for _, was := range b.present {
			if was.ID == is.ID && was.Part == is.Part { // of a part nothing is charged to
				is.seen = was.seen
			}
		}
		present = append(present, is)
	}
	b.present = present
}

// coveredBy returns the approvals of an event that an entity belongs to.
func (o *oracle) coveredBy(target string, f *fact) (list []seenApproval) {
	rules := sweep.BreakerRules(o.w.plan.target)
	for _, a := range o.budget(target).present {
		if !f.expires.After(a.Through) && f.key.generation <= a.Generation &&
			(a.Rule != breaker.Burst || rules.HourOf(f.expires).Hour.Equal(a.Hour)) {
			list = append(list, a)
		}
	}
	return list
}

// lasts reports whether an approval has certainly not ended by an instant.
func (a seenApproval) lasts(r breaker.Rules, at time.Time) bool {
	return at.Sub(a.At) < max(r.Rewind, r.Window)-30*time.Second
}

// isRest reports whether a key is that of an event of which a part was approved, as every process knows,
// and since then not all of it.
func (o *oracle) isRest(target, key string) bool {
	rules := sweep.BreakerRules(o.w.plan.target)
	for _, a := range slices.Backward(o.budget(target).present) {
		if a.Rule != breaker.NewGround && (breaker.Key{Hour: a.Hour}).String() == key {
			return a.Part && time.Since(a.seen) > pausedWithin && a.lasts(rules, time.Now())
		}
	}
	return false
}

// charges notes to which approval a delete is to be charged if it went by another key. Its process
// knew the approval as it sent the delete, and has no other one to charge it to.
func (o *oracle) charges(by, target string, f *fact, sent time.Time) {
	c := o.budget(target).charge(by)
	c.deleted++
	if f == nil || !f.wellFormed {
		return
	}
	list := o.coveredBy(target, f)
	if len(list) != 1 || list[0].Part || sent.Sub(list[0].seen) <= pausedWithin {
		return
	}
	if list[0].lasts(sweep.BreakerRules(o.w.plan.target), time.Now()) {
		c.covered[list[0].ID]++
		o.w.count("covered by an approval")
	}
}

// charged holds that a process charges what it reports of an approved event, and that nothing of
// that is given back.
func (o *oracle) charged(by, target string, was, is map[string]tallyFact) {
	b := o.budget(target)
	c, rules := b.charge(by), sweep.BreakerRules(o.w.plan.target)
	for key, t := range is {
		if strings.HasPrefix(key, "B") {
			continue // descendants, of which the oracle knows nothing
		}
		if !strings.HasPrefix(key, "A") {
			c.reported += max(0, t.done-was[key].done)
		} else if was[key].done <= was[key].granted && t.done > t.granted {
			o.w.violate("B1", "%s gives back of approval %s what is gone of its event: %d are granted, and %d gone",
				by, key[1:], t.granted, t.done)
		}
	}
	for _, a := range b.present {
		// What is not to be charged may be among what was reported, or not reported yet.
		least, most := c.reported-(c.deleted-c.covered[a.ID]), min(c.reported, c.covered[a.ID])
		old, done := was["A"+a.ID], is["A"+a.ID].done
		charged := min(c.charged[a.ID]+max(0, done-old.done), most)
		isKnown := !c.doubtful && len(o.w.former[target]) == 0 && a.lasts(rules, time.Now())
		if more := least - c.charged[a.ID]; more > 0 && isKnown && old.granted > old.done {
			o.w.count("charged to an approval")
			if charged < least && done < old.granted { // more than is reserved is not charged
				o.w.violate("B1", "%s reports %d more of the event of approval %s by other keys, and charges %d of them",
					by, more, a.ID, done-old.done)
			}
		}
		c.charged[a.ID] = max(charged, least)
	}
}

// doubts notes that a process was not told whether a budget was saved.
func (o *oracle) doubts(by, target string) { o.budget(target).charge(by).doubtful = true }
