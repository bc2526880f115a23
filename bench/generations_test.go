package bench_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
)

// A course is what a target went through while its generations followed each
// other.
type course struct {
	deleted, carried  int64
	stepped, behind   int64 // points stepped over, in all and in reads from the start
	retired           []int
	latency           map[string][]time.Duration // of full pages of normal reads, by generation
	control           map[string][]time.Duration // of a page of a table without deletes, at the same times
	generations, left int
}

// timed measures pages by the generation that they are of.
type timed struct {
	*embedded.DB
	mu sync.Mutex
	c  *course
}

func (s *timed) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	began := time.Now()
	err := s.DB.Scan(ctx, q, page)
	took := time.Since(began)
	if err == nil && q.Limit > 1 && len(page.Entries) == q.Limit {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.c.latency[q.Lo.Text[:8]] = append(s.c.latency[q.Lo.Text[:8]], took)
	}
	return err
}

// fiveGenerations writes n entities into five generations, one after the other, on
// an embedded store whose compaction is held back. It sweeps all the while, until
// all of them are deleted. The clock is simulated.
//
// With compaction held back every page has to look into ever more files, wherever
// it is. So pages are compared with control pages, which are read in between from a
// table without deletes.
func fiveGenerations(tb testing.TB, n int, hold bool) *course {
	tb.Helper()
	now := time.Now().Add(-1000 * time.Hour)
	clock := func() time.Time { return now }
	db, err := embedded.Open(tb.TempDir(), embedded.Options{Create: true, Now: clock, HoldCompaction: hold})
	if err != nil {
		tb.Fatal(err)
	}
	defer closed(tb, db)
	c := &course{latency: map[string][]time.Duration{}, control: map[string][]time.Duration{}}
	still := config(db, 1).Targets[0].Target
	still.Kind = "Still"
	putStill(tb, db, still, now)
	s := &timed{DB: db, c: c}
	sc := config(s, workers)
	sc.Now = clock
	sc.Targets[0].Policy = generation.Policy{Every: time.Hour, Ramp: 5 * time.Minute, Staleness: time.Second, Slack: time.Minute, Keep: 8}
	follower := &generation.Follower{Store: db, Target: "sessions", Now: clock}
	const (
		steps = 12 // in an hour
		hours = 5
	)
	written := 0
	for step := 0; step < hours*steps || db.Opening() != "" && c.left > 0 || len(c.retired) < hours-1; step++ {
		if step > 4*hours*steps {
			tb.Fatalf("%d entities are left, %v have retired", c.left, c.retired)
		}
		res := sweep.Run(tb.Context(), sc).Targets[0]
		if res.Error != "" || !res.Complete || res.Stepped == nil {
			tb.Fatalf("%+v", res)
		}
		c.readStill(tb, db, still)
		c.deleted += res.Deleted
		c.carried += res.Carried
		c.stepped += *res.Stepped
		c.behind += *res.Behind
		c.retired = append(c.retired, res.Retired...)
		c.left -= int(res.Deleted)
		now = now.Add(time.Hour / steps)
		if step >= hours*steps {
			continue
		}
		if err := follower.Refresh(tb.Context()); err != nil {
			tb.Fatal(err)
		}
		batch := make([]store.Entity, 0, store.MaxPage)
		for until := n * (step + 1) / (hours * steps); written < until; written++ {
			name := fmt.Sprintf("session-%07d", written)
			life := time.Duration(uint64(written)*0x9E3779B97F4A7C15%uint64(30*time.Minute)) + time.Minute
			key, err := follower.Name(name, now.Add(life))
			if err != nil {
				tb.Fatal(err)
			}
			batch = append(batch, store.Entity{Name: name, Expiry: store.TextValue(key.String()), Data: []byte(`{"user":"u7"}`)})
			c.left++
			if len(batch) == store.MaxPage || written == until-1 {
				if err := db.Put(tb.Context(), sc.Targets[0].Target, "", batch); err != nil {
					tb.Fatal(err)
				}
				batch = batch[:0]
			}
		}
		if err := db.Flush(); err != nil {
			tb.Fatal(err)
		}
	}
	c.generations = len(c.latency)
	return c
}

