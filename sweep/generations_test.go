package sweep_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// An epoch is a world whose generations follow each other, with writers of every
// kind and a sweep every five minutes.
type epoch struct {
	*world
	rng   *rand.Rand
	live  map[string]*written
	next  int
	worst map[string]time.Duration // by kind of writer: how long after it was due an entity stood there

	carries int // all told
	most    int // of one entity between two writes of its application
}

// What was written last about an entity.
type written struct {
	kind     string // of writer
	expires  time.Time
	commit   time.Time
	key      expirykey.Key
	data     string
	inOrder  bool // committed well before it was due
	returned bool // an old copy was put back: its key is an old one
	carries  int
}

const every = 5 * time.Minute // from one sweep to the next

func newEpoch(t *testing.T, policy generation.Policy) *epoch {
	e := &epoch{world: newWorld(t), rng: rand.New(rand.NewPCG(4, 2)), live: map[string]*written{},
		worst: map[string]time.Duration{}}
	e.target.Policy = policy
	e.target.Shards = 4
	e.target.Rewind = 4 * time.Hour
	e.target.MaxAge = 30 * 24 * time.Hour
	e.s.Before = e.watch
	return e
}

// watch holds S1 and S2 at each write, as it takes effect.
func (e *epoch) watch(_ context.Context, c modelstore.Call) error {
	if c.Method != "Dispose" {
		return nil
	}
	rows := e.s.Entities("Session", "")
	e.mu.Lock() // workers come at once
	defer e.mu.Unlock()
	for _, op := range c.Ops {
		row, ok := rows[op.Entry.Key]
		if !ok || row.Expiry != op.Entry.Value {
			continue
		}
		w := e.live[row.Name]
		if op.To.Type == store.Missing {
			if w.expires.After(time.Now()) {
				e.t.Errorf("%s: %s is deleted, and expires %v from now", w.kind, row.Name, time.Until(w.expires))
			}
			continue
		}
		k, err := expirykey.Parse(op.To.Text)
		if err != nil || !k.Expires.Equal(w.expires) {
			e.t.Errorf("%s: %s is carried from %s to %s", w.kind, row.Name, op.Entry.Value.Text, op.To.Text)
		}
		now := time.Now()
		const behind = time.Second // a sweep's idea of the time, when it was told five seconds ago
		if w.expires.Before(now.Add(-behind)) && w.expires.After(now.Add(-e.target.MaxAge)) {
			e.t.Errorf("%s: %s is carried, and was due %v ago", w.kind, row.Name, now.Sub(w.expires))
		}
		if k.Generation != expirykey.Nursery && !w.returned {
			w.carries++
			e.carries++
			e.most = max(e.most, w.carries)
		}
	}
	return nil
}

// commit writes an entity with a key that was stamped at some time.
func (e *epoch) commit(kind, name string, k expirykey.Key) {
	data := fmt.Sprintf(`{"by":%q,"n":%d}`, kind, e.rng.IntN(1e6))
	e.put1(name, k, data)
	e.live[name] = &written{kind: kind, expires: k.Expires, commit: time.Now(), key: k, data: data, inOrder: k.Expires.After(time.Now())}
}

func (e *epoch) put1(name string, k expirykey.Key, data string) {
	err := e.s.Put(e.t.Context(), e.target.Target, "", []store.Entity{{Name: name, Expiry: store.TextValue(k.String()), Data: []byte(data)}})
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *epoch) name() string {
	e.next++
	return fmt.Sprintf("e-%06d", e.next)
}

// A scribe is a writer.
type scribe struct {
	kind     string
	follower *generation.Follower
	refresh  time.Duration // of its copy
	read     time.Time
	slow     time.Duration // its clock is behind by so much
	freezes  time.Duration // between stamp and commit
	pending  []func()      // commits that are frozen
	thaw     []time.Time
}

func (e *epoch) scribes() []*scribe {
	follow := func(kind string, refresh time.Duration) *scribe {
		s := &scribe{kind: kind, refresh: refresh}
		s.follower = &generation.Follower{Store: e.s, Target: "sessions", Shards: e.target.Shards,
			Now: func() time.Time { return time.Now().Add(-s.slow) }}
		return s
	}
	slow, frozen := follow("slow clock", 30*time.Second), follow("frozen", 30*time.Second)
	slow.slow, frozen.freezes = time.Hour, 9*time.Minute
	return []*scribe{
		follow("follower", 30*time.Second), follow("lazy follower", time.Minute), follow("stale follower", 20*time.Minute),
		{kind: "nursery"}, slow, frozen,
	}
}

