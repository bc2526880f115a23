package shardread_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/shardread"
)

// A shard is a source in memory that keeps books.
type shard struct {
	items []int
	empty bool          // every second page is empty, though not the last one
	delay time.Duration // of a call
	fails int           // the call that fails, from 1 on; 0 means none

	calls, read int
	gauge       *gauge
}

// A gauge counts the calls under way.
type gauge struct {
	sync.Mutex
	now, most int
}

func (g *gauge) enter() (leave func()) {
	if g == nil {
		return func() {}
	}
	g.Lock()
	defer g.Unlock()
	g.now++
	g.most = max(g.most, g.now)
	return func() {
		g.Lock()
		defer g.Unlock()
		g.now--
	}
}

var errShard = errors.New("the shard is on fire")

func (s *shard) next(ctx context.Context, n int) ([]int, bool, error) {
	s.calls++
	defer s.gauge.enter()()
	if s.delay > 0 {
		select {
		case <-time.After(s.delay):
		case <-ctx.Done():
			return nil, false, fmt.Errorf("a source's own words: %w", ctx.Err())
		}
	}
	if s.calls == s.fails {
		return nil, true, errShard // it need not say that this was all
	}
	if s.empty && s.calls%2 == 1 {
		return nil, true, nil
	}
	n = min(n, len(s.items)-s.read)
	s.read += n
	return s.items[s.read-n : s.read], s.read < len(s.items), nil
}

func sources(shards []*shard) []shardread.Source[int] {
	var out []shardread.Source[int]
	for _, s := range shards {
		out = append(out, s.next)
	}
	return out
}

// spread deals the numbers 0 to n-1 out to shards by a share for each.
func spread(r *rand.Rand, n int, shares ...int) []*shard {
	shards := make([]*shard, len(shares))
	var pot []int
	for i, share := range shares {
		shards[i] = &shard{}
		for range share {
			pot = append(pot, i)
		}
	}
	for i := range n {
		s := shards[pot[r.IntN(len(pot))]]
		s.items = append(s.items, i)
	}
	return shards
}

func even(shards int) []int { return slices.Repeat([]int{1}, shards) }

func collect(t *testing.T, seq iter.Seq2[int, error]) []int {
	t.Helper()
	var out []int
	for item, err := range seq {
		if err != nil {
			t.Fatalf("after %d items: %v", len(out), err)
		}
		out = append(out, item)
	}
	return out
}

func count(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func TestMergeIsInOrderAndReadsLittle(t *testing.T) {
	for _, c := range []struct {
		name   string
		n      int
		shares []int
		o      shardread.Options
		reads  int // most of them
	}{
		{"the first 100 of 10,000 over 16 shards", 10_000, even(16), shardread.Options{Limit: 100}, 100 + 16*9},
		{"with a page of 5", 10_000, even(16), shardread.Options{Limit: 100, Page: 5}, 100 + 16*5},
		{"one hot shard", 10_000, append([]int{1000}, even(15)...), shardread.Options{Limit: 100}, 300},
		{"one shard", 10_000, even(1), shardread.Options{Limit: 100}, 100},
		{"one wanted", 10_000, even(16), shardread.Options{Limit: 1}, 16},
		{"a deep read", 10_000, even(16), shardread.Options{Limit: 5000}, 5000 + 16*100},
		{"everything", 10_000, even(16), shardread.Options{}, 10_000},
		{"fewer than wanted", 70, even(16), shardread.Options{Limit: 100}, 70},
		{"mostly empty shards", 3, even(300), shardread.Options{Limit: 100}, 3},
		{"page 1", 1000, even(3), shardread.Options{Page: 1}, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(20) {
				shards := spread(rand.New(rand.NewPCG(seed, 1)), c.n, c.shares...)
				want := c.n
				if c.o.Limit > 0 {
					want = min(want, c.o.Limit)
				}
				got := collect(t, shardread.Merge(t.Context(), sources(shards), cmp.Compare, c.o))
				if !slices.Equal(got, count(want)) {
					t.Fatalf("seed %d: got %v, want 0 to %d", seed, got, want-1)
				}
				reads := 0
				for _, s := range shards {
					reads += s.read
				}
				if reads > c.reads {
					t.Errorf("seed %d: %d items were read, want at most %d", seed, reads, c.reads)
				}
			}
		})
	}
}

