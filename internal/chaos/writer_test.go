//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/generation"
)

// A writer is a part of an application: it has ids of its own, and makes one
// write after the other.
type writer struct {
	*world
	app      app
	bad      bool // its connection is: only transactions can be settled
	follower *generation.Follower
	rand     *rand.Rand
	slots    []*slot
	pause    time.Duration // between two writes, on average
	calm     bool          // what it writes lives long, and is seldom written again
}

const (
	// writePatience is how long a write may take, which the locks of a dead
	// transaction can hold up for a minute and more.
	writePatience = 100 * time.Second
)

// serial numbers the entities, so that no two are equal.
var serial atomic.Int64

// run writes until ctx is done, and finishes the last write.
func (w *writer) run(ctx context.Context) {
	pause := w.pause
	for n := 0; ctx.Err() == nil; n++ {
		if w.calm && n < len(w.slots) {
			w.write(w.slots[n])
		} else {
			w.write(w.pick())
		}
		if w.calm && n == len(w.slots) {
			pause *= calmer
		}
		sleep(ctx, time.Duration(w.rand.Int64N(int64(2*pause))))
	}
}

// calmer is how much longer a calm writer waits between two writes, once each of
// its entities is there.
const calmer = 40

// pick chooses a slot: mostly one that expires about now, or that is empty.
func (w *writer) pick() *slot {
	now := time.Now()
	best := w.slots[w.rand.IntN(len(w.slots))]
	if w.calm || w.rand.IntN(2) == 0 {
		return best
	}
	distance := func(s *slot) time.Duration {
		switch st := s.look().state; {
		case !st.present:
			return 2 * time.Second
		case st.expiry.at.IsZero():
			return time.Hour
		default:
			return st.expiry.at.Sub(now).Abs()
		}
	}
	for range 3 {
		if s := w.slots[w.rand.IntN(len(w.slots))]; distance(s) < distance(best) {
			best = s
		}
	}
	return best
}

// expires draws an instant of expiry.
func (w *writer) expires(now time.Time) time.Time {
	life := func(from, to time.Duration) time.Time {
		return now.Add(from + time.Duration(w.rand.Int64N(int64(to-from)))).Truncate(time.Millisecond)
	}
	n := w.rand.IntN(100)
	if w.calm {
		n = 80 + n/5
	}
	switch {
	case n < 10:
		return life(-4*second, 0) // it has expired already, and may be behind the cursor
	case n < 55:
		return life(0, w.short/3)
	case n < 80:
		return life(w.short/3, w.short)
	case n < 92:
		return life(w.short, w.medium) // so long that it may be carried
	case n < 98:
		return life(time.Hour, 3*time.Hour) // for the whole run
	default:
		return time.Time{} // never
	}
}

// stamp writes an instant as the kind's layout wants it.
func (w *writer) stamp(s *slot, at time.Time) (expires any, e expiry) {
	switch {
	case at.IsZero():
		return nil, expiry{}
	case s.kind == timed:
		return at, expiry{formatInstant(at), at}
	}
	stamper := w.follower.Stamper(s.id)
	switch w.rand.IntN(20) {
	case 0: // a writer that knows nothing of generations
		stamper = generation.Stamper{Shards: w.shards}
	case 1: // and one with an older, larger number of shards
		stamper = generation.Stamper{Shards: 2*w.shards + 1}
	}
	key, err := stamper.Name(s.id, at)
	if err != nil {
		w.violation(s, fmt.Sprintf("stamp: %v", err))
	}
	return key.String(), expiry{key.String(), key.Expires}
}

// next makes a new entity for a slot, and the state that the oracle then expects.
func (w *writer) next(s *slot, at time.Time) (doc, state) {
	d := doc{fields: newFields(w.rand, serial.Add(1)), property: properties[s.kind]}
	to := state{present: true, body: canon(d.fields), stamped: time.Now()}
	d.expires, to.expiry = w.stamp(s, at)
	if !w.bad && w.rand.IntN(30) == 0 { // a writer may take that long to commit
		sleep(context.Background(), time.Duration(w.rand.Int64N(int64(w.slack*3/4))))
	}
	return d, to
}

// write makes one write to a slot, and finds out its outcome.
func (w *writer) write(s *slot) {
	ctx, cancel := context.WithTimeout(context.Background(), w.patience())
	defer cancel()
	was := s.begin()
	now := time.Now()
	at := w.expires(now)
	if w.rand.IntN(6) == 0 && was.present && !was.expiry.at.IsZero() {
		at = now.Add(time.Duration(w.rand.IntN(1500)-500) * time.Millisecond) // shorten
	}
	n := w.rand.IntN(100)
	switch {
	case w.bad:
		w.change(ctx, s, was, n < 15, at)
	case !was.present && n < 40 || n >= 95:
		d, to := w.next(s, at)
		s.say("create %s", to)
		w.finish(s, was, to, created, w.app.create(ctx, s.kind, s.id, d))
	case !was.present || n < 40:
		d, to := w.next(s, at)
		s.say("put %s", to)
		w.finish(s, was, to, put, w.app.put(ctx, s.kind, s.id, d))
	case n < 75:
		w.change(ctx, s, was, n < 45, at)
	case n < 85:
		d, to := w.next(s, at)
		to.expiry, to.stamped, to.acked, to.late = was.expiry, was.stamped, was.acked, was.late
		s.say("patch %s", to)
		w.finish(s, was, to, patched, w.app.patch(ctx, s.kind, s.id, d))
	default:
		s.say("delete")
		w.finish(s, was, state{}, deleted, w.app.remove(ctx, s.kind, s.id))
	}
	// A stamp that was older than the slack when it committed must be made again.
	for v := s.look(); v.sound && v.state.present && v.state.late; v = s.look() {
		w.late.Add(1)
		func() {
			ctx, cancel := context.WithTimeout(context.Background(), writePatience)
			defer cancel()
			w.rewrite(ctx, w.direct, s, s.begin(), v.state.expiry.at)
		}()
	}
}

