package forecast_test

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/forecast"
)

// A backlog of 500 million entities in 16 ranges: how long it takes, and what that costs.
func Example() {
	s := forecast.Settings{Mode: forecast.Datastore, Namespaces: 1, Shards: 16, Page: 500, Tick: 5 * time.Minute,
		Guard: forecast.ByQuery, Pace: forecast.Pace{Start: 500, Max: 5000}}
	prices, _ := forecast.ProvenPrices("us-central1")
	f, err := forecast.Make(s, forecast.Workload{Backlog: 500e6}, prices)
	if err != nil {
		fmt.Println(err)
		return
	}
	took := time.Duration(*f.Drain.Seconds) * time.Second
	fmt.Printf("%v, up to %.0f a second, bounded by %s\n", took, f.Drain.Most, f.Drain.Bound)
	for _, b := range f.Backlog {
		fmt.Printf("%s: %.0f reads, $%.2f\n", b.Way, b.Reads, *b.Dollars)
	}
	// Output:
	// 2h1m27s, up to 80000 a second, bounded by max
	// query: 4011660 reads, $51.21
	// lookup: 502011660 reads, $200.61
	// ttl: 0 reads, $50.00
	// naively: 1000000 reads, $50.30
}
