package selftest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/selftest"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// Three checks on an embedded store. What they wrote is gone afterwards.
func Example() {
	db, err := embedded.Open("db", embedded.Options{Now: time.Now, InMemory: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	report, err := selftest.Run(context.Background(), selftest.Setup{
		Store: db, Spec: "embedded:db", Mode: selftest.Embedded, ID: selftest.NewID(), Now: time.Now,
		Within: selftest.DefaultWithin, Checks: []string{"BoundsAreInclusive", "sweep", "extension"},
		Caps: storetest.Caps{Counter: true, Dumper: true, Dropper: true, Keyer: true, Adopter: true},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range report.Results {
		fmt.Println(c.Group, c.Name, c.Status)
	}
	fmt.Println("empty:", report.Cleaned.Empty)
	// Output:
	// contract BoundsAreInclusive passed
	// sweeps sweep passed
	// sweeps extension passed
	// empty: true
}
