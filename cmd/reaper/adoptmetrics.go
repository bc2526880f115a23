package main

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// adoptionsEvery is how often a daemon reads how far adoptions are: a read for each target,
	// and one for each part of an adoption.
	adoptionsEvery = 5 * time.Minute
	// adoptionWithin bounds one such read.
	adoptionWithin = 10 * time.Second
)

// readAdoptions brings the metrics of adoptions, which other processes make, up to date.
func (d *daemon) readAdoptions(ctx context.Context) {
	for _, t := range d.sweep.Targets {
		if t.Type == store.Text {
			d.readAdoption(ctx, t.Name)
		}
	}
}

// readAdoption sets the metrics of one adoption. A read that fails leaves them as they are.
func (d *daemon) readAdoption(ctx context.Context, target string) {
	ctx, cancel := context.WithTimeout(ctx, adoptionWithin)
	defer cancel()
	st, err := adopt.LoadState(ctx, d.db.Store, target)
	switch {
	case err != nil:
		d.log.DebugContext(ctx, "cannot read the adoption", "target", target, "error", err)
	case st == nil || st.Phase == adopt.Undoing || st.Phase == adopt.Finished:
		d.metrics.Adoption(target, nil)
	default:
		d.metrics.Adoption(target, map[string]int64{metrics.Stamped: st.Written, metrics.Unstamped: st.Unstamped,
			metrics.Mismatched: st.Mismatch})
	}
}
