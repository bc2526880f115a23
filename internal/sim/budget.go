package sim

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A budgetFact is what the oracle knows of the budget of one target.
type budgetFact struct {
	credit  map[string]int64 // what each process may still delete, by what it has reserved
	counted map[string]bool  // hours that were counted once
	settled bool             // what was due at first was counted, or approved
}

// A tallyFact is one tally of a budget record, taken apart.
type tallyFact struct {
	granted int64
	counted bool
	since   string // up to when a part of what is late was forgotten
}

// readTallies takes the tallies of a budget record apart.
func readTallies(f store.Fields) map[string]tallyFact {
	text, _ := f["tallies"].(string)
	all := map[string]tallyFact{}
	for _, one := range strings.Fields(text) {
		parts := strings.Split(one, ":")
		n, _ := strconv.ParseInt(parts[1], 10, 64)
		all[parts[0]] = tallyFact{n, parts[3] == "1", parts[8]}
	}
	return all
}

func (o *oracle) budget(target string) *budgetFact {
	b := o.budgets[target]
	if b == nil {
		b = &budgetFact{credit: map[string]int64{}, counted: map[string]bool{}}
		o.budgets[target] = b
	}
	return b
}

// savedBudget holds B1 as a budget is saved: no hour grants more than the floor before it was
// counted, and no approval more than was approved. It notes what the process may delete.
func (o *oracle) savedBudget(by string, old, new store.Record) {
	b, was := o.budget(new.Key), readTallies(old.Fields)
	for key, is := range readTallies(new.Fields) {
		delta := is.granted - was[key].granted
		if key == "L" && is.since != was[key].since { // a part was forgotten
			delta = is.granted
		}
		if by != "operator" {
			b.credit[by] += delta
		}
		b.counted[key] = b.counted[key] || is.counted
		switch id, approved := strings.CutPrefix(key, "A"); {
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

// spends holds B1 as a delete takes effect: its process has reserved it, and what was due
// when the target was new was counted before.
func (o *oracle) spends(h *handle, target, key string) {
	if !o.w.plan.target.Breaker.On || h.calm || h.rush != nil {
		return
	}
	b := o.budget(target)
	if b.credit[h.name]--; b.credit[h.name] < 0 {
		o.w.violate("B1", "%s deletes %s of %s, and has reserved nothing", h.name, key, target)
	}
	if !b.settled {
		o.w.violate("B1", "%s deletes %s of %s before what was due at first was counted", h.name, key, target)
	}
}

// tripped notes whether a breaker is open, as a target record is saved. Nobody may write soon
// after that: the rule for pauses holds it.
func (o *oracle) tripped(old, new store.Record) {
	was, _ := old.Fields["trip"].([]store.Fields)
	is, _ := new.Fields["trip"].([]store.Fields)
	switch {
	case len(is) > 0 && len(was) == 0:
		o.w.count("trips by " + fmt.Sprint(is[0]["rule"]))
		o.w.pace.paused[new.Key] = time.Now()
	case len(is) == 0 && len(was) > 0:
		delete(o.w.pace.paused, new.Key)
	}
	if isNew, _ := new.Fields["new_ground"].(bool); !isNew && new.Fields["retention"] != "" {
		o.budget(new.Key).settled = true
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
	if d.on("part").yes(0.5) {
		count = int64(1 + d.on("count").below(6))
	}
	_ = w.command(w.ctx, d, c, name, "approve", func(ctx context.Context, cfg sweep.Config, t sweep.Target) error {
		_, _, err := control.Approve(ctx, cfg, t, control.Order{Actor: "sim", Reason: "it is right"},
			control.Approval{ID: id, Count: count})
		return err
	}) // it may fail: the next try is soon
}
