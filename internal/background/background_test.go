package background_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
)

var errOver = errors.New("over")

// A repeated call comes after the wait that it asked for, at once when woken, and never after the end.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		wake, calls := make(chan struct{}, 1), 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			background.Repeat(ctx, wake, func(context.Context) time.Duration { calls++; return time.Minute })
		}()
		expect := func(want int) {
			t.Helper()
			if synctest.Wait(); calls != want {
				t.Fatalf("%d calls, want %d", calls, want)
			}
		}
		expect(1)
		time.Sleep(time.Minute)
		expect(2)
		background.Wake(wake)
		expect(3)
		cancel()
		<-done
		background.Wake(wake)
		background.Wake(wake) // nobody takes it, and nobody waits
		expect(3)
	})
}

func TestProtect(t *testing.T) {
	if err := background.Protect(func() error { panic("ouch") }); err == nil || !strings.Contains(err.Error(), "ouch") ||
		!strings.Contains(err.Error(), "please report it") {
		t.Errorf("after a panic: %v", err)
	}
	if err := background.Protect(func() error { return errOver }); !errors.Is(err, errOver) {
		t.Errorf("after an error: %v", err)
	}
}

// Work has the grace after its context ended, and not longer.
func TestGraceful(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		work, cancel := background.Graceful(ctx, time.Second, errOver)
		defer cancel()
		time.Sleep(time.Hour)
		stop()
		time.Sleep(999 * time.Millisecond)
		if work.Err() != nil {
			t.Error("the grace ended early")
		}
		time.Sleep(2 * time.Millisecond)
		if !errors.Is(context.Cause(work), errOver) {
			t.Errorf("after the grace: %v", context.Cause(work))
		}
	})
}
