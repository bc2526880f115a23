package restore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/restore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A telling store tells what archived sessions hold in the property "expires".
type telling struct {
	*modelstore.Store
	expires map[string]time.Time // by key
}

func (s *telling) ExpiryOf(c store.Copy, from, t store.Target) (store.Value, error) {
	at, has := s.expires[c.Key]
	switch isBelow := strings.Contains(c.Key, "/"); {
	case isBelow != (t.Kind == "Note"):
	case t.Property == from.Property:
		return c.Expiry, nil
	case has && c.Data != nil:
		return store.InstantValue(at), nil
	}
	return store.Value{}, nil
}

// byExpires returns a process that restores where a second target sweeps sessions by the property "expires".
func (w *world) byExpires(expires map[string]time.Time) restore.Config {
	cfg := w.config()
	cfg.Sweep.Store = &telling{w.s, expires}
	cfg.Others = []sweep.Target{{Retention: day, MaxAge: 1825 * day,
		Target: store.Target{Name: "old-sessions", Kind: "Session", Property: "expires", Type: store.Instant}}}
	return cfg
}

func TestOtherTarget(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(5, 5)
		now := time.Now()
		due := map[string]time.Time{key("s-0001"): now.Add(-25 * time.Hour), key("s-0002"): now.Add(-23 * time.Hour),
			key("s-0003"): now.Add(time.Hour)}
		for _, apply := range []bool{false, true} {
			cfg := w.byExpires(due)
			cfg.Sweep.Apply = apply
			res, err := restore.Run(t.Context(), cfg)
			if !errors.Is(err, restore.ErrOtherTarget) || !strings.Contains(err.Error(), "1 of 5 by property expires of target old-sessions") {
				t.Errorf("apply %v: %+v, %v", apply, res, err)
			}
		}
		if len(w.entities()) > 0 {
			t.Errorf("%d came back", len(w.entities()))
		}
		delete(due, key("s-0001"))
		due[key("s-0000")] = time.Time{}.AddDate(0, 0, 1) // for "never": it is suspect
		cfg := w.byExpires(due)
		if res := w.run(cfg); res.Restored != 5 {
			t.Errorf("what is not due is refused: %+v", res)
		}
		cfg = w.byExpires(map[string]time.Time{key("s-0001"): now.Add(-25 * time.Hour)})
		cfg.Others[0].Namespaces, cfg.Sweep.Apply = []string{"another"}, false
		w.run(cfg)
	})
}

// What comes to be due for another target while a restore goes on stops it.
func TestOtherTargetMeanwhile(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		names := w.gone(1000, 1000)
		due := map[string]time.Time{}
		for _, n := range names[100:] {
			due[key(n)] = time.Now().Add(time.Minute - day)
		}
		cfg := w.byExpires(due)
		cfg.Rate.Unlimited, cfg.Rate.Start, cfg.Rate.Max = false, 2, 2
		res, err := restore.Run(t.Context(), cfg)
		n := len(w.entities())
		if !errors.Is(err, restore.ErrOtherTarget) || res.Restored != int64(n) || n < 100 || n > 150 { // within one chunk
			t.Errorf("%d are back; %+v, %v", len(w.entities()), res, err)
		}
	})
}

// A descendant has no expiry of the target's, whatever its property of that name holds; one of a target of its own has.
func TestOtherTargetBelow(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put("{}", "parent")
		w.s.PutBelow("Session", "", key("parent"), modelstore.Kin{Path: "notes/a"})
		w.edit = func(c *store.Copy) {
			if strings.Contains(c.Key, "/") {
				c.Expiry = store.InstantValue(time.Now().Add(-2 * day))
			}
		}
		w.sweep("one", deleted, key("parent"), key("parent")+"/notes/a")
		cfg := w.byExpires(nil)
		cfg.Others[0].Target = store.Target{Name: "notes", Kind: "Note", Property: "expiry_key", Type: store.Instant}
		if res, err := restore.Run(t.Context(), cfg); !errors.Is(err, restore.ErrOtherTarget) {
			t.Errorf("%+v, %v", res, err)
		}
		cfg = w.byExpires(nil)
		if res := w.run(cfg); res.Expiring != 1 || res.Restored != 2 {
			t.Errorf("%+v", res)
		}
	})
}
