package sweep_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// mostDuration bounds each of the sweeps that begin every five minutes.
const mostDuration = 4*time.Minute + 30*time.Second

// sweepBriefly sweeps once, for so long at most, as a job does, and waits for the next
// five minutes.
func (w *world) sweepBriefly() (res sweep.TargetResult, stopped bool) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(w.t.Context(), mostDuration)
	defer cancel()
	res = sweep.Run(ctx, w.config()).Targets[0]
	stopped = ctx.Err() != nil
	time.Sleep(time.Until(began.Add(every)))
	return res, stopped
}

// For half a day all sweeps are stopped before they are done. Generations are opened,
// drained and retired anyway.
func TestGenerationsMoveOnThoughNoSweepIsDone(t *testing.T) {
	if testing.Short() {
		t.Skip("a day or half of one, which others go through as well")
	}
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.target.Pace = throttle.Limits{Start: 0.1, Max: 0.1}
		w.sweep()
		const sweeps = 12 * 12
		stops, retired, survivors := 0, 0, 0
		due := func(number, sweep, n int) {
			for i := range n {
				w.dueIn(number, 0, fmt.Sprintf("due-%d-%d", sweep, i), time.Now())
			}
		}
		due(1, -1, 150)
		for n := range sweeps {
			list := w.targetRecord().Generations
			newest := list[len(list)-1].Number
			due(newest, n, 60) // twice of what the pace lets go
			if n%6 == 0 {
				w.dueIn(newest, 1, fmt.Sprint("survivor-", n), time.Now().Add(1000*time.Hour))
				survivors++
			}
			res, stopped := w.sweepBriefly()
			if res.Error != "" {
				t.Fatalf("sweep %d: %+v", n, res)
			}
			if stopped && !res.Complete {
				stops++
			}
			retired += len(res.Retired)
		}
		if stops < sweeps*9/10 {
			t.Errorf("only %d of %d sweeps were stopped", stops, sweeps)
		}
		list := w.targetRecord().Generations
		if newest := list[len(list)-1].Number; newest < 12 || retired < 7 || len(list) > 5 {
			t.Errorf("generation %d is the newest, %d have retired, %d are live", newest, retired, len(list))
		}
		for _, name := range w.left() {
			if strings.HasPrefix(name, "survivor") {
				survivors--
			}
		}
		if survivors != 0 {
			t.Errorf("%d survivors are gone", survivors)
		}
		t.Logf("%d stopped, generation %d is the newest, %d have retired", stops, list[len(list)-1].Number, retired)
	})
}

// A graveyard makes queries over what was deleted take their time.
type graveyard struct {
	*world
	from, to time.Time // where tombstones lie, by when they expired

	mu      sync.Mutex
	queries int                      // that read tombstones
	late    int                      // of these, how many got no answer in time
	first   map[string]time.Duration // by shard: the span of the first of them in this sweep
}

// cost returns how long a query over a span takes: two seconds for an hour, and
// every day one hour in which more was deleted takes twenty times as long.
func (g *graveyard) cost(from, to time.Time) (took time.Duration) {
	for at := from; at.Before(to); {
		next := at.Truncate(time.Hour).Add(time.Hour)
		if next.After(to) {
			next = to
		}
		one := next.Sub(at) / 1800
		if at.Hour() == 12 {
			one *= 20
		}
		took += one
		at = next
	}
	return took
}

// before lets a query of the first generation wait.
func (g *graveyard) before(ctx context.Context, c modelstore.Call) error {
	shard, _, _ := strings.Cut(strings.TrimPrefix(c.Query.Lo.Text, "00000001."), ".")
	if c.Method != "Scan" || g.to.IsZero() || !slices.Contains([]string{"0000", "0001", "0002", "0003"}, shard) {
		return nil
	}
	expires := func(v store.Value, otherwise time.Time) time.Time {
		if k, err := expirykey.Parse(v.Text); err == nil {
			return k.Expires
		}
		return otherwise
	}
	lo, to := expires(c.Query.Lo, g.from), expires(c.Query.Hi, g.to)
	from := expires(c.Query.After.Value, lo)
	span := to.Sub(from)
	if from.Before(g.from) {
		from = g.from
	}
	if to.After(g.to) {
		to = g.to
	}
	if !from.Before(to) {
		return nil
	}
	err := throttle.Sleep(ctx, g.cost(from, to))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queries++
	if g.first[shard] == 0 {
		g.first[shard] = span
	}
	if err != nil {
		g.late++
		return store.ErrDeadline
	}
	return nil
}

