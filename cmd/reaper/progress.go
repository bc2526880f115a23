package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
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
			log.Info("sweeping", "apply", apply, "doing", doing(p), "ranges", p.Ranges.Load(),
				"ranges_done", p.RangesDone.Load(), "scanned", p.Scanned.Load(), "expired", p.Expired.Load(),
				"deleted", p.Deleted.Load())
		})
	}
	if apply {
		return drawProgress(c.stderr, func() string { return "sweeping" }, "entities", &p.Deleted, &p.Due)
	}
	// A dry run counts most of what it meets: how much that is says nothing about how far it has come.
	return drawProgress(c.stderr, func() string { return "dry run: " + doing(p) }, "ranges", &p.RangesDone, &p.Ranges)
}

// doing says for people what a sweep does at present.
func doing(p *sweep.Progress) string {
	var parts []string
	for _, is := range []struct {
		n    *atomic.Int64
		what string
	}{
		{&p.Counting, "counting (ranges: %d)"},
		{&p.FromStart, "reading from the start (ranges: %d)"},
		{&p.Judging, "counting for the breaker (targets: %d)"},
	} {
		if n := is.n.Load(); n > 0 {
			parts = append(parts, fmt.Sprintf(is.what, n))
		}
	}
	if len(parts) == 0 {
		return "reading"
	}
	return strings.Join(parts, ", ")
}

// drawProgress draws a bar that follows n, until done is called. Most is how many there will
// be, or 0 as long as nobody knows. What says what is done, and unit what n counts.
func drawProgress(stderr io.Writer, what func() string, unit string, n, most *atomic.Int64) (done func()) {
	bar := newBar(stderr, what(), unit)
	stop := every(barEvery, func() {
		at := n.Load()
		bar.Describe(what())
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
func newBar(stderr io.Writer, what, unit string) *progressbar.ProgressBar {
	return progressbar.NewOptions64(-1,
		progressbar.OptionSetWriter(stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString(unit),
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