// patience is how long a write may take. It is shorter if the network may lose the reply,
// and far shorter than the slack, so that a late write still keeps the writers' bounds.
func (w *writer) patience() time.Duration {
	if w.bad {
		return w.slack / 2
	}
	return writePatience
}

// What a write does, for people.
const (
	created = "created"
	put     = "put"
	patched = "patched"
	changed = "changed"
	deleted = "deleted"
	settled = "settled"
)

// change extends, or removes, an entity in a transaction that reads it first.
func (w *writer) change(ctx context.Context, s *slot, was state, remove bool, at time.Time) {
	if remove {
		s.say("delete in a transaction")
		err := w.app.change(ctx, s.kind, s.id, func(is *found) verdict {
			w.check(s, []state{was}, is)
			return verdict{remove: true}
		})
		w.finish(s, was, state{}, deleted, w.inTransaction(w.bad, err))
		return
	}
	w.rewrite(ctx, w.app, s, was, at)
}

// rewrite puts an entity in a transaction that reads it first.
func (w *writer) rewrite(ctx context.Context, app app, s *slot, was state, at time.Time) {
	d, to := w.next(s, at)
	s.say("put in a transaction %s", to)
	err := app.change(ctx, s.kind, s.id, func(is *found) verdict {
		w.check(s, []state{was}, is)
		return verdict{put: &d}
	})
	w.finish(s, was, to, changed, w.inTransaction(app == w.app && w.bad, err))
}

// inTransaction returns an error that claims no more than is known of the outcome.
func (w *writer) inTransaction(bad bool, err error) error {
	if err == nil || errors.Is(err, errAborted) && !bad {
		return err
	}
	return fmt.Errorf("not known: %v", err) // without %w: it must not be taken for another one
}

// check reports a violation if an entity matches none of the candidates.
func (w *writer) check(s *slot, candidates []state, is *found) {
	if wrong := among(candidates, is, time.Now()); wrong != "" {
		w.violation(s, wrong)
	}
}

// finish records the outcome of a write.
func (w *writer) finish(s *slot, was, to state, what string, err error) {
	now := time.Now()
	switch {
	case err == nil:
		if to.present && what != patched {
			to.acked, to.late = now, now.Sub(to.stamped) > w.slack
		}
		w.count(was, to)
		s.end(to, what)
	case errors.Is(err, errAbsent) && what == patched:
		if !was.expired(now) && was.present {
			w.violation(s, "S1: it is live, and was gone when it was to be patched")
		}
		s.end(state{}, "gone")
	case errors.Is(err, errExists) && was.present:
		s.end(was, "exists already")
	case errors.Is(err, errAborted):
		w.aborted.Add(1)
		s.end(was, "aborted")
	default:
		w.settle(s, was, to, err)
	}
}

func (w *world) count(was, to state) {
	w.written.Add(1)
	switch {
	case !to.present:
		w.deleted.Add(1)
	case was.present && to.expiry.at.After(was.expiry.at):
		w.extended.Add(1)
	}
}

// settle finds out, over a good connection, what a write with an unknown outcome
// came to. It reads and writes in one transaction: with the write that is
// pending the transaction would not commit, and after it that one cannot.
func (w *writer) settle(s *slot, was, to state, why error) {
	w.unknown.Add(1)
	s.say("unknown outcome: %v", why)
	candidates := []state{was, to}
	ctx, cancel := context.WithTimeout(context.Background(), writePatience)
	defer cancel()
	for ctx.Err() == nil {
		d, fence := w.next(s, w.expires(time.Now()))
		wrong := ""
		err := w.direct.change(ctx, s.kind, s.id, func(is *found) verdict {
			wrong = among(candidates, is, time.Now())
			return verdict{put: &d}
		})
		if err == nil {
			if wrong != "" {
				w.violation(s, wrong)
			}
			fence.acked = time.Now()
			fence.late = fence.acked.Sub(fence.stamped) > w.slack
			w.count(was, fence)
			s.end(fence, settled)
			// A write without a condition may take effect at any later time.
			if !w.bad {
				w.giveUp(s)
			}
			return
		}
		if !errors.Is(err, errAborted) {
			candidates = append(candidates, fence)
		}
		sleep(ctx, 200*time.Millisecond)
	}
	w.giveUp(s)
}

// giveUp makes the oracle claim nothing about a slot any more.
func (w *writer) giveUp(s *slot) {
	w.given.Add(1)
	s.mu.Lock()
	s.given, s.busy = true, false
	s.version++
	s.note("given up")
	s.mu.Unlock()
	for i := range w.slots {
		if w.slots[i] == s {
			w.slots[i] = w.newSlot(s.kind, s.target)
		}
	}
}

// sleep waits, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
