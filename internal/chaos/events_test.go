//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
)

const (
	floor     = 8  // of an event that always goes
	page      = 5  // as in the targets file: a slice of a process is no more here
	sweepers  = 3  // processes of the swarm that sweep
	eventSize = 45 // so large that each event trips
	workers   = 6
)

// A mass lets many entities come to be due at once, again and again, and is the operator who decides what
// becomes of that. The writes of an event are one transaction, so that it is never counted in part.
type mass struct {
	bookkeeper
	follower *generation.Follower
	used     time.Time // the window of expiry of the last event: each has one of its own
	events   int
	healed   atomic.Pointer[time.Time] // when the faults ended
	told     []int                     // how many were gone of each event when it was held
	limits   []int64                   // of the trips
	seen     string                    // the last one of these
}

func (w *world) newMass() *mass {
	f := &generation.Follower{Store: w.store, Target: "events", Shards: w.shards, Now: time.Now}
	return &mass{bookkeeper: w.newBookkeeper(massed, eventSize, 700), follower: f}
}

// ageBudget lets the budget of a target be two days old: on its first day no burst trips.
func (w *world) ageBudget(t *testing.T, target string, all int64) {
	t.Helper()
	const day = 24 * time.Hour
	b, err := spend.Load(t.Context(), w.store, target)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC()
	b.Began = now.Add(-2 * day)
	b.Days = []breaker.Day{{Begin: now.Add(-day).Truncate(day), Share: 0.05}}
	b.Alls = []breaker.All{{N: all, At: now.Add(-time.Hour)}}
	if err := w.store.Save(t.Context(), b.Encode(), b.Revision); err != nil {
		t.Fatal(err)
	}
}

// run makes one event after the other while everything breaks, one at least, and sees each of them to its end.
func (m *mass) run(all, breaking context.Context) {
	defer context.AfterFunc(breaking, func() {
		now := time.Now()
		m.healed.Store(&now)
	})()
	following, end := context.WithCancel(all)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.follower.Run(following)
	}()
	defer func() {
		end()
		<-done
	}()
	for m.events = 0; all.Err() == nil && (m.events == 0 || breaking.Err() == nil); m.events++ {
		m.fill(all)
		m.event(all)
		sleep(breaking, between(m.rand, m.calm/2, m.calm))
	}
}

// next makes an entity that expires then.
func (m *mass) next(s *slot, at time.Time) change {
	d := doc{fields: newFields(m.rand, serial.Add(1)), property: properties[massed]}
	to := state{present: true, body: canon(d.fields), stamped: time.Now()}
	key, err := m.follower.Stamper(s.id).Name(s.id, at.Truncate(time.Millisecond))
	if err != nil {
		m.violation(s, fmt.Sprintf("stamp: %v", err))
	}
	d.expires, to.expiry = key.String(), expiry{key.String(), key.Expires}
	return change{verdict{put: &d}, to}
}

// far is an instant that does not come while the test runs, in a window that few others have.
func (m *mass) far() time.Time {
	return time.Now().Add(8*time.Hour + time.Duration(m.rand.IntN(600))*time.Minute)
}

// fill creates all entities that are not there.
func (m *mass) fill(ctx context.Context) {
	m.write(ctx, m.slots, nil, func(s *slot, is *found) change {
		if is != nil {
			return change{}
		}
		return m.next(s, m.far())
	})
}

// instant returns when all of the next event expires: in a moment or, now and then, long ago. Then a read
// from the start finds it.
func (m *mass) instant(ctx context.Context) time.Time {
	if m.events%4 == 3 {
		return time.Now().Add(-3*time.Hour - time.Duration(m.events)*time.Minute)
	}
	for {
		at := time.Now().Add(between(m.rand, second, 3*second))
		if !at.Truncate(time.Minute).Equal(m.used) || ctx.Err() != nil { // else the approval of the last one would cover it
			m.used = at.Truncate(time.Minute)
			return at
		}
		sleep(ctx, second/5)
	}
}

// event lets all entities expire at one instant, and checks what goes before it is approved.
func (m *mass) event(ctx context.Context) {
	at := m.instant(ctx)
	e := &event{mass: m, at: at, rule: breaker.Burst, began: time.Now()}
	acked := m.write(ctx, m.slots, nil, func(s *slot, is *found) change {
		if is == nil {
			return change{}
		}
		return m.next(s, at)
	})
	if !acked.Before(at) { // a read from the start finds it
		e.rule = breaker.LateOnes
	}
	trip, ok := e.awaitTrip(ctx, "")
	if !ok {
		return
	}
	e.hold(ctx, between(m.rand, m.lease/2, 2*m.lease))
	switch (m.seed + uint64(m.events)) % 3 {
	case 0:
		m.restore(ctx)
		e.clear(ctx)
		return
	case 1:
		part := int64(1 + m.rand.IntN(eventSize/3))
		if e.approve(ctx, trip, part) {
			m.parts.Add(1)
			e.approved += int(part)
		}
		if trip, ok = e.awaitTrip(ctx, trip); !ok {
			return
		}
		e.hold(ctx, between(m.rand, 0, m.lease))
	}
	for e.approve(ctx, trip, 0); ctx.Err() == nil && e.left(ctx) > 0; sleep(ctx, second/2) {
		if is, _ := m.openTrip(ctx); is != "" { // what was reserved by a process that was killed is missing
			e.approve(ctx, is, 0)
		}
		e.expect(ctx, "L1: %d of an approved event are still there")
	}
}

