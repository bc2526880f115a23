package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A writer stamps with more shards than the record has: a look past the last one finds
// them, and the record keeps the nursery's highest.
func TestShardsPastTheLast(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		now := time.Now()
		w.raw("nursery 40", "00000000.0040."+now.Add(-time.Hour).UTC().Format("20060102T150405.000Z"))
		w.raw("nursery 9999", "00000000.9999."+now.Add(-time.Hour).UTC().Format("20060102T150405.000Z"))
		w.raw("generation 1, 77", "00000001.0077."+now.Add(-time.Hour).UTC().Format("20060102T150405.000Z"))
		w.raw("broken", "00000001.0078.!")
		w.raw("between", "00000001.0077/")
		w.raw("live", "00000001.0079."+now.Add(time.Hour).UTC().Format("20060102T150405.000Z"))
		res := w.sweep()
		w.wantLeft("broken", "between", "live")
		if res.Deleted != 3 || res.Malformed != 1 || res.Outside != 1 || res.Error != "" {
			t.Errorf("result: %+v", res)
		}
		got, _ := w.s.Load(t.Context(), store.RecordQuery{Sort: store.TargetRecord, Target: "sessions", Keys: []string{"sessions"}})
		if n := got.List[0].Fields["nursery_shards"]; n != int64(10_000) {
			t.Errorf("nursery_shards = %v", n)
		}
	})
}

// A hesitant store answers each query with an empty page first, after which there may
// be more.
type hesitant struct{ *modelstore.Store }

func (s hesitant) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	if q.Next == nil {
		page.Entries, page.More, page.Next = page.Entries[:0], true, "go on"
		return nil
	}
	err := s.Store.Scan(ctx, q, page)
	page.Next = nil
	return err
}

// An empty page is not the end: not of a range, not of the search for shards past the last
// one, and not of the search for any entry in the index.
func TestEmptyPages(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(100, 4*time.Hour)
		past := time.Now().Add(-time.Hour)
		w.put(1, 4000, "with another shard count", past)
		w.put(0, 4000, "in the nursery", past)
		c := w.config()
		c.Store = hesitant{w.s}
		res := sweep.Run(t.Context(), c).Targets[0]
		w.wantLive()
		if res.Deleted != 52 || res.Outside != 0 || res.EmptyIndex || res.Error != "" {
			t.Errorf("result: %+v", res)
		}
	})
}

// If a look-around takes too long, all ranges are swept anyway; the failure is logged, and
// a later look makes up for it.
func TestLookThatTakesTooLong(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.begin()
		w.fill(100, 4*time.Hour)
		w.put(1, 4000, "with another shard count", time.Now().Add(-time.Hour))
		slow := true
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if slow && c.Method == "Scan" && strings.HasSuffix(c.Query.Hi.Text, "/") {
				return store.ErrDeadline
			}
			return nil
		}
		if res := w.sweep(); res.Deleted != 50 || res.Incomplete != 0 || res.Complete || !strings.Contains(res.Error, "look around") {
			t.Errorf("result: %+v", res)
		}
		slow = false
		if res := w.sweep(); res.Deleted != 1 || !res.Complete {
			t.Errorf("the next sweep: %+v", res)
		}
		w.wantLive()
	})
}

// The findings of a look-around are saved even if others have written the target record
// meanwhile, and what they wrote stays.
func TestLookSavedBesideOthers(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.begin()
		w.fill(100, 4*time.Hour)
		w.sweep()
		time.Sleep(25 * time.Hour)
		before, began := w.targetRecord(), time.Now()
		left := w.overtake("checked", 2)
		res := w.sweep()
		after := w.targetRecord()
		if !res.Complete || *left > 0 || after.Checked.Before(began) || after.NurseryShards != before.NurseryShards+6 {
			t.Errorf("checked %v after the sweep began, %d nursery shards more, %d writes of others left: %+v",
				after.Checked.Sub(began), after.NurseryShards-before.NurseryShards, *left, res)
		}
	})
}

// overtake lets others write the target record, so many times, just before this process
// changes a field of it. They add three shards to the nursery each time. It returns how
// often they still will.
func (w *world) overtake(field string, times int) (left *int) {
	got, err := w.s.Load(w.t.Context(), store.RecordQuery{Sort: store.TargetRecord, Target: "sessions", Keys: []string{"sessions"}})
	if err != nil || len(got.List) != 1 {
		w.t.Fatal(got, err)
	}
	before := got.List[0].Fields[field]
	w.s.Before = func(ctx context.Context, c modelstore.Call) error {
		if c.Method != "Save" || c.Record.Sort != store.TargetRecord || times == 0 || c.Record.Fields[field] == before {
			return nil
		}
		times--
		theirs := w.targetRecord()
		theirs.NurseryShards += 3
		_, err := generation.Save(context.WithoutCancel(ctx), w.s, theirs)
		return err
	}
	return &times
}

