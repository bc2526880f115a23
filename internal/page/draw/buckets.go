package draw

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/forecast"
)

// A Span is how much time a set of charts shows, in buckets.
type Span struct {
	Name   string
	each   time.Duration
	number int
	label  string // how a bucket is named
}

// Spans are those that a page has.
var Spans = []Span{
	{"24 hours", time.Hour, 24, "Jan 2, 15:04"},
	{"30 days", 24 * time.Hour, 30, "Jan 2"},
}

// A Bucket is what runs did in an hour or a day. A run that lasted longer is divided evenly.
type Bucket struct {
	Begin   time.Time `json:"begin"`
	Due     float64   `json:"due"` // found due
	Deleted float64   `json:"deleted"`
	Reads   float64   `json:"reads"`
	Writes  float64   `json:"writes"`
	Deletes float64   `json:"deletes"`
	Dollars *float64  `json:"dollars"`           // for the operations, before any free tier; nil if a price is not known
	P50     *float64  `json:"delay_p50_seconds"` // nil if it is not known
	P99     *float64  `json:"delay_p99_seconds"`
	Over    bool      `json:"delay_p99_at_least"`
	delays  delays
}

// BucketsOf adds up the runs of a history.
func BucketsOf(sp Span, h inspect.TargetHistory, prices forecast.Prices, now time.Time) []Bucket {
	end := now.UTC().Truncate(sp.each).Add(sp.each)
	begin := end.Add(-time.Duration(sp.number) * sp.each)
	list := make([]Bucket, sp.number)
	for i := range list {
		list[i].Begin = begin.Add(time.Duration(i) * sp.each)
	}
	for _, r := range h.Records {
		if r.Run != nil {
			addRun(list, sp, r)
		}
	}
	for i := range list {
		b := &list[i]
		for _, n := range []*float64{&b.Due, &b.Deleted, &b.Reads, &b.Writes, &b.Deletes} {
			*n = math.Round(*n)
		}
		b.Dollars = dollarsOf(*b, prices)
		b.P50, _ = b.delays.quantile(.5)
		b.P99, b.Over = b.delays.quantile(.99)
	}
	return list
}

// dollarsOf returns what the operations of a bucket cost; nil if a price is not known.
func dollarsOf(b Bucket, prices forecast.Prices) *float64 {
	sum := 0.0
	for name, n := range map[forecast.PriceName]float64{forecast.Reads: b.Reads, forecast.Writes: b.Writes,
		forecast.Deletes: b.Deletes} {
		each, known := prices.OfOne(name)
		if !known {
			return nil
		}
		sum += n * each
	}
	return &sum
}

// addRun divides what a run did among the buckets that it lasted through.
func addRun(list []Bucket, sp Span, r inspect.HistoryRecord) {
	from, to := r.At, r.Run.Updated
	if !to.After(from) {
		to = from.Add(time.Millisecond)
	}
	for i := range list {
		b := &list[i]
		shared := earlier(to, b.Begin.Add(sp.each)).Sub(later(from, b.Begin))
		if shared <= 0 {
			continue
		}
		part := float64(shared) / float64(to.Sub(from))
		b.Due += part * float64(r.Run.Expired)
		b.Deleted += part * float64(r.Run.Deleted)
		b.Reads += part * float64(r.Run.Operations.Reads)
		b.Writes += part * float64(r.Run.Operations.Writes)
		b.Deletes += part * float64(r.Run.Operations.Deletes)
		b.delays.add(r.Run.Delays, part)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// An Event is something that happened to a target, to be marked in its charts.
type Event struct {
	At     time.Time
	Letter string // T, A or G
	Class  string
	What   string
	Who    string
	Reason string
}

// EventsOf lists what happened since an instant, the newest first.
func EventsOf(h inspect.TargetHistory, since time.Time) (list []Event) {
	for _, r := range slices.Backward(h.Records) {
		if r.Change == nil || r.At.Before(since) {
			continue
		}
		e := Event{At: r.At, What: ChangeText(r), Who: cmp.Or(r.Actor, r.Owner), Reason: r.Change.Reason}
		switch r.Kind {
		case history.KindTrip:
			e.Letter, e.Class = "T", "trip"
		case history.KindGeneration:
			e.Letter, e.Class = "G", "generation"
		default:
			e.Letter, e.Class = "A", "action"
		}
		list = append(list, e)
	}
	return list
}

// ChangeText says what was changed, or what happened.
func ChangeText(r inspect.HistoryRecord) string {
	c := r.Change
	switch {
	case r.Kind == history.KindGeneration:
		return fmt.Sprintf("generation %08d %s", c.Generation, c.What)
	case c.Generation > 0:
		return fmt.Sprintf("%s to generation %08d", c.What, c.Generation)
	}
	return c.What
}
