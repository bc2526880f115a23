package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	simPlus   = 30 * 24 * time.Hour
	simSpread = time.Hour
)

var simTarget = store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}

// A witness holds the entities of one simulated adoption. It sees each write take effect, and
// checks M1 by rules of its own: an adopter changes the expiry and nothing else, of entities
// that exist, from none to what the rule gives for what the entity holds now, or back.
type witness struct {
	*modelstore.Store

	mu         sync.Mutex
	undo       bool
	rounds     []Round              // as the records had them
	written    map[string]time.Time // when an application wrote an entity last, by its name
	violations []string
}

func (w *witness) violated(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

// around watches a write of an adopter.
func (w *witness) around(write func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.Entities("Session", "")
	err := write()
	for key, e := range w.Entities("Session", "") {
		was, there := before[key]
		switch {
		case !there:
			w.violated("%s was created", key)
		case string(was.Data) != string(e.Data):
			w.violated("the data of %s changed from %s to %s", key, was.Data, e.Data)
		case was.Expiry == e.Expiry:
		case was.Expiry.Type == store.Missing && !w.fits(e, e.Expiry):
			w.violated("%s with %s got the key %s", key, e.Data, e.Expiry.Text)
		case was.Expiry.Type != store.Missing && e.Expiry.Type != store.Missing:
			w.violated("the key %s of %s became %s", was.Expiry.Text, key, e.Expiry.Text)
		case was.Expiry.Type != store.Missing && (!w.undo || !w.fits(e, was.Expiry)):
			w.violated("the key %s of %s with %s was removed", was.Expiry.Text, key, e.Data)
		}
	}
	return err
}

// fits reports whether a key is what a round gives an entity.
func (w *witness) fits(e store.Entity, key store.Value) bool {
	var data struct{ Created time.Time }
	k, err := expirykey.Parse(key.Text)
	if err != nil || json.Unmarshal(e.Data, &data) != nil || data.Created.IsZero() {
		return false
	}
	rule := data.Created.Add(simPlus)
	for _, r := range w.rounds {
		spread := !rule.After(r.Began) && !k.Expires.Before(r.Began.Add(-time.Millisecond)) && !k.Expires.After(r.Began.Add(simSpread))
		if spread || rule.After(r.Began) && k.Expires.Sub(rule).Abs() <= time.Millisecond {
			return true
		}
	}
	return false
}

func (w *witness) Restamp(ctx context.Context, b *store.Restamping) error {
	return w.around(func() error { return w.Store.Restamp(ctx, b) })
}

func (w *witness) Save(ctx context.Context, r store.Record, prev string) error {
	if r.Sort == store.AdoptRecord && r.Fields["rounds"] != nil {
		if rec, err := decode(r); err == nil {
			w.mu.Lock()
			w.rounds = append(w.rounds, rec.Rounds...)
			w.mu.Unlock()
		}
	}
	return w.Store.Save(ctx, r, prev)
}

// writes has an application write.
func (w *witness) writes(e store.Entity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written[e.Name] = time.Now()
	_ = w.Put(context.Background(), simTarget, "", []store.Entity{e}) // a map does not fail
}

// A simStore is what an adopter calls.
type simStore interface {
	store.Store
	store.Adopter
	store.Keyer
}

// A flaky store is reached over a network, by a process that may be killed, and stands still at times.
type flaky struct {
	simStore

	life   context.Context
	until  time.Time // when the faults end
	mu     sync.Mutex
	random *rand.Rand
}

func (f *flaky) chance() float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.Float64()
}

