package selftest

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
)

// nameLocks is the check that waits for a lock.
const nameLocks = "locks"

func assumptionChecks() []check {
	list := []check{
		{name: "commit-times", what: "The store's times come in the order of its commits, and agree with this machine's.",
			test: commitTimes},
		{name: "query-freshness", what: "A query shows each write that was acknowledged before it.", test: freshness},
		{name: "bills", what: "Queries and counts bill what the program counts.", test: bills},
		{name: "features", what: "What this store can do that its emulator cannot, or the other way round.", test: features},
		{name: nameLocks, what: "A dead process's locks end by themselves.", test: locks},
		{name: "latency", what: "Half of all calls are answered within five seconds.", idle: true,
			test: latency},
	}
	for i := range list {
		list[i].group = Assumptions
	}
	return list
}

// storeNow returns the store's time at some instant of the call.
func (b *bench) storeNow() (now time.Time, err error) {
	err = store.Retry(b.ctx, patience, func() error {
		got, err := b.db.Load(b.ctx, store.RecordQuery{Sort: store.TargetRecord, Target: b.run.scratch.target()})
		now = got.Now
		return err
	})
	return now, err
}

func (b *bench) mustNow() time.Time {
	now, err := b.storeNow()
	if err != nil {
		b.Fatalf("ask for the store's time: %v", err)
	}
	return now
}

// commitTimes writes entities one after the other, and asks for the time between them.
func commitTimes(b *bench) {
	const n = 8
	t := b.target(b.firstGuard())
	g := firstGeneration()
	marks := []time.Time{b.mustNow()}
	for i := range n {
		b.put(t, b.entity(g, fmt.Sprintf("t-%02d", i), marks[0].Add(time.Duration(i)*time.Hour)))
		marks = append(marks, b.mustNow())
	}
	for i := 1; i < len(marks); i++ {
		if marks[i].Before(marks[i-1]) {
			b.Errorf("the store's time went back from %s to %s", stamp(marks[i-1]), stamp(marks[i]))
		}
	}
	skew := marks[n].Sub(b.run.setup.Now())
	if skew > maxSkew || skew < -maxSkew {
		b.Errorf("the store's time %s is %.1f s from this machine's: sweeps refuse more than %s", stamp(marks[n]),
			skew.Seconds(), maxSkew)
	}
	told := false
	between := func(what string, i int, at time.Time) {
		told = true
		// Times of commits have microseconds, and the others may be rounded to them.
		if at.Before(marks[i].Truncate(time.Millisecond)) || at.After(marks[i+1].Add(time.Millisecond)) {
			b.Errorf("entity %d was %s at %s, and that is not between %s and %s", i, what, stamp(at), stamp(marks[i]),
				stamp(marks[i+1]))
		}
	}
	var found store.Page
	q := b.all()
	if err := store.Retry(b.ctx, patience, func() error { return b.db.Scan(b.ctx, q, &found) }); err != nil {
		b.Fatalf("scan: %v", err)
	}
	for _, e := range found.Entries {
		if i, ok := b.number(e.Key); ok && i < n && !e.Written.IsZero() {
			between("written", i, e.Written)
		}
	}
	var rows store.Rows
	err := store.Retry(b.ctx, patience, func() error {
		return b.db.Walk(b.ctx, store.WalkQuery{Target: t.Target, Limit: store.MaxPage}, &rows)
	})
	if err != nil {
		b.Fatalf("read all entities: %v", err)
	}
	created := false
	for _, r := range rows.List {
		if i, ok := b.number(r.Key); ok && i < n && r.Created.Type == store.Instant {
			created = true
			between("created", i, r.Created.Time)
		}
	}
	b.run.facts[factCreated] = yesNo(created)
	if told {
		b.Notef("the times of %d writes lie between the store's times before and after each", n)
	}
	b.Notef("the store's time is %+.1f s from this machine's", skew.Seconds())
}

