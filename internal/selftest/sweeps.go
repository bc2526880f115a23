package selftest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// guardsOf returns the ways in which a store can check deletes.
func guardsOf(s store.Store) []store.Guard {
	if _, ok := s.(store.Guarder); ok {
		return []store.Guard{store.GuardLookup, store.GuardQuery}
	}
	return []store.Guard{""}
}

func sweepChecks(guards []store.Guard) []check {
	list := []check{
		{name: "dry-run", what: "A sweep without --apply counts what is due, and writes nothing.", test: dryRun},
		{name: "sweep", what: "A sweep deletes what is due, and leaves what lives as it is.", test: deletesDue},
	}
	for _, g := range guards {
		name := "extension"
		if g != "" {
			name += "-" + string(g)
		}
		list = append(list, check{name: name, what: "An entity that is extended between scan and delete stays.",
			test: func(b *bench) { extension(b, g) }})
	}
	list = append(list, []check{
		{name: "two-processes", what: "Two processes delete each due entity, and report each once.", test: twoProcesses},
		{name: "takeover", what: "When a process is killed, another one does the rest.", test: takeover},
		{name: "pause", what: "A paused target is left alone, and is swept once it is resumed.", test: pause},
		{name: "breaker", what: "The breaker holds an unusual event until somebody approves it.", test: holdsEvent},
		{name: "reshard", what: "A generation with another number of shards opens, and both are swept.", test: reshard},
		{name: "adoption", what: "Adoption gives each entity the key of its rule, and changes nothing else.", test: adoption},
	}...)
	for i := range list {
		list[i].group = Sweeps
	}
	return list
}

// firstGuard is the one that most checks use.
func (b *bench) firstGuard() store.Guard { return guardsOf(b.run.setup.Store)[0] }

// filled returns the target with so many due and live entities.
func (b *bench) filled(guard store.Guard, due, live int) (sweep.Target, map[string]string) {
	t := b.target(guard)
	b.fill(t, b.begin(t), firstGeneration(), due, live)
	return t, b.entities(t)
}

func dryRun(b *bench) {
	t, before := b.filled(b.firstGuard(), 12, 6)
	meter := new(store.Meter)
	cfg := b.config(b.db, "dry", t)
	cfg.Apply = false
	res := sweep.Run(store.WithMeter(b.ctx, meter), cfg).Targets[0]
	if res.Error != "" {
		b.Fatalf("the dry run failed: %s", res.Error)
	}
	if res.Expired != 12 || res.Deleted != 0 {
		b.Errorf("the dry run of 12 due entities counts %d, and deleted %d", res.Expired, res.Deleted)
	}
	if o := meter.Operations(); o.Writes+o.Deletes > 0 {
		b.Errorf("the dry run made %d writes and %d deletes", o.Writes, o.Deletes)
	}
	b.wantLeft("after the dry run", t, before)
}

func deletesDue(b *bench) {
	t, before := b.filled(b.firstGuard(), 20, 10)
	res := b.sweepOnce("one", t)
	if res.Deleted != 20 || !res.Complete {
		b.Errorf("a sweep of 20 due entities reports %d deletes; complete: %v", res.Deleted, res.Complete)
	}
	b.wantLeft("after the sweep", t, without(before, "due-"))
	if res := b.sweepOnce("again", t); res.Deleted != 0 {
		b.Errorf("a second sweep reports %d deletes", res.Deleted)
	}
}