// call makes a call with faults before and after it.
func (f *flaky) call(ctx context.Context, do func() error) error {
	for _, after := range []bool{false, true} {
		if time.Now().Before(f.until) {
			wait := time.Duration(f.chance() * float64(500*time.Millisecond))
			if f.chance() < 0.01 {
				wait = 75 * time.Second // more than two leases
			}
			time.Sleep(wait)
			if x := f.chance(); x < 0.04 {
				return fmt.Errorf("the network: %w", store.ErrUnavailable)
			} else if x < 0.06 && !after {
				return fmt.Errorf("busy: %w", store.ErrContention)
			}
		}
		if err := errors.Join(f.life.Err(), ctx.Err()); err != nil {
			return err
		}
		if !after {
			if err := do(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *flaky) Load(ctx context.Context, q store.RecordQuery) (got store.Records, err error) {
	err = f.call(ctx, func() (err error) { got, err = f.simStore.Load(ctx, q); return err })
	return got, err
}

func (f *flaky) Save(ctx context.Context, r store.Record, prev string) error {
	return f.call(ctx, func() error { return f.simStore.Save(ctx, r, prev) })
}

func (f *flaky) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	return f.call(ctx, func() error { return f.simStore.Walk(ctx, q, rows) })
}

func (f *flaky) Look(ctx context.Context, q store.WalkQuery, keys []string, rows *store.Rows) error {
	return f.call(ctx, func() error { return f.simStore.Look(ctx, q, keys, rows) })
}

func (f *flaky) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	return f.call(ctx, func() error { return f.simStore.Scan(ctx, q, page) })
}

func (f *flaky) Restamp(ctx context.Context, b *store.Restamping) error {
	ops := slices.Clone(b.Ops)
	err := f.call(ctx, func() error { return f.simStore.Restamp(ctx, b) })
	if err != nil {
		copy(b.Ops, ops) // nobody was told
	}
	return err
}

// simulate plays one seed, with stores as wrong as breaks makes them, and returns what was violated.
func simulate(t *testing.T, seed uint64, breaks func(*witness, simStore) simStore) (violations []string) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := &witness{Store: modelstore.New(time.Now), written: map[string]time.Time{}}
		w.Indexed = "created"
		for i := range 40 + random.IntN(60) {
			w.writes(simEntity(fmt.Sprintf("e-%03d", i), time.Duration(random.Float64()*float64(60*24*time.Hour)), random.IntN(20)))
		}
		calm := time.Now().Add(3 * time.Minute)
		rate := 1 + 15*random.Float64()
		var wait sync.WaitGroup
		wait.Go(func() { simWriter(w, rand.New(rand.NewPCG(seed, 2)), calm) })
		var processes atomic.Uint64
		do := func(order Order, life time.Duration, percent float64, do func(context.Context, Config) (Result, error)) error {
			ctx, kill := context.WithCancel(t.Context())
			defer kill()
			if life > 0 {
				time.AfterFunc(life, kill)
			}
			n := processes.Add(1)
			owner := fmt.Sprint("process-", n)
			f := &flaky{simStore: breaks(w, w), life: ctx, until: calm, random: rand.New(rand.NewPCG(seed, 10+n))}
			_, err := do(ctx, Config{
				Sweep: sweep.Config{Store: f, Apply: true, Workers: 3, Owner: owner, Now: time.Now, Grace: time.Second,
					Log: slog.New(slog.DiscardHandler)},
				Target: sweep.Target{Target: simTarget, Layout: "sharded", Shards: 4, Page: 7, MaxAge: 1825 * 24 * time.Hour,
					Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second},
				Rule: Rule{Property: "created", Plus: simPlus}, Spread: simSpread, Percent: percent,
				Rate: throttle.Limits{Start: rate, Max: rate}, Order: order})
			return err
		}
		run := func(order Order, life time.Duration, percent float64) error { return do(order, life, percent, Run) }
		percents := []float64{30, 100, 100, 100}
		for _, percent := range percents {
			life := time.Duration(float64(time.Minute) * random.Float64())
			wait.Go(func() { _ = run(Stamp, life, percent) }) // killed, or in the way of another order
			time.Sleep(time.Duration(float64(40*time.Second) * random.Float64()))
		}
		wait.Wait()
		time.Sleep(time.Until(calm))
		// It goes on with the round that others have left, which misses only what was written since it
		// began; the next one misses nothing.
		for i := range 2 {
			if err := run(Stamp, 0, 100); err != nil {
				w.violated("the last run: %v", err)
			}
			since := time.Now()
			if i == 0 {
				since = w.rounds[len(w.rounds)-1].Began
			}
			w.checkStamped(since)
		}
		if seed%6 == 1 { // followers that are killed, over a bad network; then one over a good one
			began := time.Now()
			calm = began.Add(2 * time.Minute)
			wait.Go(func() { simWriter(w, rand.New(rand.NewPCG(seed, 3)), calm) })
			wait.Go(func() {
				for i := 0; time.Now().Before(calm); i++ {
					w.writes(simEntity(fmt.Sprintf("late-%04d", i), 0, 1))
					time.Sleep(time.Second / 3)
				}
			})
			for range 3 {
				life := time.Duration(float64(2*time.Minute) * random.Float64())
				wait.Go(func() { _ = do(Stamp, life, 100, Follow) })
			}
			wait.Wait()
			// Its predecessor's lease, the pause after that, and what all others have left at this rate.
			if err := do(Stamp, 10*time.Minute, 100, Follow); err != nil {
				w.violated("the last follower: %v", err)
			}
			w.checkFollowed(began)
		}
		if seed%3 == 0 {
			w.mu.Lock()
			w.undo = true
			w.mu.Unlock()
			wait.Go(func() { _ = run(Undo, 10*time.Second, 100) })
			time.Sleep(3 * time.Second)
			wait.Wait()
			if err := run(Undo, 0, 100); err != nil && !errors.Is(err, ErrNotAdopted) {
				w.violated("undo: %v", err)
			}
			for key, e := range w.Entities("Session", "") {
				if e.Expiry.Type != store.Missing && w.fits(e, e.Expiry) {
					w.violated("%s still has the key %s of the rule", key, e.Expiry.Text)
				}
			}
		}
		violations = w.violations
	})
	return violations
}

