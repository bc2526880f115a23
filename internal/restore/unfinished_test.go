package restore_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/restore"
	"github.com/reaper-ttl/reaper/store"
)

// A restore that goes on so late that what it restores would be due at once is refused.
func TestContinuedTooLate(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(600, 600)
		w.stopHalfway()
		time.Sleep(8 * day)
		if res, err := restore.Run(t.Context(), w.config()); !errors.Is(err, restore.ErrDue) || len(w.entities()) != 500 {
			t.Errorf("%d exist, %+v, %v", len(w.entities()), res, err)
		}
		cfg := w.config()
		cfg.Order = "another expiry"
		cfg.Abandon = true
		if res := w.run(cfg); res.Restored != 100 || res.Due != 0 {
			t.Errorf("%+v", res)
		}
	})
}

// A restore tells of one that was not finished: the same order goes on with it, and takes nothing that was archived
// later; after another order it does not go on. A dry run says the same, of the same span.
func TestSaysWhatWasNotFinished(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(600, 600)
		first := w.stopHalfway()
		if len(first.Warnings) > 0 {
			t.Errorf("nothing was unfinished before: %q", first.Warnings)
		}
		time.Sleep(time.Hour)
		for _, c := range []struct {
			order, want string
			apply       bool
		}{{"another order", "is given up", false}, {"", "and nothing later", false}, {"", "and nothing later", true}} {
			cfg := w.config()
			cfg.Order, cfg.Sweep.Apply = cmp.Or(c.order, cfg.Order), c.apply
			res := w.run(cfg)
			until := first.Until.Format(time.RFC3339)
			if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], c.want) || !strings.Contains(res.Warnings[0], until) {
				t.Errorf("%+v: %q, not until %s", c, res.Warnings, until)
			}
			if is := res.Until.Equal(*first.Until); is != (c.order == "") {
				t.Errorf("%+v: until %v, the first one until %v", c, res.Until, first.Until)
			}
		}
		if res := w.run(w.config()); len(res.Warnings) > 0 || len(w.entities()) != 600 {
			t.Errorf("once it is finished: %q, %d exist", res.Warnings, len(w.entities()))
		}
	})
}

// A restore that was not finished is given up by none but one that says so; the same order then begins again, too.
func TestGivesUpNothingUnasked(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(600, 600)
		w.stopHalfway()
		time.Sleep(6*day + 23*time.Hour + 59*time.Minute)
		other := w.config()
		other.Order, other.Expiry = "another order", restore.Expiry{Never: true}
		res, err := restore.Run(t.Context(), other)
		if !errors.Is(err, restore.ErrUnfinished) || res.Restored != 0 || len(w.entities()) != 500 {
			t.Errorf("another order: %+v, %v", res, err)
		}
		time.Sleep(time.Hour)
		if _, err := restore.Run(t.Context(), w.config()); !errors.Is(err, restore.ErrDue) {
			t.Errorf("the same order, due by now: %v", err)
		}
		again := w.config()
		again.Abandon = true
		if res := w.run(again); res.Continued || res.Exist != 500 || res.Restored != 100 {
			t.Errorf("given up: %+v", res)
		}
		if at, _ := w.expiry("s-0599"); time.Until(at) < 7*day-time.Minute {
			t.Errorf("the last one expires at %v", at)
		}
		w.run(other)
	})
}

// One that is stopped or killed within its first 500 entities may have inserted some.
func TestUnfinishedFirstChunk(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(400, 400)
		cfg := w.config()
		cfg.Rate.Unlimited, cfg.Rate.Start, cfg.Rate.Max = false, 2, 2
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if res, err := restore.Run(ctx, cfg); err != nil || res.Complete || res.Restored == 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		other := w.config()
		other.Order = "another order"
		if _, err := restore.Run(t.Context(), other); !errors.Is(err, restore.ErrUnfinished) {
			t.Errorf("another order: %v", err)
		}
		other.Sweep.Apply = false
		if res := w.run(other); len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "is given up") {
			t.Errorf("its dry run: %q", res.Warnings)
		}
	})
}

// One that was killed before it came to insert anything is in nobody's way.
func TestUnfinishedBeforeItsFirstEntity(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(3, 3)
		w.killWhilePlanning(w.config())
		other := w.config()
		other.Order = "another order"
		if res := w.run(other); res.Restored != 3 || len(res.Warnings) > 0 {
			t.Errorf("%+v", res)
		}
	})
}

// One that gives up another one, and then comes to insert nothing, leaves that as it was.
func TestGivesUpForNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(600, 600)
		w.stopHalfway()
		cfg := w.config()
		cfg.Order, cfg.Abandon, cfg.From = "another order", true, restore.FromPITR
		if _, err := restore.Run(t.Context(), cfg); !errors.Is(err, store.ErrUnsupported) {
			t.Fatal(err)
		}
		if res := w.run(w.config()); !res.Continued || res.Restored != 600 {
			t.Errorf("%+v", res)
		}
	})
}