// Reads from the start over ten days of tombstones complete within many sweeps of
// four and a half minutes. Each resumes where the last one stopped, with windows of the
// length that had worked before, and the pace of the range does not suffer.
func TestReadsOverTombstonesComeToTheirEnd(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 2, Max: 2} // push-back leaves one
		g := &graveyard{world: w, from: time.Now(), first: map[string]time.Duration{}}
		w.sweep()
		time.Sleep(10 * 24 * time.Hour)
		for shard := range 4 { // so that each range has a cursor
			w.dueIn(1, shard, fmt.Sprint("former-", shard), time.Now())
		}
		w.sweep()
		to := time.Now().Add(-time.Minute)
		time.Sleep(25 * time.Hour) // all ranges want to be read from their start
		begun := time.Now().Truncate(time.Microsecond)
		for shard := range 4 {
			for i := range 600 { // so that there is normal work, too
				w.dueIn(1, shard, fmt.Sprintf("due-%d-%d", shard, i), begun.Add(-time.Hour+time.Duration(i)*time.Second))
			}
			w.dueIn(1, shard, fmt.Sprint("straggler-", shard), to.Add(-time.Hour))
		}
		w.s.Before = g.before
		g.to = to
		done := func() (n int) {
			for id, c := range w.cursors() {
				if id.Generation == 1 && !c.Rewind.Done.Before(begun) {
					n++
				}
			}
			return n
		}
		sweeps, through := 0, 0
		for ; done() < 4 && sweeps < 40; sweeps++ {
			before := w.cursors()
			clear(g.first)
			if res, _ := w.sweepBriefly(); res.Error != "" {
				t.Fatalf("%+v", res)
			}
			for id, c := range w.cursors() {
				was := before[id]
				if k, err := expirykey.Parse(was.Rewind.Position.Value.Text); id.Generation != 1 ||
					!was.Rewind.Done.Before(begun) || err == nil && k.Expires.After(to.Add(-time.Hour)) {
					continue // it is through
				}
				if c.Rewind.Done.Before(begun) && c.Rewind.Position.Value.Compare(was.Rewind.Position.Value) <= 0 {
					t.Errorf("sweep %d: %v is at %+v, and was at %+v", sweeps, id, c.Rewind, was.Rewind)
				}
				through++
				first, kept := g.first[id.Shard], was.Rewind.Window
				if sweeps > 0 && (kept <= time.Minute || first > kept || first < kept-time.Second) {
					t.Errorf("sweep %d: %v goes on with a window of %v, and was at %+v", sweeps, id, first, was.Rewind)
				}
				if c.Rate < 2 || c.Throttled == string(throttle.ReasonPushBack) {
					t.Errorf("sweep %d: %v is held to %v/s by %q", sweeps, id, c.Rate, c.Throttled)
				}
			}
		}
		t.Logf("%d sweeps, %d queries, %d got no answer, %d entities are left", sweeps, g.queries, g.late, len(w.left()))
		if n := done(); n < 4 || through < 4*5 {
			t.Errorf("after %d sweeps %d of 4 ranges are read; %d times one was under way", sweeps, n, through)
		}
		if g.late > g.queries/10 {
			t.Errorf("%d of %d queries got no answer in time", g.late, g.queries)
		}
		for _, name := range w.left() {
			if strings.HasPrefix(name, "straggler") {
				t.Errorf("%s is left", name)
			}
		}
	})
}
