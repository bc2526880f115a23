package generation_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

var policy = generation.Policy{Every: 24 * time.Hour, Ramp: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 9, Shards: 16}

// saved saves a record of a target with one generation, advanced so often.
func saved(t testing.TB, s *modelstore.Store, advanced int) generation.Record {
	t.Helper()
	r := generation.New("sessions", "Session", "expiry_key", 16, true, time.Now()).WithWriterBounds(policy)
	for range advanced {
		var err error
		if r, err = r.Advance(policy, time.Now(), true); err != nil {
			t.Fatal(err)
		}
	}
	r, err := generation.Save(context.Background(), s, r)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func follower(s *modelstore.Store) *generation.Follower {
	return &generation.Follower{Store: s, Target: "sessions", Now: time.Now}
}

// A follower stamps at once, whatever the store does: the nursery until it knows
// more, and again when its copy is too old.
func TestFollowerNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		f := follower(s)
		stamps := func(when string, want int) {
			t.Helper()
			k, err := f.Name("s-1", time.Now().Add(time.Hour))
			if err != nil || k.Generation != want {
				t.Errorf("%s: %v, %v; want generation %d", when, k, err, want)
			}
		}
		stamps("before it knows anything", 0)
		if err := f.Refresh(t.Context()); !errors.Is(err, generation.ErrMissing) {
			t.Errorf("refresh without a record: %v", err)
		}
		stamps("without a record", 0)
		saved(t, s, 0)
		if err := f.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		stamps("with a fresh copy", 1)
		time.Sleep(policy.Staleness)
		stamps("with one that is just good enough", 1)
		time.Sleep(time.Millisecond)
		stamps("with one that is too old", 0)

		var hang atomic.Bool
		hang.Store(true)
		s.Before = func(ctx context.Context, _ modelstore.Call) error {
			if hang.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { f.Run(ctx); close(done) }()
		time.Sleep(10 * time.Minute)
		stamps("while the store hangs", 0)
		hang.Store(false)
		time.Sleep(time.Minute)
		stamps("when the store answers again", 1)
		time.Sleep(time.Hour)
		stamps("an hour later", 1)
		cancel()
		<-done
	})
}

// A slow loader answers its first read after the second one.
type slow struct {
	store.Loader
	release chan struct{}
	reads   atomic.Int32
}

func (s *slow) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	first := s.reads.Add(1) == 1
	got, err := s.Loader.Load(ctx, q)
	if first {
		<-s.release
	}
	return got, err
}

// An older answer does not replace a newer one, which may mark a generation closed.
func TestFollowerKeepsTheNewerCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		r := saved(t, s, 0)
		loader := &slow{Loader: s, release: make(chan struct{})}
		f := &generation.Follower{Store: loader, Target: "sessions", Now: time.Now}
		done := make(chan error)
		go func() { done <- f.Refresh(t.Context()) }()
		synctest.Wait()
		time.Sleep(time.Second)
		p := policy
		p.Ramp = 0
		r, err := r.Advance(p, time.Now(), true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := generation.Save(t.Context(), s, r); err != nil {
			t.Fatal(err)
		}
		if err := f.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(loader.release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if k, err := f.Name("s-1", time.Now()); err != nil || k.Generation != 2 {
			t.Errorf("after the older answer: %v, %v; want generation 2", k, err)
		}
	})
}

// The age of a copy is the larger of wall and monotonic time, from before its read
// was sent.
func TestFollowerCountsTheAgeOfItsCopy(t *testing.T) {
	s := modelstore.New(time.Now)
	saved(t, s, 0)
	began := time.Now()
	now := began
	f := follower(s)
	f.Now = func() time.Time { return now }
	s.After = func(context.Context, modelstore.Call) error { now = began.Add(20 * time.Second); return nil }
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		now  time.Time
		want int
	}{
		"fresh":                    {began.Add(59 * time.Second), 1},
		"slow reply":               {began.Add(61 * time.Second), 0},
		"asleep, by the wall":      {began.Round(0).Add(2 * time.Minute), 0},
		"clock set back":           {began.Round(0).Add(-time.Hour), 0},
		"clock set back a little":  {began.Round(0).Add(-time.Second), 0},
		"just before the read":     {began, 1},
		"a day later, by both":     {began.Add(24 * time.Hour), 0},
		"almost stale, wall alone": {began.Round(0).Add(59 * time.Second), 1},
	} {
		now = c.now
		if got := f.Stamper("s-1").Generation; got != c.want {
			t.Errorf("%s: generation %d, want %d", name, got, c.want)
		}
	}
}

