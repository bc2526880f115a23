package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// want compares the verdict, and looks for words in what it says.
func (w *world) want(v inspect.Verdict, why string) inspect.TargetStatus {
	w.t.Helper()
	st := w.status()
	if st.Verdict != v || !strings.Contains(st.Why, why) {
		w.t.Errorf("the verdict is %s, %q; want %s, %q", st.Verdict, st.Why, v, why)
	}
	return st
}

// The verdict is the first that holds, from a target that nobody has swept to one that
// is held by everything.
func TestVerdicts(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 10, Max: 10}
		w.want(inspect.Idle, "nobody has loaded or swept it yet")
		if _, _, err := sweep.EnsureRecord(t.Context(), w.config(), w.target); err != nil {
			t.Fatal(err)
		}
		w.put(1, 4, "old", time.Now().Add(-time.Second))
		if st := w.want(inspect.OK, "due 1s ago"); st.Backlog == nil || *st.Backlog != 1 {
			t.Errorf("%+v", st)
		}
		time.Sleep(20 * time.Minute)
		w.want(inspect.DryRun, "nobody has swept it with --apply")
		w.sweep()
		w.want(inspect.Idle, "nothing is due")
		w.put(1, 4, "new", time.Now().Add(time.Second))
		time.Sleep(11 * time.Minute)
		w.want(inspect.OK, "due 10m59s ago") // two ticks and a minute
		time.Sleep(time.Minute)
		w.want(inspect.Failing, "nobody has worked on it for 12m")
		claim := w.claim("worker", cursor.ID{Target: "sessions", Generation: 1, Shard: "0000"})
		st := w.want(inspect.Behind, "due 11m59s ago")
		if st.Rate != 10 || st.Backlog == nil || *st.Backlog != 1 || st.GoneAt == nil || time.Until(*st.GoneAt) > time.Second {
			t.Errorf("one at 10/s: %+v", st)
		}
		w.release(claim)
		w.want(inspect.Behind, "ago") // somebody was there a moment ago
		o := control.Order{Actor: "ann", Reason: "a restore"}
		if _, _, err := control.Pause(t.Context(), w.config(), w.target, o, time.Hour); err != nil {
			t.Fatal(err)
		}
		st = w.want(inspect.Paused, "by ann until 2000-01-01T")
		if st.Reason != "a restore" || st.Held != "paused" || st.PausedUntil == nil || st.PausedBy != "ann" || st.GoneAt != nil {
			t.Errorf("paused: %+v", st)
		}
		w.target.Gate = func(context.Context) error { return errors.New("a sale") }
		if st := w.want(inspect.Held, "by its gate, and paused"); st.Reason != "a sale; paused: a restore" || st.PausedBy != "ann" {
			t.Errorf("held: %+v", st)
		}
		w.target.Gate = nil
		time.Sleep(time.Hour)
		if st := w.want(inspect.Failing, ""); st.Paused || st.Reason != "" || st.PausedUntil != nil {
			t.Errorf("after the end of the pause: %+v", st)
		}
	})
}

// BEHIND depends on the target's own schedule.
func TestBehindByTheSchedule(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Next = func(at time.Time) time.Time { return at.Truncate(24 * time.Hour).Add(24 * time.Hour) }
		w.sweep()
		w.put(1, 4, "a", time.Now().Add(time.Minute))
		time.Sleep(47 * time.Hour)
		w.want(inspect.OK, "ago")
		time.Sleep(2 * time.Hour)
		w.want(inspect.Failing, "nobody has worked on it for 2 days")
	})
}

// Entities of a target that nobody has swept, and that has no record, are due as well.
func TestStatusBeforeTheFirstSweep(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.put(1, 4, "old", time.Now().Add(-time.Hour))
		if st := w.status(); w.target.Type == store.Instant && (st.Verdict != inspect.DryRun || st.OldestDue == nil || len(st.Ranges) > 0) {
			t.Errorf("%+v", st)
		}
	})
}