// stamp returns the key that the writer would give an entity now.
func (s *scribe) stamp(e *epoch, name string, ttl time.Duration) expirykey.Key {
	expires := time.Now().Add(ttl - s.slow)
	k, err := generation.Stamper{Shards: e.target.Shards}.Name(name, expires)
	if s.follower != nil {
		k, err = s.follower.Name(name, expires)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return k
}

// minute lets every writer write a few entities, and their copies age.
func (e *epoch) minute(scribes []*scribe, perMinute int, longest time.Duration) {
	for _, s := range scribes {
		for len(s.thaw) > 0 && !time.Now().Before(s.thaw[0]) {
			s.pending[0]()
			s.pending, s.thaw = s.pending[1:], s.thaw[1:]
		}
		if s.follower != nil && time.Since(s.read) >= s.refresh {
			s.read = time.Now()
			_ = s.follower.Refresh(e.t.Context()) // before the first sweep there is no record
		}
		for range perMinute {
			name := e.name()
			ttl := time.Duration(e.rng.Int64N(int64(longest)))
			k := s.stamp(e, name, ttl)
			if s.freezes > 0 && e.rng.IntN(4) == 0 {
				s.pending = append(s.pending, func() { e.commit(s.kind, name, k) })
				s.thaw = append(s.thaw, time.Now().Add(s.freezes))
				continue
			}
			e.commit(s.kind, name, k)
		}
	}
}

// extend rewrites some live entities with a new expiry, as applications do.
func (e *epoch) extend(s *scribe, n int, longest time.Duration) {
	for name, w := range e.live {
		if n == 0 {
			return
		}
		if w.expires.After(time.Now().Add(time.Minute)) && !w.returned {
			e.commit(s.kind, name, s.stamp(e, name, time.Duration(e.rng.Int64N(int64(longest)))))
			n--
		}
	}
}

// check compares the store with what was written. Bound says for how long after it was due an entity may exist.
func (e *epoch) check(swept time.Time, bound func(*written) time.Duration) {
	e.t.Helper()
	rows := e.s.Entities("Session", "")
	for name, w := range e.live {
		row, there := rows[strconv.Quote(name)]
		late := swept.Sub(w.expires)
		if there && late >= 0 {
			waits := min(late, swept.Sub(w.commit))
			e.worst[w.kind] = max(e.worst[w.kind], waits)
			if waits > bound(w) {
				e.t.Fatalf("%s: %s (%s), committed at %v, is still there %v after it was due, and may be for %v", w.kind, name, row.Expiry.Text, w.commit, late, bound(w))
			}
		}
		switch {
		case !there && w.expires.After(time.Now()):
			e.t.Fatalf("%s: %s is gone, and expires %v from now", w.kind, name, time.Until(w.expires))
		case there && string(row.Data) != w.data:
			e.t.Fatalf("%s: the data of %s changed", w.kind, name)
		case !there:
			delete(e.live, name)
		}
	}
}

func (e *epoch) record() generation.Record {
	e.t.Helper()
	r, _, err := generation.Load(context.WithoutCancel(e.t.Context()), e.s, "sessions")
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

// strays counts the entities whose key lies in a generation that is not live.
func (e *epoch) strays() (n int) {
	r := e.record()
	for _, row := range e.s.Entities("Session", "") {
		k, err := expirykey.Parse(row.Expiry.Text)
		if err == nil && k.Generation != 0 && !slices.ContainsFunc(r.Generations, func(g generation.Generation) bool { return g.Number == k.Generation }) {
			n++
		}
	}
	return n
}

// TestTenGenerations lets writers of every kind and a sweeper run through ten generations.
// Sweeps find what each kind of writer leaves behind within the time that is promised for
// it, and touch nothing live. Nothing stays in retired generations except what the audit
// finds.
func TestTenGenerations(t *testing.T) {
	nightly.Races(t)
	for name, c := range map[string]struct {
		keep    int
		longest time.Duration
	}{
		"kept longer than the longest life":  {3, 5 * time.Hour},
		"kept shorter than the longest life": {1, 12 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := generation.Policy{Every: 2 * time.Hour, Ramp: 30 * time.Minute, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: c.keep}
				e := newEpoch(t, policy)
				scribes := e.scribes()
				// A straggler is found by the seal of its generation or, in the nursery,
				// by the rewind; a stray by the audit.
				seal := policy.Every + policy.Ramp + policy.Staleness + policy.Slack + 3*every
				stray := 24*time.Hour + 2*every
				bound := func(w *written) time.Duration {
					switch {
					case w.returned:
						return stray + max(seal, e.target.Rewind)
					case w.inOrder:
						return 0
					}
					return max(seal, e.target.Rewind) + 2*every
				}
				retired := 0
				run := func(minutes, perMinute int) {
					for m := range minutes {
						e.minute(scribes, perMinute, c.longest)
						if perMinute > 0 && m%10 == 0 {
							e.extend(scribes[0], 5, c.longest)
						}
						if m%5 == 0 {
							began := time.Now()
							res := e.sweep()
							if res.Error != "" || !res.Complete {
								t.Fatalf("%+v", res)
							}
							retired += len(res.Retired)
							e.check(began, bound)
						}
						if perMinute > 0 && m%180 == 90 {
							e.putBack()
						}
						time.Sleep(time.Minute)
					}
				}
				run(20*60+30, 1)
				r := e.record()
				newest := r.Generations[len(r.Generations)-1].Number
				if newest != 11 {
					t.Errorf("%d generations were opened in ten periods", newest)
				}
				if len(r.Generations) > c.keep+3 {
					t.Errorf("%d generations are live: %+v", len(r.Generations), r.Generations)
				}
				run(2*24*60, 0)
				if n := e.strays(); n > 0 {
					t.Errorf("%d entities are left in retired generations", n)
				}
				if len(e.live) > 0 || len(e.left()) > 0 {
					t.Errorf("%d entities are left", len(e.left()))
				}
				for id := range e.cursors() {
					if id.Generation != 0 && !slices.ContainsFunc(e.record().Generations, func(g generation.Generation) bool { return g.Number == id.Generation }) {
						t.Errorf("cursor %v outlived its generation", id)
					}
				}
				if retired < 10 {
					t.Errorf("%d generations retired", retired)
				}
				// See docs/generations.md: a life of T is carried no more often than this.
				formula := 0
				if kept := time.Duration(c.keep) * policy.Every; c.longest > kept {
					formula = 1 + int((c.longest-kept)/(kept+policy.Every))
				}
				if e.most > formula || (e.carries > 0) != (formula > 0) {
					t.Errorf("carried %d times in all, one entity %d times; at most %d may be", e.carries, e.most, formula)
				}
				t.Logf("%d entities, %d carries (at most %d of one), %d generations retired; the longest wait after it was due, by writer: %v",
					e.next, e.carries, e.most, retired, e.worst)
			})
		})
	}
}

