package storetest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/reaper-ttl/reaper/store"
)

func adopts(c Caps) string {
	if !c.Adopter {
		return "the store does not adopt"
	}
	return ""
}

var adoptCases = []testCase{
	{name: "WalkShowsEveryEntity", needs: adopts, run: walkShowsAll},
	{name: "WalkStaysWithinItsBounds", needs: adopts, run: walkStays},
	{name: "WalkOfNothingEnds", needs: adopts, run: walkOfNothing},
	{name: "LookShowsThePresent", needs: adopts, run: lookShows},
	{name: "SplitsPartTheKeys", needs: adopts, run: splitsPart},
	{name: "RestampSetsOneProperty", needs: adopts, run: restampSets},
	{name: "RestampLeavesANewerExpiry", needs: adopts, run: restampLeavesNewer},
	{name: "RestampChecksTheSource", needs: adopts, run: restampChecksSource},
	{name: "RestampNeverResurrects", needs: adopts, run: restampNeverResurrects},
	{name: "RestampRepeatedIsSuccess", needs: adopts, run: restampRepeated},
	{name: "RestampRemoves", needs: adopts, run: restampRemoves},
	{name: "DisposeChecksThePremise", needs: adopts, run: disposeChecksPremise},
}

// source is the property that the entities of these cases have in their data.
const source = "created"

// unstamped returns an entity without an expiry.
func unstamped(name string, i int) store.Entity {
	return store.Entity{Name: name, Data: fmt.Appendf(nil,
		`{"created":"2026-11-21T12:00:%02dZ","n":7,"half":0.5,"list":[1,"x",null],"map":{"a":true},"none":null}`, i%60)}
}

func (w *world) adopter() store.Adopter { return w.store.(store.Adopter) }

func (w *world) walkQuery(limit int) store.WalkQuery {
	return store.WalkQuery{Target: w.target, Namespace: w.ns, Source: source, Limit: limit}
}

// walk reads all pages of q, as another process would if byKey is true.
func (w *world) walk(q store.WalkQuery, byKey bool) (all []store.Row) {
	w.Helper()
	rows := store.Rows{List: []store.Row{{Key: "left over"}}, More: true, Next: "left over"}
	for pages := 0; ; pages++ {
		w.retry("walk", func() error { return w.adopter().Walk(w.ctx, q, &rows) })
		if len(rows.List) > q.Limit || pages > 1000 {
			w.Fatalf("page %d has %d rows; the limit is %d", pages, len(rows.List), q.Limit)
		}
		all = append(all, rows.List...)
		switch {
		case !rows.More:
			return all
		case rows.Next != nil && (!byKey || len(rows.List) == 0):
			q.Next = rows.Next
		case len(rows.List) > 0:
			q.After, q.Next = rows.List[len(rows.List)-1].Key, nil
		default:
			w.Fatalf("an empty page that has more after it, and nothing to go on from")
		}
	}
}

func (w *world) restamp(ops ...store.RestampOp) []store.RestampOp {
	w.Helper()
	b := &store.Restamping{Query: w.walkQuery(store.MaxPage), Ops: ops}
	w.retry("restamp", func() error { return w.adopter().Restamp(w.ctx, b) })
	return b.Ops
}

func rowKeys(rows []store.Row) []string {
	out := []string{}
	for _, r := range rows {
		out = append(out, r.Key)
	}
	return out
}

// walkShowsAll: entities with and without an expiry appear, each once, whatever the page.
func walkShowsAll(w *world) {
	put := []store.Entity{numbered(7, store.Value{}), numbered(40, key(1))}
	for i := range 9 {
		put = append(put, unstamped(fmt.Sprintf("e-%02d", i), i))
	}
	put[4].Expiry = key(4)
	put[5].Expiry = store.Value{Type: store.Other, Text: "7"}
	w.put(put...)
	w.other().put(unstamped("of another kind", 0))
	whole := w.walk(w.walkQuery(store.MaxPage), false)
	want := []string{}
	for _, e := range put {
		want = append(want, e.Expiry.Text)
	}
	got := []string{}
	for _, r := range whole {
		got = append(got, r.Expiry.Text)
	}
	w.same("the expiries in the order of keys", got, want)
	for i, r := range whole {
		if i >= 2 && (r.Source.Type != store.Text || r.Source.Text != fmt.Sprintf("2026-11-21T12:00:%02dZ", i-2)) {
			w.Errorf("row %d has the source %+v", i, r.Source)
		}
	}
	for _, byKey := range []bool{false, true} {
		for _, limit := range []int{1, 3, 11} {
			got := rowKeys(w.walk(w.walkQuery(limit), byKey))
			w.same(fmt.Sprintf("pages of %d, by key: %v", limit, byKey), got, rowKeys(whole))
		}
	}
}

