package bench_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// month is how long after their creation adopted entities expire.
const month = 30 * 24 * time.Hour

// A stampStore can be filled, and its entities be given keys.
type stampStore interface {
	closer
	store.Writer
	store.Adopter
}

// fillUnstamped writes entities that say when they were created, and have no key.
func fillUnstamped(tb testing.TB, w stampStore, n int) {
	tb.Helper()
	t, now := target().Target, time.Now()
	_, isEmbedded := w.(*embedded.DB) // whose entities have properties in their data
	if !isEmbedded {
		t.Property, t.Type = "created", store.Instant
	}
	var group errgroup.Group
	group.SetLimit(2)
	for first := 0; first < n; first += store.MaxPage {
		group.Go(func() error {
			var batch []store.Entity
			for i := first; i < min(n, first+store.MaxPage); i++ {
				e := store.Entity{Name: name(i)}
				if at := now.Add(-time.Duration(i) * time.Second); isEmbedded {
					e.Data = fmt.Appendf(nil, `{"user":"u7","created":%q}`, at.UTC().Format(time.RFC3339))
				} else {
					e.Expiry = store.InstantValue(at)
				}
				batch = append(batch, e)
			}
			return w.Put(tb.Context(), t, "", batch)
		})
	}
	if err := group.Wait(); err != nil {
		tb.Fatal(err)
	}
}

// adopts returns how many keys an adoption gave.
func adopts(ctx context.Context, s store.Store) (stamped int, err error) {
	c := config(s, workers)
	res, err := adopt.Run(ctx, adopt.Config{Sweep: c, Target: c.Targets[0], Rule: adopt.Rule{Property: "created", Plus: month},
		Spread: 24 * time.Hour, Percent: 100, Rate: throttle.Limits{Unlimited: true}})
	if err == nil && !res.Complete {
		err = errors.New("the adoption is not complete")
	}
	return int(res.Stamped), err
}

// bareStamps gives keys with nothing around it: no records, leases, pace or checks but the
// store's own.
func bareStamps(ctx context.Context, s store.Adopter) (sum int, err error) {
	t := target().Target
	splits, err := s.Splits(ctx, t, "", 2*workers)
	if err != nil {
		return 0, err
	}
	ends := append(splits, "")
	counts := make([]int, len(ends))
	var group errgroup.Group
	group.SetLimit(workers)
	after := ""
	for i, end := range ends {
		q := store.WalkQuery{Target: t, Source: "created", After: after, Until: end, Limit: store.MaxPage}
		after = end
		group.Go(func() error {
			n, err := bareStampsIn(ctx, s, q)
			counts[i] = n
			return err
		})
	}
	err = group.Wait()
	for _, n := range counts {
		sum += n
	}
	return sum, err
}

func bareStampsIn(ctx context.Context, s store.Adopter, q store.WalkQuery) (sum int, err error) {
	stamper := generation.Stamper{Generation: 1, Shards: shards}
	var rows store.Rows
	for {
		if err := s.Walk(ctx, q, &rows); err != nil {
			return sum, err
		}
		b := &store.Restamping{Query: q}
		for _, row := range rows.List {
			created := row.Source.Time
			if row.Source.Type == store.Text {
				if created, err = time.Parse(time.RFC3339, row.Source.Text); err != nil {
					return sum, err
				}
			}
			key, err := stamper.Name(row.Key, created.Add(month))
			if err != nil {
				return sum, err
			}
			b.Ops = append(b.Ops, store.RestampOp{Row: row, To: store.TextValue(key.String())})
			q.After = row.Key
		}
		q.Next = rows.Next
		if err := s.Restamp(ctx, b); err != nil {
			return sum, err
		}
		if sum += len(b.Ops); !rows.More {
			return sum, nil
		}
	}
}

// adoptionMemory measures the peak of processes that adopt ever more entities.
func adoptionMemory(tb testing.TB, r *report) {
	tb.Helper()
	peaks := map[int]float64{}
	for _, n := range r.backlogs {
		dir := tb.TempDir()
		db := openIn(tb, dir, false)
		fillUnstamped(tb, db, n)
		closed(tb, db)
		p := begin(tb, job{Dir: dir, Adopt: true})
		p.release()
		o := p.end()
		if o.Stamped != int64(n) {
			tb.Fatalf("stamped %d of %d", o.Stamped, n)
		}
		peaks[n] = o.PeakKiB / 1024
		r.add(fmt.Sprintf("peak memory of a process that adopts %d, embedded store", n), fmt.Sprintf("%.0f MiB", peaks[n]), "")
	}
	from, to := r.backlogs[0], r.backlogs[len(r.backlogs)-1]
	r.add(fmt.Sprintf("**peak at %d / at %d, adopt**", to, from), fmt.Sprintf("%.2f", peaks[to]/peaks[from]), "flat, but for the store's own")
}

// adoption compares how fast keys are given to entities that have none.
func adoption(tb testing.TB, r *report) {
	r.section("Adoption", "Entities that have only a time of creation get a key: a page is read in the order of keys, "+
		"and each entity written by a conditional update of one property. The bare loop does that and nothing else. "+
		"An adoption waits for five seconds at its begin, so that sweeps know of it: they are left out.")
	compare := func(where string, n int, open func() stampStore) {
		list := []*contestant[stampStore]{
			{what: "adopt, " + where, ready: func(s stampStore) func(context.Context) (int, error) {
				return func(ctx context.Context) (int, error) { return adopts(ctx, s) }
			}},
			{what: "bare loop, the same updates and concurrency", ready: func(s stampStore) func(context.Context) (int, error) {
				return func(ctx context.Context) (int, error) { return bareStamps(ctx, s) }
			}},
		}
		race(tb, r.rounds, n, r.warm, list, func(*contestant[stampStore]) (stampStore, func()) {
			s := open()
			if _, _, err := sweep.EnsureRecord(tb.Context(), config(s, 1), target()); err != nil {
				tb.Fatal(err)
			}
			// The first round of an adoption waits until sweeps know of it.
			if _, err := adopts(tb.Context(), s); err != nil {
				tb.Fatal(err)
			}
			fillUnstamped(tb, s, n)
			return s, func() { closed(tb, s) }
		})
		results(r, list, "at least 0.9")
	}
	compare("embedded store", r.entities/5, func() stampStore { return open(tb, false) })
	adoptionMemory(tb, r)
	if !emulator.Available(tb.Context()) {
		r.add("rates on the emulators", "they are not installed here", "")
		return
	}
	for _, mode := range []emulator.Mode{emulator.Datastore, emulator.Native} {
		e := emulator.Start(tb, mode)
		compare("emulator, "+string(mode), max(1, r.cloud/2), func() (s stampStore) {
			var err error
			if mode == emulator.Datastore {
				s, err = datastore.Open(tb.Context(), datastore.Options{Project: e.Project(tb), Emulator: e.Host})
			} else {
				s, err = firestore.Open(tb.Context(), firestore.Options{Project: e.Project(tb), Emulator: e.Host})
			}
			if err != nil {
				tb.Fatal(err)
			}
			return s
		})
	}
}
