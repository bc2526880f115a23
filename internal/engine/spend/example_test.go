package spend_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
)

// A target with neither a breaker nor limits has no budget: nothing asks it, and everything is covered.
func Example() {
	s := modelstore.New(time.Now)
	c := site.New(sitetest.Setup(s, time.Now))
	fmt.Println(c.Budget == nil, c.Budget.Failing())
	setup := sitetest.Setup(s, time.Now)
	setup.Target.Limits = breaker.Limits{PerHour: 100}
	setup.Target.Breaker.Limits = setup.Target.Limits
	fmt.Println(site.New(setup).Budget.IsAtLimit())
	b, err := spend.Load(context.Background(), s, "sessions")
	fmt.Println(b.Spent.Ever, err)
	// Output:
	// true <nil>
	// false
	// 0 <nil>
}