// checkStamped checks that each entity which the rule fits, and which was last written before an
// instant, has a key.
func (w *witness) checkStamped(before time.Time) {
	for key, e := range w.Entities("Session", "") {
		var data struct{ Created time.Time }
		if w.written[e.Name].Before(before) && json.Unmarshal(e.Data, &data) == nil && !data.Created.IsZero() && e.Expiry.Type == store.Missing {
			w.violated("%s with %s has no key at the end", key, e.Data)
		}
	}
}

// checkFollowed checks that each entity whose value is of an instant or later has a key. Those
// that were replaced with an earlier value are found by a round only.
func (w *witness) checkFollowed(since time.Time) {
	for key, e := range w.Entities("Session", "") {
		var data struct{ Created time.Time }
		if json.Unmarshal(e.Data, &data) == nil && !data.Created.Before(since) && e.Expiry.Type == store.Missing {
			w.violated("%s with %s has no key after it was followed", key, e.Data)
		}
	}
}

// simEntity returns an entity of so old; one in twenty has nothing that the rule can read.
func simEntity(name string, age time.Duration, dice int) store.Entity {
	created := fmt.Sprintf("%q", time.Now().Add(-age).UTC().Format(time.RFC3339Nano))
	if dice == 0 {
		created = "1700000000"
	}
	return store.Entity{Name: name, Data: fmt.Appendf(nil, `{"created":%s,"n":%d}`, created, dice)}
}

// simWriter creates, extends, keys and removes entities for a while.
func simWriter(w *witness, random *rand.Rand, until time.Time) {
	for i := 0; time.Now().Before(until); i++ {
		time.Sleep(time.Duration(float64(400*time.Millisecond) * random.Float64()))
		all := slices.Sorted(maps.Keys(w.Entities("Session", "")))
		key := all[random.IntN(len(all))]
		name, _ := w.ID(key)
		switch x := random.Float64(); {
		case x < 0.2 && len(all) < 200:
			w.writes(simEntity(fmt.Sprintf("new-%04d", i), 0, 1+random.IntN(9)))
		case x < 0.3:
			w.mu.Lock()
			w.Remove("Session", "", key)
			w.mu.Unlock()
		case x < 0.5: // a new writer writes both
			e := simEntity(name, 0, 1)
			k, _ := expirykey.New(0, 1, time.Now().Add(100*24*time.Hour))
			e.Expiry = store.TextValue(k.String())
			w.writes(e)
		default: // an old one replaces the entity
			w.writes(simEntity(name, time.Duration(random.Float64()*float64(50*24*time.Hour)), 1+random.IntN(9)))
		}
	}
}

func right(_ *witness, s simStore) simStore { return s }

// Adopters are killed, stand still, and work two at once, over a network that loses replies,
// while writers write. M1 holds at each write, and in the end nothing is missed.
func TestSimulatedAdoptions(t *testing.T) {
	for seed := range uint64(nightly.Size(t, 300, 40)) {
		if violations := simulate(t, seed, right); len(violations) > 0 {
			t.Fatalf("seed %d: %d violations, the first: %s", seed, len(violations), violations[0])
		}
	}
}

// broken is a store with a fault of its own.
type broken struct {
	simStore

	restamp func(ctx context.Context, b *store.Restamping) error
	walk    func(ctx context.Context, q store.WalkQuery, rows *store.Rows) error
	save    func(ctx context.Context, r store.Record, prev string) error
}

func (b *broken) Restamp(ctx context.Context, r *store.Restamping) error {
	if b.restamp != nil {
		return b.restamp(ctx, r)
	}
	return b.simStore.Restamp(ctx, r)
}

func (b *broken) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	if b.walk != nil {
		return b.walk(ctx, q, rows)
	}
	return b.simStore.Walk(ctx, q, rows)
}

func (b *broken) Save(ctx context.Context, r store.Record, prev string) error {
	if b.save != nil {
		return b.save(ctx, r, prev)
	}
	return b.simStore.Save(ctx, r, prev)
}

