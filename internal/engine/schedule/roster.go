package schedule

import (
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Target is what the schedule needs to know of a target.
type Target struct {
	Site *site.Site
	// Range, Chore and Round make the jobs: of a range, of a chore, and of a full round of the audit in
	// one namespace.
	Range func(shardquery.Range) step.Range
	Chore func(plan.Chore) step.Job
	Round func(namespace string) step.Job
	// Next returns the next tick after an instant; only [Serve] calls it. It goes by the wall clock.
	Next func(time.Time) time.Time
}

// A roster has the items of one target. A range without one is at rest, and needs nothing
// that this process knows of.
type roster struct {
	c      *site.Site
	s      *scheduler
	owner  owner
	ranges map[shardquery.Range]*item
	chores map[plan.Chore]*item
	active int // items that do not rest, and releases in progress
	tagCounts
}

func newRoster(c *site.Site, s *scheduler, o owner) roster {
	return roster{c: c, s: s, owner: o, tagCounts: newTagCounts(),
		ranges: map[shardquery.Range]*item{}, chores: map[plan.Chore]*item{}}
}

// addRange adds a range with which this process has to do from now on. Nothing is left in it
// up to an instant; zero if that is not known.
func (r *roster) addRange(job step.Range, reached time.Time) *item {
	it := &item{job: job, c: r.c, owner: r.owner, name: r.c.Rules.ID(job.Range()).Key(), out: step.AtRest}
	it.reached = reached
	r.ranges[job.Range()] = it
	return it
}

// addChore adds a chore, and makes it ready.
func (r *roster) addChore(c plan.Chore, job step.Job, order int, now time.Time) {
	it := &item{job: job, c: r.c, owner: r.owner, chore: c.Key(), name: c.Name(), out: step.AtRest,
		lane: lane{slow: true, apart: onlyCounts(c.Kind), order: order}}
	r.chores[c.Key()] = it
	r.makeReady(it, now)
}

// makeReady makes an item at rest ready.
func (r *roster) makeReady(it *item, now time.Time) {
	r.active++
	r.s.makeReady(it, now)
}

// cancelChores ends the steps of chores that are only for people: they hold up nothing.
func (r *roster) cancelChores(kinds ...plan.Kind) {
	for c, it := range r.chores {
		if slices.Contains(kinds, c.Kind) && it.state == step.Running {
			it.cancel()
		}
	}
}

// drop drops a range at rest.
func (r *roster) drop(j step.Range, it *item) {
	r.forgetProgress(it)
	r.leaveOut(it)
	delete(r.ranges, j.Range())
}

// forgetProgress removes a range from what watches the progress of each.
func (r *roster) forgetProgress(it *item) {
	r.c.Target.Watchdog.Forget(it.name)
	r.c.Guards.Forget(it.name)
}

// forgetOthers removes the ranges that need nothing any more, or are gone, from those that
// an earlier sweep has put under the watchdog.
func (r *roster) forgetOthers(needed []shardquery.Range) {
	watched := r.c.Target.Watchdog.Names()
	if len(watched) == 0 {
		return
	}
	names := make(map[string]bool, len(needed))
	for _, n := range needed {
		names[r.c.Rules.ID(n).Key()] = true
	}
	r.c.Target.Watchdog.Forget(slices.DeleteFunc(watched, func(name string) bool { return names[name] })...)
}

// interrupted lists the ranges that came to rest because the target was held: they were given
// back, or only looked at.
func (r *roster) interrupted() (list []*item) {
	for _, it := range r.ranges {
		if it.state == step.Resting && (it.out.Held != "" || it.out.State == step.Stopped) {
			list = append(list, it)
		}
	}
	return inOrder(list)
}

// Own is what a process knows of the ranges of a target by its own work.
type Own struct {
	Owner  string     // names the process in leases; empty if nothing is known
	Ranges []OwnRange // those that it works on, or has left with something due, in no order
}

// An OwnRange is what a process knows of a range by its own work.
type OwnRange struct {
	Range     shardquery.Range
	InWork    bool            // it holds or reads the range
	OldestDue time.Time       // when the oldest entity left in it became due; zero if that is not known
	Held      throttle.Reason // what its last step had to wait for; empty if nothing holds it back
}

// own lists what this process knows of its ranges.
func (r *roster) own() Own {
	o := Own{Owner: r.c.Keeper.Owner}
	for at, it := range r.ranges {
		one := OwnRange{Range: at, OldestDue: r.c.Target.Watchdog.DueSince(it.name), Held: it.out.Why}
		// While a step runs, the job is its worker's.
		one.InWork = it.state == step.Running || it.state != step.Resting && it.job.IsClaimed()
		if one.InWork || !one.OldestDue.IsZero() {
			o.Ranges = append(o.Ranges, one)
		}
	}
	return o
}
