package workload

import (
	"fmt"
	"slices"
	"strings"

	"github.com/reaper-ttl/reaper/internal/forecast"
)

// Bounds of a price, in dollars for 100,000 operations or a GiB and month: one that is written for a
// million operations, or in cents, is about a hundred times another one. These catch worse.
const (
	leastPrice = 0.0001
	mostPrice  = 100
)

// Prices parses prices that a person gives: reads=0.03,deletes=0.01. They are for 100,000 operations or, of
// storage, for a GiB and month. The date is when they were given.
func Prices(text, date string) (list map[forecast.PriceName]forecast.Price, err error) {
	names := forecast.PriceNames()
	known := make([]string, len(names))
	for i, n := range names {
		known[i] = string(n)
	}
	advice := "write for example reads=0.03,writes=0.09,deletes=0.01,storage=0.15"
	list = map[forecast.PriceName]forecast.Price{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, found := strings.Cut(strings.TrimSpace(part), "=")
		key := forecast.PriceName(name)
		switch _, again := list[key]; {
		case !found:
			return nil, fmt.Errorf("%s has no =: %s", quote(part), advice)
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("%s is not the name of a price: want %s", quote(name), strings.Join(known, ", "))
		case again:
			return nil, fmt.Errorf("%s is there twice", quote(name))
		}
		n, err := plain(value, mostPrice)
		switch {
		case err != nil:
			return nil, fmt.Errorf("the price of %s: %w; prices are in dollars for 100,000 operations, of storage for a GiB "+
				"and month", name, err)
		case n < leastPrice:
			return nil, fmt.Errorf("the price of %s: %s is less than $%v for 100,000", name, quote(value), leastPrice)
		}
		list[key] = forecast.Price{Dollars: n, Source: "--price", Date: date}
	}
	return list, nil
}

// Location returns the proven prices of a location. For another one it says what to do.
func Location(name string) (forecast.Prices, error) {
	p, ok := forecast.ProvenPrices(name)
	if !ok {
		return p, fmt.Errorf("nobody has proven the prices of %s (only those of %s), and no neighbour's are taken: give "+
			"them with --price, from the billing catalogue; without --location the operations are shown alone", quote(name),
			strings.Join(forecast.ProvenLocations(), " and "))
	}
	return p, nil
}
