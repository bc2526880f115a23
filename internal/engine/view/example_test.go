package view_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
)

var now = time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)

// The first read of a target without a record makes one: of the generations that are in use, and of the next.
func Example() {
	s := modelstore.New(func() time.Time { return now })
	sitetest.PutExpired(s, now)
	v := site.New(sitetest.Setup(s, s.Now)).Viewer
	fmt.Println(v.Open(context.Background()))
	for _, g := range v.View().Record.Generations {
		fmt.Println(g.Number, g.Shards, g.Closed.IsZero())
	}
	// Output:
	// <nil>
	// 1 3 false
	// 2 3 true
}
