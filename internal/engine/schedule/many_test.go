package schedule

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/engine/visit"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// While all ranges of a daemon rest, it looks up no cursor. While one of them works, it
// looks up only the cursors that changed. It remembers nothing of sealed ranges at rest.
// That holds for any number of ranges.
func TestWorkGoesByWhatChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("it looks at the book of a daemon that goes on: a race, to the race detector")
	}
	for _, namespaces := range []int{4, 40} {
		t.Run(fmt.Sprint(namespaces), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newManyRanges(t, namespaces, 0)
				d.run(50*time.Hour + 10*time.Minute) // two generations are sealed, and read to their end
				b := d.book
				live, sealed := 0, 0
				for r := range b.plan.All() {
					if b.plan.Stage(r.Generation).IsSealed() {
						sealed++
					} else {
						live++
					}
				}
				if len(b.ranges) != live || sealed < live/2 {
					t.Errorf("%d items, of %d live and %d sealed ranges", len(b.ranges), live, sealed)
				}
				if b.working != 0 || b.lagging.Len() != live || len(b.elsewhere) != 0 {
					t.Errorf("at rest %d work, %d of %d lag, %d are elsewhere", b.working, b.lagging.Len(), live, len(b.elsewhere))
				}
				if n := d.lookups(50*time.Second, func() {}); n > 0 {
					t.Errorf("%d cursors were looked up in 50 s at rest", n)
				}
				d.run(10 * time.Second)
				if n := d.lookups(time.Minute, func() { d.put("due") }); n > 5*len(b.ranges)+sealed+200 {
					t.Errorf("%d cursors were looked up in a tick with one claim, of %d ranges", n, live+sealed)
				}
				if n := len(d.s.Entities("Session", "ns-001")); n != 4*3 {
					t.Errorf("%d entities are left", n)
				}
			})
		})
	}
}

// All ranges of a generation are to be read from the start at once when it has been sealed.
// Only so many of them are claimed and wait for that; each of them is read in the end.
func TestFewVisitsWaitForTheSlowLane(t *testing.T) {
	if testing.Short() {
		t.Skip("it looks at the book of a daemon that goes on: a race, to the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		const namespaces = 120
		d := newManyRanges(t, namespaces, time.Millisecond)
		for _, ns := range d.namespaces { // something falls due in each range that is sealed, so that it is claimed
			for hour := range 6 {
				for shard := range 3 {
					d.entity(ns, fmt.Sprintf("due-%d-%d", hour, shard), 1, shard, time.Duration(23+hour)*time.Hour)
				}
			}
		}
		d.run(50*time.Hour + 10*time.Minute)
		if limit := mostOpen + 2*d.book.c.Cfg.Workers; d.mostHeld < mostOpen || d.mostHeld > limit {
			t.Errorf("%d ranges were held at a time, want %d to %d", d.mostHeld, mostOpen, limit)
		}
		sealed := 0
		for r := range d.book.plan.All() {
			if stage := d.book.plan.Stage(r.Generation); stage.IsSealed() {
				sealed++
				if c := d.book.plan.Cursor(r); c.Stock.Next.IsZero() || c.Rewind.Done.Before(stage.Since) {
					t.Errorf("%v was not read after it was sealed: %+v", r, c)
				}
			}
		}
		if sealed < 2*3*namespaces {
			t.Errorf("only %d ranges are sealed", sealed)
		}
	})
}

// A manyRanges is a daemon of some ranges in many namespaces, with a tick a minute once
// they are at rest.
type manyRanges struct {
	t        *testing.T
	s        *modelstore.Store
	book     *book
	mostHeld int // the most ranges that it has held at a time

	namespaces []string
}

