package forecast

import (
	"slices"
	"strings"
)

// A PriceName names what a price is for, as --price has it.
type PriceName string

// The prices: of 100,000 operations, and of a GiB for a month, in dollars.
const (
	Reads   PriceName = "reads"
	Writes  PriceName = "writes"
	Deletes PriceName = "deletes"
	Stored  PriceName = "storage"
	TTL     PriceName = "ttl" // deletes by the service's own TTL policy
)

// PriceNames returns the names of all prices.
func PriceNames() []PriceName { return []PriceName{Reads, Writes, Deletes, Stored, TTL} }

// A Price is what something costs, where that was read, and when.
type Price struct {
	Dollars float64 `json:"dollars"`
	Source  string  `json:"source"`
	Date    string  `json:"date"`
}

// Prices are those of one location. What is missing is not known.
type Prices struct {
	Location string              `json:"location"` // empty if somebody gave the prices without one
	List     map[PriceName]Price `json:"list"`
}

const (
	catalogue = "Firebase's page on comparing editions, and the billing catalogue"
	pricing   = "cloud.google.com/firestore/pricing"
)

// proven are the prices that somebody has read, of the Standard edition. A location is added with its
// own source and date, never with a neighbour's price: docs/plan.md prints this table, as a test holds.
var proven = []Prices{
	{"us-central1", map[PriceName]Price{
		Reads:   {0.03, catalogue, "2026-09-12"},
		Writes:  {0.09, catalogue, "2026-09-12"},
		Deletes: {0.01, catalogue, "2026-09-12"},
		TTL:     {0.01, pricing, "2026-09-28"},
		Stored:  {0.15, "billing catalogue", "2026-07"},
	}},
	{"nam5", map[PriceName]Price{
		Reads:   {0.06, catalogue, "2026-09-12"},
		Writes:  {0.18, catalogue, "2026-09-12"},
		Deletes: {0.02, catalogue, "2026-09-12"},
		Stored:  {0.18, "billing catalogue", "2026-08"},
	}},
}

// ProvenPrices returns the prices of a location; ok is false if nobody has proven them.
func ProvenPrices(location string) (p Prices, ok bool) {
	i := slices.IndexFunc(proven, func(p Prices) bool { return p.Location == location })
	if i < 0 {
		return Prices{Location: location}, false
	}
	return proven[i], true
}

// OfOne returns what one operation costs, in dollars; ok is false if that is not known.
func (p Prices) OfOne(name PriceName) (dollars float64, ok bool) {
	price, ok := p.List[name]
	return price.Dollars / priced, ok
}

// priced is how many operations a price is for.
const priced = 100_000

// ProvenLocations returns the locations whose prices are proven.
func ProvenLocations() (list []string) {
	for _, p := range proven {
		list = append(list, p.Location)
	}
	return list
}

// Free are the operations of a day that the free tier covers, in one database of a project. The
// service's own TTL policy has none.
var Free = Operations{Reads: 50_000, Writes: 20_000, Deletes: 20_000}

// FreeStorage is how many GiB are free.
const FreeStorage = 1.0

// A Bill is what a way costs.
type Bill struct {
	Way Way `json:"way"`
	Operations
	Dollars *float64 `json:"dollars"` // nil if a price is not known
	// AfterFree is what is left to pay if nothing else uses the free tier.
	AfterFree *float64    `json:"dollars_after_free_tier"`
	Missing   []PriceName `json:"missing_prices"`
	Caveat    string      `json:"caveat"` // why it may not do the same; empty for none
}

// billOf returns the bill for the operations of some days.
func (p Prices) billOf(way Way, o Operations, days float64) Bill {
	b := Bill{Way: way, Operations: o, Missing: []PriceName{}}
	if way == ByStore {
		return b
	}
	deletes, free := Deletes, Free.times(days)
	if way == ByTTL {
		deletes, free = TTL, Operations{}
	}
	var sum, after float64
	add := func(name PriceName, n, free float64) {
		price, known := p.List[name]
		switch {
		case n == 0:
		case !known:
			b.Missing = append(b.Missing, name)
		default:
			sum += n / priced * price.Dollars
			after += max(0, n-free) / priced * price.Dollars
		}
	}
	add(Reads, o.Reads, free.Reads)
	add(Writes, o.Writes, free.Writes)
	add(deletes, o.Deletes, free.Deletes)
	if len(b.Missing) == 0 {
		b.Dollars, b.AfterFree = &sum, &after
	}
	return b
}

// storageOf returns what storage costs in a month; nil if its size or price is not known.
func (p Prices) storageOf(s Storage) *float64 {
	price, known := p.List[Stored]
	if !known || s.EntitiesGiB == nil {
		return nil
	}
	sum := (s.IndexGiB + *s.EntitiesGiB) * price.Dollars
	return &sum
}

// caveatOf says why a way may not do what a workload asks.
func (s Settings) caveatOf(w Workload, way Way) string {
	var list []string
	if way == ByTTL {
		list = append(list, "typically within 24 hours")
	}
	if way == ByNaively {
		list = append(list, "steps over all tombstones; deletes what was extended meanwhile")
	}
	if (way == ByTTL || way == ByNaively) && 2*w.Writes/float64(s.Namespaces) > PerRange {
		list = append(list, "one timestamp index takes 500 writes/s")
	}
	if way == ByQuery {
		list = append(list, "needs single_valued: true")
	}
	return strings.Join(list, "; ")
}
