package sim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// steady is how long ago an entity must have been written last for a count to have it in its present hour.
const steady = 3 * time.Minute

// patience is how long a process tries to count an hour at most.
const patience = 5 * time.Minute

// A budgetFact is what the oracle knows of the budget of one target.
type budgetFact struct {
	credit    map[string]int64            // what each process may still delete, by what it has reserved
	granted   map[string]map[string]int64 // to each process, by key, less what it gave back
	gone      map[string]map[string]int64 // what each process has deleted, by hour
	counted   map[string]bool             // hours that were counted once
	approvals map[string]breaker.Approval // all that there ever were
	settled   bool                        // what was due at first was counted, or approved
	turned    time.Time                   // when the target record became one of another targets file
	open      time.Time                   // since when a trip is open; zero if none is
	present   []seenApproval              // those that the target record has
	charges   map[string]*chargeFact      // by process
	taught    []taught
}

// A taught is the share of all entities that an hour had as it was counted. It holds for the hours after
// it; for all hours if that is zero.
type taught struct {
	at, hour time.Time
	share    float64
}

// A tallyFact is one tally of a budget record, taken apart.
type tallyFact struct {
	granted int64
	done    int64
	counted bool
	open    int64  // granted if asked for, since it was counted
	coming  int64  // and so much more until the hour ends
	since   string // up to when a part of what is late was forgotten
}

// countedSince reports whether an hour was counted, and passed, since an earlier state of its tally. What
// is still to come opens by itself, what is open is granted, and what a process gives back is open again.
func (t tallyFact) countedSince(was tallyFact) bool {
	return t.counted && (!was.counted || t.granted+t.open+t.coming > was.granted+was.open+was.coming)
}

// readTallies takes the tallies of a budget record apart.
func readTallies(f store.Fields) map[string]tallyFact {
	text, _ := f["tallies"].(string)
	all := map[string]tallyFact{}
	for _, one := range strings.Fields(text) {
		parts := strings.Split(one, ":")
		n, _ := strconv.ParseInt(parts[1], 10, 64)
		done, _ := strconv.ParseInt(parts[2], 10, 64)
		open, _ := strconv.ParseInt(parts[5], 10, 64)
		coming, _ := strconv.ParseInt(parts[6], 10, 64)
		all[parts[0]] = tallyFact{n, done, parts[3] == "1", open, coming, parts[8]}
	}
	return all
}

func (o *oracle) budget(target string) *budgetFact {
	b := o.budgets[target]
	if b == nil {
		b = &budgetFact{credit: map[string]int64{}, granted: map[string]map[string]int64{},
			gone: map[string]map[string]int64{}, counted: map[string]bool{}, approvals: map[string]breaker.Approval{}}
		o.budgets[target] = b
	}
	return b
}

// checkBelow holds B1 for descendants: with the entities above them they share one floor until these are
// counted. What is late is left out: its tally leaks.
func (o *oracle) checkBelow(b *budgetFact, by, key string, was, all map[string]tallyFact) {
	above, n, floor := key[1:], all[key].granted, o.w.plan.target.Breaker.Floor
	counted := b.counted[above] || all[above].counted
	if n > was[key].granted && !counted && above[0] != 'A' && above != "L" && n+all[above].granted > floor {
		o.w.violate("B1", "%s reserves %d descendants and %d of %s without a count; the floor is %d", by, n,
			all[above].granted, above, floor)
	}
}

// savedBudget holds B1 as a budget is saved: no hour grants more than the floor before it was
// counted, and no approval more than was approved. It notes what the process may delete.
func (o *oracle) savedBudget(h *handle, old, new store.Record) {
	by := h.name
	b, was, all := o.budget(new.Key), readTallies(old.Fields), readTallies(new.Fields)
	o.charged(by, new.Key, was, all)
	for key, is := range all {
		if strings.HasPrefix(key, "B") {
			o.checkBelow(b, by, key, was, all)
			continue
		}
		delta := is.granted - was[key].granted
		if key == "L" && is.since != was[key].since { // a part was forgotten
			delta = is.granted
		}
		if by != "operator" {
			b.credit[by] += delta
			add(b.granted, by, key, delta)
		}
		if is.countedSince(was[key]) {
			o.checkCounted(by, key, old, new)
		}
		o.learnsUnseen(key, was[key], is, old, new)
		b.counted[key] = b.counted[key] || is.counted
		if is.granted > was[key].granted && is.since == was[key].since && o.isRest(new.Key, key) {
			o.w.violate("B1", "%s reserves %d of %s, of which a part was approved: the rest waits", by,
				is.granted-was[key].granted, key)
		}
		switch id, approved := strings.CutPrefix(key, "A"); {
		case !approved && !b.settled && delta > 0 && !o.countsForItself(h, new.Key):
			o.w.violate("B1", "%s reserves %d of %s before what was due at first was counted or approved", by, delta, key)
		case approved:
			if n, known := o.approvedCount(new.Key, id); known && is.granted > n {
				o.w.violate("B1", "%s reserves %d of approval %s, which is for %d", by, is.granted, id, n)
			}
		case !b.counted[key] && is.granted > o.w.plan.target.Breaker.Floor:
			o.w.violate("B1", "%s reserves %d of %s without a count; the floor is %d", by, is.granted, key,
				o.w.plan.target.Breaker.Floor)
		}
	}
	o.w.count("budget saved")
}

