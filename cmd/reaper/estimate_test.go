package main

import (
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A dry run that would take hours to check little, because its pace is slow, keeps its estimate after two minutes.
func TestExactLookTakesTwoMinutes(t *testing.T) {
	for pace, estimated := range map[float64]bool{0.1: true, 100: false} {
		synctest.Test(t, func(t *testing.T) {
			db := modelstore.New(time.Now)
			target := sweep.Target{
				Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
				Layout: "sharded", Shards: 1, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second,
				Page: 10, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second,
				Pace: throttle.Limits{Start: pace, Max: pace}}
			for i := range 500 {
				k, err := expirykey.New(expirykey.Nursery, 0, time.Now().Add(-time.Hour))
				if err != nil {
					t.Fatal(err)
				}
				e := store.Entity{Name: fmt.Sprint("e-", i), Expiry: store.TextValue(k.String())}
				if err := db.Put(t.Context(), target.Target, "", []store.Entity{e}); err != nil {
					t.Fatal(err)
				}
			}
			log := slog.New(slog.DiscardHandler)
			s := &session{console: &console{stderr: io.Discard}, log: log, sweep: sweep.Config{Store: db,
				Targets: []sweep.Target{target}, Workers: 4, Grace: time.Second, Owner: "dry", Now: time.Now, Log: log}}
			res := s.runWatched(t.Context(), s.sweep, 0)
			if first := res.Targets[0]; !first.Estimated || first.Expired != 500 {
				t.Fatalf("the first look: %+v", first)
			}
			began := time.Now()
			lookExactly(t.Context(), s, &res)
			if took := time.Since(began); took > exactWithin+s.sweep.Grace {
				t.Errorf("pace %v: it took %v", pace, took)
			}
			if got := res.Targets[0]; got.Estimated != estimated || got.Expired != 500 || got.Error != "" || !got.Complete {
				t.Errorf("pace %v: %+v", pace, got)
			}
		})
	}
}