// An object that cannot be read at first, and can be as the restore goes on, is restored as well.
func TestContinuesWithRepairedObject(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(1200, 600)
		name := w.bucket.names()[0]
		whole := w.bucket.objects[name]
		w.bucket.objects[name] = nil
		w.stopHalfway()
		w.bucket.objects[name] = whole
		if res := w.run(w.config()); len(w.entities()) != 1200 {
			t.Errorf("%d exist: %+v", len(w.entities()), res)
		}
	})
}

// A restore that starts over, because the archive has more of the selection again, and is stopped before it inserts
// anything, starts over the next time as well: it has come to no place in the new plan.
func TestStopsAsItStartsOver(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(1800, 600)
		name := w.bucket.names()[0]
		whole := w.bucket.objects[name]
		w.bucket.objects[name] = nil
		w.stopHalfway()
		w.bucket.objects[name] = whole
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Insert" {
				cancel()
				return store.ErrUnavailable
			}
			return nil
		}
		res, err := restore.Run(ctx, w.config())
		if err != nil || res.Complete || res.Continued || len(w.entities()) != 500 {
			t.Errorf("stopped as it starts over: %+v, %v", res, err)
		}
		w.s.Before = nil
		if res := w.run(w.config()); res.Exist != 500 || res.Restored != 1300 || len(w.entities()) != 1800 {
			t.Errorf("%d exist: %+v", len(w.entities()), res)
		}
	})
}

// One that was killed while it made its plan is not gone on with: the same words mean another span by now.
func TestKilledWhileItPlanned(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(3, 3)
		w.killWhilePlanning(w.config())
		time.Sleep(8 * day)
		w.put(`{}`, "later")
		w.sweep("two", deleted, key("later"))
		if res := w.run(w.config()); res.Restored != 4 || len(res.Warnings) > 0 {
			t.Errorf("%+v", res)
		}
	})
}

// An archive that has nothing of a restore by now, be it that nobody has mounted it, does not finish that one, nor does
// one which gives it up for a selection that has nothing.
func TestNothingEndsNoRestore(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(600, 600)
		w.stopHalfway()
		all := w.bucket.objects
		for _, apply := range []bool{false, true} {
			w.bucket.objects = map[string][]byte{}
			cfg := w.config()
			cfg.Sweep.Apply = apply
			if res, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrNothing) || res.Complete {
				t.Errorf("an empty archive: %+v, %v", res, err)
			}
			w.bucket.objects = all
			cfg = w.config()
			cfg.Order, cfg.Abandon, cfg.Sweep.Apply = "misspelt", true, apply
			cfg.Pick.IDs = []string{"misspelt"}
			if res, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrNothing) || res.Complete {
				t.Errorf("a misspelt id: %+v, %v", res, err)
			}
		}
		if res := w.run(w.config()); !res.Continued || res.Restored != 600 {
			t.Errorf("%+v", res)
		}
	})
}

// One that was to give up another one, and was killed while it planned, has taken nothing from that one.
func TestKilledWhileItGivesUp(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(600, 600)
		first := w.stopHalfway()
		time.Sleep(time.Hour)
		other := w.config()
		other.Order, other.Abandon = "another order", true
		w.killWhilePlanning(other)
		if res := w.run(w.config()); !res.Continued || res.Restored != 600 || !res.Until.Equal(*first.Until) {
			t.Errorf("%+v, until %v, was %v", res, res.Until, first.Until)
		}
	})
}

// One that has nothing left in the archive can be ended: by its own words with --abandon, and at once if the archive
// tells by now that none of it was deleted.
func TestEndsWithNothingLeft(t *testing.T) {
	for _, isPruned := range []bool{false, true} {
		in(t, func(t *testing.T, w *world) {
			names := w.gone(600, 600)
			w.put(`{}`, names...)
			all := w.bucket.objects
			w.bucket.objects = map[string][]byte{}
			w.sweep("two", kept, key(names[0]), key(names[1]))
			none := w.bucket.objects
			w.bucket.objects = all
			for _, n := range names {
				w.s.Remove("Session", "", key(n))
			}
			w.stopHalfway()
			cfg := w.config()
			if w.bucket.objects = none; isPruned {
				w.bucket.objects, cfg.Abandon = map[string][]byte{}, true
			}
			res, err := restore.Run(t.Context(), cfg)
			if !res.Complete || res.Restorable != 0 || errors.Is(err, restore.ErrPartial) == isPruned {
				t.Errorf("pruned %v: %+v, %v", isPruned, res, err)
			}
			w.bucket.objects = all
			other := w.config()
			other.Order = "another order"
			if res := w.run(other); res.Exist != 500 || res.Restored != 100 {
				t.Errorf("pruned %v: after that: %+v", isPruned, res)
			}
		})
	}
}