// restore lets all entities that are there live on.
func (m *mass) restore(ctx context.Context) {
	m.write(ctx, m.slots, nil, func(s *slot, is *found) change {
		if is == nil {
			return change{}
		}
		return m.next(s, m.far())
	})
}

// openTrip returns the trip that holds the events, if there is one, and whether it could be read.
func (m *mass) openTrip(ctx context.Context) (id string, isRead bool) {
	rec, _, err := generation.Load(ctx, m.store, "events")
	if err != nil {
		return "", false
	}
	if id := rec.Trip.ID; id != "" && id != m.seen {
		m.seen, m.limits = id, append(m.limits, rec.Trip.Limit)
	}
	return rec.Trip.ID, true
}

// An event is what comes to be due at once.
type event struct {
	*mass
	at, began time.Time
	rule      breaker.Rule
	approved  int // so many of it may go by now
}

// left reads how many of it are still there, and checks that not too many are gone.
func (e *event) left(ctx context.Context) (n int) {
	var ids []string
	for _, s := range e.slots {
		ids = append(ids, s.id)
	}
	all, err := e.direct.get(ctx, massed, ids)
	if err != nil {
		return len(ids)
	}
	for _, f := range all {
		if f != nil {
			n++
		}
	}
	return n
}

// most is how many may be gone before all of it is approved: floor, a slice of each process, and what
// was approved of it. What is late is forgotten evenly within a rewind, so that its floor is there
// again and again until it could be counted; and an earlier approval of what is late may have a slice left.
func (e *event) most(counted time.Time) int {
	n := floor + sweepers*page + e.approved
	if e.rule != breaker.Burst {
		n += floor*int(1+counted.Sub(e.began)/e.rewind) + sweepers*page
	}
	return n
}

// spentOf returns the budget of the events, as it is stored.
func spentOf(ctx context.Context, w *world) (map[string]any, error) {
	b, err := spend.Load(ctx, w.store, "events")
	return b.Encode().Fields, err
}

// check reports too many that are gone.
func (e *event) check(ctx context.Context, counted time.Time) {
	if gone := len(e.slots) - e.left(ctx); gone > e.most(counted) {
		b, err := spentOf(ctx, e.world)
		e.violation(nil, fmt.Sprintf("B1: of an event that expires at %v and that nobody approved %d are gone, and %d may be;"+
			" limits of the trips before: %v; the budget (%v): %v", e.at, gone, e.most(counted), e.limits, err, b))
	}
}

// expect reports an event that is not over long after the faults ended. While they go on a busy machine
// may never come to count it.
func (e *event) expect(ctx context.Context, format string) {
	if since := e.healed.Load(); since != nil && time.Since(*since) > e.medium+e.bound {
		e.violation(nil, fmt.Sprintf(format, e.left(ctx))+fmt.Sprintf(" %v after the faults ended: it expires at %v", time.Since(*since), e.at))
	}
}

// awaitTrip waits until a trip other than the one before holds the events.
func (e *event) awaitTrip(ctx context.Context, before string) (trip string, ok bool) {
	for ; ctx.Err() == nil; sleep(ctx, second/4) {
		e.check(ctx, time.Now())
		if id, _ := e.openTrip(ctx); id != "" && id != before {
			e.trips.Add(1)
			if before == "" && strings.Contains(id, string(breaker.LateOnes)) {
				e.rule = breaker.LateOnes
			}
			return id, true
		}
		e.expect(ctx, "B1: %d of an event are there, and nothing holds them")
	}
	return "", false
}

// hold lets some time pass: what is held stays so.
func (e *event) hold(ctx context.Context, d time.Duration) {
	counted := time.Now()
	for until := counted.Add(d); ctx.Err() == nil && time.Now().Before(until); sleep(ctx, second/4) {
		e.check(ctx, counted)
	}
	e.told = append(e.told, len(e.slots)-e.left(ctx)-e.approved)
}

// approve lets an event pass, or a part of it. It gives up once the trip is no longer open.
func (e *event) approve(ctx context.Context, trip string, part int64) bool {
	args := []string{"breaker", "approve", "events", trip, "--reason", "chaos"}
	if part > 0 {
		args = append(args, "--count", fmt.Sprint(part))
	}
	for ; ctx.Err() == nil; sleep(ctx, second/2) {
		if e.operation(args...) == nil {
			e.approvals.Add(1)
			return true
		}
		var st inspect.BreakerStatus
		out, err := e.output("breaker", "show", "events", "--json")
		if err == nil && json.Unmarshal(out, &st) == nil && st.Trip != trip {
			e.approvals.Add(1)
			return true // it was approved, though the answer was lost
		}
		e.expect(ctx, "a trip of %d cannot be approved")
	}
	return false
}

// clear ends a trip whose cause is gone.
func (e *event) clear(ctx context.Context) {
	for ; ctx.Err() == nil; sleep(ctx, second/2) {
		err := e.operation("breaker", "clear", "events")
		trip, isRead := e.openTrip(ctx)
		if err == nil || isRead && trip == "" { // it was cleared, though the answer was lost
			e.clears.Add(1)
			return
		}
		e.expect(ctx, "the trip of an event that is over cannot be cleared: %d are there")
	}
}
