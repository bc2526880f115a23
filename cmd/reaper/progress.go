package main

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/reaper-ttl/reaper/sweep"
)

const (
	barEvery = 100 * time.Millisecond
	logEvery = 10 * time.Second
)

// watchSweep shows how far a sweep has come: a bar with rate and time left on a
// terminal, elsewhere a log line every ten seconds. The returned function ends it.
func (c *console) watchSweep(p *sweep.Progress, apply bool, log *slog.Logger) (done func()) {
	if !c.onTerminal() {
		return every(logEvery, func() {
			log.Info("sweeping", "apply", apply, "ranges", p.Ranges.Load(), "ranges_done", p.RangesDone.Load(),
				"scanned", p.Scanned.Load(), "expired", p.Expired.Load(), "deleted", p.Deleted.Load())
		})
	}
	if apply {
		return drawProgress(c.stderr, "sweeping", &p.Deleted, &p.Due)
	}
	return drawProgress(c.stderr, "sweeping", &p.Expired, &p.Due)
}

// drawProgress draws a bar that follows n, until done is called. Most is how many there will
// be, or 0 as long as nobody knows.
func drawProgress(stderr io.Writer, what string, n, most *atomic.Int64) (done func()) {
	bar := newBar(stderr, what)
	stop := every(barEvery, func() {
		at := n.Load()
		if all := most.Load(); all > 0 {
			bar.ChangeMax64(max(all, at+1)) // not full before the end: there may be more
		}
		_ = bar.Set64(at) // a closed terminal must not stop the work
	})
	return func() {
		stop()
		_ = bar.Clear()
	}
}

// newBar returns a progress bar on stderr, of unknown length until its maximum is
// changed.
func newBar(stderr io.Writer, what string) *progressbar.ProgressBar {
	return progressbar.NewOptions64(-1,
		progressbar.OptionSetWriter(stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString("entities"),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(barEvery),
		progressbar.OptionClearOnFinish(),
	)
}

// every calls f in intervals until the function that it returns is called.
func every(interval time.Duration, f func()) (stop func()) {
	quit := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f()
			case <-quit:
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(quit)
		group.Wait()
	})
}

// atOnceAndEvery calls f, and again in intervals, until ctx is done.
func atOnceAndEvery(ctx context.Context, interval time.Duration, f func()) {
	f()
	stop := every(interval, f)
	<-ctx.Done()
	stop()
}