func walkStays(w *world) {
	var put []store.Entity
	for i := range 6 {
		put = append(put, unstamped(fmt.Sprintf("e-%02d", i), i))
	}
	w.put(put...)
	whole := rowKeys(w.walk(w.walkQuery(store.MaxPage), false))
	q := w.walkQuery(2)
	q.After, q.Until = whole[0], whole[3]
	w.same("after the first and up to the fourth", rowKeys(w.walk(q, true)), whole[1:4])
	q.After, q.Until = whole[3], ""
	w.same("after the fourth", rowKeys(w.walk(q, false)), whole[4:])
}

func walkOfNothing(w *world) {
	w.other().put(unstamped("of another kind", 0))
	if got := w.walk(w.walkQuery(3), false); len(got) != 0 {
		w.Errorf("a kind without entities has rows: %q", rowKeys(got))
	}
}

// lookShows: a look by keys shows what a walk would show now, and no more.
func lookShows(w *world) {
	put := []store.Entity{numbered(7, key(1)), unstamped("a", 1), unstamped("b", 2), named("c", key(9)), unstamped("d", 3)}
	w.put(put...)
	whole := w.walk(w.walkQuery(store.MaxPage), false)
	w.dispose(w.find(2)[1])
	put[2].Expiry = key(50)
	w.put(put[2])
	var rows store.Rows
	w.retry("look", func() error {
		return w.adopter().Look(w.ctx, w.walkQuery(1), rowKeys(whole[:4]), &rows)
	})
	slices.SortFunc(rows.List, func(a, b store.Row) int { return strings.Compare(a.Source.Text, b.Source.Text) })
	got := []string{}
	for _, r := range rows.List {
		got = append(got, r.Key+" "+r.Expiry.Text+" "+r.Source.Text)
	}
	created := []string{"2026-11-21T12:00:01Z", "2026-11-21T12:00:02Z"}
	w.same("a look at four, of which one is gone", got, []string{whole[0].Key + " " + key(1).Text + " ",
		whole[1].Key + "  " + created[0], whole[2].Key + " " + key(50).Text + " " + created[1]})
}

// splitsPart: the walks of all spans between splits show each entity once.
func splitsPart(w *world) {
	const many = 60
	var put []store.Entity
	for i := range many {
		put = append(put, unstamped(fmt.Sprintf("e-%04d", i*37%1000), i))
	}
	w.put(append(put, numbered(3, store.Value{}), numbered(700, store.Value{}))...)
	whole := rowKeys(w.walk(w.walkQuery(store.MaxPage), false))
	var splits []string
	w.retry("split", func() (err error) {
		splits, err = w.adopter().Splits(w.ctx, w.target, w.ns, 7)
		return err
	})
	if len(splits) < 2 || len(splits) > 7 {
		w.Errorf("%d splits of %d entities; at most 7 were wanted: %q", len(splits), many, splits)
	}
	var parts []string
	after := ""
	for _, until := range append(slices.Clone(splits), "") {
		q := w.walkQuery(store.MaxPage)
		q.After, q.Until = after, until
		parts = append(parts, rowKeys(w.walk(q, false))...)
		after = until
	}
	w.same("the rows of all spans", parts, whole)
}

// others returns the data of all entities, by their ids.
func (w *world) others() (all []string) {
	d, ok := w.store.(store.Dumper)
	if !ok {
		return nil
	}
	for e, err := range d.Dump(w.ctx, w.target, w.ns) {
		if err != nil {
			w.Fatalf("dump: %v", err)
		}
		all = append(all, fmt.Sprintf("%s %d %s", e.Name, e.Number, e.Data))
	}
	return all
}

func restampSets(w *world) {
	w.put(unstamped("a", 1), unstamped("b", 2), named("c", key(9)))
	before := w.others()
	rows := w.walk(w.walkQuery(store.MaxPage), false)
	ops := w.restamp(store.RestampOp{Row: rows[0], To: key(5)}, store.RestampOp{Row: rows[1], To: key(6)})
	for _, op := range ops {
		if op.Outcome != store.RowRestamped {
			w.Errorf("the outcome of %s is %d", op.Row.Key, op.Outcome)
		}
	}
	w.shows("after a restamp", key(5).Text, key(6).Text, key(9).Text)
	w.same("the other properties", w.others(), before)
	w.dispose(w.find(3)[0]) // so the entity has one entry, at its new place
	w.shows("after a delete", key(6).Text, key(9).Text)
}

func restampLeavesNewer(w *world) {
	w.put(unstamped("a", 1), unstamped("b", 2))
	rows := w.walk(w.walkQuery(store.MaxPage), false)
	live := unstamped("a", 1)
	live.Expiry = key(5000)
	w.put(live)
	ops := w.restamp(store.RestampOp{Row: rows[0], To: key(5)}, store.RestampOp{Row: rows[1], To: key(6)})
	if ops[0].Outcome != store.RowChanged || ops[0].Now.Expiry != key(5000) || ops[0].Now.Key != rows[0].Key {
		w.Errorf("an entity with a newer key: outcome %d, now %+v", ops[0].Outcome, ops[0].Now)
	}
	if ops[1].Outcome != store.RowRestamped {
		w.Errorf("the entity next to it: outcome %d", ops[1].Outcome)
	}
	w.shows("afterwards", key(6).Text, key(5000).Text)
}

