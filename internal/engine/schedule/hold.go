package schedule

import (
	"cmp"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/visit"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// brakedFor is how long one sweep looks at the ranges of a target whose breaker is open, or
// of which as much was deleted as its limits allow.
const brakedFor = 2 * time.Second

// A hold is what holds the target as a whole, and since when.
type hold struct {
	c     *site.Site
	why   throttle.Reason
	since time.Time
	fault error // if a record is the reason
	left  bool  // ranges rest that were only looked at, or given back
}

// check finds out whether the target is held, and has its pacers and its heartbeat say so.
// It reports whether that has changed, and since when it was held until then.
func (h *hold) check(now time.Time) (changed bool, since time.Time) {
	why := h.c.HeldBy()
	h.fault = nil
	if why == throttle.ReasonRecord || why == throttle.ReasonArchive {
		h.fault = cmp.Or(h.c.Fault(), site.ErrUnheard) // it may have passed this moment
	}
	h.explain()
	if !h.c.Pacing.Hold(why) {
		return false, h.since
	}
	if h.why == "" {
		h.since = now
	}
	since = h.since
	if h.why = why; why == "" {
		h.since = time.Time{}
	}
	return true, since
}

// explain puts into the heartbeat what is wrong, for a status command on another machine.
// It can read every other reason in the records, or ask for it.
func (h *hold) explain() {
	text := ""
	if h.fault != nil {
		text = h.fault.Error()
	}
	h.c.Keeper.Pulse.Explain(text)
}

// isLong reports whether nothing could be deleted for so long that one sweep should end.
func (h *hold) isLong(now time.Time) bool {
	most := h.c.Target.Lease
	switch h.why {
	case "":
		return false
	case throttle.ReasonBreaker, throttle.ReasonLimit: // a person ends it, or the hour
		most = brakedFor
	case throttle.ReasonArchive:
		most = visit.Patience
	case throttle.ReasonRecord:
		most = visit.Patience
		if h.unreadable() != nil {
			return true
		}
	}
	return now.Sub(h.since) > most
}

// unreadable returns why a record that is needed cannot be read or written; nil if it can, or
// if another try may help.
func (h *hold) unreadable() error {
	for _, err := range []error{h.c.Viewer.Failing(), h.c.Budget.Failing(), h.c.Story.Failing()} {
		if err != nil && !store.Transient(err) {
			return err
		}
	}
	if _, err := h.c.Watch.Failing(); err != nil && !store.Transient(err) && h.c.IsUncounted() {
		return err
	}
	return nil
}