// extension lets a writer be quicker than the delete, for every other entity of each batch.
func extension(b *bench, guard store.Guard) {
	t, want := b.filled(guard, 20, 4)
	later := time.Time{}
	if now, err := b.storeNow(); err == nil {
		later = now.Add(48 * time.Hour)
	} else {
		b.Fatalf("ask for the store's time: %v", err)
	}
	var mu sync.Mutex
	extended := map[string]bool{}
	choose := func(ops []store.Op) (list []store.Entity) {
		mu.Lock()
		defer mu.Unlock()
		for i, op := range ops {
			name, err := b.db.ID(op.Entry.Key)
			if err != nil || i%2 == 1 || extended[name] || op.IsCarry() {
				continue
			}
			extended[name] = true
			list = append(list, b.entity(firstGeneration(), name, later))
		}
		return list
	}
	racing := b.run.fence(hooks{dispose: func(_ context.Context, batch *store.Batch) {
		if list := choose(batch.Ops); len(list) > 0 {
			if err := b.tryPut(t, list); err != nil { // this is a goroutine of the sweep, which must not end
				b.Errorf("extend %d entities: %v", len(list), err)
			}
		}
	}})
	res := sweep.Run(b.ctx, b.config(racing, "race", t)).Targets[0]
	if res.Error != "" {
		b.Fatalf("the sweep failed: %s", res.Error)
	}
	got := b.entities(t)
	for name := range extended {
		e := b.entity(firstGeneration(), name, later)
		want[name] = fmt.Sprintf("%s %s", e.Expiry, e.Data)
	}
	for name := range without(want, "live-") {
		if !extended[name] {
			delete(want, name)
		}
	}
	for name, text := range want {
		if got[name] == "" {
			b.Errorf("%s was extended before the delete, and is gone: %s", name, text)
		}
	}
	b.wantLeft("after the race", t, want)
	b.Notef("%d of 20 entities were extended between scan and delete", len(extended))
}

func twoProcesses(b *bench) {
	t, before := b.filled(b.firstGuard(), 24, 6)
	var results [2]sweep.TargetResult
	var wait sync.WaitGroup
	for i := range results {
		wait.Go(func() { results[i] = sweep.Run(b.ctx, b.config(b.db, fmt.Sprint("process-", i), t)).Targets[0] })
	}
	wait.Wait()
	sum := int64(0)
	for _, res := range results {
		if res.Error != "" {
			b.Errorf("a sweep failed: %s", res.Error)
		}
		sum += res.Deleted
	}
	if sum != 24 {
		b.Errorf("two processes report %d deletes of 24 due entities", sum)
	}
	b.wantLeft("after both sweeps", t, without(before, "due-"))
}

// errDead is what the calls of a process fail with that is dead for the store.
var errDead = fmt.Errorf("%w: this process is dead", store.ErrUnavailable)

// takeover kills a process in the middle of its work: nothing of it reaches the store any
// more, so it gives no range back.
func takeover(b *bench) {
	t, before := b.filled(b.firstGuard(), 24, 6)
	dying, kill := context.WithCancel(b.ctx)
	defer kill()
	var disposals atomic.Int64
	var dead atomic.Bool
	first := b.run.fence(hooks{fail: func(method string) error {
		if method == "dispose" && disposals.Add(1) == 2 {
			dead.Store(true)
			kill()
		}
		if dead.Load() {
			return errDead
		}
		return nil
	}})
	cfg := b.config(first, "killed", t)
	cfg.Grace, cfg.Workers = time.Millisecond, 1 // so that the first batch is done by then
	sweep.Run(dying, cfg)
	if !dead.Load() {
		b.Fatalf("the first process was not killed: it had nothing to delete after one batch")
	}
	left, began := len(without(b.entities(t), "live-")), b.run.setup.Now()
	if left == 0 {
		b.Errorf("nothing was left for another process, though the first was killed before it deleted all")
	}
	res := b.sweepOnce("successor", t)
	if !res.Complete {
		b.Errorf("the successor did not complete the sweep: %s", res.Reason)
	}
	b.wantLeft("after the takeover", t, without(before, "due-"))
	b.Notef("the successor deleted the %d that were left in %.1f s; the lease is %s", left,
		b.run.setup.Now().Sub(began).Seconds(), lease)
}

func order(reason string) control.Order {
	return control.Order{Actor: "reaper selftest", Reason: reason}
}

func pause(b *bench) {
	t, before := b.filled(b.firstGuard(), 10, 4)
	cfg := b.config(b.db, "operator", t)
	if _, _, err := control.Pause(b.ctx, cfg, t, order("the self-test pauses its target"), 0); err != nil {
		b.Fatalf("pause: %v", err)
	}
	res := b.sweepOnce("paused", t)
	if res.Held != string(throttle.ReasonPaused) || res.Deleted != 0 {
		b.Errorf("a sweep of the paused target is held by %q, and reports %d deletes", res.Held, res.Deleted)
	}
	b.wantLeft("during the pause", t, before)
	if _, _, err := control.Resume(b.ctx, cfg, t, order("the self-test goes on")); err != nil {
		b.Fatalf("resume: %v", err)
	}
	b.sweepOnce("resumed", t)
	b.wantLeft("after the pause", t, without(before, "due-"))
}

