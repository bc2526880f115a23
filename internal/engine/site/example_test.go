package site_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
)

// A site says why nothing may be deleted at present, and up to which instant what expires is due.
func Example() {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	setup := sitetest.Setup(s, s.Now)
	setup.Target.Retention = time.Hour
	c := site.New(setup)
	fmt.Println(c.Open(context.Background()), c.HeldBy() == "", c.Horizon().Format(time.TimeOnly))
	// Output: <nil> true 02:00:00
}