// newManyRanges returns one whose store takes so long for each call.
func newManyRanges(t *testing.T, namespaces int, took time.Duration) *manyRanges {
	d := &manyRanges{t: t, s: modelstore.New(time.Now)}
	d.s.Before = func(context.Context, modelstore.Call) error {
		time.Sleep(took)
		return nil
	}
	began := time.Now()
	const shards = 3
	policy := generation.Policy{Every: 24 * time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 9, Settle: 0,
		Shards: shards}
	next := func(at time.Time) time.Time {
		if every := 2 * time.Hour; at.Sub(began) < 50*time.Hour {
			return at.Truncate(every).Add(every)
		}
		return at.Truncate(time.Minute).Add(time.Minute)
	}
	for i := range namespaces {
		d.namespaces = append(d.namespaces, fmt.Sprintf("ns-%03d", i))
	}
	d.start(policy, next)
	d.run(20 * time.Minute)           // from then on, what is found is no sign of a record that was lost
	for i, ns := range d.namespaces { // no generation retires: each range has a survivor
		for number := range 4 {
			for shard := range shards {
				d.entity(ns, fmt.Sprintf("stays-%d-%d-%d", i, number, shard), number, shard, 2000*time.Hour)
			}
		}
	}
	return d
}

// start lets the daemon run until the test ends.
func (d *manyRanges) start(policy generation.Policy, next func(time.Time) time.Time) {
	setup := sitetest.Setup(d.s, time.Now)
	setup.Rules.Namespaces, setup.Rules.Policy, setup.Target.Policy = d.namespaces, policy, policy
	c := site.New(setup)
	targets := []Target{{Site: c, Next: next,
		Range: func(r shardquery.Range) step.Range { return visit.NewRange(c, r) },
		Chore: func(is plan.Chore) step.Job {
			if is.Kind == plan.Audit {
				return visit.NewAudit(c, is.Namespace, false)
			}
			return chore.New(c, is)
		}}}
	ctx, cancel := context.WithCancel(d.t.Context())
	done := make(chan struct{})
	started := make(chan struct{})
	go func() {
		defer close(done)
		collect(ctx, Config{Workers: 4, Grace: time.Second, Now: time.Now}, targets, func(int) agenda {
			box := NewStateBox(sitetest.Target.Name, time.Now())
			return &watchedAgenda{agenda: &onSchedule{box: box, first: true, ticks: next}, d: d, started: started}
		})
	}()
	<-started
	d.t.Cleanup(func() { cancel(); <-done })
}

// A watchedAgenda shows the test the book.
type watchedAgenda struct {
	agenda
	d       *manyRanges
	started chan struct{}
}

func (a *watchedAgenda) look(b *book, now time.Time) {
	if a.d.book == nil {
		a.d.book = b
		close(a.started)
	}
	a.d.mostHeld = max(a.d.mostHeld, b.c.Keeper.Pulse.Held())
	a.agenda.look(b, now)
}

// run lets time pass, up to half a second after a whole one: then the scheduler waits.
func (d *manyRanges) run(forSo time.Duration) {
	at := time.Now().Add(forSo)
	time.Sleep(time.Until(at.Truncate(time.Second).Add(500 * time.Millisecond)))
	synctest.Wait()
}

// lookups returns how many cursors are looked up for so long, if it is a time in which
// they are not all read again.
func (d *manyRanges) lookups(forSo time.Duration, do func()) int {
	d.t.Helper()
	for range 5 {
		last, before := d.book.plan, d.book.plan.Lookups()
		do()
		d.run(forSo)
		if d.book.plan.SameRanges(last) {
			return d.book.plan.Lookups() - before
		}
		d.run(time.Minute - forSo)
	}
	d.t.Fatal("all cursors are read again and again")
	return 0
}

func (d *manyRanges) put(name string) { d.entity("ns-001", name, 3, 1, time.Second) }

func (d *manyRanges) entity(namespace, name string, number, shard int, in time.Duration) {
	d.t.Helper()
	k, err := expirykey.New(number, shard, time.Now().Add(in))
	if err == nil {
		t := store.Target{Kind: "Session"}
		err = d.s.Put(d.t.Context(), t, namespace, []store.Entity{{Name: name, Expiry: store.TextValue(k.String())}})
	}
	if err != nil {
		d.t.Fatal(err)
	}
}