// Writers move along 500/50/5: at most half as many again in five minutes, all at
// the end; those that have moved stay, all followers agree, and shards stay even.
func TestFollowerMovesGradually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20_000
		s := modelstore.New(time.Now)
		saved(t, s, 1)
		a, b := follower(s), follower(s)
		var moved [n]bool
		before := 0
		for minute := range 62 {
			if minute%2 == 0 {
				if err := errors.Join(a.Refresh(t.Context()), b.Refresh(t.Context())); err != nil {
					t.Fatal(err)
				}
			} else if err := b.Refresh(t.Context()); err != nil { // the other one has a copy a minute old
				t.Fatal(err)
			}
			count := 0
			var shards [16]int
			for i := range n {
				id := fmt.Sprintf("session-%d", i)
				st := a.Stamper(id)
				if st != b.Stamper(id) {
					t.Fatalf("minute %d: two followers stamp %s with %v and %v", minute, id, st, b.Stamper(id))
				}
				if moved[i] && st.Generation != 2 {
					t.Fatalf("minute %d: %s went back to %d", minute, id, st.Generation)
				}
				if st.Generation == 2 {
					moved[i] = true
					count++
					shards[expirykey.ShardOfName(id, st.Shards)]++
				}
			}
			want := generation.Share(time.Duration(minute)*time.Minute, policy.Ramp) * n
			if math.Abs(float64(count)-want) > 4*math.Sqrt(want)+1 {
				t.Errorf("minute %d: %d moved, want about %.0f", minute, count, want)
			}
			if minute%5 == 0 {
				if before > 0 && float64(count) > 1.5*float64(before)+4*math.Sqrt(float64(before))+1 {
					t.Errorf("minute %d: %d moved, after %d five minutes ago", minute, count, before)
				}
				before = count
			}
			for shard, got := range shards {
				if even := float64(count) / 16; math.Abs(float64(got)-even) > 5*math.Sqrt(even)+1 {
					t.Errorf("minute %d: %d of %d in shard %d", minute, got, count, shard)
				}
			}
			time.Sleep(time.Minute)
		}
		if before != n {
			t.Errorf("%d of %d moved at the end", before, n)
		}
	})
}

// Others move first each time.
func TestFollowerMovesOthersFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		early := map[int]map[string]bool{}
		for _, advanced := range []int{1, 2} {
			s := modelstore.New(time.Now)
			r := saved(t, s, advanced)
			for i := range advanced - 1 { // only the last step is still under way
				r.Generations[i].Closed = time.Now()
			}
			if _, err := generation.Save(t.Context(), s, r); err != nil {
				t.Fatal(err)
			}
			f := follower(s)
			if err := f.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			early[advanced] = map[string]bool{}
			for i := range 50_000 {
				if id := fmt.Sprint(i); f.Stamper(id).Generation == advanced+1 {
					early[advanced][id] = true
				}
			}
		}
		both := 0
		for id := range early[1] {
			if early[2][id] {
				both++
			}
		}
		if len(early[1]) < 300 || len(early[2]) < 300 || both > 20 {
			t.Errorf("%d and %d move first, %d of them both times", len(early[1]), len(early[2]), both)
		}
	})
}

// A generation that the copy marks closed is stamped by nobody, whatever a clock
// says; without any open one that is known, there is the nursery.
func TestFollowerNeverStampsWhatIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		r := saved(t, s, 1)
		r.Generations[0].Closed = time.Now()
		if _, err := generation.Save(t.Context(), s, r); err != nil {
			t.Fatal(err)
		}
		for _, off := range []time.Duration{0, -time.Hour, time.Hour, -1000 * time.Hour} {
			f := follower(s)
			f.Now = func() time.Time { return time.Now().Add(off) }
			if err := f.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i := range 1000 {
				if got := f.Stamper(fmt.Sprint(i)).Generation; got != 2 {
					t.Fatalf("with a clock off by %v: generation %d", off, got)
				}
			}
		}
	})
}

func TestFollowerIsSafeForConcurrentUse(t *testing.T) {
	s := modelstore.New(time.Now)
	saved(t, s, 1)
	f := follower(s)
	var stop atomic.Bool
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for i := int64(1); !stop.Load(); i++ {
				if _, err := f.Number(i, time.Now().Add(time.Hour)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 200 {
		if err := f.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	group.Wait()
}

func TestShare(t *testing.T) {
	for _, c := range []struct {
		elapsed, ramp time.Duration
		want          float64
	}{
		{0, time.Hour, math.Pow(1.5, -12)}, {-time.Hour, time.Hour, math.Pow(1.5, -12)},
		{30 * time.Minute, time.Hour, math.Pow(1.5, -6)}, {55 * time.Minute, time.Hour, 1 / 1.5},
		{time.Hour, time.Hour, 1}, {2 * time.Hour, time.Hour, 1}, {0, 0, 1}, {time.Minute, 0, 1},
		{-time.Second, 0, 0},
	} {
		if got := generation.Share(c.elapsed, c.ramp); math.IsNaN(got) || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("Share(%v, %v) = %v, want %v", c.elapsed, c.ramp, got, c.want)
		}
	}
}

func TestStampingAllocatesNothing(t *testing.T) {
	s := modelstore.New(time.Now)
	saved(t, s, 1)
	f := follower(s)
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	expires := time.Now().Add(time.Hour)
	var buf [expirykey.Len]byte
	if n := testing.AllocsPerRun(100, func() {
		k, _ := f.Name("session-1842", expires)
		k.Append(buf[:0])
	}); n != 0 {
		t.Errorf("%v allocations for each stamp", n)
	}
}

func BenchmarkStamp(b *testing.B) {
	s := modelstore.New(time.Now)
	saved(b, s, 1)
	f := follower(s)
	if err := f.Refresh(b.Context()); err != nil {
		b.Fatal(err)
	}
	expires := time.Now().Add(time.Hour)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var buf [expirykey.Len]byte
		for pb.Next() {
			k, err := f.Name("session-1842", expires)
			if err != nil {
				b.Fatal(err)
			}
			k.Append(buf[:0])
		}
	})
}
