package storetest

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

var recordCases = []testCase{
	{name: "RecordIsCreatedOnce", run: createdOnce},
	{name: "RecordIsUpdatedFromItsRevision", run: updated},
	{name: "SaveRepeatedIsSuccess", run: saveRepeated},
	{name: "RecordIsRemoved", run: removed},
	{name: "RecordsOfATargetInOrder", run: inOrder},
	{name: "RecordsComeInPages", run: inPages},
	{name: "RecordsByTheirKeys", run: byKeys},
	{name: "RecordQueriesHaveBounds", run: recordBounds},
	{name: "RecordSortsAreApart", run: sortsApart},
	{name: "FieldsKeepTheirTypes", run: fieldTypes},
	{name: "OneOfManySavesWins", run: oneSaveWins},
	{name: "StoreTellsItsTime", run: tellsTime},
}

// record makes a record of the world's target.
func (w *world) record(sort store.RecordSort, key, prev string) store.Record {
	return store.Record{Sort: sort, Key: w.target.Name + "." + key, Target: w.target.Name,
		Revision: store.NewRevision(prev), Fields: store.Fields{"what": key}}
}

func (w *world) load(sort store.RecordSort) (got store.Records) {
	w.Helper()
	w.retry("load", func() (err error) {
		got, err = w.store.Load(w.ctx, store.RecordQuery{Sort: sort, Target: w.target.Name})
		return err
	})
	return got
}

// save returns the error of a save that no longer asks to be repeated.
func (w *world) save(r store.Record, prev string) error {
	return store.Retry(w.ctx, settleWithin, func() error { return w.store.Save(w.ctx, r, prev) })
}

func (w *world) mustSave(r store.Record, prev string) {
	w.Helper()
	if err := w.save(r, prev); err != nil {
		w.Fatalf("save: %v", err)
	}
}

// holds checks that exactly these records are there, in this order.
func (w *world) holds(when string, sort store.RecordSort, want ...store.Record) {
	w.Helper()
	got := w.load(sort).List
	if len(got) != len(want) {
		w.Errorf("%s: %d records, not %d: %+v", when, len(got), len(want), got)
		return
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			w.Errorf("%s: record %d is\n%#v, not\n%#v", when, i, got[i], want[i])
		}
	}
}

func createdOnce(w *world) {
	w.holds("before", store.CursorRecord)
	first := w.record(store.CursorRecord, "c", "")
	w.mustSave(first, "")
	w.holds("after the first", store.CursorRecord, first)
	second := w.record(store.CursorRecord, "c", "")
	w.is("create again", w.save(second, ""), store.ErrConflict)
	w.holds("after the second", store.CursorRecord, first)
}

func updated(w *world) {
	first := w.record(store.CursorRecord, "c", "")
	w.mustSave(first, "")
	second := w.record(store.CursorRecord, "c", first.Revision)
	second.Fields = store.Fields{"other": "fields"}
	w.mustSave(second, first.Revision)
	w.holds("after the update", store.CursorRecord, second)
	third := w.record(store.CursorRecord, "c", first.Revision)
	w.is("update from an old revision", w.save(third, first.Revision), store.ErrConflict)
	missing := w.record(store.CursorRecord, "missing", "")
	w.is("update of what is not there", w.save(missing, first.Revision), store.ErrConflict)
	w.holds("after conflicts", store.CursorRecord, second)
}

func saveRepeated(w *world) {
	first := w.record(store.CursorRecord, "c", "")
	w.mustSave(first, "")
	w.mustSave(first, "")
	second := w.record(store.CursorRecord, "c", first.Revision)
	w.mustSave(second, first.Revision)
	w.mustSave(second, first.Revision)
	w.holds("after both came twice", store.CursorRecord, second)
	w.is("the first, much too late", w.save(first, ""), store.ErrConflict)
}

func removed(w *world) {
	first, stays := w.record(store.CursorRecord, "c", ""), w.record(store.CursorRecord, "stays", "")
	w.mustSave(first, "")
	w.mustSave(stays, "")
	gone := first
	gone.Fields = nil
	w.is("remove from another revision", w.save(gone, store.NewRevision("")), store.ErrConflict)
	w.holds("after a conflict", store.CursorRecord, first, stays)
	w.mustSave(gone, first.Revision)
	w.holds("after the removal", store.CursorRecord, stays)
	w.mustSave(gone, first.Revision) // it is not there: success
	again := w.record(store.CursorRecord, "c", "")
	w.mustSave(again, "")
	w.holds("created again", store.CursorRecord, again, stays)
}

