package inspect_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// Two daemons sweep a target, and one range has a backlog that outlasts the test. Status
// agrees with the entities in the store, and is up to date.
func TestStatusBesideTwoDaemons(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Pace = throttle.Limits{Start: 0.5, Max: 0.5}
		w.target.Next = func(at time.Time) time.Time { return at.Truncate(time.Second).Add(time.Second) }
		w.sweep()
		time.Sleep(2 * time.Hour)
		dueIn := func(shard int, name string, at time.Time) {
			t.Helper()
			k, err := expirykey.New(1, shard, at)
			if err != nil {
				t.Fatal(err)
			}
			w.raw(name, k.String())
		}
		oldest := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
		for i := range 800 {
			dueIn(0, fmt.Sprintf("backlog-%03d", i), oldest.Add(time.Duration(i)*time.Second))
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, 2)
		for range 2 {
			cfg := w.config()
			go func() {
				sweep.NewDaemon(cfg, true).Run(ctx)
				done <- struct{}{}
			}()
		}
		time.Sleep(time.Minute)
		for m := range 24 {
			dueIn(1+m%3, fmt.Sprint("due-", m), time.Now()) // in ranges that are at rest
			time.Sleep(time.Minute)
			before := w.firstExpiry()
			st, err := inspect.Status(t.Context(), w.config(), w.target)
			if err != nil {
				t.Fatal(err)
			}
			after := w.firstExpiry() // a daemon may have deleted something meanwhile
			if !same(st.OldestDue, before) && !same(st.OldestDue, after) || !same(st.SweptTo, *st.OldestDue) {
				t.Errorf("minute %d: %v is the oldest; oldest due %v, swept to %v", m, before, st.OldestDue, st.SweptTo)
			}
			if st.LastSweep == nil || time.Since(*st.LastSweep) > 2*time.Minute {
				t.Errorf("minute %d: last sweep %v ago", m, time.Since(*st.LastSweep))
			}
			if len(st.Workers) == 0 || st.Rate != 0.5 {
				t.Errorf("minute %d: rate %v, workers %+v", m, st.Rate, st.Workers)
			}
			for _, r := range st.Ranges {
				switch {
				case r.Generation == 0:
				case r.Swept == nil:
					t.Errorf("minute %d: range %s was never swept to its end", m, r.Shard)
				case r.Shard != "0000" && m > 2 && time.Since(*r.Swept) > 12*time.Minute:
					t.Errorf("minute %d: range %s was swept %v ago", m, r.Shard, time.Since(*r.Swept))
				}
			}
		}
		cancel()
		<-done
		<-done
	})
}

// firstExpiry returns when the first of the entities expires.
func (w *world) firstExpiry() (first time.Time) {
	for _, e := range w.s.Entities("Session", "") {
		if k, err := expirykey.Parse(e.Expiry.Text); err == nil && (first.IsZero() || k.Expires.Before(first)) {
			first = k.Expires
		}
	}
	return first
}