// A restore that goes on without an object which it had in its plan restores the rest, and says what it has not.
func TestSaysWhatTheArchiveHasLost(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(1800, 600)
		w.stopHalfway()
		name := w.bucket.names()[2]
		for n := range w.bucket.objects {
			if strings.HasPrefix(n, strings.TrimSuffix(name, ".ndjson.zst")) { // the manifest, too
				delete(w.bucket.objects, n)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Insert" {
				cancel()
			}
			return nil
		}
		if res, err := restore.Run(ctx, w.config()); err != nil || res.Complete {
			t.Errorf("stopped as it starts over: %+v, %v", res, err)
		}
		w.s.Before = nil
		res, err := restore.Run(t.Context(), w.config())
		if !errors.Is(err, restore.ErrPartial) || !strings.Contains(err.Error(), "did not 600") || !res.Complete {
			t.Errorf("%+v, %v", res, err)
		}
		if len(w.entities()) != 1200 {
			t.Errorf("%d exist", len(w.entities()))
		}
	})
}

// A restore whose record does not take that it is done fails: its words would go on with it.
func TestNotNotedAsDone(t *testing.T) {
	t.Run("stopped meanwhile", func(t *testing.T) {
		in(t, func(t *testing.T, w *world) {
			w.gone(3, 3)
			ctx, stop := context.WithCancel(t.Context())
			w.s.Before = func(ctx context.Context, c modelstore.Call) error {
				if c.Method == "Save" && c.Record.Sort == store.RestoreRecord && c.Record.Fields["done"] == true {
					stop()
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
			if res, err := restore.Run(ctx, w.config()); !errors.Is(err, context.Canceled) || res.Restored != 3 || res.Complete {
				t.Errorf("%+v, %v", res, err)
			}
		})
	})
	in(t, func(t *testing.T, w *world) {
		w.gone(3, 3)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.RestoreRecord && c.Record.Fields["done"] == true {
				return store.ErrUnavailable
			}
			return nil
		}
		if res, err := restore.Run(t.Context(), w.config()); !errors.Is(err, store.ErrUnavailable) || res.Restored != 3 {
			t.Errorf("%+v, %v", res, err)
		}
		w.s.Before = nil
		if res := w.run(w.config()); !res.Continued || res.Restored != 3 {
			t.Errorf("%+v", res)
		}
		if res := w.run(w.config()); res.Continued {
			t.Errorf("%+v", res)
		}
	})
}

// While the object with the last lines cannot be read, nobody knows up to when the first plan takes what was archived.
func TestFirstPlanWithoutItsLastObject(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(600, 600)
		w.skew = w.target.MaxClockSkew - 2*time.Second
		w.put(`{}`, "last")
		w.sweep("two", deleted, key("last"))
		name := w.bucket.names()[1]
		whole := w.bucket.objects[name]
		w.bucket.objects[name] = nil
		w.stopHalfway()
		w.bucket.objects[name] = whole
		if res := w.run(w.config()); len(w.entities()) != 601 {
			t.Errorf("%d exist: %+v", len(w.entities()), res)
		}
	})
}

// The words of an order may have a duration and an instant. Its record has the span that they meant at first.
func TestGoesOnAfterItsSpan(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(600, 600)
		at := func() restore.Config { // --since 1h --until an instant that is soon
			cfg := w.config()
			cfg.Pick.Since, cfg.Pick.Until = time.Now().Add(-time.Hour), time.Date(2000, 1, 1, 0, 30, 0, 0, time.UTC)
			return cfg
		}
		w.stopHalfwayOf(at())
		time.Sleep(3 * time.Hour)
		if res := w.run(at()); !res.Continued || res.Restored != 600 {
			t.Errorf("%+v", res)
		}
		if _, err := restore.Run(t.Context(), at()); !errors.Is(err, restore.ErrSpan) {
			t.Errorf("the span of another one: %v", err)
		}
	})
}

// A restore that goes on inserts nothing below what the runs before it could not restore.
func TestGoesOnBelowWhatWasRefused(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(`{}`, "p", "q")
		w.s.PutBelow("Session", "", key("p"), modelstore.Kin{Path: "notes/1"})
		w.s.PutBelow("Session", "", key("q"), modelstore.Kin{Path: "notes/1"})
		w.sweep("one", deleted, key("p")+"/notes/1", key("q")+"/notes/1", key("p"), key("q"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			switch {
			case c.Method != "Insert":
			case slices.Contains(c.Paths, key("p")):
				return store.ErrTooLarge
			case slices.Contains(c.Paths, key("q")+"/notes/1"):
				cancel()
				return store.ErrUnavailable
			}
			return nil
		}
		if res, err := restore.Run(ctx, w.config()); err != nil || res.Complete || res.Restored != 1 {
			t.Fatalf("stopped: %+v, %v", res, err)
		}
		w.s.Before = nil
		res, err := restore.Run(t.Context(), w.config())
		if !errors.Is(err, restore.ErrPartial) || !res.Continued || res.Refused != 2 || res.Restored != 2 {
			t.Errorf("%+v, %v", res, err)
		}
		if n, m := len(w.s.Below("Session", "", key("p"))), len(w.s.Below("Session", "", key("q"))); n != 0 || m != 1 {
			t.Errorf("%d below what was refused, %d below what came back", n, m)
		}
	})
}
