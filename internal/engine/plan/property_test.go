package plan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

var opened = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

// A dice makes random rules, records and books. What it makes is possible, as
// workers and operators may leave it; with wild set some of it is not.
type dice struct {
	*rand.Rand
	wild bool
	now  time.Time
}

func newDice(seed uint64, wild bool) *dice {
	d := &dice{Rand: rand.New(rand.NewPCG(seed, 7)), wild: wild}
	d.now = opened.Add(d.length(72 * time.Hour))
	return d
}

func (d *dice) yes(chance float64) bool { return d.Float64() < chance }

func (d *dice) length(most time.Duration) time.Duration {
	return time.Duration(d.Int64N(int64(most)/int64(time.Second))) * time.Second
}

// past returns an instant that is not after now; with wild set, any other.
func (d *dice) past() time.Time {
	if d.wild && d.yes(0.1) {
		return time.Date(d.IntN(12000)-100, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return opened.Add(d.length(d.now.Sub(opened) + time.Second))
}

func (d *dice) maybe(chance float64, t time.Time) time.Time {
	if d.yes(chance) {
		return t
	}
	return time.Time{}
}

func (d *dice) rules() plan.Rules {
	name := []layout.Layout{layout.Generation, layout.Generation, layout.Sharded, layout.Timestamp, layout.ShardedTimestamp}[d.IntN(5)]
	r := plan.Rules{Target: "t", Scope: cursor.Scope{Kind: "K", Property: "p", Layout: string(name)},
		Form: name.Form(), Generations: name.HasSuccession(),
		Retention: d.length(time.Hour), MaxAge: 24 * time.Hour, Rewind: time.Hour + d.length(24*time.Hour),
		Policy: generation.Policy{Ramp: d.length(time.Hour),
			Staleness: time.Second + d.length(time.Hour), Slack: time.Second + d.length(time.Hour),
			Settle: d.IntN(3), Keep: 1 + d.IntN(3), Shards: 1 + d.IntN(3)}}
	if r.Generations {
		r.Policy.Every = time.Minute + d.length(48*time.Hour)
	}
	if name == layout.ShardedTimestamp {
		r.ShardValues = []store.Value{store.TextValue("a"), store.TextValue("7")}
	}
	return r
}

func (d *dice) record(r plan.Rules) generation.Record {
	rec := generation.New("t", "K", "p", r.Policy.Shards, false, opened).WithWriterBounds(r.Policy)
	rec.Checked, rec.EmptyIndex, rec.Revision = d.maybe(0.8, d.past()), d.yes(0.1), "5-x"
	if !r.Form.HasGenerations() && d.yes(0.9) {
		return rec
	}
	number, at := 0, opened
	for range d.IntN(6) {
		number += 1 + d.IntN(2)
		at = at.Add(d.length(12 * time.Hour))
		if at.After(d.now) {
			break
		}
		rec.Generations = append(rec.Generations, generation.Generation{Number: number, Shards: 1 + d.IntN(3),
			Opened: at, Ramp: d.length(time.Hour), Staleness: d.length(time.Hour), Slack: d.length(time.Hour)})
	}
	for i := range max(0, len(rec.Generations)-1) {
		g := &rec.Generations[i]
		if at := rec.Generations[i+1].Opened.Add(d.length(time.Hour)); !at.After(d.now) {
			g.Closed = at
			g.Draining = d.maybe(0.3, at.Add(d.length(d.now.Sub(at)+time.Second)))
		}
	}
	return rec
}

func (d *dice) cursor(r plan.Rules, rec generation.Record, id cursor.ID) cursor.Cursor {
	c := cursor.Cursor{ID: id, Scope: r.Scope, Revision: "3-x", TargetRevision: 5}
	c.Opened = rec.Created
	for _, g := range rec.Generations {
		if g.Number == id.Generation {
			c.Opened = g.Opened
		}
	}
	if d.yes(0.8) {
		c.Position = store.Position{Value: store.TextValue("x")}
		if !r.Form.HasGenerations() != (d.wild && d.yes(0.1)) {
			c.Position.Value = store.InstantValue(d.past())
		}
	}
	c.Swept = d.maybe(0.8, d.past())
	c.Rewind = cursor.Rewind{Done: d.maybe(0.7, d.past()), Began: d.maybe(0.1, d.past())}
	c.Stock = cursor.Stock{Next: d.maybe(0.3, d.past().Add(d.length(24*time.Hour)))}
	c.Stock.Suspects, c.Stock.Refused = d.yes(0.2), d.yes(0.2)
	if c.Stock == (cursor.Stock{}) {
		c.Stock.Emptied = d.maybe(0.8, d.past())
	}
	if d.wild && d.yes(0.1) {
		c.Layout, c.Stock.Emptied, c.TargetRevision = "other", d.past(), d.Int64()
	}
	return c
}

// world returns everything that a plan is made of.
func (d *dice) world() (r plan.Rules, v *plan.View, b plan.Book) {
	r = d.rules()
	v = &plan.View{Record: d.record(r), CursorsSent: d.now}
	v.Namespaces = [][]string{{""}, {"", "eu"}}[d.IntN(2)]
	b = plan.Book{Own: map[cursor.ID]cursor.Packed{}, Tried: map[plan.Chore]time.Time{}}
	shards := []string{"0000", "0001", "0002", "0003", "9999", "a", "7", plan.AuditShard}
	if d.wild {
		shards = append(shards, "", "-1", "10000", "99999999999999999999", "+2", "é")
	}
	for range d.IntN(30) {
		id := cursor.ID{Target: "t", Namespace: []string{"", "eu", "gone"}[d.IntN(3)],
			Generation: d.IntN(10), Shard: shards[d.IntN(len(shards))]}
		own := d.yes(0.2)
		c := d.cursor(r, v.Record, id)
		if own {
			b.Own[id] = cursor.Pack(c)
		} else {
			v.Cursors = v.Cursors.With(cursor.Changes{Read: []cursor.Cursor{c}})
		}
	}
	d.readToTheEnd(r, v)
	for _, k := range []plan.Kind{plan.Life, plan.Seal, plan.Raise, plan.Look, plan.Retire, plan.Forget, plan.Audit} {
		if d.yes(0.3) {
			b.Tried[plan.Chore{Kind: k, Generation: d.IntN(3)}] = d.past()
		}
	}
	return r, v, b
}

// readToTheEnd lets some generations be read to their end since they were sealed, of
// which little is left.
func (d *dice) readToTheEnd(r plan.Rules, v *plan.View) {
	for i, g := range v.Record.Generations {
		sealed := v.Record.SealedAt(i, r.Policy.Settle)
		if sealed.IsZero() || sealed.After(d.now) || d.yes(0.4) {
			continue
		}
		began := sealed.Add(d.length(d.now.Sub(sealed) + time.Second))
		if v.Seals == nil {
			v.Seals = map[int]cursor.Seal{}
		}
		if d.yes(0.8) {
			v.Seals[g.Number] = cursor.Seal{Generation: g.Number, Opened: g.Opened, Kind: r.Scope.Kind,
				Property: r.Scope.Property, Namespaces: v.Namespaces, First: began, Began: began, Done: d.now}
		}
		refused := d.yes(0.5)
		late := func(from time.Time) time.Time { return from.Add(d.length(d.now.Sub(from) + time.Second)) }
		for _, rng := range shardquery.Ranges([]generation.Generation{g}, v.Namespaces) {
			c := d.cursor(r, v.Record, r.ID(rng))
			c.Position = store.Position{Value: store.TextValue("x")}
			c.Stock = cursor.Stock{Emptied: late(sealed)}
			c.Rewind = cursor.Rewind{Done: late(c.Stock.Emptied)}
			c.Swept = d.maybe(0.5, d.now)
			if refused && d.yes(0.7) {
				c.Swept, c.Stock = d.now, cursor.Stock{Refused: true, Suspects: d.yes(0.2)}
			}
			v.Cursors = v.Cursors.With(cursor.Changes{Read: []cursor.Cursor{c}})
		}
	}
}

// A whole is all that a plan says.
type whole struct {
	Ranges    []shardquery.Range
	Needs     []plan.Need
	Chores    []plan.Chore
	Forgotten []cursor.Cursor
	Blocked   []int
	Spans     [][]plan.KeySpan
	Stages    []plan.Stage
	Shards    [][]int
}

func ask(p *plan.Plan, v *plan.View) (w whole) {
	w.Ranges, w.Chores, w.Forgotten, w.Blocked = p.Ranges(), p.Chores(), p.Forgotten(), p.Blocked()
	for _, r := range w.Ranges {
		w.Needs = append(w.Needs, p.Range(r))
		p.SealedSoon(r.Generation)
		if !p.Has(r) {
			panic(fmt.Sprintf("%v is not its own range", r))
		}
	}
	if p.Len() != len(w.Ranges) || p.Has(shardquery.Range{Namespace: "elsewhere"}) {
		panic(fmt.Sprintf("%d ranges of %d", p.Len(), len(w.Ranges)))
	}
	for _, ns := range v.Namespaces {
		w.Spans = append(w.Spans, p.AuditSpans(ns))
		plan.NextAudit(p.AuditCursor(ns))
	}
	for _, g := range v.Record.Live() {
		w.Stages = append(w.Stages, p.Stage(g.Number))
		for _, ns := range v.Namespaces {
			w.Shards = append(w.Shards, p.ExtraShards(ns, g))
		}
	}
	return w
}

// change changes some of what a plan is made of, as a step, a chore or a reader of
// records would, and returns the cursors that are other ones in the book.
func (d *dice) change(r plan.Rules, v *plan.View, b plan.Book) (next *plan.View, changed []cursor.ID) {
	view := *v
	for range d.IntN(4) {
		id := cursor.ID{Target: "t", Namespace: []string{"", "eu"}[d.IntN(2)], Generation: d.IntN(7),
			Shard: []string{"0000", "0001", "0002", "0007", plan.AuditShard, "+2"}[d.IntN(6)]}
		if g := v.Record.Generations; len(g) > 0 && d.yes(0.7) {
			id.Generation = g[d.IntN(len(g))].Number
		}
		if b.Own[id] = cursor.Pack(d.cursor(r, v.Record, id)); d.yes(0.2) {
			delete(b.Own, id)
		}
		changed = append(changed, id)
	}
	switch d.IntN(8) {
	case 0:
		view.Record = d.record(r)
	case 1:
		var read cursor.Changes
		for _, id := range d.someOf(v, b) {
			if d.yes(0.1) {
				read.Gone = append(read.Gone, id)
			} else {
				read.Read = append(read.Read, d.cursor(r, v.Record, id))
			}
		}
		view.Cursors = v.Cursors.With(read)
	case 2:
		view.Namespaces = [][]string{{""}, {"", "eu"}}[d.IntN(2)]
	case 3:
		view.Record.Revision, view.Record.Paused = "9-x", true
	}
	return &view, changed
}

// someOf returns some of the ranges that a view or a book have cursors of.
func (d *dice) someOf(v *plan.View, b plan.Book) (list []cursor.ID) {
	ids := maps.Clone(b.Own)
	for id := range v.Cursors.IDs() {
		ids[id] = cursor.Packed{}
	}
	for _, id := range slices.SortedFunc(maps.Keys(ids), func(x, y cursor.ID) int {
		return strings.Compare(x.Key(), y.Key())
	}) {
		if d.yes(0.3) {
			list = append(list, id)
		}
	}
	return list
}

// A plan that follows another one says what a new one would.
func TestNextSaysWhatNewWould(t *testing.T) {
	taken := 0
	for seed := range uint64(1500) {
		d := newDice(seed, seed%3 == 0)
		r, v, b := d.world()
		p := plan.New(r, v, b, d.now)
		for step := range 12 {
			last := p
			var changed []cursor.ID
			v, changed = d.change(r, v, b)
			d.now = d.now.Add(d.length(2 * time.Hour))
			p = p.Next(v, changed, d.now)
			if p.SameRanges(last) {
				taken++
			}
			if got, want := ask(p, v), ask(plan.New(r, v, b, d.now), v); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d: the next plan says\n%+v\nand a new one\n%+v", seed, step, got, want)
			}
		}
	}
	if taken < 5000 {
		t.Errorf("the dice show too little: %d plans took over what was known", taken)
	}
}

// Once a generation is drained, the audit goes over its ranges with suspects: also in a plan that
// follows one by which it had nothing to read.
func TestNextAuditsADrain(t *testing.T) {
	r := plan.Rules{Target: "t", Scope: cursor.Scope{Kind: "K", Property: "p", Layout: "generation"}, Form: layout.Keys,
		Generations: true, Rewind: 24 * time.Hour, Policy: generation.Policy{Every: 24 * time.Hour,
			Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 1, Shards: 1}}
	v := &plan.View{Record: plan.First(r, opened), Cursors: cursor.Table{}, Namespaces: []string{""}}
	drains := opened.Add(30 * time.Hour)
	v.Record.Generations[0].Shards = 1
	v.Record.Generations[0].Closed = opened.Add(24 * time.Hour)
	v.Record.Generations[0].Draining = drains
	v.Record.Generations = append(v.Record.Generations, generation.Generation{Number: 2, Shards: 1,
		Opened: opened.Add(24 * time.Hour)})
	v.Record.Checked = drains
	id := cursor.ID{Target: "t", Generation: 1, Shard: "0000"}
	b := plan.Book{Tried: map[plan.Chore]time.Time{}, Own: map[cursor.ID]cursor.Packed{id: cursor.Pack(cursor.Cursor{ID: id,
		Scope:  cursor.Scope{Kind: "K", Property: "p", Layout: "generation", Opened: v.Record.Generations[0].Opened},
		Rewind: cursor.Rewind{Done: drains}, Stock: cursor.Stock{Suspects: true}})}}
	audits := func(p *plan.Plan) bool {
		return slices.ContainsFunc(p.Chores(), func(c plan.Chore) bool { return c.Kind == plan.Audit })
	}
	before := plan.New(r, v, b, drains.Add(time.Second))
	if audits(before) {
		t.Fatal("the audit has something to read before the drain")
	}
	if drained := drains.Add(time.Hour); !audits(plan.New(r, v, b, drained)) || !audits(before.Next(v, nil, drained)) {
		t.Error("the drain has begun, and the audit does not go over its range")
	}
}

// What a plan costs that follows another one goes by what has changed, not by how many
// ranges there are.
func TestNextLooksAtWhatChanged(t *testing.T) {
	var most [2]int
	for i, shards := range []int{64, 4096} {
		r := plan.Rules{Target: "t", Scope: cursor.Scope{Kind: "K", Property: "p", Layout: "generation"}, Form: layout.Keys,
			Generations: true, Rewind: 24 * time.Hour, Policy: generation.Policy{Every: 24 * time.Hour,
				Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 9, Shards: shards}}
		v := &plan.View{Record: plan.First(r, opened), Cursors: cursor.Table{}, Namespaces: []string{"", "eu"}}
		v.Record.Checked = opened.Add(25 * time.Hour)
		v.Record.Generations[0].Closed = opened.Add(24 * time.Hour)
		v.Record.Generations = append(v.Record.Generations, generation.Generation{Number: 2, Shards: shards,
			Opened: opened.Add(24 * time.Hour)})
		b := plan.Book{Own: map[cursor.ID]cursor.Packed{}, Tried: map[plan.Chore]time.Time{}}
		now := opened.Add(26 * time.Hour)
		p := plan.New(r, v, b, now)
		p.Chores()
		for n := range 100 {
			before := p.Lookups()
			var changed []cursor.ID
			if n%2 == 1 { // else nothing has happened
				id := cursor.ID{Target: "t", Generation: 1, Shard: fmt.Sprintf("%04d", n%shards)}
				b.Own[id] = cursor.Pack(cursor.Cursor{ID: id, Scope: r.Scope, Rewind: cursor.Rewind{Done: now}})
				changed = []cursor.ID{id}
			}
			p = p.Next(v, changed, now.Add(time.Duration(n)*time.Second))
			p.Chores()
			most[n%2] = max(most[n%2], p.Lookups()-before)
		}
		if most[0] > 0 || most[1] > 33 { // a block, and what the audit may go over
			t.Errorf("of %d: %d cursors were looked up though nothing had changed, and %d for one that had", i, most[0], most[1])
		}
	}
}

// Whatever stands in the records, there is a plan, always the same, that changes
// nothing of what it was made of.
func TestAnyRecordsMakeAPlan(t *testing.T) {
	for seed := range uint64(4000) {
		d := newDice(seed, true)
		r, v, b := d.world()
		before := fmt.Sprintf("%+v %+v", *v, b)
		first := ask(plan.New(r, v, b, d.now), v)
		if again := ask(plan.New(r, v, b, d.now), v); !reflect.DeepEqual(first, again) {
			t.Fatalf("seed %d: two plans of one view:\n%+v\n%+v", seed, first, again)
		}
		if after := fmt.Sprintf("%+v %+v", *v, b); after != before {
			t.Fatalf("seed %d: the plan changed what it was made of:\n%s\n%s", seed, before, after)
		}
		_ = plan.CheckLineage(v.Record, seed%2 == 0, "t", v.Cursors)
		plan.Desired(r, v.Record, first.Blocked, d.now)
	}
}

func FuzzNew(f *testing.F) {
	f.Add(uint64(1), int64(0))
	f.Add(uint64(2), int64(-1<<62))
	f.Add(uint64(3), int64(1<<62))
	f.Fuzz(func(_ *testing.T, seed uint64, later int64) {
		d := newDice(seed, true)
		r, v, b := d.world()
		ask(plan.New(r, v, b, d.now.Add(time.Duration(later))), v)
	})
}

// What must hold of every plan.
func TestNeeds(t *testing.T) {
	rests, retires, blocked := 0, 0, 0
	for seed := range uint64(8000) {
		d := newDice(seed, false)
		r, v, b := d.world()
		p := plan.New(r, v, b, d.now)
		w := ask(p, v)
		blocked += len(w.Blocked)
		for i, rng := range w.Ranges {
			n, c := w.Needs[i], p.Cursor(rng)
			if why := wrong(rng, n, c); why != "" {
				t.Fatalf("seed %d: %v %s: it needs %+v, and its cursor is %+v", seed, rng, why, n, c)
			}
			if !n.Read {
				rests++
			}
		}
		retires += checkChores(t, seed, p, w)
	}
	if rests < 500 || retires < 20 || blocked < 20 {
		t.Errorf("the dice show too little: %d ranges at rest, %d retire, %d blocked", rests, retires, blocked)
	}
}

// Strays in a sealed range are found wherever they lie before its first survivor: by the audit, or by a
// read of the range from its start within a rewind.
func TestSealedRangesAreReadFromTheirStart(t *testing.T) {
	audited, read := 0, 0
	for seed := range uint64(8000) {
		d := newDice(seed, false)
		r, v, b := d.world()
		p := plan.New(r, v, b, d.now)
		later := plan.New(r, v, b, d.now.Add(r.Rewind))
		for _, rng := range p.Ranges() {
			c, st := p.Cursor(rng), later.Stage(rng.Generation)
			if rng.Generation == expirykey.Nursery || !st.IsSealed() || c.Stock == (cursor.Stock{}) {
				continue
			}
			from, _ := expirykey.Range(rng.Generation, rng.Shard)
			n := later.Range(rng)
			switch {
			case slices.ContainsFunc(later.AuditSpans(rng.Namespace), func(s plan.KeySpan) bool { return s.From == from }):
				audited++
			case n.FromStart() && !n.SuspectsOnly:
				read++
			default:
				t.Fatalf("seed %d: nothing reads %v from its start: it needs %+v, and its cursor is %+v", seed, rng, n, c)
			}
		}
	}
	if audited < 500 || read < 500 {
		t.Errorf("the dice show too little: %d ranges are audited, %d read from their starts", audited, read)
	}
}

// wrong returns what is wrong with the need of a range, if anything is.
func wrong(r shardquery.Range, n plan.Need, c cursor.Cursor) string {
	st := n.Stage
	open := r.Generation == expirykey.Nursery || !st.IsSealed()
	unread := !open && c.Rewind.Done.Before(st.Since)
	for _, rule := range []struct {
		broken bool
		why    string
	}{
		{n.FromStart() && !n.Read, "is read from its start, and not read"},
		{n.Unread && n.Behind, "has nothing behind a cursor that it has not"},
		{n.SuspectsOnly && !n.Behind, "looks for suspects only, but does not read behind its cursor"},
		{n.SuspectsOnly && c.Stock.Refused, "may have refused entities anywhere"},
		{n.Inventory && open, "has no inventory while writers may write to it"},
		{open && !n.Read, "rests, though writers may write to it"},
		{open && (st.Drain || st.Final), "is drained, though writers may write to it"},
		{unread && !(n.FromStart() && (n.Inventory || n.Fresh)), "was not read from its start since the mark"},
		{unread && n.SuspectsOnly, "was not read from its start since the mark, and not all of it is"},
		{st.Drain && !c.Stock.Next.IsZero() && !n.Read, "rests, and has survivors to carry"},
	} {
		if rule.broken {
			return rule.why
		}
	}
	return ""
}

// checkChores checks which chores are listed, and returns how many generations
// retire.
func checkChores(t *testing.T, seed uint64, p *plan.Plan, w whole) (retires int) {
	t.Helper()
	kinds := []plan.Kind{plan.Life, plan.Seal, plan.Raise, plan.Look, plan.Retire, plan.Forget, plan.Audit}
	seen := map[plan.Chore]bool{}
	last := 0
	for _, c := range w.Chores {
		k := slices.Index(kinds, c.Kind)
		if k < last || seen[c.Key()] || c.At.After(p.Now()) {
			t.Fatalf("seed %d: out of order, twice or not due yet: %+v of %+v", seed, c, w.Chores)
		}
		last, seen[c.Key()] = k, true
		if c.Kind != plan.Retire {
			continue
		}
		retires++
		st := p.Stage(c.Generation)
		if p.Unread(c.Generation, st.Since) || !st.IsSealed() || !st.Final {
			t.Fatalf("seed %d: generation %d retires unread: %+v", seed, c.Generation, st)
		}
		for i, r := range w.Ranges {
			cur := p.Cursor(r)
			empty := !cur.Stock.Emptied.IsZero() && !cur.Rewind.Done.Before(cur.Stock.Emptied)
			if r.Generation == c.Generation && (!empty || w.Needs[i].Read) {
				t.Fatalf("seed %d: generation %d retires, with %v at %+v", seed, c.Generation, r, cur)
			}
		}
	}
	return retires
}

// While nobody does anything, time makes needs, and takes none away: a range that
// needs a read goes on needing it.
func TestTimeOnlyAddsNeeds(t *testing.T) {
	for seed := range uint64(3000) {
		d := newDice(seed, false)
		r, v, b := d.world()
		p := plan.New(r, v, b, d.now)
		for range 10 {
			now := p.Now().Add(d.length(4 * time.Hour))
			next := plan.New(r, v, b, now)
			for _, rng := range p.Ranges() {
				was, is := p.Range(rng), next.Range(rng)
				switch {
				case was.Read && !is.Read, was.Unread && !is.Unread,
					was.Stage.Drain && !is.Stage.Drain, was.Stage.IsSealed() && !is.Stage.IsSealed():
					t.Fatalf("seed %d: %v needed %+v at %v, and %+v at %v", seed, rng, was, p.Now(), is, now)
				case is.Stage.Since.Before(was.Stage.Since):
					t.Fatalf("seed %d: the mark of %v went back from %v to %v", seed, rng, was.Stage.Since, is.Stage.Since)
				}
			}
			p = next
		}
	}
}

// Ranges take turns: names that differ in their last digits are spread over all of
// the period's last fifth.
func TestJitterSpreads(t *testing.T) {
	const period, n = 24 * time.Hour, 64
	var fifths [5]int
	for i := range n {
		j := plan.Jitter(period, fmt.Sprintf("sessions.00000000.%04d", i))
		if j < period/5*4 || j > period {
			t.Fatalf("%d: %v", i, j)
		}
		fifths[min(4, int((j-period/5*4)/(period/25)))]++
	}
	for _, k := range fifths {
		if k < 5 || k > 25 {
			t.Errorf("%d ranges, by fifths: %v", n, fifths)
		}
	}
}

// Everybody visits oldest generations first and the nursery last, each in an order
// of its own.
func TestOrder(t *testing.T) {
	live := []generation.Generation{{Number: 4, Shards: 8}, {Number: 7, Shards: 8}, {Number: 0, Shards: 8}}
	list := shardquery.Ranges(live, []string{""})
	one, same, other := plan.Order(list, 0.25), plan.Order(list, 0.25), plan.Order(list, 0.75)
	if !slices.Equal(one, same) || slices.Equal(one, other) {
		t.Errorf("%v\n%v\n%v", one, same, other)
	}
	for i, r := range other {
		if r.Generation != live[i/8].Number || !slices.Contains(one, r) {
			t.Errorf("%d: %v", i, r)
		}
	}
}