func stamp(t time.Time) string { return t.UTC().Format(store.TimeLayout) }

// number returns the number at the end of an entity's name.
func (b *bench) number(key string) (i int, ok bool) {
	name, err := b.db.ID(key)
	if err != nil || len(name) < 2 {
		return 0, false
	}
	_, err = fmt.Sscanf(name[len(name)-2:], "%02d", &i)
	return i, err == nil
}

// all asks for everything in the first generation.
func (b *bench) all() store.Query {
	lo, hi := expirykey.GenerationRange(1)
	return store.Query{Target: b.target(b.firstGuard()).Target, Lo: store.TextValue(lo), Hi: store.TextValue(hi),
		Limit: store.MaxPage}
}

const (
	rounds     = 8
	mostStale  = 15 * time.Second
	askedAgain = 100 * time.Millisecond
)

// freshness asks queries and counts about each write at once, and if one is late, how late.
func freshness(b *bench) {
	t := b.target(b.firstGuard())
	now := b.mustNow()
	stale := time.Duration(0)
	late := 0
	for i := range rounds {
		name := fmt.Sprintf("fresh-%02d", i)
		e := b.entity(firstGeneration(), name, now.Add(time.Duration(i)*time.Hour))
		b.put(t, e)
		age := b.waitFor(1)
		key := b.keyOf(e)
		err := store.Retry(b.ctx, patience, func() error {
			_, err := b.db.Settle(b.ctx, b.all(), store.Entry{Key: key}, func(store.Value) store.Verdict { return store.Delete })
			return err
		})
		if err != nil {
			b.Fatalf("delete %s: %v", name, err)
		}
		for _, age := range []time.Duration{age, b.waitFor(0)} {
			if age > 0 {
				late++
			}
			stale = max(stale, age)
		}
	}
	if late > 0 {
		b.Errorf("after %d of %d writes a query or a count still showed the state before, for up to %.1f s", late, 2*rounds,
			stale.Seconds())
		return
	}
	b.Notef("after each of %d writes both a query and a count showed it at once", 2*rounds)
}

func (b *bench) keyOf(e store.Entity) string {
	key, err := b.db.Key(b.target(b.firstGuard()).Target, "", e)
	if err != nil {
		b.Fatalf("make the key of %s: %v", e.Name, err)
	}
	return key
}

// waitFor asks until a query and a count show so many entities, and returns for how long they
// showed another number.
func (b *bench) waitFor(want int) (stale time.Duration) {
	began := b.run.setup.Now()
	for tries := 0; ; tries++ {
		var found store.Page
		var counted int64
		err := store.Retry(b.ctx, patience, func() (err error) {
			if err = b.db.Scan(b.ctx, b.all(), &found); err == nil {
				counted, err = b.db.Count(b.ctx, b.all().Target, "", store.Span{}, 0)
			}
			return err
		})
		if err != nil {
			b.Fatalf("query: %v", err)
		}
		took := b.run.setup.Now().Sub(began)
		if len(found.Entries) == want && counted == int64(want) {
			if tries == 0 {
				return 0
			}
			return max(took, askedAgain)
		}
		if took > mostStale {
			b.Fatalf("%.0f s after a write a query shows %d entities and a count %d, not %d", took.Seconds(),
				len(found.Entries), counted, want)
		}
		wait(b.ctx, askedAgain)
	}
}