// A status shows for each range since when something in it is due.
func TestOldestDueOfRanges(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		due := map[string]time.Time{}
		for i := range 20 {
			at := time.Now().Add(time.Duration(i+1) * time.Second)
			key := w.put(1, 4, fmt.Sprint("e-", i), at)
			if shard := key[9:13]; due[shard].IsZero() {
				due[shard] = at
			}
		}
		time.Sleep(time.Minute)
		st := w.status()
		for _, r := range st.Ranges {
			want, ok := due[r.Shard]
			if r.Generation == 1 && ok != (r.OldestDue != nil) || ok && r.Generation == 1 && !r.OldestDue.Equal(want) {
				t.Errorf("range %s: %v, want %v", r.Shard, r.OldestDue, want)
			}
		}
		if st.Backlog == nil || *st.Backlog != 20 || st.AtLeast {
			t.Errorf("backlog: %+v", st)
		}
	})
}

// If the store hangs in any of its calls, a status still takes at most five seconds. What it
// could not read is null, and named in Unread.
func TestStatusOfAStoreThatHangs(t *testing.T) {
	sorts := map[string]store.RecordSort{"the target record": store.TargetRecord, "cursors": store.CursorRecord, "heartbeats": store.WorkerRecord}
	for name, hangs := range map[string]func(modelstore.Call) bool{
		"everything": func(modelstore.Call) bool { return true },
		"queries":    func(c modelstore.Call) bool { return c.Method == "Scan" },
		"one range": func(c modelstore.Call) bool {
			return c.Method == "Scan" && strings.HasPrefix(c.Query.Lo.Text, "00000001.0002")
		},
		"the target record": nil, "cursors": nil, "heartbeats": nil,
	} {
		if hangs == nil {
			hangs = func(c modelstore.Call) bool { return c.Method == "Load" && c.Records.Sort == sorts[name] }
		}
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.sweep()
				w.put(1, 4, "old", time.Now().Add(time.Second))
				time.Sleep(time.Hour)
				if name == "cursors" {
					w.pause()
				}
				w.s.Before = func(ctx context.Context, c modelstore.Call) error {
					if hangs(c) {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				}
				began := time.Now()
				st := w.status()
				if took := time.Since(began); took > inspect.Within || took < time.Second {
					t.Errorf("it took %v", took)
				}
				checkUnread(t, name, st)
			})
		})
	}
}

// Of a target with 10,000 ranges, too, a status is there within five seconds: if the store
// hangs in all queries or in each tenth one, it says so, and of how many ranges it does not
// know what is due.
func TestStatusOfTenThousandRangesWhileTheStoreHangs(t *testing.T) {
	for name, every := range map[string]int64{"all queries": 1, "each tenth query": 10} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.target.Shards = 5000
				if _, _, err := sweep.EnsureRecord(t.Context(), w.config(), w.target); err != nil {
					t.Fatal(err)
				}
				var asked atomic.Int64
				w.s.Before = func(ctx context.Context, c modelstore.Call) error {
					if c.Method == "Scan" && asked.Add(1)%every == 0 {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				}
				began := time.Now()
				st := w.status()
				if took := time.Since(began); took > inspect.Within {
					t.Errorf("it took %v", took)
				}
				said := strings.Join(st.Unread, "; ")
				if len(st.Ranges) != 10_000 || !strings.Contains(said, "ranges") || len(said) > 500 {
					t.Errorf("%d ranges; not read: %s", len(st.Ranges), said)
				}
			})
		})
	}
}

// Of ranges that cannot be read in time a status goes by records of the last minute, and says so. By older
// ones it knows nothing.
func TestStatusByRecords(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Scan" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		wants := func(verdict inspect.Verdict, why string) {
			t.Helper()
			st := w.status()
			if st.Verdict != verdict || !strings.Contains(st.Why, why) || len(st.Unread) == 0 {
				t.Errorf("%s, %s; unread %q", st.Verdict, st.Why, st.Unread)
			}
			if (st.SweptTo == nil) != strings.HasPrefix(why, "not all ranges") || st.OldestDue != nil || st.Backlog != nil {
				t.Errorf("swept to %v, oldest due %v, backlog %v", st.SweptTo, st.OldestDue, st.Backlog)
			}
		}
		time.Sleep(20 * time.Second)
		wants(inspect.Unknown, "nothing is due; 8 of 8 ranges by their records, up to 24s old; what lies behind the cursors is not known")
		id := cursor.ID{Target: "sessions", Generation: 1, Shard: "0002"}
		began := time.Now()
		w.edit(id, func(c *cursor.Cursor) { // somebody deletes what is half an hour late
			k, err := expirykey.New(1, 2, began.Add(-30*time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			c.Swept, c.RateUsed, c.Position = time.Time{}, began, store.Position{Value: store.TextValue(k.String())}
		})
		wants(inspect.Behind, "it is swept up to what was due 30m4s ago; 8 of 8 ranges by their records")
		time.Sleep(time.Minute)
		wants(inspect.Unknown, "not all ranges were read within 4s")
	})
}

