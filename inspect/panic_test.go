package inspect_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
)

// A daemon answers these questions for other processes. A panic in a goroutine that answers
// would end it, and sweeps with it: it is an error of the answer.
func TestPanicIsAnErrorOfTheAnswer(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		w.put(1, 4, "due", time.Now().Add(-time.Second))
		reported := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), "internal error, please report it: a bug") {
				t.Errorf("%s: %v", what, err)
			}
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Scan" {
				panic("a bug in a query")
			}
			return nil
		}
		_, err := inspect.Status(t.Context(), w.config(), w.target)
		reported("status", err)
		_, err = inspect.StatusWith(t.Context(), w.config(), w.target, inspect.Look{All: true})
		reported("status --all", err)
		_, err = inspect.ListKept(t.Context(), w.config(), w.target, inspect.KeptRefused, 10)
		reported("list", err)
		w.s.Before = nil
		gated := w.target
		gated.Gate = func(context.Context) error { panic("a bug in a gate") }
		_, err = inspect.Status(t.Context(), w.config(), gated)
		reported("status of a gated target", err)
		if _, err = inspect.Status(t.Context(), w.config(), w.target); err != nil {
			t.Error(err)
		}
	})
}
