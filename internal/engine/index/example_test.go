package index_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/store"
)

var now = time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)

// What is due in one range is counted, and read, without a claim.
func Example() {
	s := modelstore.New(func() time.Time { return now })
	sitetest.PutExpired(s, now)
	x := site.New(sitetest.Setup(s, s.Now)).Index
	n, err := x.Count(context.Background(), index.Everywhere([]string{""}, store.Span{}), 0)
	fmt.Println(n, err)
	k, _ := expirykey.New(1, 2, now.Add(time.Hour))
	fmt.Println(x.Decide(store.TextValue(k.String()), now) == index.Early)
	// Output:
	// 1 <nil>
	// true
}
