package main

import (
	"log/slog"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/reaper-ttl/reaper/sweep"
)

const (
	barEvery = 100 * time.Millisecond
	logEvery = 10 * time.Second
)

// watch shows how far a sweep has come: a bar with rate and time left on a
// terminal, elsewhere a log line every ten seconds. The returned function ends it.
func (a *app) watch(p *sweep.Progress, apply bool, log *slog.Logger) (done func()) {
	if !a.onTerminal() {
		return every(logEvery, func() {
			log.Info("sweeping", "apply", apply, "ranges", p.Ranges.Load(), "ranges_done", p.RangesDone.Load(),
				"scanned", p.Scanned.Load(), "expired", p.Expired.Load(), "deleted", p.Deleted.Load())
		})
	}
	at := &p.Deleted
	if !apply {
		at = &p.Expired
	}
	bar := a.bar("sweeping")
	stop := every(barEvery, func() {
		n := at.Load()
		if due := p.Due.Load(); due > 0 {
			bar.ChangeMax64(max(due, n+1)) // not full before the end: the sweep may find more
		}
		_ = bar.Set64(n) // a closed terminal must not stop the sweep
	})
	return func() {
		stop()
		_ = bar.Clear()
	}
}

// bar returns a progress bar on stderr, of unknown length until its maximum is
// changed.
func (a *app) bar(what string) *progressbar.ProgressBar {
	return progressbar.NewOptions64(-1,
		progressbar.OptionSetWriter(a.stderr),
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
