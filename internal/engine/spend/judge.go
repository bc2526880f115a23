package spend

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/throttle"
)

// reportTries is how often, and reportEvery how soon, the breaker looks again for reports that decide
// whether it trips.
const reportTries, reportEvery = 5, time.Second

// A judge counts hours for the breaker of one target, and trips it. It does so in a goroutine
// of its own: a count may take a minute, and nothing else waits for it.
type judge struct {
	rules     breaker.Rules
	viewer    *view.Viewer
	log       *journal.Journal
	ledger    *ledger
	allowance *allowance
	counter   *counter
	tripper   *tripper
	queue     *countQueue

	missed map[breaker.Key]bool // the rest of an event, of which a count has found nothing
}

// run counts what is wanted until ctx is done.
func (j *judge) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.queue.wake:
		}
		for ctx.Err() == nil {
			k, wanted, ok := j.queue.next()
			if !ok {
				break
			}
			j.note(ctx, k, wanted, background.Protect(func() error { return j.judgeKey(ctx, k, wanted) }))
		}
	}
}

// note keeps why a count failed, for the steps that wait for it and for the budget's record.
func (j *judge) note(ctx context.Context, k breaker.Key, wanted int64, err error) {
	var failed uncounted
	if isCount := errors.As(err, &failed); !isCount || ctx.Err() != nil {
		if err != nil && ctx.Err() == nil && !errors.Is(err, errNothingLeft) {
			j.log.Failed("judge what comes to be due", "", err)
		}
		j.queue.done(k)
		j.allowance.rouse() // the steps that wait ask again
		return
	}
	if errors.Is(failed, errLateRead) {
		j.queue.putBack(k, wanted)
	} else {
		j.log.Failed("count for the breaker", "", failed.error)
		j.queue.fail(k, failed.error)
	}
	j.ledger.noteUncounted(ctx, nameOf(k)+": "+failed.Error())
}

// nameOf names what a key counts, for people.
func nameOf(k breaker.Key) string {
	if k.IsLate() {
		return "what is late"
	}
	return "what expires from " + k.Hour.Format(time.RFC3339) + " on"
}

// judgeKey counts what is left under a key, of which somebody wants to delete so many, and either
// opens it or trips the breaker.
func (j *judge) judgeKey(ctx context.Context, k breaker.Key, wanted int64) error {
	rec := j.viewer.View().Record
	if j.isHeld() {
		return nil
	}
	now := j.counter.now()
	b, err := j.ledger.read(ctx)
	if err != nil {
		return err
	}
	if err := j.counter.bounds.extent.find(ctx); err != nil {
		return uncounted{err}
	}
	if k.IsLate() {
		if j.counter.late.isOvertaken(b, now) {
			return j.dropLate(ctx)
		}
		j.counter.late.follow(b, now)
	}
	count, all, err := j.measureReported(ctx, b, k, rec.Approvals, now)
	if err != nil {
		return uncounted{err}
	}
	if count, err = j.rest(k, count, wanted); err != nil {
		return err
	}
	event, err := j.counter.eventWith(ctx, b, k, count, now)
	if err != nil {
		return uncounted{err}
	}
	// The counts may have taken minutes: events may have tripped, or been approved, meanwhile.
	err = j.viewer.ReloadRecord(ctx)
	if err != nil || j.isHeld() || !isAsCounted(j.viewer.View().Record, rec) {
		return err // the steps ask again
	}
	trip, err := j.open(ctx, b.At(k), now, count, all)
	if err != nil || trip == nil {
		return err
	}
	trip.Due, trip.More = max(trip.Due, event.Due), trip.More || event.More
	return j.tripper.trip(ctx, *trip, rec.Approvals)
}

// measureReported measures what is left under a key. If deletes that are not reported yet decide whether
// that passes, it waits a moment for the reports, and counts again. A process that was killed never
// reports.
func (j *judge) measureReported(
	ctx context.Context, b breaker.Budget, k breaker.Key, approvals []breaker.Approval, now time.Time,
) (n breaker.Count, all int64, err error) {
	for tries := 0; ; tries++ {
		n, all, err = j.counter.measure(ctx, b, k, approvals, now)
		if err != nil || tries >= reportTries || j.counter.late.isReading() {
			return n, all, err
		}
		known := b
		if all >= 0 {
			known = known.CountedAll(now, all)
		}
		isGoing := n.Held && n.Reserved > 0 // another process deletes the approved part of it
		if !isGoing && !known.IsInDoubt(j.rules, now, k, n, j.allowance.left(k)) {
			return n, all, nil
		}
		j.allowance.rouse() // this process reports, too
		if err := throttle.Sleep(ctx, reportEvery); err != nil {
			return n, all, err
		}
		if b, err = j.ledger.reread(ctx); err != nil {
			return n, all, err
		}
	}
}

// open judges what is left under a key by a count, and returns a trip if that is unusual. Before is the
// tally from before the count: if another process has judged the key since then, nothing changes, and
// the steps ask again.
func (j *judge) open(
	ctx context.Context, before breaker.Tally, now time.Time, count breaker.Count, all int64,
) (trip *breaker.Trip, err error) {
	k := before.Key
	_, err = j.ledger.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
		if all >= 0 {
			b = b.CountedAll(now, all)
		}
		b.Uncounted, trip = "", nil
		isTripped := b.At(k).Tripped && !before.Tripped
		if isTripped || k.IsLate() && j.counter.late.isOvertaken(b, now) {
			return b
		}
		b, trip = b.Judge(j.rules, now, k, count)
		return b
	})
	if err == nil && k.IsLate() {
		j.counter.late.drop()
	}
	return trip, err
}

// isHeld reports whether a trip is open. Then it drops a read: what is left is counted again later.
func (j *judge) isHeld() bool {
	if !j.viewer.View().Record.Trip.IsOpen() {
		return false
	}
	j.counter.late.drop()
	return true
}

// errNothingLeft is why the rest of an event is looked for once more.
var errNothingLeft = errors.New("nothing is left of it")

// rest returns the count of the rest of an event. If that is nothing, although a step wants to delete
// some of it, the steps ask again; the second time the step is right.
func (j *judge) rest(k breaker.Key, c breaker.Count, wanted int64) (breaker.Count, error) {
	if !c.Held || c.Due+c.Coming > 0 {
		delete(j.missed, k)
		return c, nil
	}
	if !j.missed[k] {
		j.missed[k] = true
		return c, errNothingLeft
	}
	delete(j.missed, k)
	c.Due = max(1, wanted)
	return c, nil
}

// dropLate ends a read of what is late: the steps ask again.
func (j *judge) dropLate(ctx context.Context) error {
	j.counter.late.drop()
	_, err := j.ledger.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
		b.Uncounted = ""
		return b
	})
	return err
}