// approvedCount returns how much of an event was approved.
func (o *oracle) approvedCount(target, id string) (n int64, known bool) {
	list, _ := o.w.db.records[store.TargetRecord][target].Fields["approvals"].([]store.Fields)
	for _, a := range list {
		if a["id"] == id {
			return int64(number(a, "count")), true
		}
	}
	return 0, false
}

func add(to map[string]map[string]int64, by, key string, n int64) {
	if to[by] == nil {
		to[by] = map[string]int64{}
	}
	to[by][key] += n
}

// checkCounted holds B1 as an hour that was counted is opened: what it holds for certain, with
// what is still to come, is no more than its limit. What lies in namespaces, generations or shards that no
// deployment sweeps is no part of the event. A count may last, and goes by what was learnt as it began.
func (o *oracle) checkCounted(by, key string, old, new store.Record) {
	ms, err := strconv.ParseInt(key, 10, 64)
	was, wasErr := breaker.Decode(old)
	is, isErr := breaker.Decode(new)
	if err != nil || wasErr != nil || isErr != nil {
		return
	}
	rules, now := sweep.BreakerRules(o.w.plan.target), time.Now()
	hour := breaker.Key{Hour: time.UnixMilli(ms).UTC()}
	limits := o.usual(new.Key, was, hour)
	o.learns(new.Key, hour.Hour, was, is)
	if was.OnlyLearns(rules, now.Add(-steady)) {
		return
	}
	limits.Alls = is.Alls
	n, approved := is.At(hour).Done, o.approvedThrough(new.Key, hour)
	if !approved.IsZero() {
		n = 0 // some of it went by an approval, and was taken off the limit or left out of the count
	}
	for at, facts := range o.truth {
		if at.kind != o.w.plan.kind(new.Key) || !o.isSwept(new.Key, at.namespace) {
			continue
		}
		for _, f := range facts {
			if f.wellFormed && f.inOrder && f.withinBounds && !f.beyond && now.Sub(f.committed) > steady &&
				rules.HourOf(f.expires) == hour && f.expires.After(approved) && o.isListed(new.Key, f) {
				n++
			}
		}
	}
	limit := limits.Limit(rules, now, hour)
	if began := is.At(hour).At; now.Sub(began) < patience {
		limit = max(limit, limits.Limit(rules, began, hour))
	}
	if n > limit {
		o.w.violate("B1", "%s opens %v of %s, which holds %d, more than %d", by, hour.Hour, new.Key, n, limit)
	}
}

// usual returns the budget with nothing learnt but what hours before this one have taught.
func (o *oracle) usual(target string, b breaker.Budget, k breaker.Key) breaker.Budget {
	began := time.Now().Add(-patience) // a count may go by what was learnt then
	list := slices.Clip(o.budget(target).taught)
	for _, d := range b.Days {
		if !slices.ContainsFunc(list, func(is taught) bool { return is.share >= d.Share }) {
			list = append(list, taught{at: d.Begin, share: d.Share}) // before this life, or approved as normal
		}
	}
	b.Days = nil
	rules := sweep.BreakerRules(o.w.plan.target)
	for _, is := range list {
		if is.hour.Before(k.Hour) && began.Sub(is.at) < rules.Learn+24*time.Hour {
			b.Days = append(b.Days, breaker.Day{Begin: is.at, Share: is.share})
		}
	}
	b.Tallies = slices.DeleteFunc(slices.Clone(b.Tallies), func(t breaker.Tally) bool { return t.Key.Hour.After(k.Hour) })
	return b
}

// learns notes what an hour that was just counted has taught.
func (o *oracle) learns(target string, hour time.Time, was, is breaker.Budget) {
	b := o.budget(target)
	for _, d := range is.Days {
		before := dayOf(was, d)
		if d.Share > before.Share {
			b.taught = append(b.taught, taught{time.Now(), hour, d.Share})
			continue
		}
		b.takeSteps(hour, before, d) // less than another hour has taught, which is later
	}
}