// putStill fills the control table with one page in one range.
func putStill(tb testing.TB, db *embedded.DB, t store.Target, now time.Time) {
	tb.Helper()
	var batch []store.Entity
	for i := range store.MaxPage {
		name := fmt.Sprintf("still-%03d", i)
		key, err := generation.Stamper{Generation: 1, Shards: 1}.Name(name, now.Add(time.Duration(i)*time.Second))
		if err != nil {
			tb.Fatal(err)
		}
		batch = append(batch, store.Entity{Name: name, Expiry: store.TextValue(key.String())})
	}
	if err := db.Put(tb.Context(), t, "", batch); err != nil {
		tb.Fatal(err)
	}
}

// readStill reads the control page a few times, and files how long that took under
// the generation that pages were read from last.
func (c *course) readStill(tb testing.TB, db *embedded.DB, t store.Target) {
	tb.Helper()
	newest := ""
	for name := range c.latency {
		newest = max(newest, name)
	}
	r := shardquery.Range{Generation: 1}
	hi, _ := r.UpTo(time.Now())
	var page store.Page
	for range 5 {
		began := time.Now()
		err := db.Scan(tb.Context(), store.Query{Target: t, Lo: r.Lo(time.Time{}), Hi: hi, Limit: store.MaxPage}, &page)
		if err != nil || len(page.Entries) != store.MaxPage {
			tb.Fatalf("%d entries, %v", len(page.Entries), err)
		}
		c.control[newest] = append(c.control[newest], time.Since(began))
	}
}

// perDeleted returns the points stepped over for each entity deleted, by normal
// reads and by those from the start. Two points are one tombstone: the delete and
// what it deleted.
func (c *course) perDeleted() (normal, fromStart float64) {
	return float64(c.stepped-c.behind) / 2 / float64(c.deleted), float64(c.behind) / 2 / float64(c.deleted)
}

// growth returns the median latency of the pages of the newest generation as a
// multiple of that of the first, and the same of the control pages at those times.
// It reports false without enough pages.
func (c *course) growth() (pages, control float64, ok bool) {
	var names []string
	for name, pages := range c.latency {
		if len(pages) >= 20 {
			names = append(names, name)
		}
	}
	if len(names) < 2 {
		return 0, 0, false
	}
	of := func(pages []time.Duration) float64 {
		slices.Sort(pages)
		return pages[len(pages)/2].Seconds()
	}
	first, newest := slices.Min(names), slices.Max(names)
	return of(c.latency[newest]) / of(c.latency[first]), of(c.control[newest]) / of(c.control[first]), true
}

// TestGenerationsStepOverLittle holds P1: however much was deleted before, normal
// sweeps step over next to nothing, and reads from the start over each tombstone
// three times at most.
func TestGenerationsStepOverLittle(t *testing.T) {
	n := 60_000
	if testing.Short() {
		n = 20_000
	}
	c := fiveGenerations(t, n, true)
	normal, fromStart := c.perDeleted()
	if normal > 0.1 || fromStart > 3 {
		t.Errorf("tombstones stepped over for each entity deleted: %.3f by normal reads, %.3f by reads from the start", normal, fromStart)
	}
	if int(c.deleted) != n || c.carried != 0 || len(c.retired) < 4 {
		t.Errorf("deleted %d of %d, carried %d, retired %v", c.deleted, n, c.carried, c.retired)
	}
}

// generations is the same at full size, with the latency of pages, while compaction
// is held back and while it is not.
func generations(tb testing.TB, r *report) {
	r.section("Five generations", "Entities are written into five generations, one after the other, and swept all the while.")
	for _, hold := range []bool{true, false} {
		c := fiveGenerations(tb, r.entities, hold)
		normal, fromStart := c.perDeleted()
		pages, control, ok := c.growth()
		name := "compaction on: "
		if hold {
			name = "compaction held back: "
		}
		if ok {
			r.add("**"+name+"page latency, newest / first generation**", fmt.Sprintf("%.2f", pages), "at most 1.3")
			r.add("the same for a page of a table without deletes", fmt.Sprintf("%.2f", control), "the store's own share")
		}
		r.add(name+"tombstones stepped over per entity deleted, normal reads / reads from the start", fmt.Sprintf("%.3f / %.3f", normal, fromStart), "at most 0.1 / 3")
	}
}
