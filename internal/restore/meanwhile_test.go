package restore_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/restore"
	"github.com/reaper-ttl/reaper/internal/twoclocks"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// While a restore stands still, an object comes back into the archive, or one is repaired and another one damaged:
// how far it had come is no place in what the archive has now.
func TestArchiveChangesWhileARestoreStops(t *testing.T) {
	for name, c := range map[string]struct {
		gone, damaged bool // before, the first object is gone with its manifest; afterwards, the last one is damaged
		want          int
	}{
		"an object comes back":   {gone: true, want: 1800},
		"another one is damaged": {damaged: true, want: 1200},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.gone(1800, 600)
				names, intact := w.bucket.names(), maps.Clone(w.bucket.objects)
				if w.bucket.objects[names[0]] = nil; c.gone {
					delete(w.bucket.objects, names[0])
					delete(w.bucket.objects, strings.TrimSuffix(names[0], ".ndjson.zst")+".done.ndjson.zst")
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w.s.After = func(context.Context, modelstore.Call) error {
					if len(w.entities()) > 0 {
						cancel()
					}
					return nil
				}
				if res, err := restore.Run(ctx, w.config()); res.Complete || res.Restored == 0 {
					t.Fatalf("not stopped in the middle: %+v, %v", res, err)
				}
				w.s.After = nil
				if maps.Copy(w.bucket.objects, intact); c.damaged {
					w.bucket.objects[names[2]] = nil
				}
				res, err := restore.Run(t.Context(), w.config())
				if len(w.entities()) != c.want || res.Restored+res.Exist != int64(c.want) ||
					errors.Is(err, restore.ErrPartial) != c.damaged {
					t.Errorf("%d exist: %+v, %v", len(w.entities()), res, err)
				}
			})
		})
	}
}

// While the store fails for a minute to renew the lease, entities come to be due, or the target is paused. Nothing is
// inserted afterwards.
func TestSlowLeaseOfARestore(t *testing.T) {
	for name, paused := range map[string]bool{"due": false, "paused": true} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.gone(500, 500)
				cfg := w.config()
				if !paused {
					cfg.Expiry = restore.Expiry{In: time.Minute}
				}
				saves, until := 0, time.Time{} // until then the store fails
				w.s.Before = func(_ context.Context, c modelstore.Call) error {
					switch owner, _ := c.Record.Fields["owner"].(string); {
					case c.Method == "Save" && owner == cfg.Sweep.Owner && time.Now().After(until):
						switch saves++; saves {
						case 2: // the restore begins. A third of the lease passes until it looks at the target
							time.Sleep(6 * time.Second)
							until = time.Now().Add(8 * time.Second)
						case 3:
							w.pause(paused)
							until = time.Now().Add(time.Minute)
							return store.ErrUnavailable
						}
					case (c.Method == "Save" || c.Method == "Load") && time.Now().Before(until):
						return store.ErrUnavailable
					}
					return nil
				}
				res, err := restore.Run(t.Context(), cfg)
				if n := len(w.entities()); saves < 4 || n != 0 || res.Complete || errors.Is(err, restore.ErrDue) == paused {
					t.Errorf("%d came back: %+v, %v", n, res, err)
				}
			})
		})
	}
}

// A store that takes seconds for each renewal, and for each read, is not asked for ever.
func TestSlowStoreOfARestore(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(500, 500)
		cfg := w.config()
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			switch owner, _ := c.Record.Fields["owner"].(string); {
			case c.Method == "Save" && owner == cfg.Sweep.Owner:
				time.Sleep(4 * time.Second)
			case c.Method == "Load":
				time.Sleep(6500 * time.Millisecond)
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if res, err := restore.Run(ctx, cfg); err != nil || len(w.entities()) != 500 {
			t.Errorf("%d came back: %+v, %v", len(w.entities()), res, err)
		}
	})
}

// The monotonic clock of a restore's machine stands still now and then, as while it sleeps: it renews its lease in time.
func TestRestoreOnAMachineThatSleeps(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(500, 500)
		cfg, began := w.config(), time.Now()
		cfg.Sweep.Now = func() time.Time { return twoclocks.At(time.Now(), time.Since(began)/4) }
		var renewed time.Time
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			owner, _ := c.Record.Fields["owner"].(string)
			if c.Method == "Save" && owner == cfg.Sweep.Owner {
				renewed = time.Now()
			}
			if c.Method != "Insert" {
				return nil
			}
			if old := time.Since(renewed); old > w.target.Lease/2 {
				t.Errorf("it inserts by a lease of %v ago", old)
			}
			time.Sleep(9 * time.Second)
			if time.Since(began) < time.Minute {
				return store.ErrContention
			}
			return nil
		}
		w.run(cfg)
	})
}