func inOrder(w *world) {
	other := *w
	other.target.Name = w.target.Name + "-x" // whose records' keys begin like ours
	var want []store.Record
	for _, k := range []string{"00000001.0010", "00000001.0002", "00000000.0000", "00000001.0002@ns", "00000001.ü %.\"x\"",
		"00000010.0001"} {
		r := w.record(store.CursorRecord, k, "")
		w.mustSave(r, "")
		want = append(want, r)
		theirs := other.record(store.CursorRecord, k, "")
		w.mustSave(theirs, "")
	}
	slices.SortFunc(want, func(a, b store.Record) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	w.holds("in the order of their keys", store.CursorRecord, want...)
	if got := other.load(store.CursorRecord).List; len(got) != len(want) {
		w.Errorf("the other target has %d records, not %d", len(got), len(want))
	}
}

// keys returns the keys of an answer, without the target's name.
func (w *world) keys(recs store.Records) (list []string) {
	for _, r := range recs.List {
		list = append(list, r.Key[len(w.target.Name)+1:])
	}
	return list
}

// ask loads what a query asks for.
func (w *world) ask(q store.RecordQuery) (got store.Records) {
	w.Helper()
	q.Sort, q.Target = store.CursorRecord, w.target.Name
	for i := range q.Keys {
		q.Keys[i] = w.target.Name + "." + q.Keys[i]
	}
	for _, bound := range []*string{&q.After, &q.Before} {
		if *bound != "" {
			*bound = w.target.Name + "." + *bound
		}
	}
	w.retry("load", func() (err error) {
		got, err = w.store.Load(w.ctx, q)
		return err
	})
	if got.Now.IsZero() {
		w.Errorf("%+v: the answer does not tell the store's time", q)
	}
	return got
}

// Some records of the target, and one of another whose keys lie between them.
func (w *world) someRecords() {
	for _, key := range []string{"1.a", "1.b", "1.b@ns", "2.a", "2.b"} {
		w.mustSave(w.record(store.CursorRecord, key, ""), "")
	}
	other := w.record(store.CursorRecord, "1.c", "")
	other.Target += "-x"
	w.mustSave(other, "")
}

func inPages(w *world) {
	w.someRecords()
	var got []string
	for q, pages := (store.RecordQuery{Limit: 2}), 0; ; pages++ {
		page := w.ask(q)
		got = append(got, w.keys(page)...)
		if len(page.List) > 2 || pages > 5 {
			w.Fatalf("page %d of two records each has %q", pages, w.keys(page))
		}
		if !page.More {
			break
		}
		q.After = got[len(got)-1]
	}
	if want := []string{"1.a", "1.b", "1.b@ns", "2.a", "2.b"}; !slices.Equal(got, want) {
		w.Errorf("pages of two: %q, not %q", got, want)
	}
	var all []string
	err := store.LoadAll(w.ctx, w.store, store.RecordQuery{Sort: store.CursorRecord, Target: w.target.Name, Limit: 2},
		func(page store.Records) error {
			all = append(all, w.keys(page)...)
			return nil
		})
	if err != nil || !slices.Equal(all, got) {
		w.Errorf("all pages: %q, %v", all, err)
	}
}

func byKeys(w *world) {
	w.someRecords()
	for _, c := range []struct{ ask, want []string }{
		{[]string{"2.a", "1.b@ns", "1.a"}, []string{"1.a", "1.b@ns", "2.a"}},
		{[]string{"3.a", "2.b"}, []string{"2.b"}},
		{[]string{"1.c"}, nil}, // another target's
		{[]string{"9"}, nil},
	} {
		if got := w.ask(store.RecordQuery{Keys: slices.Clone(c.ask)}); !slices.Equal(w.keys(got), c.want) || got.More {
			w.Errorf("keys %q: %q, more: %v", c.ask, w.keys(got), got.More)
		}
	}
}

func recordBounds(w *world) {
	w.someRecords()
	for _, c := range []struct {
		after, before string
		limit         int
		want          []string
	}{
		{"1.", "1.~", 0, []string{"1.a", "1.b", "1.b@ns"}},
		{"1.b", "", 0, []string{"1.b@ns", "2.a", "2.b"}},
		{"", "1.b", 0, []string{"1.a"}},
		{"1.a", "2.b", 2, []string{"1.b", "1.b@ns"}},
		{"2.b", "", 0, nil},
	} {
		got := w.ask(store.RecordQuery{After: c.after, Before: c.before, Limit: c.limit})
		if !slices.Equal(w.keys(got), c.want) {
			w.Errorf("after %q, before %q, at most %d: %q, not %q", c.after, c.before, c.limit, w.keys(got), c.want)
		}
	}
	for _, q := range []store.RecordQuery{
		{Target: "t"}, {Sort: store.CursorRecord},
		{Sort: store.CursorRecord, Target: "t", Keys: make([]string, store.MaxRecords+1)},
		{Sort: store.CursorRecord, Target: "t", Keys: []string{"a"}, After: "b"},
	} {
		if _, err := w.store.Load(w.ctx, q); !errors.Is(err, store.ErrInvalid) {
			w.Errorf("%.80v: %v", q, err)
		}
	}
}

func sortsApart(w *world) {
	cursor, sweep := w.record(store.CursorRecord, "same", ""), w.record(store.SweepRecord, "same", "")
	target := w.record(store.TargetRecord, "", "")
	target.Key = w.target.Name
	for _, r := range []store.Record{cursor, sweep, target} {
		w.mustSave(r, "")
	}
	w.holds("cursors", store.CursorRecord, cursor)
	w.holds("sweeps", store.SweepRecord, sweep)
	w.holds("targets", store.TargetRecord, target)
}

func fieldTypes(w *world) {
	r := w.record(store.CursorRecord, "types", "")
	r.Fields = store.Fields{
		"text": "ünï \"quoted\" <&> \\ \n 😀", "empty": "", "digits": "0123", "instant": noon.Format(store.TimeLayout),
		"int": int64(42), "zero": int64(0), "minus": int64(-7), "max": int64(math.MaxInt64), "min": int64(math.MinInt64),
		"odd":   int64(1<<53 + 1),
		"float": 1.5, "whole": 3.0, "float_zero": 0.0, "large": 1e300, "small": 5e-324, "third": 1.0 / 3, "huge_whole": 1e21,
		"yes": true, "no": false,
		"nested": []store.Fields{{"n": int64(1), "f": 2.0, "s": "x"}, {"b": true, "s": ""}},
	}
	w.mustSave(r, "")
	w.holds("with fields of all types", store.CursorRecord, r)
}

func oneSaveWins(w *world) {
	prev := ""
	for round := range 2 {
		const workers = 4
		var saved [workers]store.Record
		var errs [workers]error
		var wait sync.WaitGroup
		for i := range workers {
			saved[i] = w.record(store.CursorRecord, "c", prev)
			saved[i].Fields = store.Fields{"worker": int64(i)}
			wait.Go(func() { errs[i] = w.save(saved[i], prev) })
		}
		wait.Wait()
		var won []store.Record
		for i, err := range errs {
			switch {
			case err == nil:
				won = append(won, saved[i])
			case !errors.Is(err, store.ErrConflict):
				w.Errorf("round %d, worker %d: %v", round, i, err)
			}
		}
		if len(won) != 1 {
			w.Fatalf("round %d: %d of %d saves won", round, len(won), workers)
		}
		w.holds(fmt.Sprintf("round %d", round), store.CursorRecord, won[0])
		prev = won[0].Revision
	}
}

func tellsTime(w *world) {
	const most = 10 * time.Minute
	first := w.load(store.CursorRecord).Now
	second := w.load(store.TargetRecord).Now
	if second.Before(first) {
		w.Errorf("the store's time went from %v back to %v", first, second)
	}
	if first.Location() != time.UTC || second.Location() != time.UTC {
		w.Errorf("the store's time is not in UTC: %v, %v", first, second)
	}
	if off := second.Sub(w.caps.Clock()); off > most || off < -most {
		w.Errorf("the store's time %v is off by %v", second, off)
	}
}