// wait waits, or until ctx is done.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// bills compares what the service says that queries bill with what the program counts.
func bills(b *bench) {
	if b.run.setup.Mode == Embedded {
		b.Skipf("an embedded store bills nothing")
	}
	t := b.target(b.firstGuard())
	b.fill(t, b.mustNow(), firstGeneration(), 10, 10)
	limited := b.all()
	limited.Limit = 7
	empty := b.all()
	empty.Lo = store.TextValue("00000001.9")
	explained := false
	for _, c := range []struct {
		what string
		call func(context.Context) error
	}{
		{"a query of 20 entries", func(ctx context.Context) error { return b.db.Scan(ctx, b.all(), new(store.Page)) }},
		{"a page of 7", func(ctx context.Context) error { return b.db.Scan(ctx, limited, new(store.Page)) }},
		{"a query without entries", func(ctx context.Context) error { return b.db.Scan(ctx, empty, new(store.Page)) }},
		{"a count of 20", func(ctx context.Context) error {
			_, err := b.db.Count(ctx, t.Target, "", store.Span{}, 0)
			return err
		}},
		{"a count up to 3", func(ctx context.Context) error {
			_, err := b.db.Count(ctx, t.Target, "", store.Span{}, 3)
			return err
		}},
		{"a look for any entity", func(ctx context.Context) error {
			_, err := b.db.Holds(ctx, t.Target, "")
			return err
		}},
		{"a walk over 20 entities", func(ctx context.Context) error {
			return b.db.Walk(ctx, store.WalkQuery{Target: t.Target, Limit: store.MaxPage}, new(store.Rows))
		}},
	} {
		var said *facts.Explained
		var meter *store.Meter
		err := store.Retry(b.ctx, patience, func() error {
			said, meter = new(facts.Explained), new(store.Meter)
			return c.call(store.WithMeter(facts.WithExplained(b.ctx, said), meter))
		})
		if err != nil {
			b.Fatalf("%s: %v", c.what, err)
		}
		reads, answers := said.Reads()
		if answers == 0 {
			continue
		}
		explained = true
		if own := meter.Operations().Reads; own != reads {
			b.Errorf("%s bills %d reads by Query Explain; the program counts %d", c.what, reads, own)
		}
	}
	b.run.facts[factExplain] = yesNo(explained)
	if !explained {
		b.Skipf("the store does not explain what queries bill: emulators do not")
	}
	b.Notef("seven sorts of queries bill what the program counts. Lookups cannot be explained: one read each is assumed")
}

// features notes what the store can do.
func features(b *bench) {
	if n, ok := b.db.(store.Namespacer); ok {
		_, err := n.Namespaces(b.ctx)
		b.run.facts[factNamespaces] = yesNo(err == nil)
	}
	if g, ok := b.db.(store.Guarder); ok {
		t := b.target(store.GuardAuto).Target
		t.SingleValued = true
		guard := g.Guard(t)
		b.run.facts[factGuard] = string(guard.Guard)
		if guard.Why != "" {
			b.Notef("guard: auto means %s: %s", guard.Guard, guard.Why)
		}
	}
	if _, known := b.run.facts[factIndexes]; !known && b.run.setup.Mode != Embedded {
		t := b.target(b.firstGuard()).Target
		t.ShardProperty, t.Property, t.Type = "shard", "expires", store.Instant
		now := b.mustNow()
		q := store.Query{Target: t, Shard: store.IntegerValue(1), Lo: store.InstantValue(now.Add(-day)),
			Hi: store.InstantValue(now), Limit: page}
		err := store.Retry(b.ctx, patience, func() error { return b.db.Scan(b.ctx, q, new(store.Page)) })
		b.run.facts[factIndexes] = yesNo(isMissingIndex(err))
		if err != nil && !isMissingIndex(err) {
			b.Fatalf("query by two properties: %v", err)
		}
	}
	var found store.Page
	if err := store.Retry(b.ctx, patience, func() error { return b.db.Scan(b.ctx, b.all(), &found) }); err != nil {
		b.Fatalf("scan: %v", err)
	}
	b.run.facts[factSteps] = yesNo(found.SteppedOver != store.UnknownSteps)
}

// latency judges what all checks have measured.
func latency(b *bench) {
	const most, fewest = 5 * time.Second, 5
	for _, l := range b.run.ledger.latencies() {
		if l.Count >= fewest && l.Median > most.Seconds() {
			b.Errorf("half of %d calls of %s took longer than %.1f s", l.Count, l.Call, l.Median)
		}
	}
}
