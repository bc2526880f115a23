package inspect_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/sweep"
)

// An explanation of something below an entity is that of the nearest entity of the target. What it says of
// those that exist, TestExplainsDescendants of cmd/reaper holds.
func TestExplainDescendant(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		w.put(1, 4, "a", time.Now().Add(time.Minute))
		explain := func(key string) inspect.Explanation {
			x, err := inspect.ExplainDescendant(t.Context(), w.config(), w.target, "", key)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		_, err := inspect.ExplainDescendant(t.Context(), w.config(), w.target, "", "Other/x/posts/p")
		if !errors.Is(err, inspect.ErrUnknownEntity) || !strings.Contains(err.Error(), "does not lie below") {
			t.Errorf("of another kind: %v", err)
		}
		for _, key := range []string{"", "Session", `Session/"a"`, "posts/p"} {
			if _, err := inspect.ExplainDescendant(t.Context(), w.config(), w.target, "", key); !errors.Is(err, inspect.ErrUnknownEntity) {
				t.Errorf("%q: %v", key, err)
			}
		}
		var found []string
		for _, mode := range []sweep.DescendantsMode{sweep.KeepDescendants, sweep.DeleteDescendants} {
			w.target.Descendants.Mode = mode
			w.s.Before = func(_ context.Context, c modelstore.Call) error { // whose keys do not begin with a kind
				if c.Method == "Settle" {
					found = append(found, c.Ops[0].Entry.Key)
				}
				return nil
			}
			for key, above := range map[string]string{`Session/"a"/posts/p`: `Session/"a"`,
				`Session/"x"/Session/"a"/posts/p/likes/l`: `Session/"x"/Session/"a"`} {
				x := explain(key)
				if x.Descendant != key || x.Key != above || x.Found || found[len(found)-1] != above ||
					!strings.Contains(x.Why, key+" lies below it, and is an orphan") {
					t.Errorf("%s: %+v, %q", mode, x, found)
				}
			}
		}
	})
}