func holdsEvent(b *bench) {
	const due = 30
	t := b.target(b.firstGuard())
	t.Breaker = breaker.Rules{On: true, Floor: 5, Fraction: 0.25, Window: time.Hour, Learn: 14 * day}
	b.fill(t, b.begin(t), firstGeneration(), due, 10)
	before := b.entities(t)
	res := b.sweepOnce("held", t)
	gone := due - len(without(b.entities(t), "live-"))
	if res.Held != string(throttle.ReasonBreaker) || gone > int(t.Breaker.Floor) {
		b.Errorf("%d of %d due entities are gone, and the sweep is held by %q; the floor is %d", gone, due, res.Held,
			t.Breaker.Floor)
	}
	cfg := b.config(b.db, "operator", t)
	rec, _, err := sweep.EnsureRecord(b.ctx, cfg, t)
	if err != nil {
		b.Fatalf("read the target record: %v", err)
	}
	if !rec.Trip.IsOpen() {
		b.Fatalf("the record has no trip")
	}
	which := control.Approval{ID: rec.Trip.ID}
	_, trip, err := control.Approve(b.ctx, cfg, t, order("the self-test's own entities"), which)
	if err != nil {
		b.Fatalf("approve trip %s: %v", rec.Trip.ID, err)
	}
	b.sweepOnce("approved", t)
	b.wantLeft("after the approval", t, without(before, "due-"))
	b.Notef("tripped by the rule %s with %d due; %d were deleted before the approval", trip.Rule, trip.Due, gone)
}

func reshard(b *bench) {
	t := b.target(b.firstGuard())
	now := b.begin(t)
	b.fill(t, now, firstGeneration(), 8, 4)
	rec, err := control.Advance(b.ctx, b.config(b.db, "operator", t), t, shards+1, true)
	if err != nil {
		b.Fatalf("open a generation with %d shards: %v", shards+1, err)
	}
	newest := rec.Generations[len(rec.Generations)-1]
	if newest.Number != 2 || newest.Shards != shards+1 {
		b.Fatalf("generation %d with %d shards opened, not 2 with %d", newest.Number, newest.Shards, shards+1)
	}
	b.fill(t, now, newest, 8, 4)
	before := b.entities(t)
	b.sweepOnce("one", t)
	b.wantLeft("after the sweep", t, without(before, "due-"))
}

// adoption stamps entities that have a creation time in their data, and no key.
func adoption(b *bench) {
	t := b.target(b.firstGuard())
	now := b.begin(t)
	var list []store.Entity
	for i := range 12 {
		name, created := fmt.Sprintf("due-%02d", i), now.Add(-2*time.Hour)
		if i%2 == 1 {
			name, created = fmt.Sprintf("live-%02d", i), now
		}
		list = append(list, store.Entity{Name: name,
			Data: fmt.Appendf(nil, `{"created":%q,"user":"u7"}`, created.UTC().Format(time.RFC3339))})
	}
	b.put(t, list...)
	before := b.entities(t)
	res, err := adopt.Run(b.ctx, adopt.Config{Sweep: b.config(b.db, "adopter", t), Target: t,
		Rule: adopt.Rule{Property: "created", Plus: time.Hour}, Percent: 100, Rate: throttle.Limits{Unlimited: true},
		Actor: "reaper selftest"})
	if err != nil {
		b.Fatalf("adopt: %v", err)
	}
	if res.Stamped != 12 || !res.Complete {
		b.Errorf("12 entities without a key: %d were stamped; complete: %v", res.Stamped, res.Complete)
	}
	stamped := b.entities(t)
	for name, text := range before {
		_, data, _ := strings.Cut(text, " ")
		key, after, _ := strings.Cut(stamped[name], " ")
		if data != after {
			b.Errorf("%s holds %s, and held %s before it was stamped", name, after, data)
		}
		if key == "" {
			b.Errorf("%s has no key", name)
		}
	}
	b.sweepOnce("one", t)
	b.wantLeft("after the sweep", t, without(stamped, "due-"))
}
