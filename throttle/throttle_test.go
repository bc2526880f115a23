package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/throttle"
)

func ExampleBucket() {
	start := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	b := throttle.NewBucket(start, throttle.Limit{PerSecond: 1000}, 500)
	fmt.Println(b.Take(start, 500))
	fmt.Println(b.Take(start.Add(500*time.Millisecond), 500))
	fmt.Println(b.Take(start.Add(500*time.Millisecond), 100))
	// Output:
	// 500ms
	// 0s
	// 100ms
}

type grant struct {
	at time.Time
	n  int
}

// check holds the invariant: no window grants more than limit x window + burst.
func check(grants []grant, perSecond, burst float64) error {
	for i := range grants {
		sum := 0
		for j := i; j < len(grants); j++ {
			sum += grants[j].n
			window := grants[j].at.Sub(grants[i].at).Seconds()
			if float64(sum) > perSecond*window+burst+1e-6 {
				return fmt.Errorf("%d granted in %.3f s, limit %.0f/s and burst %.0f", sum, window, perSecond, burst)
			}
		}
	}
	return nil
}

func TestNoWindowExceedsTheLimit(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		rate := []float64{0.5, 1, 7, 100, 499, 5000}[rng.IntN(6)]
		page := 1 + rng.IntN(500)
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		b := throttle.NewBucket(now, throttle.Limit{PerSecond: rate}, page)
		var grants []grant
		for range 300 {
			n := 1 + rng.IntN(b.Burst(page))
			for {
				wait := b.Take(now, n)
				if wait == 0 {
					break
				}
				now = now.Add(wait)
			}
			grants = append(grants, grant{now, n})
			now = now.Add(time.Duration(rng.ExpFloat64() * float64(n) / rate * float64(time.Second)))
			if rng.IntN(20) == 0 {
				b = throttle.NewBucket(now, throttle.Limit{PerSecond: rate}, page) // a crash and a new start
			}
		}
		if err := check(grants, rate, float64(max(1, b.Burst(page)))); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestTheCheckCatchesACheat(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if check([]grant{{now, 100}, {now.Add(500 * time.Millisecond), 100}}, 100, 100) == nil {
		t.Error("200 in half a second pass for 100/s with a burst of 100")
	}
}

func TestBurst(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		limit throttle.Limit
		want  int
	}{
		{throttle.Limit{PerSecond: 0.1}, 1},
		{throttle.Limit{PerSecond: 20}, 20},
		{throttle.Limit{PerSecond: 5000}, 500},
		{throttle.Limit{Unlimited: true}, 500},
	} {
		b := throttle.NewBucket(now, c.limit, 500)
		if got := b.Burst(500); got != c.want {
			t.Errorf("burst of %+v = %d, want %d", c.limit, got, c.want)
		}
	}
}

func TestClockThatGoesBackGrantsNothing(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := throttle.NewBucket(now, throttle.Limit{PerSecond: 100}, 500)
	if wait := b.Take(now.Add(-time.Hour), 100); wait != time.Second {
		t.Errorf("wait = %v, want 1s", wait)
	}
}

func TestPacerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.NewPacer(time.Now, throttle.Limit{PerSecond: 100}, 500)
		began := time.Now()
		for range 10 {
			waited, why, err := p.Wait(t.Context(), 100)
			if err != nil || why != throttle.ReasonMax || waited != time.Second {
				t.Errorf("waited %v for %q, %v", waited, why, err)
			}
		}
		if got := time.Since(began); got != 10*time.Second {
			t.Errorf("1000 entities at 100/s took %v", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := p.Wait(ctx, 100); !errors.Is(err, context.Canceled) {
			t.Errorf("wait of a cancelled context: %v", err)
		}
		free := throttle.NewPacer(time.Now, throttle.Limit{Unlimited: true}, 500)
		if waited, why, err := free.Wait(t.Context(), 500); waited != 0 || why != "" || err != nil {
			t.Errorf("unlimited waited %v for %q, %v", waited, why, err)
		}
	})
}
