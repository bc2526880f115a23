package switches_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/internal/twoclocks"
)

// A machine sleeps while it waits for the gate: what it had read of the record counts as old.
func TestSleepAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, slept, asked := time.Now(), time.Duration(0), 0
		wall := func() time.Time { return time.Now().Add(slept) }
		gate := func(context.Context) error {
			if asked++; asked == 1 {
				slept = time.Hour
			}
			return nil
		}
		s := switches.New(switches.Config{Store: modelstore.New(wall), Target: "sessions", Gate: gate,
			Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return twoclocks.At(wall(), time.Since(began)) }})
		if err := s.Fresh(t.Context()); err != nil || asked != 2 || s.Age() > time.Second {
			t.Errorf("asked %d times, the record is from %v ago, %v", asked, s.Age(), err)
		}
	})
}

// A machine that sleeps goes by no record, and by no reply, of before, and takes nothing for due later than it is.
func TestSleepOfTheMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, slept := time.Now(), time.Duration(0)
		wall := func() time.Time { return time.Now().Add(slept) }
		store, reads := modelstore.New(wall), 0
		store.After = func(context.Context, modelstore.Call) error {
			if reads++; reads == 2 {
				slept += time.Minute
			}
			return nil
		}
		s := switches.New(switches.Config{Store: store, Target: "sessions", Log: slog.New(slog.DiscardHandler),
			Now: func() time.Time { return twoclocks.At(wall(), time.Since(began)) }})
		if err := s.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		slept += time.Hour
		if s.Age() < time.Hour || s.StoreAtMost().Before(wall()) {
			t.Errorf("the record is from %v ago, and the store has %v at most, and not %v", s.Age(), s.StoreAtMost(), wall())
		}
		if err := s.Fresh(t.Context()); err != nil || reads != 3 || s.Age() > time.Second {
			t.Errorf("after %d reads, the record is from %v ago, %v", reads, s.Age(), err)
		}
	})
}

// A read whose request or whose reply takes seconds puts the store's time neither ahead of itself nor too late.
func TestStoreNowOfASlowRead(t *testing.T) {
	slow := func(context.Context, modelstore.Call) error { time.Sleep(4 * time.Second); return nil }
	for name, set := range map[string]func(*modelstore.Store){
		"request": func(s *modelstore.Store) { s.Before = slow },
		"reply":   func(s *modelstore.Store) { s.After = slow },
	} {
		synctest.Test(t, func(t *testing.T) {
			store := modelstore.New(time.Now)
			set(store)
			s := switches.New(switches.Config{Store: store, Target: "sessions", Now: time.Now, Log: slog.New(slog.DiscardHandler)})
			if err := s.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			now := time.Now()
			if early, late := now.Sub(s.StoreNow()), s.StoreAtMost().Sub(now); early < 0 || late < 0 || early+late > 4*time.Second {
				t.Errorf("%s: the store's time is between %v before it and %v after it", name, early, late)
			}
		})
	}
}
