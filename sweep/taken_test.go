package sweep_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

// Somebody takes a generation out of the target record while an entity of it waits for another
// try. Its cursor does not pass the entity.
func TestGenerationIsTakenOutMeanwhile(t *testing.T) {
	for _, freed := range []int{12, 14, 16, 17, 18} { // right before the visit tries again, or the audit does
		t.Run(fmt.Sprint(freed, " s later"), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) { takeOut(t, w, time.Duration(freed)*time.Second) })
		})
	}
}

func takeOut(t *testing.T, w *world, freed time.Duration) {
	w.target.Policy = hourly
	w.begin()
	w.mustSweep()
	time.Sleep(time.Second)
	if _, err := control.Advance(t.Context(), w.config(), w.target, 4, true); err != nil {
		t.Fatal(err)
	}
	var isLocked atomic.Bool
	isLocked.Store(true)
	w.s.Before = func(_ context.Context, c modelstore.Call) error {
		if concern(c.Ops, "held") && c.Method == "Dispose" || c.Method == "Settle" && isLocked.Load() {
			return fmt.Errorf("somebody holds it: %w", store.ErrContention)
		}
		return nil
	}
	w.put(1, 4, "held", time.Now().Add(time.Second))
	w.serve(w.config())
	time.Sleep(20 * time.Second)
	rec := w.record()
	rec.Generations = slices.DeleteFunc(rec.Generations, func(g generation.Generation) bool { return g.Number == 1 })
	if _, err := generation.Save(t.Context(), w.s, rec); err != nil {
		t.Fatal(err)
	}
	time.Sleep(freed)
	isLocked.Store(false)
	for range 120 {
		time.Sleep(time.Second)
		w.checkCursors()
	}
	if left := w.left(); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}