// learnsUnseen notes what an hour has taught that was counted, and passed, without it being seen: as much is left
// of it as before, so it looks like an hour of which a part has come to be due.
func (o *oracle) learnsUnseen(key string, was, is tallyFact, old, new store.Record) {
	if !is.counted || is.countedSince(was) || old.Fields["taught"] == new.Fields["taught"] {
		return
	}
	ms, err := strconv.ParseInt(key, 10, 64)
	before, beforeErr := breaker.Decode(old)
	after, afterErr := breaker.Decode(new)
	if err != nil || beforeErr != nil || afterErr != nil {
		return
	}
	for _, d := range after.Days {
		o.budget(new.Key).takeSteps(time.UnixMilli(ms), dayOf(before, d), d)
	}
}

// dayOf returns what a budget has learnt from the same day as another one.
func dayOf(b breaker.Budget, d breaker.Day) breaker.Day {
	i := slices.IndexFunc(b.Days, func(is breaker.Day) bool { return is.Begin.Equal(d.Begin) })
	if i < 0 {
		return breaker.Day{}
	}
	return b.Days[i]
}

// takeSteps notes the new steps of a day that an hour has taught.
func (b *budgetFact) takeSteps(hour time.Time, was, is breaker.Day) {
	for _, s := range is.Steps {
		if s.Hour.Equal(hour) && !slices.Contains(was.Steps, s) {
			b.taught = append(b.taught, taught{time.Now(), hour, s.Share})
		}
	}
}

// isSwept reports whether any deployment sweeps a namespace, by the target record. The caller holds mu.
func (o *oracle) isSwept(target, namespace string) bool {
	list, _ := o.w.db.records[store.TargetRecord][target].Fields["namespaces"].([]store.Fields)
	return slices.ContainsFunc(list, func(n store.Fields) bool {
		return text(n, "name") == namespace || text(n, "name") == cursor.AllNamespaces
	})
}

// isListed reports whether an entity lies in a shard that a targets file lists, and in a generation that the target
// record does, and did as a count began: a process without generations makes a lost record again with none, until
// others find them. The caller holds mu.
func (o *oracle) isListed(target string, f *fact) bool {
	if n := f.key.generation; n > 0 {
		_, listed := readTarget(o.w.db.records[store.TargetRecord][target].Fields).generations[n]
		if !listed || time.Since(o.adoptedAt[fmt.Sprint(target, n)]) <= patience {
			return false
		}
	}
	return !o.w.isUnlisted(f)
}

// approvedThrough returns up to which instant of an hour an approval reaches; zero if none does.
func (o *oracle) approvedThrough(target string, hour breaker.Key) (through time.Time) {
	for _, a := range o.budget(target).approvals {
		if a.Through.After(hour.Hour) && a.Through.After(through) {
			through = a.Through
		}
	}
	return through
}

// spends holds B1 as a delete takes effect: its process has reserved it, for its hour or by an
// approval that covers it, and what was due when the target was new was counted before.
func (o *oracle) spends(h *handle, target string, at place, key string, sent time.Time) {
	if !o.w.plan.target.Breaker.On || h.calm || h.rush != nil {
		return
	}
	b := o.budget(target)
	o.charges(h.name, target, o.truth[at][key], sent)
	if b.credit[h.name]--; b.credit[h.name] < 0 {
		o.w.violate("B1", "%s deletes %s of %s, and has reserved nothing", h.name, key, target)
	}
	if !b.settled && len(b.approvals) == 0 && !o.countsForItself(h, target) {
		o.w.violate("B1", "%s deletes %s of %s before what was due at first was counted", h.name, key, target)
	}
	f := o.truth[at][key]
	if f == nil || !f.wellFormed {
		return
	}
	rules := sweep.BreakerRules(o.w.plan.target)
	hour := rules.HourOf(f.expires)
	add(b.gone, h.name, hour.String(), 1)
	may := b.granted[h.name][hour.String()] + b.granted[h.name]["L"]
	for id, a := range b.approvals {
		// It covers what expires up to an instant within the hour; what went of that counts in the hour, too.
		if !hour.Hour.After(a.Through) && (a.Rule != breaker.Burst || a.Hour.Equal(hour.Hour)) {
			may += b.granted[h.name]["A"+id]
		}
	}
	if n := b.gone[h.name][hour.String()]; n > may {
		o.w.violate("B1", "%s deletes %s of %s: %d of %v, and has reserved %d for it", h.name, key, target, n, hour.Hour, may)
	}
}

