// Package background runs what a process does in addition to its work: again and again until
// it is stopped, with a grace for what is under way, and without ever taking the process down.
package background

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Repeat calls do again and again until ctx is done, each time after the wait that do
// returned before, or when it is woken. Wake has room for one element.
func Repeat(ctx context.Context, wake chan struct{}, do func(context.Context) (wait time.Duration)) {
	var timer *time.Timer
	for ctx.Err() == nil { // both channels may have been ready
		select { // earlier wakes are served by this call
		case <-wake:
		default:
		}
		if wait := do(ctx); timer == nil {
			timer = time.NewTimer(wait)
			defer timer.Stop()
		} else {
			timer.Reset(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
	}
}

// Wake wakes who repeats, unless it is awake already.
func Wake(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// Protect turns a panic of do into an error: one of our own bugs must not end the
// work on other targets and ranges.
func Protect(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error, please report it: %v\n%s", r, debug.Stack())
		}
	}()
	return do()
}

// Deepen makes room on the stack of a goroutine that has just begun, for what is about to go
// deep. A stack that grows step by step on the way there is copied at each step, with all that
// stands on it by then: that was a tenth of the time of what is short. Workers keep their stacks.
//
//go:noinline
func Deepen() {
	var room [8 << 10]byte
	runtime.KeepAlive(&room)
}

// ErrStopped is the error of work that ends early because the process was asked to stop.
var ErrStopped = errors.New("stopped")

// Graceful returns a context that ends, for the given cause, a grace after ctx does.
func Graceful(ctx context.Context, grace time.Duration, cause error) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var timer atomic.Pointer[time.Timer]
	stop := context.AfterFunc(ctx, func() {
		timer.Store(time.AfterFunc(grace, func() { cancel(cause) }))
	})
	return work, func() {
		stop()
		if t := timer.Load(); t != nil {
			t.Stop()
		}
		cancel(nil)
	}
}
