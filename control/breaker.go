package control

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// ErrNoTrip is wrapped by the error for a trip that is not open.
var ErrNoTrip = store.WithHint(errors.New("no such trip is open"), "reaper breaker show names the open one")

// whatApprove is what the history calls an approval.
const whatApprove = "approve"

// An Approval is the order to let an event pass.
type Approval struct {
	ID     string // of the trip
	Count  int64  // how much of it may go; 0 stands for all
	Normal bool   // such an hour is usual from now on
}

// Approve lets an event pass that has tripped the breaker, and nothing else.
func Approve(
	ctx context.Context, cfg sweep.Config, t sweep.Target, o Order, a Approval,
) (rec generation.Record, trip breaker.Trip, err error) {
	switch {
	case strings.TrimSpace(o.Reason) == "":
		return rec, trip, errors.New("the reason is missing: say in one line why this may be deleted")
	case a.Count < 0:
		return rec, trip, fmt.Errorf("approve %d entities: want at least 1", a.Count)
	}
	var given breaker.Approval
	var wrong error
	approve := act{kind: history.KindApproval, what: whatApprove, result: func() string {
		text := fmt.Sprintf("trip %s approved: %d may go", given.ID, given.Count)
		if a.Normal {
			text += ", and as many in one window are usual from now on"
		}
		return text
	}}
	rec, _, err = changeSwitch(ctx, cfg, t, approve, o, func(r *generation.Record, now time.Time) {
		if wrong = checkTrip(*r, a.ID); wrong == nil {
			trip = r.Trip
			given = trip.Approve(a.Count, now)
			*r = r.Released(given)
			r.BreakerNote = o.note(now)
		}
	})
	if err = errors.Join(wrong, err); err != nil {
		return rec, trip, err
	}
	err = changeBudget(ctx, cfg, t, func(b breaker.Budget) breaker.Budget {
		return b.Approved(sweep.BreakerRules(t), trip, given, a.Normal, given.At)
	})
	if err != nil {
		err = fmt.Errorf("trip %s is approved, but its hour is judged as before: %w", a.ID, err)
	}
	return rec, trip, err
}

// Clear ends a trip without an approval. What caused it must be gone: if the same is still
// due, the next sweep trips again before it deletes anything.
func Clear(
	ctx context.Context, cfg sweep.Config, t sweep.Target, o Order, due func(breaker.Trip) (int64, error),
) (rec generation.Record, trip breaker.Trip, err error) {
	before, _, err := loadRecord(ctx, cfg, t)
	if err != nil {
		return rec, trip, err
	}
	if err := checkTrip(before, before.Trip.ID); err != nil {
		return rec, trip, err
	}
	n, err := due(before.Trip)
	if err != nil {
		return rec, trip, fmt.Errorf("count what is left of trip %s: %w", before.Trip.ID, err)
	}
	if n > 0 && n+before.Trip.Gone > before.Trip.Limit { // approved parts of it may have gone, too
		return rec, trip, store.WithHint(fmt.Errorf("trip %s stays open: %d entities are still due, and %d were deleted"+
			" before; its limit is %d", before.Trip.ID, n, before.Trip.Gone, before.Trip.Limit),
			"extend what must stay, or let it go with reaper breaker approve")
	}
	var wrong error
	rec, _, err = changeSwitch(ctx, cfg, t, action("clear"), o, func(r *generation.Record, now time.Time) {
		if wrong = checkTrip(*r, before.Trip.ID); wrong == nil {
			trip = r.Trip
			*r = r.Released(breaker.Approval{}) // what is due on unswept ground is counted again
			r.BreakerNote = o.note(now)
		}
	})
	return rec, trip, errors.Join(wrong, err)
}

// Announce tells the breaker how many entities somebody is about to stamp on purpose, by the
// instants at which they expire, so that the burst rule does not count them. Call it before
// they are written: a failed call then announces too much, and not too little. It is added to
// what was announced before.
func Announce(ctx context.Context, cfg sweep.Config, t sweep.Target, stamped map[time.Time]int64) error {
	_, now, err := loadRecord(ctx, cfg, t)
	if err != nil {
		return err
	}
	err = changeBudget(ctx, cfg, t, func(b breaker.Budget) breaker.Budget {
		return b.Announce(sweep.BreakerRules(t), now, stamped)
	})
	if err != nil {
		return fmt.Errorf("announce what is stamped in target %s: %w", t.Name, err)
	}
	return nil
}

// checkTrip returns an error unless the trip is the one that is open.
func checkTrip(r generation.Record, id string) error {
	used := slices.ContainsFunc(r.Approvals, func(a breaker.Approval) bool { return a.ID == id })
	switch {
	case r.Trip.IsOpen() && r.Trip.ID == id:
		return nil
	case used:
		return fmt.Errorf("trip %s was approved before: %w", id, ErrNoTrip)
	case r.Trip.IsOpen():
		return fmt.Errorf("trip %s: %w: %s is", id, ErrNoTrip, r.Trip.ID)
	}
	return fmt.Errorf("the breaker of target %s is closed: %w", r.Target, ErrNoTrip)
}

// changeBudget changes the budget of a target by compare-and-set. It writes nothing if the change
// makes no difference: then it needs no lock, for which workers may hold it up.
func changeBudget(
	ctx context.Context, cfg sweep.Config, t sweep.Target, change func(breaker.Budget) breaker.Budget,
) error {
	for {
		b, err := spend.Load(ctx, cfg.Store, t.Name)
		if err != nil {
			return err
		}
		was := b.Encode().Fields
		b = change(b)
		rec := b.Encode()
		if reflect.DeepEqual(rec.Fields, was) {
			return nil
		}
		err = store.Retry(ctx, patience, func() error {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			return cfg.Store.Save(ctx, rec, b.Revision)
		})
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// loadRecord reads the record of a target, which must have one, and the store's time.
func loadRecord(
	ctx context.Context, cfg sweep.Config, t sweep.Target,
) (rec generation.Record, now time.Time, err error) {
	err = store.Retry(ctx, patience, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		rec, now, err = generation.Load(ctx, cfg.Store, t.Name)
		return err
	})
	if errors.Is(err, generation.ErrMissing) {
		return rec, now, ErrNoRecord
	}
	return rec, now, err
}
