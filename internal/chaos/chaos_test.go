//go:build linux

package chaos

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/badproxy"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/firestore"
)

var (
	howLong    = flag.Duration("for", 12*time.Second, "how long everything breaks, for each emulator")
	seed       = flag.Uint64("seed", 0, "of the plan; 0 draws one")
	mode       = flag.String("mode", "", "datastore or native; empty means both")
	logs       = flag.String("logs", "", "directory for what the processes log")
	buildFlags = flag.String("build", "", "flags for go build, such as -race, or -overlay to see a mutation caught")
)

func TestMain(m *testing.M) {
	emulator.Main(m)
}

func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute, and real processes")
	}
	dir := t.TempDir()
	program := sync.OnceValues(func() (string, error) { return build(dir) })
	if !slices.Contains([]string{"", "datastore", "native"}, *mode) {
		t.Fatalf("-mode %s: it is datastore or native", *mode)
	}
	for _, m := range []emulator.Mode{emulator.Datastore, emulator.Native} {
		name := strings.TrimSuffix(strings.TrimPrefix(string(m), "firestore-"), "-mode")
		if *mode != "" && *mode != name {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newWorld(t, m, name, program).run(t)
		})
	}
}

// A timing sets the speed of everything. With a quick one a generation lives for seconds,
// and an operator opens the next; otherwise generations follow each other by themselves.
type timing struct {
	lease, slack, staleness, ramp time.Duration
	rewind, overlap               time.Duration
	short, medium                 time.Duration // the most that entities live which expire during the run
	calm                          time.Duration // from one fault to the next, at each process
	operator                      time.Duration // from one operation to the next
	pause                         time.Duration // from one write of a writer to its next
	rule                          time.Duration // an old entity expires so long after it was created
	bound                         time.Duration // from the last expiry until everything that expired is gone, on a busy machine
}

const second = time.Second

// The overlap is small, so that a cursor that moves too early is noticed. The slack is
// longer than a freeze of a process and the delay of its last request together: otherwise
// its carries might be late.
var (
	quick = timing{lease: 3 * second, slack: 7 * second, staleness: second, ramp: 3 * second, rewind: 10 * second, overlap: 100 * time.Millisecond,
		short: 8 * second, medium: 15 * second, calm: 1500 * time.Millisecond, operator: 8 * second, pause: 250 * time.Millisecond, rule: 6 * second, bound: 6 * time.Minute}
	steady = timing{lease: 10 * second, slack: 22 * second, staleness: 2 * second, ramp: 12 * second, rewind: 40 * second, overlap: 200 * time.Millisecond,
		short: 45 * second, medium: 3 * time.Minute, calm: 3 * second, operator: 45 * second, pause: 300 * time.Millisecond, rule: 30 * second, bound: 8 * time.Minute}
)

// swarm is what the processes run, again and again: three sweep, and two adopt.
var swarm = [][]string{
	{"sweep", "--apply", "--json"},
	{"sweep", "--apply", "--json"},
	{"serve", "--apply", "--schedule", "@every 1s", "--listen", "127.0.0.1:0", "--ui", "off"},
	{"adopt", "orders", "--apply", "--watch"},
	{"adopt", "orders", "--apply"},
}

const (
	keyedGood   = 8 // writers of entities with expiry keys, on a good network
	keyedCalm   = 6 // of such entities that live long enough to be carried
	keyedBad    = 3
	timedGood   = 3 // of entities with timestamps
	timedBad    = 1
	idsEach     = 25
	readAtOnce  = 40
	quickEnough = 2 * time.Minute // a run this short is a quick one
)

// The pages are small and the pace is slow, so that much can happen between scan and write.
const targetsFile = `targets:
  - name: sessions
    kind: Session
    shards: %[1]d
    page: 5
    lease: %[2]v
    rewind: %[3]v
    overlap: %[4]v
    pace: {start: 10, max: 40}
    generations: {every: 1m, ramp: %[5]v, staleness: %[6]v, slack: %[7]v, keep: 1}
  - name: tokens
    kind: Token
    layout: timestamp
    property: expires
    page: 5
    lease: %[2]v
    rewind: %[3]v
    overlap: %[4]v
    pace: {start: 10, max: 40}
  - name: events
    kind: Event
    shards: %[1]d
    page: 5
    lease: %[2]v
    rewind: %[3]v
    overlap: %[4]v
    pace: {start: 10, max: 40}
    breaker: {floor: %[8]d, fraction: 5%%, window: 1m}
    generations: {every: 1h, ramp: %[5]v, staleness: %[6]v, slack: %[7]v, keep: 2}
  - name: orders
    kind: Order
    shards: %[1]d
    page: 5
    lease: %[2]v
    rewind: %[3]v
    overlap: %[4]v
    pace: {start: 10, max: 40}
    generations: {every: 1h, ramp: %[5]v, staleness: %[6]v, slack: %[7]v, keep: 2}
    adopt: {from: {property: created, plus: %[9]v}, spread: 0s, rate: 50}
`