// present calls change for each op with the row as it is now.
func present(s simStore, change func(op *store.RestampOp, now store.Row)) simStore {
	return &broken{simStore: s, restamp: func(ctx context.Context, r *store.Restamping) error {
		for i := range r.Ops {
			var rows store.Rows
			if err := s.Look(ctx, r.Query, []string{r.Ops[i].Row.Key}, &rows); err != nil {
				return err
			}
			if len(rows.List) == 1 {
				change(&r.Ops[i], rows.List[0])
			}
		}
		return s.Restamp(ctx, r)
	}}
}

// mutations are adopters with a deliberate bug.
var mutations = map[string]func(*witness, simStore) simStore{
	"checks, and writes the whole entity a second later": func(w *witness, s simStore) simStore {
		return &broken{simStore: s, restamp: func(_ context.Context, r *store.Restamping) error {
			all := w.Entities("Session", "")
			time.Sleep(time.Second)
			return w.around(func() error {
				for i := range r.Ops {
					if e, ok := all[r.Ops[i].Row.Key]; ok && e.Expiry == r.Ops[i].Row.Expiry {
						e.Expiry = r.Ops[i].To
						_ = w.Put(context.Background(), simTarget, "", []store.Entity{e})
					}
					r.Ops[i].Outcome = store.RowRestamped
				}
				return nil
			})
		}}
	},
	"does not look at the source again": func(_ *witness, s simStore) simStore {
		return present(s, func(op *store.RestampOp, now store.Row) { op.Row.Source = now.Source })
	},
	"beats the key of a writer": func(_ *witness, s simStore) simStore {
		return present(s, func(op *store.RestampOp, now store.Row) { op.Row.Expiry, op.Row.Source = now.Expiry, now.Source })
	},
	"creates what was removed": func(w *witness, s simStore) simStore {
		return &broken{simStore: s, restamp: func(ctx context.Context, r *store.Restamping) error {
			err := s.Restamp(ctx, r)
			return errors.Join(err, w.around(func() error {
				for _, op := range r.Ops {
					if name, _ := w.ID(op.Row.Key); op.Outcome == store.RowGone {
						_ = w.Put(ctx, simTarget, "", []store.Entity{{Name: name, Expiry: op.To}})
					}
				}
				return nil
			}))
		}}
	},
	"takes a short page for the end": func(_ *witness, s simStore) simStore {
		return &broken{simStore: s, walk: func(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
			err := s.Walk(ctx, q, rows)
			rows.More = rows.More && len(rows.List) == q.Limit
			return err
		}}
	},
	"saves a position before what lies behind it is written": func(w *witness, s simStore) simStore {
		return &broken{simStore: s, save: func(ctx context.Context, r store.Record, prev string) error {
			after, ok := r.Fields["after"].(string)
			if ok && r.Fields["owner"] != "" && r.Fields["part"] != int64(followPart) {
				r.Fields = maps.Clone(r.Fields)
				keys := slices.Sorted(maps.Keys(w.Entities("Session", "")))
				i, _ := slices.BinarySearch(keys, after)
				r.Fields["after"] = keys[min(i+7, len(keys)-1)]
			}
			return s.Save(ctx, r, prev)
		}}
	},
	"follows from the present on, whatever it has not stamped yet": func(_ *witness, s simStore) simStore {
		return &broken{simStore: s, save: func(ctx context.Context, r store.Record, prev string) error {
			if r.Fields["part"] == int64(followPart) {
				r.Fields = maps.Clone(r.Fields)
				r.Fields["after"] = store.FormatTime(time.Now())
			}
			return s.Save(ctx, r, prev)
		}}
	},
	"stamps by the rule of another property": func(_ *witness, s simStore) simStore {
		return &broken{simStore: s, walk: func(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
			err := s.Walk(ctx, q, rows)
			for i := range rows.List {
				rows.List[i].Source = rows.List[i].Created
			}
			return err
		}, restamp: func(ctx context.Context, r *store.Restamping) error {
			return present(s, func(op *store.RestampOp, now store.Row) { op.Row.Source = now.Source }).Restamp(ctx, r)
		}}
	},
}

// Each deliberate bug is found within a few seeds.
func TestSimulationCatchesMutations(t *testing.T) {
	for name, breaks := range mutations {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(60) {
				if violations := simulate(t, seed, breaks); len(violations) > 0 {
					t.Logf("seed %d: %s", seed, violations[0])
					return
				}
			}
			t.Error("60 seeds find nothing")
		})
	}
}
