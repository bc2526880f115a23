package main

// Prices in us-central1 for one operation of the Standard edition, in dollars: docs/costs.md,
// by the billing catalogue of September 2026. The service's own TTL policy costs as much as
// other deletes (cloud.google.com/firestore/pricing, 2026-09-28).
const (
	readPrice   = 0.03 / 100_000
	writePrice  = 0.09 / 100_000
	deletePrice = 0.01 / 100_000
)

// dollars returns what operations cost without the free tier.
func (o operations) dollars() float64 {
	return o.reads*readPrice + o.writes*writePrice + o.deletes*deletePrice
}