// TestNeverMoreThanAPageUnread looks at the books after every item.
func TestNeverMoreThanAPageUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const page = 7
		shards := spread(rand.New(rand.NewPCG(1, 1)), 1000, 5, 1, 1, 9)
		owner := map[int]*shard{}
		for _, s := range shards {
			for _, item := range s.items {
				owner[item] = s
			}
		}
		taken := map[*shard]int{}
		for item, err := range shardread.Merge(t.Context(), sources(shards), cmp.Compare, shardread.Options{Page: page}) {
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // for pages that were asked for ahead
			taken[owner[item]]++
			for i, s := range shards {
				if unread := s.read - taken[s]; unread > page {
					t.Fatalf("at item %d: %d items of shard %d were read and not yielded, want at most %d", item, unread, i, page)
				}
			}
		}
	})
}

func TestPagesAreFetchedInParallelAndAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shards := spread(rand.New(rand.NewPCG(1, 1)), 10_000, even(16)...)
		for _, s := range shards {
			s.delay = time.Second
		}
		began := time.Now()
		for item, err := range shardread.Merge(t.Context(), sources(shards), cmp.Compare, shardread.Options{Page: 100}) {
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); item == 0 && took != time.Second {
				t.Errorf("the first item came after %v, want the time of one call", took)
			}
			time.Sleep(5 * time.Millisecond) // a caller at work: half a page takes longer than a call
		}
		if took, work := time.Since(began), time.Second+10_000*5*time.Millisecond; took != work {
			t.Errorf("took %v, want %v: no waiting after the first pages", took, work)
		}
	})
}

func TestParallelIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gauge{}
		shards := spread(rand.New(rand.NewPCG(1, 1)), 1000, even(20)...)
		for _, s := range shards {
			s.delay, s.gauge = time.Second, g
		}
		got := collect(t, shardread.Merge(t.Context(), sources(shards), cmp.Compare, shardread.Options{Parallel: 3}))
		if !slices.Equal(got, count(1000)) || g.most != 3 {
			t.Errorf("%d items with %d calls at once, want 1000 with 3", len(got), g.most)
		}
	})
}

func TestEqualItemsComeInTheOrderOfSources(t *testing.T) {
	type item struct{ at, source int }
	var from []shardread.Source[item]
	for i := range 5 {
		at := 0
		from = append(from, func(context.Context, int) ([]item, bool, error) {
			at++
			return []item{{at, i}}, at < 3, nil
		})
	}
	var got []item
	for v, err := range shardread.Merge(t.Context(), from, func(a, b item) int { return a.at - b.at }, shardread.Options{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v)
	}
	want := slices.SortedFunc(slices.Values(got), func(a, b item) int { return cmp.Or(a.at-b.at, a.source-b.source) })
	if len(got) != 15 || !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestEmptyPagesAreNotTheEnd(t *testing.T) {
	shards := spread(rand.New(rand.NewPCG(1, 1)), 100, even(4)...)
	for _, s := range shards {
		s.empty = true
	}
	if got := collect(t, shardread.Merge(t.Context(), sources(shards), cmp.Compare, shardread.Options{Page: 10})); !slices.Equal(got, count(100)) {
		t.Errorf("got %v, want 0 to 99", got)
	}
}

// ended ranges over a merge and returns what it yielded and its errors.
func ended(seq iter.Seq2[int, error]) (items []int, errs []error) {
	for item, err := range seq {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		items = append(items, item)
	}
	return items, errs
}

// Each test runs in a bubble, which ends only when no goroutine is left in it:
// the merge returns before a call that ignores its context would.
func TestTheFirstErrorEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &shard{items: []int{0, 2, 4, 6, 8, 10}}
		b := &shard{items: []int{1, 3, 5, 7, 9, 11}, fails: 2}
		items, errs := ended(shardread.Merge(t.Context(), sources([]*shard{a, b}), cmp.Compare, shardread.Options{Page: 2}))
		if !slices.Equal(items, count(4)) || len(errs) != 1 || !errors.Is(errs[0], errShard) {
			t.Errorf("got %v and %v, want what comes before the failed page and its error", items, errs)
		}
	})
}

func TestAFailedStartDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		slow, broken := &shard{items: count(3), delay: time.Hour}, &shard{fails: 1}
		items, errs := ended(shardread.Merge(t.Context(), sources([]*shard{slow, broken}), cmp.Compare, shardread.Options{}))
		if len(items) != 0 || len(errs) != 1 || !errors.Is(errs[0], errShard) || time.Since(began) > 0 {
			t.Errorf("after %v: %v and %v, want the error at once", time.Since(began), items, errs)
		}
	})
}