func TestOutsideAndEmptyIndex(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.raw("garbage", "tomorrow")
		w.raw("empty", "")
		w.raw("no generation", "99999999.0000.20000101T000000.000Z")
		put := func(name string, v store.Value) {
			_ = w.s.Put(t.Context(), w.target.Target, "", []store.Entity{{Name: name, Expiry: v}})
		}
		put("integer", store.Value{Type: store.Other, Text: "17"})
		put("null", store.Value{})
		before := w.left()
		res := w.sweep()
		w.wantLeft(before...)
		if res.Outside != 4 || !res.EmptyIndex || res.Error != "" {
			t.Errorf("result: %+v", res)
		}
		if res = w.sweep(); res.Outside != 4 || !res.EmptyIndex {
			t.Errorf("the next sweep does not say so again: %+v", res)
		}
		w.put(1, 4, "well-formed", time.Now().Add(time.Hour))
		if res = w.sweep(); res.Outside != 4 || res.EmptyIndex {
			t.Errorf("after a well-formed one: %+v", res)
		}
	})
}

// An operator's command is the first thing that runs with another property: the next sweep looks around the
// ranges of that, though the last look was a moment ago.
func TestCommandBringsAnotherProperty(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		if res := w.sweep(); res.Error != "" {
			t.Fatalf("%+v", res)
		}
		w.raw("past the last shard", "00000001.0077."+time.Now().Add(-time.Hour).UTC().Format("20060102T150405.000Z"))
		if w.sweep(); len(w.left()) != 1 {
			t.Fatal("a sweep looks around without a reason")
		}
		w.target.Property = "expires_with"
		if _, _, err := control.Resume(t.Context(), w.config(), w.target, control.Order{Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		if res := w.sweep(); len(w.left()) > 0 || res.Error != "" {
			t.Errorf("%d are left: %+v", len(w.left()), res)
		}
	})
}

// Values that are not timestamps, and those older than max_age, are counted and never
// deleted. A target without any timestamp gives a warning.
func TestOutsideOfTimestamps(t *testing.T) {
	for _, layout := range []string{"timestamp", "sharded-timestamp"} {
		in(t, func(t *testing.T, w *world) {
			layouts[layout](&w.target)
			put := func(name string, v store.Value) {
				e := store.Entity{Name: name, Expiry: v}
				if w.target.ShardProperty != "" {
					e.Shard = w.target.ShardValues[len(name)%3]
				}
				_ = w.s.Put(t.Context(), w.target.Target, "", []store.Entity{e})
			}
			put("text", store.TextValue("2020-01-01T00:00:00Z"))
			put("key", store.TextValue("00000000.0000.20200101T000000.000Z"))
			put("integer", store.Value{Type: store.Other, Text: "1577836800"})
			put("list", store.Value{Type: store.List, Text: `["2020-01-01T00:00:00Z"]`})
			put("null", store.Value{})
			res := w.sweep()
			if res.Outside != 4 || !res.EmptyIndex || res.Deleted != 0 || res.Error != "" {
				t.Errorf("%s: without a timestamp: %+v", layout, res)
			}
			time.Sleep(25 * time.Hour) // what is put now lies behind the cursor
			put("1970", store.InstantValue(time.Unix(0, 0)))
			put("9999", store.InstantValue(time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)))
			put("too old", store.InstantValue(time.Now().Add(-w.target.MaxAge-time.Microsecond)))
			before := w.left()
			put("just not", store.InstantValue(time.Now().Add(-w.target.MaxAge)))
			put("due", store.InstantValue(time.Now()))
			res = w.sweep()
			w.wantLeft(before...)
			if res.Outside != 6 || res.EmptyIndex || res.Deleted != 2 || res.Error != "" {
				t.Errorf("%s: with timestamps: %+v", layout, res)
			}
			if w.target.ShardProperty == "" {
				return
			}
			for i, shard := range []store.Value{store.IntegerValue(8), store.TextValue("7"), {}} {
				_ = w.s.Put(t.Context(), w.target.Target, "", []store.Entity{{Name: fmt.Sprint("in no shard ", i), Shard: shard, Expiry: store.InstantValue(time.Now())}})
			}
			time.Sleep(25 * time.Hour)
			if res = w.sweep(); res.Outside != 8 || res.Deleted != 0 { // without a shard it is in no index
				t.Errorf("with unknown shards: %+v", res)
			}
		})
	}
}

// If the records of a target cannot be read, the result has that error alone: no range was
// reached.
func TestRecordsThatCannotBeRead(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Load" {
				return store.ErrDenied
			}
			return nil
		}
		res := w.sweep()
		if !errors.Is(res.Err, store.ErrDenied) || strings.Contains(res.Error, "ranges") || res.Complete {
			t.Errorf("%+v", res)
		}
	})
}

// A buggyCounter is a store whose COUNT panics.
type buggyCounter struct{ *modelstore.Store }

func (buggyCounter) Count(context.Context, store.Target, string, store.Span, int64) (int64, error) {
	panic("a bug in a COUNT")
}

// A panic while a look around counts is an error of that count: it ends neither the sweep nor
// the process.
func TestPanicInAChoreEndsNoProcess(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(100, 4*time.Hour)
		c := w.config()
		c.Store = buggyCounter{w.s}
		var log strings.Builder
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		res := sweep.Run(t.Context(), c).Targets[0]
		w.wantLive()
		if res.Deleted != 50 || !strings.Contains(log.String(), "a bug in a COUNT") {
			t.Errorf("%+v\n%s", res, log.String())
		}
	})
}