func restampChecksSource(w *world) {
	w.put(unstamped("a", 1))
	rows := w.walk(w.walkQuery(store.MaxPage), false)
	w.put(unstamped("a", 31))
	op := w.restamp(store.RestampOp{Row: rows[0], To: key(5)})[0]
	if op.Outcome != store.RowChanged || op.Now.Source.Text != "2026-11-21T12:00:31Z" {
		w.Errorf("an entity with another source: outcome %d, now %+v", op.Outcome, op.Now)
	}
	w.shows("afterwards")
	if op = w.restamp(store.RestampOp{Row: op.Now, To: key(8)})[0]; op.Outcome != store.RowRestamped {
		w.Errorf("by what it is now: outcome %d", op.Outcome)
	}
	w.shows("at the end", key(8).Text)
}

func restampNeverResurrects(w *world) {
	w.put(named("a", key(1)), unstamped("b", 2))
	rows := w.walk(w.walkQuery(store.MaxPage), false)
	w.dispose(w.find(1)...)
	ops := w.restamp(store.RestampOp{Row: rows[0], To: key(5)}, store.RestampOp{Row: rows[1], To: key(6)})
	if ops[0].Outcome != store.RowGone || ops[1].Outcome != store.RowRestamped {
		w.Errorf("outcomes %d and %d", ops[0].Outcome, ops[1].Outcome)
	}
	w.shows("afterwards", key(6).Text)
	if got := w.walk(w.walkQuery(store.MaxPage), false); len(got) != 1 {
		w.Errorf("%d entities: %q", len(got), rowKeys(got))
	}
}

// restampRepeated: after a lost reply, the same call finds its own write.
func restampRepeated(w *world) {
	w.put(unstamped("a", 1))
	rows := w.walk(w.walkQuery(store.MaxPage), false)
	for range 2 {
		if op := w.restamp(store.RestampOp{Row: rows[0], To: key(5)})[0]; op.Outcome != store.RowRestamped {
			w.Errorf("outcome %d", op.Outcome)
		}
	}
	w.shows("afterwards", key(5).Text)
	if op := w.restamp(store.RestampOp{Row: rows[0], To: key(6)})[0]; op.Outcome != store.RowChanged {
		w.Errorf("another key for the same row: outcome %d", op.Outcome)
	}
	w.shows("at the end", key(5).Text)
}

func restampRemoves(w *world) {
	w.put(unstamped("a", 1), unstamped("b", 2))
	before := w.others()
	for i, r := range w.walk(w.walkQuery(store.MaxPage), false) {
		w.restamp(store.RestampOp{Row: r, To: key(i)})
	}
	rows := w.walk(w.walkQuery(store.MaxPage), false)
	live := unstamped("b", 2)
	live.Expiry = key(50)
	w.put(live)
	ops := w.restamp(store.RestampOp{Row: rows[0]}, store.RestampOp{Row: rows[1]})
	if ops[0].Outcome != store.RowRestamped || ops[1].Outcome != store.RowChanged {
		w.Errorf("outcomes %d and %d", ops[0].Outcome, ops[1].Outcome)
	}
	w.shows("afterwards", key(50).Text)
	w.same("the other properties", w.others(), before)
	if op := w.restamp(store.RestampOp{Row: rows[0]})[0]; op.Outcome != store.RowRestamped {
		w.Errorf("a repeated removal: outcome %d", op.Outcome)
	}
}

// disposeChecksPremise: an entity whose other property changed since the delete was decided is kept,
// though its expiry is as it was. Those next to it are deleted.
func disposeChecksPremise(w *world) {
	var put []store.Entity
	for i, name := range []string{"a", "b", "c"} {
		e := unstamped(name, i)
		e.Expiry = key(i)
		put = append(put, e)
	}
	w.put(put...)
	entries := w.find(3)
	var rows store.Rows
	w.retry("look", func() error { return w.adopter().Look(w.ctx, w.walkQuery(1), keys(entries), &rows) })
	b := w.batch(w.all(), entries...)
	for i, op := range b.Ops {
		for _, row := range rows.List {
			if row.Key == op.Entry.Key {
				b.Ops[i].Premise = store.Premise{Property: source, Value: row.Source}
			}
		}
	}
	live := unstamped("b", 31)
	live.Expiry = key(1)
	w.put(live)
	w.retry("dispose", func() error { return w.store.Dispose(w.ctx, b) })
	want := []string{outcome(store.Deleted), outcome(store.Changed), outcome(store.Deleted)}
	w.same("the outcomes", outcomes(b.Ops), want)
	w.shows("afterwards", key(1).Text)
}
