package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/throttle"
)

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

func TestTheCheckCatchesACheat(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if check([]grant{{now, 100}, {now.Add(500 * time.Millisecond), 100}}, 100, 100) == nil {
		t.Error("200 in half a second pass for 100/s with a burst of 100")
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
