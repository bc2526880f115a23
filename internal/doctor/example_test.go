package doctor_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A target whose property is misspelt: its entities never expire, and the doctor says why.
func Example() {
	ctx := context.Background()
	target := sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry", Type: store.Instant},
		Layout: "timestamp", Page: 500, Lease: 30 * time.Second, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
		Overlap: 10 * time.Second, MaxClockSkew: 10 * time.Second,
	}
	s := modelstore.New(time.Now)
	if err := s.Put(ctx, target.Target, "", []store.Entity{{Name: "s-1842", Data: []byte(`{"expires": 1}`)}}); err != nil {
		fmt.Println(err)
		return
	}
	report := doctor.Run(ctx, doctor.Setup{Spec: "memory", Sweep: sweep.Config{Store: s, Targets: []sweep.Target{target},
		Workers: 16, Owner: "example", Now: time.Now}})
	for _, f := range report.Findings {
		fmt.Println(f.Severity, f.ID, f.What)
	}
	// Output:
	// error property-missing No entity of Session has the property expiry.
}