// putBack writes old copies of whole entities: of some that exist, and of some that were
// deleted long ago.
func (e *epoch) putBack() {
	r := e.record()
	for _, ttl := range []time.Duration{-time.Hour, 30 * time.Minute, 5 * time.Hour} {
		name := e.name()
		k, err := generation.Stamper{Generation: max(1, r.Generations[0].Number-1), Shards: e.target.Shards}.Name(name, time.Now().Add(ttl))
		if err != nil {
			e.t.Fatal(err)
		}
		e.commit("old copy", name, k)
		e.live[name].returned = true
	}
}

// TestWritersMoveAlongTheRamp counts, minute by minute, which share of the stamps
// of many followers goes to a new generation.
func TestWritersMoveAlongTheRamp(t *testing.T) {
	nightly.Races(t)
	synctest.Test(t, func(t *testing.T) {
		policy := generation.Policy{Every: 2 * time.Hour, Ramp: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 9}
		e := newEpoch(t, policy)
		e.sweep()
		scribes := e.scribes()[:2]
		const perMinute = 2000
		peak, before := 0.0, 0.0
		for m := range 6 * 60 {
			if m%5 == 0 {
				e.sweep()
			}
			r := e.record()
			newest := r.Generations[len(r.Generations)-1]
			moved := 0
			for i := range perMinute {
				s := scribes[i%2]
				if time.Since(s.read) >= s.refresh {
					s.read = time.Now()
					if err := s.follower.Refresh(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if s.stamp(e, fmt.Sprint(m, "-", i), time.Hour).Generation == newest.Number {
					moved++
				}
			}
			share, curve := float64(moved)/perMinute, generation.Share(time.Since(newest.Opened), newest.Ramp)
			if noise := 5 * math.Sqrt(curve*(1-curve)/perMinute); math.Abs(share-curve) > noise+1e-9 && newest.Number > 1 {
				t.Errorf("minute %d: %.4f of the stamps are of generation %d, the curve says %.4f", m, share, newest.Number, curve)
			}
			if newest.Number > 1 && time.Since(newest.Opened) <= newest.Ramp {
				peak = max(peak, share-before)
			}
			before = share
			time.Sleep(time.Minute)
		}
		t.Logf("the share grew by at most %.3f in a minute", peak)
	})
}

// If a target gets another layout, no sweep knows what is left in its generations. None
// retires, and they are swept again once the layout is back.
func TestLayoutChangesWhileGenerationsAreSealed(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = generation.Policy{Every: 24 * time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 32, Shards: 4}
		w.put(1, 4, "long-lived", time.Now().Add(100*time.Hour))
		for range 3 {
			w.sweep()
			time.Sleep(25 * time.Hour)
		}
		keyed := w.target
		layouts["timestamp"](&w.target)
		for range 3 {
			if res := w.sweep(); res.Error != "" || len(res.Retired) != 0 {
				t.Errorf("as timestamps: %+v", res)
			}
			time.Sleep(20 * time.Minute)
		}
		w.target = keyed
		if res := w.sweep(); res.Error != "" || slices.Contains(res.Retired, 1) {
			t.Errorf("as keys again: %+v", res)
		}
		w.wantLeft("long-lived")
		time.Sleep(30 * time.Hour)
		if res := w.sweep(); res.Deleted != 1 {
			t.Errorf("once it is due: %+v", res)
		}
	})
}

