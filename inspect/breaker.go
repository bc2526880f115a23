package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A BreakerStatus is the state of a target's breaker, in the form that `reaper breaker show
// --json` prints.
type BreakerStatus struct {
	Target  string       `json:"target"`
	Trip    string       `json:"trip"` // empty if none is open
	Rule    breaker.Rule `json:"rule"`
	At      *time.Time   `json:"at"`      // nil if none is open
	Hour    *time.Time   `json:"hour"`    // of a burst: when its window of expiry begins
	Through *time.Time   `json:"through"` // all of it expires by then
	Due     int64        `json:"due"`
	// DueAtLeast says that there may be more: to count all of it took too long.
	DueAtLeast bool         `json:"due_at_least"`
	Limit      int64        `json:"limit"`
	All        int64        `json:"all"`     // entities of the target, or a lower bound; 0 if it was not counted
	Share      *float64     `json:"share"`   // of all, that the event is, with what went before; nil without All
	Deleted    int64        `json:"deleted"` // of the event, before it tripped
	Histogram  []BreakerBar `json:"histogram"`
	Samples    []string     `json:"samples"`
	Approved   []Approved   `json:"approved"`
	Note       BreakerNote  `json:"last"`
	// Counting is how many ranges wait until a closed breaker has counted what is due; nil if that is not known.
	Counting *int `json:"counting"`
}

// A BreakerBar is how much of an event expires in one span, in one generation.
type BreakerBar struct {
	From       time.Time `json:"from"`
	To         time.Time `json:"to"` // exclusive
	Generation int       `json:"generation"`
	N          int64     `json:"entities"`
}

// An Approved is an event that somebody has let pass.
type Approved struct {
	Trip  string    `json:"trip"`
	Count int64     `json:"count"` // so much of it may go
	Gone  int64     `json:"deleted"`
	At    time.Time `json:"at"`
}

// A BreakerNote says how the last trip ended.
type BreakerNote struct {
	Actor  string     `json:"actor"`
	At     *time.Time `json:"at"` // nil if there was none
	Reason string     `json:"reason"`
}

// Breaker reads the state of a target's breaker. It writes nothing. A target without a record
// has a breaker that is closed. With an error it returns what it has found out so far.
func Breaker(ctx context.Context, cfg sweep.Config, t sweep.Target) (st BreakerStatus, err error) {
	st = BreakerStatus{Target: t.Name, Histogram: []BreakerBar{}, Samples: []string{}, Approved: []Approved{}}
	ctx, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	rec, _, err := generation.Load(ctx, cfg.Store, t.Name)
	if errors.Is(err, generation.ErrMissing) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	trip, n := rec.Trip, rec.BreakerNote
	st.Trip, st.Rule = trip.ID, trip.Rule
	st.At, st.Hour, st.Through = timePtr(trip.At), timePtr(trip.Hour), timePtr(trip.Through)
	st.Due, st.DueAtLeast, st.Limit, st.All, st.Deleted = trip.Due, trip.More, trip.Limit, trip.All, trip.Gone
	if trip.All > 0 {
		share := min(1, float64(trip.Due+trip.Gone)/float64(trip.All))
		st.Share = &share
	}
	st.Note = BreakerNote{n.Actor, timePtr(n.At), n.Reason}
	b, err := spend.Load(ctx, cfg.Store, t.Name)
	if err != nil {
		return st, withoutDetails(trip, err)
	}
	for _, a := range rec.Approvals {
		st.Approved = append(st.Approved, Approved{a.ID, a.Count, b.At(breaker.Key{Approval: a.ID}).Done, a.At})
	}
	if !trip.IsOpen() {
		st.Counting = counting(ctx, cfg, t)
		return st, nil
	}
	detail := b.Trip
	// The process that tripped may have been killed before it wrote them, or was too slow.
	if detail.ID != trip.ID || len(detail.Histogram) == 0 || len(detail.Samples) == 0 {
		if detail, err = sweep.DescribeTrip(ctx, cfg, t, trip); err != nil {
			return st, withoutDetails(trip, err)
		}
	}
	for _, bar := range detail.Histogram {
		st.Histogram = append(st.Histogram, BreakerBar(bar))
	}
	st.Samples = append(st.Samples, detail.Samples...)
	return st, nil
}

// counting returns how many ranges wait for a count, as their records said last; nil if they could not be
// read. A breaker is described without it, too.
func counting(ctx context.Context, cfg sweep.Config, t sweep.Target) *int {
	s, err := sweep.TakeSnapshot(ctx, cfg, t)
	if err != nil {
		return nil
	}
	n := 0
	for _, c := range s.View.Cursors.All() {
		if isCounted(s, c) {
			n++
		}
	}
	return &n
}

// isCounted reports whether a range waits until the breaker has counted what is due: it is at work, and
// nothing has tripped.
func isCounted(s *sweep.Snapshot, c cursor.Cursor) bool {
	return c.Throttled == string(throttle.ReasonBreaker) && !s.Target.IsTripped(s.View.Record) && !s.HeldUntil(c).IsZero()
}

// withoutDetails returns the error of a status that lacks what the budget says.
func withoutDetails(trip breaker.Trip, err error) error {
	if trip.IsOpen() {
		return fmt.Errorf("the trip is known, its details are not: %w", err)
	}
	return fmt.Errorf("the breaker is closed, its approvals are not known: %w", err)
}
