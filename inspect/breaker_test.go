package inspect_test

import (
	"testing"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/throttle"
)

// A closed breaker that counts says how many ranges wait for that: those that somebody holds, and nobody
// else's.
func TestBreakerThatCounts(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		counting := func() int {
			t.Helper()
			st := inspect.BreakerStatus{}
			w.looking(func() (err error) {
				st, err = inspect.Breaker(t.Context(), w.config(), w.target)
				return err
			})
			if st.Trip != "" || st.Counting == nil {
				t.Fatalf("%+v", st)
			}
			return *st.Counting
		}
		if n := counting(); n != 0 {
			t.Errorf("%d ranges wait", n)
		}
		for shard, why := range map[string]throttle.Reason{"0000": throttle.ReasonBreaker, "0001": throttle.ReasonBreaker,
			"0002": throttle.ReasonPushBack} {
			id := cursor.ID{Target: "sessions", Generation: 1, Shard: shard}
			w.edit(id, func(c *cursor.Cursor) { c.Throttled = string(why) })
			if shard != "0001" {
				claim := w.claim("sweeper", id)
				defer w.release(claim)
			}
		}
		if n := counting(); n != 1 {
			t.Errorf("%d ranges wait, want 1", n)
		}
	})
}