func TestAFailureBehindTheLimitIsNone(t *testing.T) {
	a, b := &shard{items: []int{0, 2, 4, 6}}, &shard{items: []int{1, 3, 5, 7}, fails: 2}
	items, errs := ended(shardread.Merge(t.Context(), sources([]*shard{a, b}), cmp.Compare, shardread.Options{Page: 2, Limit: 4}))
	if !slices.Equal(items, count(4)) || len(errs) != 0 {
		t.Errorf("got %v and %v, want four items", items, errs)
	}
}

func TestLeavingEndsAllCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gauge{}
		shards := spread(rand.New(rand.NewPCG(1, 1)), 1000, even(4)...)
		for _, s := range shards {
			s.delay, s.gauge = time.Minute, g
		}
		for item, err := range shardread.Merge(t.Context(), sources(shards), cmp.Compare, shardread.Options{Page: 2}) {
			if err != nil {
				t.Fatal(err)
			}
			if item == 5 {
				synctest.Wait() // for calls ahead to begin
				if g.now == 0 {
					t.Error("no call is under way")
				}
				break
			}
		}
		if g.now != 0 {
			t.Errorf("%d calls are still running", g.now)
		}
	})
}

func TestCancellation(t *testing.T) {
	for _, c := range []struct {
		name string
		at   time.Duration
	}{{"before the first page", time.Second}, {"between pages", 90 * time.Second}, {"with items at hand", time.Minute}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.at)
				defer cancel()
				shards := spread(rand.New(rand.NewPCG(1, 1)), 1000, even(4)...)
				for _, s := range shards {
					s.delay = time.Minute - time.Nanosecond
				}
				seen := 0
				var errs []error
				for _, err := range shardread.Merge(ctx, sources(shards), cmp.Compare, shardread.Options{Page: 20}) {
					if err != nil {
						errs = append(errs, err)
					} else if seen++; seen == 1 && c.at == time.Minute {
						<-ctx.Done()
					}
				}
				if len(errs) != 1 || errs[0] != context.DeadlineExceeded {
					t.Errorf("got %v, want the context's own error, once", errs)
				}
				if c.at == time.Minute && seen != 1 {
					t.Errorf("%d items after the context was done", seen-1)
				}
			})
		})
	}
}

func TestBrokenPromises(t *testing.T) {
	for name, c := range map[string]struct {
		source shardread.Source[int]
		o      shardread.Options
		want   string
	}{
		"order":          {func(context.Context, int) ([]int, bool, error) { return []int{2, 1}, false, nil }, shardread.Options{}, "source 0 is not in order: its item 2 belongs before item 1"},
		"size":           {func(_ context.Context, n int) ([]int, bool, error) { return count(n + 1), false, nil }, shardread.Options{Page: 2}, "source 0 returned 3 items where at most 2 were wanted"},
		"negative limit": {nil, shardread.Options{Limit: -1}, "limit is -1; it must not be negative"},
		"negative page":  {nil, shardread.Options{Page: -5}, "page is -5; it must not be negative"},
		"negative calls": {nil, shardread.Options{Parallel: -2}, "parallel is -2; it must not be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			items, errs := ended(shardread.Merge(t.Context(), []shardread.Source[int]{c.source}, cmp.Compare, c.o))
			if len(items) != 0 || len(errs) != 1 || errs[0].Error() != c.want {
				t.Errorf("got %v and %v, want only: %s", items, errs, c.want)
			}
		})
	}
	pages := [][]int{{5, 6}, {4}}
	across := func(context.Context, int) ([]int, bool, error) {
		page := pages[0]
		pages = pages[1:]
		return page, len(pages) > 0, nil
	}
	items, errs := ended(shardread.Merge(t.Context(), []shardread.Source[int]{across}, cmp.Compare, shardread.Options{}))
	if len(items) != 2 || len(errs) != 1 || !strings.Contains(errs[0].Error(), "item 3 belongs before item 2") {
		t.Errorf("order across pages: got %v and %v", items, errs)
	}
}

func TestNoSources(t *testing.T) {
	if items, errs := ended(shardread.Merge(t.Context(), nil, cmp.Compare[int], shardread.Options{})); len(items) != 0 || len(errs) != 0 {
		t.Errorf("got %v and %v", items, errs)
	}
}