// checkUnread checks what a status says of a store that hangs.
func checkUnread(t *testing.T, name string, st inspect.TargetStatus) {
	t.Helper()
	text, err := json.Marshal(st)
	if err != nil || len(st.Unread) == 0 {
		t.Errorf("%s, %v", text, err)
	}
	verdict, null := inspect.Unknown, []string{"ranges", "workers", "generations", "rate", "paused", "held", "oldest_due", "backlog", "swept_to"}
	switch name {
	case "queries":
		null = []string{"oldest_due", "backlog", "swept_to"}
	case "one range":
		verdict, null = inspect.Failing, []string{"backlog", "swept_to"}
		if st.OldestDue == nil { // it lies in that range, or in another one
			verdict = inspect.Unknown
		}
	case "heartbeats":
		verdict, null = inspect.Behind, []string{"workers"}
	case "cursors":
		verdict, null = inspect.Paused, []string{"ranges", "workers", "generations", "rate", "oldest_due"}
	}
	if st.Verdict != verdict || (st.Err != nil) != (len(null) > 4) {
		t.Errorf("the verdict is %s, not %s: %s; %v", st.Verdict, verdict, text, st.Err)
	}
	for _, field := range null {
		if !strings.Contains(string(text), `"`+field+`":null`) {
			t.Errorf("%s is not null: %s", field, text)
		}
	}
}

// A status of ten thousand ranges is ready in time though the store answers slowly. It says
// how many ranges it could not read, and what it knows of the others.
func TestStatusOfManyRanges(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 5000
		if _, _, err := sweep.EnsureRecord(t.Context(), w.config(), w.target); err != nil {
			t.Fatal(err)
		}
		for i := range 5000 {
			w.put(1, 5000, fmt.Sprint("e-", i), time.Now().Add(-time.Hour))
		}
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method != "Scan" {
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Millisecond):
				return nil
			}
		}
		began := time.Now()
		st := w.status()
		if took := time.Since(began); took > inspect.Within {
			t.Errorf("it took %v", took)
		}
		if st.OldestDue == nil || st.SweptTo != nil || st.Backlog != nil || len(st.Ranges) != 10_000 || len(st.Unread) != 1 ||
			!strings.Contains(st.Unread[0], "of 10000 ranges") || st.Err != nil {
			t.Errorf("%s: %s, oldest due %v, unread %q", st.Verdict, st.Why, st.OldestDue, st.Unread)
		}
	})
}

// A due entity stays while its target is held, and an explanation says so.
func TestExplainWhatIsHeld(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		w.put(1, 4, "due", time.Now())
		w.put(1, 4, "early", time.Now().Add(24*time.Hour))
		time.Sleep(time.Minute)
		o := control.Order{Actor: "ann", Reason: "a restore"}
		if _, _, err := control.Pause(t.Context(), w.config(), w.target, o, time.Hour); err != nil {
			t.Fatal(err)
		}
		x := w.explain("due")
		if x.Held != "paused" || x.Reason != "a restore" || !strings.HasPrefix(x.Why, "nothing is deleted while the target is paused, by ann until 2000-") {
			t.Errorf("paused: %+v", x)
		}
		if x := w.explain("early"); x.Held != "" || x.Verdict != "early" {
			t.Errorf("not due: %+v", x)
		}
		w.target.Gate = func(context.Context) error { return errors.New("a sale") }
		if x := w.explain("due"); x.Held != "gate" || !strings.HasPrefix(x.Reason, "a sale") || !strings.Contains(x.Why, "gate is closed") {
			t.Errorf("held: %+v", x)
		}
		w.target.Gate = nil
		time.Sleep(time.Hour)
		if x := w.explain("due"); x.Held != "" || !strings.HasPrefix(x.Why, "it is due") {
			t.Errorf("after the pause: %+v", x)
		}
	})
}