// A call whose reply is lost is not repeated if another target would delete at once by then, or a signal came: what it
// inserted is counted, announced and told, and nothing else.
func TestLostReplyBeforeTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		written, signal, deaf bool // the breaker cannot be told
		want                  int64
	}{
		"due for another target":      {written: true, want: 500},
		"a signal":                    {written: true, signal: true, want: 500},
		"a signal, nothing was done":  {signal: true},
		"a signal, a breaker is deaf": {written: true, signal: true, deaf: true, want: 500},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				names := w.gone(500, 500)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cfg := w.config()
				if !c.signal {
					cfg = w.byExpires(map[string]time.Time{key(names[0]): time.Now().Add(20*time.Second - day)})
				}
				announced := int64(0)
				cfg.Announce = func(_ context.Context, expiries []time.Time) error {
					if c.deaf {
						return store.ErrUnavailable
					}
					announced += int64(len(expiries))
					return nil
				}
				lost := false
				lose := func(_ context.Context, call modelstore.Call) error {
					if call.Method != "Insert" || lost {
						return nil
					}
					lost = true
					if time.Sleep(9 * time.Second); c.signal {
						cancel()
					}
					return store.ErrUnavailable
				}
				if c.written {
					w.s.After = lose
				} else {
					w.s.Before = lose
				}
				if !c.signal {
					w.s.Before = func(_ context.Context, call modelstore.Call) error {
						if call.Method == "Load" && lost {
							time.Sleep(9 * time.Second)
						}
						return nil
					}
				}
				began := time.Now()
				res, err := restore.Run(ctx, cfg)
				if res.Restored != c.want || res.Exist != 0 || !c.deaf && announced != c.want || int64(len(w.entities())) != c.want ||
					errors.Is(err, restore.ErrOtherTarget) == c.signal || c.signal && (err != nil) != c.deaf {
					t.Errorf("%d came back, %d were announced: %+v, %v", len(w.entities()), announced, res, err)
				}
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it took %v to end", took)
				}
				told := 0
				list, err := history.Read(t.Context(), w.s, "sessions", time.Time{})
				for _, r := range list.Records {
					if strings.HasPrefix(r.Change.What, "restore") {
						told++
					}
				}
				if err != nil || (told == 2) != (c.want > 0) {
					t.Errorf("told %d times: %v", told, err)
				}
			})
		})
	}
}

// A signal comes, and the breaker cannot be told of what was inserted until the grace ends: that is a failure.
func TestBreakerIsNotTold(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(5, 5)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Insert" {
				cancel()
			}
			return nil
		}
		cfg := w.config()
		cfg.Announce = func(ctx context.Context, _ []time.Time) error { <-ctx.Done(); return ctx.Err() }
		if res, err := restore.Run(ctx, cfg); err == nil || res.Restored != 5 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// A restore that takes longer than its entities are to live stops before it inserts what is due at once.
func TestRestoreOutlastsItsExpiries(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(1200, 600)
		cfg := w.config()
		cfg.Expiry = restore.Expiry{In: time.Minute}
		cfg.Rate = throttle.Limits{Start: 10, Max: 10}
		res, err := restore.Run(t.Context(), cfg)
		if !errors.Is(err, restore.ErrDue) || res.Complete || res.Restored < 500 || res.Restored > 700 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// A restore that ends because of what is due by now, and cannot find out what its last call has inserted, fails: the
// error of what is due says that nothing was touched.
func TestUnsettledIsAFailure(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(500, 500)
		cfg := w.config()
		cfg.Expiry = restore.Expiry{In: 20 * time.Second}
		lost := false
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method != "Insert" || lost {
				return nil
			}
			lost = true
			time.Sleep(9 * time.Second)
			return store.ErrUnavailable
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			switch {
			case lost && c.Method == "Load":
				time.Sleep(9 * time.Second)
			case lost && c.Method == "Fetch":
				return store.ErrUnavailable
			}
			return nil
		}
		res, err := restore.Run(t.Context(), cfg)
		if err == nil || errors.Is(err, restore.ErrDue) || len(w.entities()) != 500 {
			t.Errorf("%d are there; %+v, %v", len(w.entities()), res, err)
		}
	})
}
