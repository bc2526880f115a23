package visit

import (
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// mostDeferred is how many entities of a range may wait for another try before the range
	// itself has to wait.
	mostDeferred = 16
	// descendAgain is how soon the next page below an entity that waits aside is read: its range is read on meanwhile.
	descendAgain = 20 * time.Millisecond
	// lastingTries is how often an entity that the store refuses is tried before it
	// is kept.
	lastingTries = 3
	// lastingSince is how recently the store must have taken some other write if the
	// failure of a range's last entity is to count as that entity's own.
	lastingSince = 5 * time.Minute
)

// A deferred is an entity that waits for another try while its range is read on: another
// client holds it in a transaction, or the store refuses it. The saved cursor stays
// before it.
type deferred struct {
	rds   []*reading // that have met it
	op    store.Op   // of its next try
	since time.Time
	retry time.Time
	tries int
	// refusals are the last tries, all of which the store refused.
	refusals int
	lasting  error            // why the store refuses it; nil if it is contended
	unsure   bool             // a try may have deleted it
	notDue   bool             // it was found to be gone, or not due, as what lies below it was to be deleted
	seen     int64            // the most that a survey has met
	descent  *dispose.Descent // of what lies below it; nil if that was not looked at since the last try
}

// failed notes a try that failed.
func (w *deferred) failed(now time.Time, err error) {
	if w.refusals++; !store.MayBeOfOneEntity(err) {
		w.refusals = 0
	}
	if w.lasting = nil; store.MayBeOfOneEntity(err) {
		w.lasting = err
	}
	w.unsure = w.unsure || store.MayHaveHappened(err)
	w.tries++
	w.retry = now.Add(step.AgainIn(w.tries))
}

// deferrals are the entities of a visit that wait for another try.
type deferrals struct{ list []*deferred }

// next returns the instant at which the next entity is due for a retry; zero if no entity waits.
func (d *deferrals) next() (at time.Time) {
	for _, w := range d.list {
		if at.IsZero() || w.retry.Before(at) {
			at = w.retry
		}
	}
	return at
}

// areContended reports whether all that wait have failed, since they last got on.
func (d *deferrals) areContended() bool {
	return !slices.ContainsFunc(d.list, func(w *deferred) bool { return w.tries == 0 })
}

// has reports whether an entity that a reading has met waits for another try. One reading
// may have met it at its old expiry, and another one at its new expiry: then it holds up
// the progress of both.
func (d *deferrals) has(rd *reading, key string) bool {
	i := slices.IndexFunc(d.list, func(w *deferred) bool { return w.op.Entry.Key == key })
	if i < 0 {
		return false
	}
	if w := d.list[i]; !slices.Contains(w.rds, rd) {
		w.rds, rd.stuck = append(w.rds, rd), true
	}
	return true
}

// holdUp keeps the progress of a reading from being saved until every entity that waits
// now is disposed of: the reading saves the same position as those that met them, and
// its keys come after theirs.
func (d *deferrals) holdUp(rd *reading) {
	for _, w := range d.list {
		w.rds, rd.stuck = append(w.rds, rd), true
	}
}