// writes holds B1 as somebody is about to write: not while a trip is open, of which he knows by then.
func (o *oracle) writes(h *handle, target string, n int) {
	if !o.w.plan.target.Breaker.On || h.calm || h.rush != nil {
		return
	}
	if at := o.budget(target).open; !at.IsZero() && time.Since(at) > pausedWithin {
		o.w.violate("B1", "%s writes %d entities of %s, whose breaker has been open for %v", h.name, n, target,
			time.Since(at))
	}
}

// tripped notes whether a breaker is open, as a target record is saved.
func (o *oracle) tripped(old, new store.Record) {
	was, _ := old.Fields["trip"].([]store.Fields)
	is, _ := new.Fields["trip"].([]store.Fields)
	switch {
	case len(is) > 0 && len(was) == 0:
		o.w.count("trips by " + fmt.Sprint(is[0]["rule"]))
		o.budget(new.Key).open = time.Now()
	case len(is) == 0 && len(was) > 0:
		o.budget(new.Key).open = time.Time{}
		if new.Fields == nil || !readTarget(new.Fields).paused { // a pause by the breaker ends with its trip
			delete(o.w.pace.paused, new.Key)
		}
	}
	o.seesApprovals(new)
	approvals, _ := new.Fields["approvals"].([]store.Fields)
	for _, a := range approvals {
		o.budget(new.Key).approvals[text(a, "id")] = breaker.Approval{Rule: breaker.Rule(text(a, "rule")),
			Hour: instant(a, "hour"), Through: instant(a, "through"), Count: a["count"].(int64)}
	}
	if isNew, _ := new.Fields["new_ground"].(bool); !isNew && text(new.Fields, "shortest_retention") != "" {
		// Once faults have stopped, the world itself ends all trips, and switches the breaker off.
		if b := o.budget(new.Key); !o.w.calm && len(was) > 0 && len(is) == 0 && isPart(was[0], b.approvals) {
			o.w.violate("B1", "an approval of a part of %s lets the rest of what was due at first go", new.Key)
		}
		o.budget(new.Key).settled = true
	}
}

// isPart reports whether a trip of what was due at first ended by an approval of less than that.
func isPart(trip store.Fields, approvals map[string]breaker.Approval) bool {
	a, approved := approvals[text(trip, "id")]
	return approved && text(trip, "rule") == string(breaker.NewGround) && int(a.Count) < number(trip, "due")
}

// deploy lets everything expire at about the same time, a while from now.
func (wr *writer) deploy(d dice) {
	w := wr.w
	window := w.plan.target.Breaker.Window
	first := time.Now().Add(steady + d.on("begins").between(0, 2*time.Minute)).UTC()
	for i := range w.plan.ids {
		name := fmt.Sprintf("e%02d", i)
		r := row{key: keyOf(name), data: fmt.Sprintf("deploy %d", i), shard: wr.shardValue(name)}
		expires := first.Add(d.on("spread").at(int64(i)).between(0, window)).Truncate(time.Millisecond)
		r.expiry = wr.stamp(name, expires)
		_ = w.commit(wr.kind, place{w.plan.kind(wr.target), w.plan.namespaces[0]}, r, true)
	}
}

// startApprover lets somebody approve events, all of them or a part.
func (w *world) startApprover() {
	if !w.plan.target.Breaker.On {
		return
	}
	d := w.dice.on("approver")
	c := w.newClock(d)
	w.act(func() {
		for n := int64(0); ; n++ {
			d := d.at(n)
			if !w.sleep(d.on("pause").between(10*time.Second, 90*time.Second)) {
				return
			}
			for i := range w.plan.targets {
				w.approve(d.on("target").at(int64(i)), c, w.plan.name(i))
			}
		}
	})
}

func (w *world) approve(d dice, c *clock, name string) {
	w.mu.Lock()
	trips, _ := w.db.records[store.TargetRecord][name].Fields["trip"].([]store.Fields)
	w.mu.Unlock()
	if len(trips) == 0 {
		return
	}
	id, _ := trips[0]["id"].(string)
	count := int64(0)
	part := 0.5
	if w.plan.restamps {
		part = 0.15
	}
	if d.on("part").yes(part) {
		count = int64(1 + d.on("count").below(6))
	}
	_ = w.command(w.ctx, d, c, name, "approve", func(ctx context.Context, cfg sweep.Config, t sweep.Target) error {
		_, _, err := control.Approve(ctx, cfg, t, control.Order{Actor: "sim", Reason: "it is right"},
			control.Approval{ID: id, Count: count})
		return err
	}) // it may fail: the next try is soon
}