// withoutGenerations returns a target as a targets file has it that knows no generations of it.
func withoutGenerations(t sweep.Target) sweep.Target {
	t.Layout, t.Generations, t.Policy = "sharded", false, generation.Policy{}
	return t
}

// The target record is lost, and a process with a layout without generations makes a new one: it
// looks for no generations. Once one with generations comes back it finds those in use, in its
// first sweep, and opens the next one.
func TestLayoutWithoutGenerationsMakesTheRecord(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		now := time.Now()
		w.put(3, 4, "due", now.Add(time.Minute))
		w.put(5, 4, "due later", now.Add(3*time.Hour))
		keyed := w.target
		w.sweep()
		lose(t, w.s)
		w.target = withoutGenerations(w.target)
		time.Sleep(2 * time.Minute)
		if res := w.sweep(); res.Error != "" || res.Deleted != 0 || len(numbers(w.record())) != 0 {
			t.Fatalf("without generations: %+v, %v", res, numbers(w.record()))
		}
		w.target = keyed
		time.Sleep(time.Minute)
		if res := w.sweep(); res.Error != "" || !res.Complete || res.Deleted != 1 {
			t.Errorf("with generations again: %+v", res)
		}
		if r := w.record(); !slices.Equal(numbers(r), []int{3, 5, 6}) {
			t.Errorf("it lists %v", numbers(r))
		}
		w.wantLeft("due later")
		time.Sleep(4 * time.Hour)
		if res := w.sweep(); res.Error != "" || res.Deleted != 1 || !w.record().Probe.IsZero() {
			t.Errorf("once the other one is due: %+v", res)
		}
	})
}

// The same while a daemon runs that has no index to find generations in: their cursors show them.
func TestRecordWithoutGenerationsMeetsADaemon(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy, w.target.Next = hourly, everyMinute
		s := w.serve(w.config())
		time.Sleep(10 * time.Minute)
		w.touch()
		lose(t, w.s)
		if rec, _, err := sweep.EnsureRecord(t.Context(), w.config(), withoutGenerations(w.target)); err != nil || len(numbers(rec)) > 0 {
			t.Fatalf("%v, %v", numbers(rec), err)
		}
		time.Sleep(5 * time.Minute)
		if r := w.record(); !slices.Equal(numbers(r), []int{1, 2}) || r.Generations[0].Closed.IsZero() || r.Probe.IsZero() {
			t.Errorf("it lists %+v, and probes at %v", r.Generations, r.Probe)
		}
		s.stop()
	})
}
