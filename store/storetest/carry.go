package storetest

import (
	"fmt"

	"github.com/reaper-ttl/reaper/store"
)

var carryCases = []testCase{
	{name: "CarryChangesOnlyTheExpiry", run: carryChanges},
	{name: "CarryKeepsWhatChanged", run: carryKeepsChanged},
	{name: "CarryFindsGone", run: carryFindsGone},
	{name: "CarryRepeatedIsHarmless", run: carryRepeated},
	{name: "CarryInADryRun", run: carryDryRun},
	{name: "SettleCarries", run: settleCarries},
}

// to is the expiry key that what expires i milliseconds after noon is carried
// to: a later generation's.
func to(i int) store.Value {
	v := key(i)
	v.Text = "00000002" + v.Text[8:]
	return v
}

// carry carries entries, whose expiry keys are those of the row, and returns
// the ops.
func (w *world) carry(dry bool, entries ...store.Entry) []store.Op {
	w.Helper()
	b := w.batch(w.all(), entries...)
	b.DryRun = dry
	for i := range b.Ops {
		b.Ops[i].To = store.TextValue("00000002" + b.Ops[i].Entry.Value.Text[8:])
	}
	w.retry("carry", func() error { return w.store.Dispose(w.ctx, b) })
	return b.Ops
}

// carried scans the generation that entities are carried to.
func (w *world) carried(when string, want ...string) {
	w.Helper()
	q := w.all()
	q.Lo, q.Hi = store.TextValue("00000002.0000."), store.TextValue("00000002.0000/")
	w.same("what was carried "+when, values(w.scan(q, false)), want)
}

// data checks the data of an entity that row put.
func (w *world) intact(when string, n int) {
	w.Helper()
	if !w.caps.Dumper {
		return
	}
	seen := 0
	for e, err := range w.store.(store.Dumper).Dump(w.ctx, w.target, w.ns) {
		if err != nil {
			w.Fatalf("dump: %v", err)
		}
		if got := canonical(w, e.Data); got != `{"user":"u7"}` {
			w.Errorf("%s the data of %s is %s", when, e.Name, got)
		}
		seen++
	}
	if seen != n {
		w.Errorf("%s there are %d entities, not %d", when, seen, n)
	}
}

func carryChanges(w *world) {
	w.row(6)
	found := w.find(6)
	w.same("outcomes", outcomes(w.carry(false, found[1:5]...)), []string{"carried", "carried", "carried", "carried"})
	w.shows("afterwards", key(0).Text, key(5).Text)
	w.carried("then", to(1).Text, to(2).Text, to(3).Text, to(4).Text)
	w.intact("after a carry", 6)
	// Some go and some are carried in one batch.
	b := w.batch(w.all(), found[0], found[5])
	b.Ops[1].To = to(5)
	w.retry("dispose", func() error { return w.store.Dispose(w.ctx, b) })
	w.same("outcomes of a mixed batch", outcomes(b.Ops), []string{"deleted", "carried"})
	w.shows("at the end")
	w.carried("at the end", to(1).Text, to(2).Text, to(3).Text, to(4).Text, to(5).Text)
}

// carryKeepsChanged: a carry checks the stored expiry, whatever the guard.
func carryKeepsChanged(w *world) {
	put := w.row(3)
	found := w.find(3)
	put[1].Expiry = key(1_000_000)
	w.put(put[1])
	w.same("outcomes", outcomes(w.carry(false, found...)), []string{"carried", "changed", "carried"})
	w.shows("afterwards", key(1_000_000).Text)
	w.carried("then", to(0).Text, to(2).Text)
}

func carryFindsGone(w *world) {
	w.row(2)
	found := w.find(2)
	w.settle(found[0], store.Delete)
	w.same("outcomes", outcomes(w.carry(false, found...)), []string{"gone", "carried"})
	w.shows("afterwards")
	w.carried("then", to(1).Text)
	w.intact("after a carry", 1)
}

// carryRepeated: a repeated carry, as after a lost reply, finds its own value.
func carryRepeated(w *world) {
	w.row(3)
	found := w.find(3)
	w.carry(false, found...)
	for _, op := range w.carry(false, found...) {
		if op.Outcome != store.Carried && (op.Outcome != store.Changed || op.Known && op.Now.Text[:8] != "00000002") {
			w.Errorf("what was carried before is %s", outcome(op.Outcome))
		}
	}
	w.carried("twice", to(0).Text, to(1).Text, to(2).Text)
	w.intact("after two carries", 3)
}

func carryDryRun(w *world) {
	put := w.row(3)
	found := w.find(3)
	meter := new(store.Meter)
	m := *w
	m.ctx = store.WithMeter(w.ctx, meter)
	w.same("outcomes", outcomes(m.carry(true, found...)), []string{"carried", "carried", "carried"})
	if o := meter.Operations(); o.Writes != 0 || o.Deletes != 0 {
		w.Errorf("a dry run billed %+v", o)
	}
	w.shows("afterwards", texts(put...)...)
}

func settleCarries(w *world) {
	put := w.row(2)
	found := w.find(2)
	if o, seen := w.settle(found[0], store.CarryTo(to(0))); o != store.Carried ||
		fmt.Sprint(seen[len(seen)-1]) != fmt.Sprint(put[0].Expiry) {
		w.Errorf("settle says %s and showed %v", outcome(o), seen)
	}
	w.shows("afterwards", key(1).Text)
	w.carried("then", to(0).Text)
	w.intact("after settling", 2)
}