// A world is one emulator with everything that works on it.
type world struct {
	timing
	mode          emulator.Mode
	host, project string
	program, dir  string
	shards        int
	seed          uint64
	direct        app
	store         store.Store
	cancel        context.CancelFunc // ends the run early

	known struct {
		sync.Mutex
		all map[string]known // by target
	}

	mu         sync.Mutex
	slots      []*slot
	violations []string
	moved      []string       // by the audit
	codes      map[string]int // runs by how they ended
	swarm      []*process

	written, extended, deleted, late, aborted, unknown, given atomic.Int64 // of the application
	expired, reads, strayed                                   atomic.Int64 // as the reader saw it
	kills, terms, freezes, cuts, halfCloses, holds, delays    atomic.Int64
	operations, swept, carried, strays, retirements           atomic.Int64
	reshards, trips, approvals, parts, clears, adopted        atomic.Int64

	books map[string]*book // by target, for those whose deletes are known exactly
}

func newWorld(t *testing.T, m emulator.Mode, name string, program func() (string, error)) *world {
	e := emulator.Start(t, m)
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{timing: steady, mode: m, host: e.Host, project: e.Project(t), program: path, dir: t.TempDir(),
		shards: 3, seed: *seed, codes: map[string]int{}}
	if *howLong < quickEnough {
		w.timing = quick
	}
	for w.seed == 0 {
		w.seed = rand.Uint64()
	}
	t.Logf("seed %d: go test ./internal/chaos -run TestChaos/%s -args -for %v -seed %d -mode %s", w.seed, name, *howLong, w.seed, name)
	text := fmt.Sprintf(targetsFile, w.shards, w.lease, w.rewind, w.overlap, w.ramp, w.staleness, w.slack, floor, w.rule)
	if err := os.WriteFile(filepath.Join(w.dir, "reaper.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	w.direct = w.open(t, w.host)
	w.store = w.openStore(t, w.host)
	w.known.all = map[string]known{}
	w.books = map[string]*book{"events": {kind: massed}, "orders": {kind: old}}
	return w
}

func (w *world) open(t *testing.T, host string) app {
	t.Helper()
	a := openers[w.mode](t, host, w.project)
	t.Cleanup(func() {
		if err := a.close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return a
}

func (w *world) openStore(t *testing.T, host string) store.Store {
	t.Helper()
	var s interface {
		store.Store
		Close() error
	}
	var err error
	if w.mode == emulator.Datastore {
		s, err = datastore.Open(t.Context(), datastore.Options{Project: w.project, Emulator: host})
	} else {
		s, err = firestore.Open(t.Context(), firestore.Options{Project: w.project, Emulator: host})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// random returns a source of its own for each part of the plan.
func (w *world) random(part uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, part)) }

func (w *world) newProxy(t *testing.T, part uint64) *badproxy.Proxy {
	t.Helper()
	p, err := badproxy.New(w.host, w.seed+part)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func (w *world) newSlot(kind, target string) *slot {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := fmt.Sprintf("id %d/%s", len(w.slots), kind[:1])
	id = strings.ReplaceAll(id, "/", "-ü~")
	if len(w.slots)%3 == 0 {
		id = fmt.Sprint(1000 + len(w.slots))
	}
	s := &slot{kind: kind, id: id, target: target}
	w.slots = append(w.slots, s)
	return s
}

// violation reports a broken rule, and ends the run soon.
func (w *world) violation(s *slot, text string) {
	if s != nil {
		s.mu.Lock()
		text = fmt.Sprintf("%s %q: %s\n  known: %s\n  history:\n    %s", s.kind, s.id, text, s.state, strings.Join(s.history, "\n    "))
		s.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, time.Now().UTC().Format("15:04:05.000 ")+text)
	w.cancel()
}

func (w *world) run(t *testing.T) {
	began := time.Now()
	all, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.cancel = cancel
	w.must(t, "sweep", "--apply")
	w.putJunk(t)
	events, orders := w.newMass(), w.newOld()
	w.ageBudget(t, "events", int64(len(events.slots)))

	// Writers and sweepers work, while everything breaks now and then.
	breaking, heal := context.WithTimeout(all, *howLong)
	defer heal()
	sweeping, end := context.WithCancel(all)
	defer end()
	var sweepers, others, watchers sync.WaitGroup
	for i, args := range swarm {
		p := &process{world: w, name: fmt.Sprintf("process %d, reaper %s", i, args[0]), args: args, proxy: w.newProxy(t, uint64(i)),
			pause: second / 2, log: openLog(t, fmt.Sprintf("%s-%d.log", w.mode, i)), pages: map[string][]pageLine{}}
		w.swarm = append(w.swarm, p)
		r := w.random(uint64(100 + i))
		sweepers.Go(func() {
			p.run(sweeping, func(most time.Duration) time.Duration { return between(r, 0, most) })
		})
		others.Go(func() { w.trouble(breaking, w.random(uint64(200+i)), p.proxy, p) })
	}
	bad := w.newProxy(t, 50)
	others.Go(func() { w.trouble(breaking, w.random(300), bad, nil) })
	others.Go(func() { w.operate(breaking, w.random(400)) })
	w.startWriters(t, breaking, &others, bad.Addr())
	others.Go(func() { events.run(all, breaking) })
	others.Go(func() { orders.run(breaking) })
	for _, target := range targets {
		watchers.Go(func() { w.follow(sweeping, target) })
	}
	for i, kind := range kinds {
		watchers.Go(func() { w.read(sweeping, w.random(uint64(500+i)), kind) })
	}
	if *howLong >= quickEnough {
		watchers.Go(func() { w.report(sweeping, t, began) })
	}
	others.Wait()

	// All faults have ended: now all expired entities must be deleted.
	healed := time.Now()
	var clean time.Duration
	audited := false
	if all.Err() == nil {
		for w.operation("generation", "advance", "--target", "sessions") != nil && all.Err() == nil {
			sleep(all, second)
		}
		clean, audited = w.awaitClean(all, healed)
	}
	end()
	sweepers.Wait()
	watchers.Wait()
	if all.Err() == nil {
		last := time.Now()
		w.must(t, "sweep", "--apply", "--json", "--fail-incomplete")
		w.must(t, "adopt", "orders", "--apply")
		w.must(t, "adopt", "verify", "orders", "--yes")
		w.compare(t, last)
		w.compareHistory(t)
	}
	t.Logf("of %d events these were gone when they were held, without what was approved: %v; limits: %v", events.events,
		events.told, events.limits)
	if n := len(w.violations); n == 0 && events.events >= 3 && min(w.approvals.Load(), w.parts.Load(), w.clears.Load()) == 0 {
		t.Errorf("of %d events none was approved, none in part, or none cleared", events.events)
	}
	w.verdict(t, time.Since(began), clean, audited)
}

// startWriters starts the application.
func (w *world) startWriters(t *testing.T, ctx context.Context, group *sync.WaitGroup, badHost string) {
	t.Helper()
	badApp, badStore := w.open(t, badHost), w.openStore(t, badHost)
	follower := func(s store.Store) *generation.Follower {
		f := &generation.Follower{Store: s, Target: "sessions", Shards: w.shards, Now: time.Now}
		group.Go(func() { f.Run(ctx) })
		return f
	}
	followers := map[bool]*generation.Follower{false: follower(w.store), true: follower(badStore)}
	part := uint64(1000)
	start := func(n int, bad, calm bool, kind, target string) {
		for range n {
			part++
			wr := &writer{world: w, app: w.direct, bad: bad, calm: calm, follower: followers[bad], pause: w.pause, rand: w.random(part)}
			if bad {
				wr.app = badApp
			}
			for range idsEach {
				wr.slots = append(wr.slots, w.newSlot(kind, target))
			}
			group.Go(func() { wr.run(ctx) })
		}
	}
	start(keyedGood, false, false, keyed, "sessions")
	start(keyedCalm, false, true, keyed, "sessions")
	start(keyedBad, true, false, keyed, "sessions")
	start(timedGood, false, false, timed, "tokens")
	start(timedBad, true, false, timed, "tokens")
}

// putJunk writes entities that no sweep may ever delete: their property is not an
// expiry, or it is one from long ago.
func (w *world) putJunk(t *testing.T) {
	t.Helper()
	r := w.random(600)
	old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	for kind, values := range map[string][]any{
		keyed: {"00000001.0000.20010203T040506.000Z", "00000001.0001.20010203T040506.000Z", "00000000.0001.20010203T040506.000Z", // suspect
			"00000001.0000.20250203T040506.000Zx", "00000000.0000.2025", "tomorrow", "", int64(17), old, true, nil},
		timed: {old, old.Add(time.Second), "2025-01-01T00:00:00Z", int64(1_700_000_000), true, nil},
	} {
		for _, v := range values {
			s := w.newSlot(kind, targets[kind])
			d := doc{fields: newFields(r, serial.Add(1)), property: properties[kind], expires: v}
			is := read(d.property, map[string]any{d.property: v})
			is.body = canon(d.fields)
			if err := w.direct.put(t.Context(), kind, s.id, d); err != nil {
				t.Fatalf("put %v: %v", v, err)
			}
			s.end(state{present: true, body: is.body, expiry: expiry{text: is.expiry}}, "put for ever")
		}
	}
}

// follow reads the records of a target again and again, for the reader, and
// watches that no cursor goes back and no token is held twice.
func (w *world) follow(ctx context.Context, target string) {
	for ; ctx.Err() == nil; sleep(ctx, 700*time.Millisecond) {
		at := time.Now()
		table, err := cursor.Reader{Store: w.store, Target: target, Now: time.Now}.All(ctx, cursor.Table{})
		if err != nil {
			continue
		}
		record, _, err := generation.Load(ctx, w.store, target)
		if err != nil {
			continue
		}
		w.known.Lock()
		was := w.known.all[target]
		w.known.all[target] = known{at, table, record}
		w.known.Unlock()
		for id, c := range table.All() {
			if retired(id.Generation, record) {
				continue // its record was removed, and a sweep that does not know yet begins a new one
			}
			before, _ := was.cursors.At(id)
			if wrong := wentBack(before, c, was.at); wrong != "" {
				w.violation(nil, fmt.Sprintf("%v: %s", id, wrong))
			}
		}
	}
}

// wentBack says what is wrong if a cursor that was read cannot follow from the one before, of an instant. Draining
// moves a cursor ahead of the horizon, and the next read from the start takes it back there: what lies
// between may have been written behind it.
func wentBack(was, is cursor.Cursor, at time.Time) string {
	switch {
	case was.Revision == "" || was.Scope != is.Scope:
		return ""
	case is.Lease.Token < was.Lease.Token:
		return fmt.Sprintf("L3: token %d after %d", is.Lease.Token, was.Lease.Token)
	case is.Lease.Token == was.Lease.Token && is.Lease.Owner != "" && is.Lease.Owner != was.Lease.Owner:
		return fmt.Sprintf("L3: token %d was %s's and is %s's", is.Lease.Token, was.Lease.Owner, is.Lease.Owner)
	case is.Shard != "audit" && is.Position.Value.Compare(was.Position.Value) < 0 && !isAhead(was.Position, at):
		return fmt.Sprintf("L2: the cursor went back from %v to %v", was.Position, is.Position)
	}
	return ""
}

// isAhead reports whether a position lies where no sweep gets that deletes what has expired: they stay
// a few seconds behind the present.
func isAhead(at store.Position, now time.Time) bool {
	text := at.Value.Text
	key, err := expirykey.Parse(text[:min(len(text), expirykey.Len)]) // it may be at a malformed text behind a key
	return err == nil && key.Expires.After(now.Add(-2*time.Second))
}

// read compares entities of a kind with what the oracle knows, again and again.
func (w *world) read(ctx context.Context, r *rand.Rand, kind string) {
	for ; ctx.Err() == nil; sleep(ctx, 250*time.Millisecond) {
		w.mu.Lock()
		all := slices.DeleteFunc(slices.Clone(w.slots), func(s *slot) bool { return s.kind != kind })
		w.mu.Unlock()
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		_, _ = w.look(ctx, all[:min(readAtOnce, len(all))]) // an emulator that is too busy is asked again
	}
}

// look reads entities of one kind, and lets the oracle judge them. It returns how many of
// them have expired and still exist.
func (w *world) look(ctx context.Context, slots []*slot) (lingering []*slot, err error) {
	if len(slots) == 0 {
		return nil, nil
	}
	views, ids := make([]view, len(slots)), make([]string, len(slots))
	for i, s := range slots {
		views[i], ids[i] = s.look(), s.id
	}
	w.known.Lock()
	k := w.known.all[slots[0].target]
	w.known.Unlock()
	got, err := w.direct.get(ctx, slots[0].kind, ids)
	ended := time.Now()
	if err != nil {
		return nil, err
	}
	w.reads.Add(int64(len(slots)))
	for i, v := range views {
		if !v.sound || v.slot.look().version != v.version {
			continue
		}
		o := judge(v.state, got[i], ended, v.slot.target, k)
		if o.wrong != "" {
			w.violation(v.slot, fmt.Sprintf("%s (read: %s)", o.wrong, got[i]))
		}
		if o.stray {
			w.strayed.Add(1)
		}
		if o.adopted {
			w.adopted.Add(v.slot.adoptedOnce(v.version))
		}
		if o.moved {
			v.slot.tellOnce(w)
		}
		if o.gone {
			w.expired.Add(v.slot.gone(v.version))
		} else if v.state.expired(ended) {
			lingering = append(lingering, v.slot)
		}
	}
	return lingering, nil
}

// tellOnce logs, once for each entity, how it came to where the audit found it.
func (s *slot) tellOnce(w *world) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told {
		return
	}
	s.told = true
	s.note("moved to the nursery")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moved = append(w.moved, fmt.Sprintf("%s %q was moved to the nursery\n    %s", s.kind, s.id, strings.Join(s.history, "\n    ")))
}

// awaitClean waits until nothing is left that has expired, or will soon: by sweeps alone
// and, if that takes too long, by an audit. It logs how long that took since the faults
// ended.
func (w *world) awaitClean(ctx context.Context, healed time.Time) (took time.Duration, audited bool) {
	until := healed.Add(w.medium + w.bound)
	for ctx.Err() == nil {
		left := w.lingering(ctx, healed.Add(w.medium))
		if len(left) == 0 {
			return time.Since(healed), audited
		}
		if time.Now().After(until) {
			if audited {
				for _, s := range left[:min(5, len(left))] {
					w.violation(s, fmt.Sprintf("L1: it has expired and is still there, one of %d, %v after all was well", len(left), time.Since(healed)))
				}
				return time.Since(healed), audited
			}
			// Only the audit reads retired generations. They should hold nothing.
			audited = true
			_ = w.operation("audit", "--apply")
			until = time.Now().Add(w.lease)
		}
		sleep(ctx, second)
	}
	return time.Since(healed), audited
}

// lingering lists the existing entities that have expired, or will until the given time.
func (w *world) lingering(ctx context.Context, soon time.Time) (left []*slot) {
	w.mu.Lock()
	all := slices.Clone(w.slots)
	w.mu.Unlock()
	for _, kind := range kinds {
		var of []*slot
		for _, s := range all {
			if v := s.look(); s.kind == kind && v.sound && v.state.expired(soon) {
				of = append(of, s)
			}
		}
		for part := range slices.Chunk(of, 100) {
			if _, err := w.look(ctx, part); err != nil {
				return all
			}
			for _, s := range part {
				if s.look().state.expired(soon) {
					left = append(left, s)
				}
			}
		}
	}
	return left
}

// compare lists all entities, and compares them with those that must exist after a sweep
// that began at the given time.
func (w *world) compare(t *testing.T, last time.Time) {
	t.Helper()
	live := map[string]int{}
	for kind := range properties {
		all, err := w.direct.list(t.Context(), kind)
		ended := time.Now()
		if err != nil {
			t.Fatalf("list %s: %v", kind, err)
		}
		for _, s := range w.slots {
			if s.kind != kind {
				continue
			}
			var is *found
			if f, ok := all[s.id]; ok {
				is = &f
			}
			delete(all, s.id)
			v := s.look()
			if s.given {
				continue
			}
			w.known.Lock()
			k := w.known.all[s.target]
			w.known.Unlock()
			switch o := judge(v.state, is, ended, s.target, k); {
			case o.wrong != "":
				w.violation(s, o.wrong)
			case !v.sound:
				w.violation(s, "a write is still under way")
			case o.stray:
				w.violation(s, "L4: it lies in a generation that has retired")
			case is != nil && v.state.expired(last):
				w.violation(s, "L1: it has expired and is still there: "+is.String())
			case is != nil:
				live[kind]++
			}
		}
		for id, f := range all {
			w.violation(nil, fmt.Sprintf("%s %q: nobody wrote it: %s", kind, id, &f))
		}
	}
	for target, b := range w.books {
		b.lives = int64(live[b.kind])
		t.Logf("%s: %v", target, b)
	}
	t.Logf("in the end %v entities are there, as they should be", live)
}

func (w *world) figures() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var codes []string
	for _, k := range slices.Sorted(maps.Keys(w.codes)) {
		codes = append(codes, fmt.Sprintf("%s: %d", k, w.codes[k]))
	}
	return fmt.Sprintf("%d entities written (%d extended), %d deleted by the application, %d expired and gone; %d deletes and %d carries acknowledged, %d reads; "+
		"%d writes aborted, %d of unknown outcome, %d late, %d ids given up; "+
		"%d kills, %d freezes, %d terminations, %d cuts, %d half-closes, %d holds, %d delays, %d operations, %d with other shards; "+
		"%d adopted; %d trips, %d approved, %d of a part, %d cleared; "+
		"%d generations retired, %d strays; runs by exit code {%s}; %d violations",
		w.written.Load(), w.extended.Load(), w.deleted.Load(), w.expired.Load(), w.swept.Load(), w.carried.Load(), w.reads.Load(),
		w.aborted.Load(), w.unknown.Load(), w.late.Load(), w.given.Load(),
		w.kills.Load(), w.freezes.Load(), w.terms.Load(), w.cuts.Load(), w.halfCloses.Load(), w.holds.Load(), w.delays.Load(), w.operations.Load(),
		w.reshards.Load(), w.adopted.Load(), w.trips.Load(), w.approvals.Load(), w.parts.Load(), w.clears.Load(),
		w.retirements.Load(), w.strays.Load()+w.strayed.Load(), strings.Join(codes, ", "), len(w.violations))
}

// report logs the figures from time to time.
func (w *world) report(ctx context.Context, t *testing.T, began time.Time) {
	for ctx.Err() == nil {
		sleep(ctx, time.Minute)
		t.Logf("%v: %s", time.Since(began).Round(second), w.figures())
	}
}

// verdict fails the test if something was wrong, or if nothing was tried.
func (w *world) verdict(t *testing.T, took, clean time.Duration, audited bool) {
	t.Helper()
	for _, v := range w.violations[:min(10, len(w.violations))] {
		t.Errorf("violation at %s", v)
	}
	if len(w.violations) > 0 {
		for _, p := range w.swarm {
			t.Logf("%s logged last:\n%s", p.name, p.last(60))
		}
	} else {
		if audited {
			t.Error("not all was gone before an audit: there were strays, though every writer was in time")
		}
		if n := w.strayed.Load(); n > 0 {
			t.Errorf("L4: a reader met entities in generations that had retired, %d times", n)
		}
		long := int64(1)
		if *howLong >= quickEnough {
			long = 0
		}
		for name, n := range map[string]int64{"entities written": w.written.Load(), "expired and gone": w.expired.Load(), "complete sweeps": int64(w.codes["0"] + w.codes["4"]),
			"adopted": w.adopted.Load(), "trips": w.trips.Load(), "trips that ended": w.approvals.Load() + w.clears.Load(),
			"other numbers of shards": w.reshards.Load() + long,
			"cuts":                    w.cuts.Load(), "kills": w.kills.Load() + long, "freezes": w.freezes.Load() + long, "carried": w.carried.Load() + long, "retired": w.retirements.Load() + long} {
			if n == 0 {
				t.Errorf("%s: none, so that nothing was shown", name)
			}
		}
	}
	for _, m := range w.moved[:min(10, len(w.moved))] {
		t.Log(m)
	}
	t.Logf("%s, seed %d, %v: all was gone %v after the healing; %s", w.mode, w.seed, took.Round(second), clean.Round(second), w.figures())
}
