package archive_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/store"
)

// Calls of Keep that come together share one object, which is written when nothing more comes.
func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		cfg := config(b)
		w := open(t, cfg)
		begun := time.Now()
		var all8 sync.WaitGroup
		for i := range 8 {
			all8.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				r, err := w.Keep(t.Context(), "ns", copies(i*50, 50))
				if err != nil {
					t.Error(err)
					return
				}
				r.Done(func(key string) archive.State {
					if strings.HasSuffix(key, "3") {
						return archive.Kept
					}
					return archive.Deleted
				})
			})
		}
		all8.Wait()
		if took := time.Since(begun); took != 120*time.Millisecond {
			t.Errorf("it took %v, want 70 ms until the last call and 50 ms of quiet", took)
		}
		closeWriter(t, w)
		if list := objects(t, b); len(list) != 1 || !list[0].Confirmed {
			t.Fatalf("want one confirmed object, got %+v", list)
		}
		want := map[archive.State]int{archive.Deleted: 360, archive.Kept: 40}
		if got := states(t, b); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if c := cfg.Counts; c.Entities.Load() != 400 || c.Objects.Load() != 1 || c.Manifests.Load() != 1 ||
			c.Compressed.Load() == 0 || c.Bytes.Load() < 400*100 || c.Waited.Load() != int64(8*120-280)*1e6 {
			t.Errorf("counts: %+v", c)
		}
	})
}

// A whole page waits for nobody; what comes while it is being written is in the next object.
func TestWholePages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		w := open(t, config(b))
		b.fails(func(context.Context, string) fault { time.Sleep(time.Second); return fault{} })
		begun := time.Now()
		var calls sync.WaitGroup
		for i := range 4 {
			calls.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if _, err := w.Keep(t.Context(), "", copies(i*500, 500)); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		if took := time.Since(begun); took != 1053*time.Millisecond || len(objects(t, b)) != 2 {
			t.Errorf("%d objects in %v", len(objects(t, b)), took)
		}
		closeWriter(t, w)
	})
}

// So does a call whose entities are large, however few they are.
func TestLargeCalls(t *testing.T) {
	for name, c := range map[string]struct {
		data int
		took time.Duration
	}{"small": {100, 50 * time.Millisecond}, "large": {100_000, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newMemoryBucket()
				w := open(t, config(b))
				list := copies(0, 11)
				for i := range list {
					list[i].Data = fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", c.data))
				}
				begun := time.Now()
				if _, err := w.Keep(t.Context(), "", list); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begun); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				closeWriter(t, w)
			})
		})
	}
}

// What a slow pace deletes waits for what comes within a quarter of a second, so that objects stay few.
func TestFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		w := open(t, config(b))
		begun := time.Now()
		for i := range 40 {
			if _, err := w.Keep(t.Context(), "", copies(i*10, 10)); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took != 50*time.Millisecond && i == 0 {
				t.Errorf("the first object was written after %v, want 50 ms", took)
			}
		}
		if took, want := time.Since(begun), 50*time.Millisecond+39*250*time.Millisecond; took != want {
			t.Errorf("40 calls took %v, want %v", took, want)
		}
		if _, err := w.Keep(t.Context(), "", copies(1000, 500)); err != nil {
			t.Fatal(err)
		}
		if took, want := time.Since(begun), 50*time.Millisecond+39*250*time.Millisecond; took != want {
			t.Errorf("a whole page waited for %v", took-want)
		}
		closeWriter(t, w)
	})
}

// An object to which something is added all the time is written when it is old, or large.
func TestRoll(t *testing.T) {
	for name, c := range map[string]struct {
		size    int64
		data    int
		objects int
	}{"age": {0, 10, 2}, "size": {1 << 20, 100_000, 12}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newMemoryBucket()
				cfg := config(b)
				cfg.RollSize = c.size
				w := open(t, cfg)
				var calls sync.WaitGroup
				for i := range 120 {
					list := copies(i, 1)
					list[0].Data = fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", c.data))
					calls.Go(func() {
						if _, err := w.Keep(t.Context(), "", list); err != nil {
							t.Error(err)
						}
					})
					time.Sleep(20 * time.Millisecond)
				}
				calls.Wait()
				closeWriter(t, w)
				if n := len(objects(t, b)); n != c.objects {
					t.Errorf("%d objects, want %d", n, c.objects)
				}
				if got := states(t, b); got[archive.Unconfirmed] != 120 {
					t.Errorf("states %v, want 120 unconfirmed", got)
				}
			})
		})
	}
}

// An entity larger than an object has one of its own, and a call is spread over objects.
func TestLargeEntities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		cfg := config(b)
		cfg.RollSize = archive.MinRollSize
		w := open(t, cfg)
		list := copies(0, 5)
		list[2].Data = fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", 3<<20))
		r, err := w.Keep(t.Context(), "", list)
		if err != nil {
			t.Fatal(err)
		}
		r.Done(all(archive.Deleted))
		r.Done(all(archive.Kept)) // only the first call counts
		closeWriter(t, w)
		var lines []int
		for _, e := range objects(t, b) {
			l, err := read(b, e.Name)
			if err != nil || !e.Confirmed {
				t.Error(e, err)
			}
			lines = append(lines, len(l))
		}
		if fmt.Sprint(lines) != "[2 1 2]" || states(t, b)[archive.Deleted] != 5 {
			t.Errorf("lines %v, states %v", lines, states(t, b))
		}
	})
}

// What goes wrong with a write is tried again, under another name if the first one is taken or was lost.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault fault
		left  int // damaged objects that it leaves
	}{
		"full":       {fault{before: fmt.Errorf("write: %w", syscall.ENOSPC)}, 0},
		"reply lost": {fault{after: errFault}, 0},
		"lost":       {fault{lose: true}, 0},
		"half":       {fault{part: 10}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newMemoryBucket()
				cfg := config(b)
				w := open(t, cfg)
				var tries atomic.Int32
				b.fails(func(_ context.Context, name string) fault {
					if strings.Contains(name, ".done.") || tries.Add(1) > 3 && c.left == 0 || len(b.names()) >= 3 {
						return fault{}
					}
					return c.fault
				})
				done := make(chan struct{})
				go func() {
					defer close(done)
					r, err := w.Keep(t.Context(), "", copies(0, 10))
					if err != nil {
						t.Error(err)
						return
					}
					r.Done(all(archive.Deleted))
				}()
				time.Sleep(60 * time.Millisecond)
				if c.left == 0 && name != "reply lost" && w.Failing() == nil {
					t.Error("it is failing and does not say so")
				}
				<-done
				if err := w.Failing(); err != nil {
					t.Errorf("it still says that it is failing: %v", err)
				}
				closeWriter(t, w)
				intact, broken := 0, 0
				for _, e := range objects(t, b) {
					if lines, err := read(b, e.Name); err != nil {
						broken++
						if !errors.Is(err, archive.ErrDamaged) || e.Confirmed {
							t.Errorf("confirmed %v: %v", e.Confirmed, err)
						}
					} else if len(lines) == 10 && lines[9].State == archive.Deleted {
						intact++
					}
				}
				if intact != 1 || broken != c.left || cfg.Counts.Failures.Load() == 0 {
					t.Errorf("%d intact, %d broken, %d failures", intact, broken, cfg.Counts.Failures.Load())
				}
			})
		})
	}
}

// A bucket that does not recover fails the calls when their contexts end, and each by its own.
func TestFailingBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		w := open(t, config(b))
		b.fails(func(context.Context, string) fault { return fault{before: errFault} })
		begun := time.Now()
		var calls sync.WaitGroup
		for i := range 3 {
			calls.Go(func() {
				limit := time.Duration(i+1) * 10 * time.Second
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				r, err := w.Keep(ctx, "", copies(i, 1))
				if r != nil || !errors.Is(err, errFault) || time.Since(begun) != limit {
					t.Errorf("after %v: %v", time.Since(begun), err)
				}
			})
		}
		calls.Wait()
		if err := w.Failing(); !errors.Is(err, errFault) {
			t.Errorf("Failing says %v", err)
		}
		b.fails(nil)
		if _, err := w.Keep(t.Context(), "", copies(9, 1)); err != nil || w.Failing() != nil {
			t.Errorf("%v, Failing %v", err, w.Failing())
		}
		closeWriter(t, w)
	})
}

// One call that gives up does not take the others of its object along; its entities were not deleted.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		w := open(t, config(b))
		b.fails(func(ctx context.Context, _ string) fault { // it is slow
			select {
			case <-time.After(20 * time.Second):
			case <-ctx.Done():
			}
			return fault{}
		})
		var calls sync.WaitGroup
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := w.Keep(ctx, "", copies(0, 3)); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
		calls.Go(func() {
			r, err := w.Keep(t.Context(), "", copies(3, 4))
			if err != nil {
				t.Error(err)
				return
			}
			r.Done(all(archive.Deleted))
		})
		calls.Wait()
		closeWriter(t, w)
		want := map[archive.State]int{archive.Deleted: 4, archive.Kept: 3}
		if got := states(t, b); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// While one object is being written another collects.
func TestCollectsWhileWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		w := open(t, config(b))
		var atOnce, most atomic.Int32
		b.fails(func(context.Context, string) fault {
			n := atOnce.Add(1)
			most.Store(max(most.Load(), n))
			time.Sleep(10 * time.Second)
			atOnce.Add(-1)
			return fault{}
		})
		var calls sync.WaitGroup
		for i := range 3 {
			calls.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				if _, err := w.Keep(t.Context(), "", copies(i, 1)); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		if most.Load() != 3 {
			t.Errorf("%d objects were written at once, want 3", most.Load())
		}
		closeWriter(t, w)
	})
}

// A manifest whose write hangs is tried again, and keeps no other one from being written.
func TestHangingManifests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		w := open(t, config(b))
		var manifests atomic.Int64
		b.fails(func(ctx context.Context, name string) fault {
			if strings.Contains(name, ".done.") && manifests.Add(1) <= 10 {
				<-ctx.Done()
			}
			return fault{}
		})
		for i := range 20 {
			r, err := w.Keep(t.Context(), "", copies(i, 1))
			if err != nil {
				t.Fatal(err)
			}
			r.Done(all(archive.Deleted))
		}
		time.Sleep(10 * time.Minute)
		if got := states(t, b); got[archive.Deleted] != 20 {
			t.Errorf("%v", got)
		}
		closeWriter(t, w)
	})
}

// An object has entities of one sweep: restores go by its header.
func TestSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		cfg := config(b)
		var sweep atomic.Value
		cfg.Sweep = func() string { return sweep.Load().(string) }
		w := open(t, cfg)
		var calls sync.WaitGroup
		for i, id := range []string{"one", "two", "two"} {
			sweep.Store(id)
			calls.Go(func() {
				if _, err := w.Keep(t.Context(), "", copies(i, 1)); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(time.Millisecond)
		}
		calls.Wait()
		closeWriter(t, w)
		got := ""
		for _, e := range objects(t, b) {
			r, err := archive.OpenObject(t.Context(), b, e.Name)
			if err != nil {
				t.Fatal(err)
			}
			got += r.Header().Sweep
			for l, err := range r.Lines() {
				if err != nil {
					t.Fatal(err)
				}
				got += " " + l.Key
			}
			got += ". "
		}
		if got != "one Session/s-000000. two Session/s-000001 Session/s-000002. " {
			t.Error(got)
		}
	})
}

// Close writes the manifests that are left, of what is known; what is not done by then stays unconfirmed.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		w := open(t, config(b))
		receipts := make([]*archive.Receipt, 3)
		var calls sync.WaitGroup
		for i := range receipts {
			calls.Go(func() {
				var err error
				if receipts[i], err = w.Keep(t.Context(), "", copies(i*10, 10)); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		receipts[0].Done(all(archive.Deleted))
		receipts[1].Done(all(archive.Unconfirmed))
		closeWriter(t, w)
		receipts[2].Done(all(archive.Deleted)) // too late
		want := map[archive.State]int{archive.Deleted: 10, archive.Unconfirmed: 20}
		if got := states(t, b); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if _, err := w.Keep(t.Context(), "", copies(0, 1)); !errors.Is(err, archive.ErrClosed) {
			t.Error(err)
		}
		if err := w.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Close gives up when its context ends, and says how much is unconfirmed.
func TestCloseInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		w := open(t, config(b))
		r, err := w.Keep(t.Context(), "", copies(0, 1))
		if err != nil {
			t.Fatal(err)
		}
		b.fails(func(context.Context, string) fault { return fault{before: errFault} })
		r.Done(all(archive.Deleted))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := w.Close(ctx); err == nil || !strings.Contains(err.Error(), "1 objects stay unconfirmed") {
			t.Error(err)
		}
		if got := states(t, b); got[archive.Unconfirmed] != 1 {
			t.Error(got)
		}
	})
}

// Many ranges at once, among faults: all that was deleted is in intact objects, and no line says so of what was not.
func TestConcurrency(t *testing.T) {
	b := newMemoryBucket()
	cfg := config(b)
	cfg.RollSize, cfg.RollAfter = archive.MinRollSize, 20*time.Millisecond
	w := open(t, cfg)
	b.fails(func(context.Context, string) fault {
		return []fault{{}, {}, {}, {before: errFault}, {after: errFault}, {lose: true}}[rand.IntN(6)]
	})
	var mu sync.Mutex
	deleted := map[string]bool{}
	var ranges sync.WaitGroup
	for i := range 8 {
		ranges.Go(func() {
			for j := range 10 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(400))*time.Millisecond)
				r, err := w.Keep(ctx, "", copies(i*10_000+j*100, 100))
				cancel()
				if err != nil {
					continue
				}
				_ = w.Failing()
				r.Done(func(key string) archive.State {
					if strings.HasSuffix(key, "7") {
						return archive.Kept
					}
					mu.Lock()
					defer mu.Unlock()
					deleted[key] = true
					return archive.Deleted
				})
			}
		})
	}
	ranges.Wait()
	b.fails(nil)
	closeWriter(t, w)
	for _, e := range objects(t, b) {
		lines, err := read(b, e.Name)
		if err != nil {
			t.Error(err)
		}
		for _, l := range lines {
			if l.State == archive.Deleted {
				if !deleted[l.Key] {
					t.Errorf("%s was not deleted", l.Key)
				}
				delete(deleted, l.Key)
			}
		}
	}
	if len(deleted) > 0 {
		t.Errorf("%d deleted entities are in no object as such", len(deleted))
	}
}

func TestConfig(t *testing.T) {
	for want, change := range map[string]func(*archive.Config){
		"unknown mode":                func(c *archive.Config) { c.Header.Mode = "all" },
		"is not a valid target name":  func(c *archive.Config) { c.Header.Target = "../x" },
		"are too small":               func(c *archive.Config) { c.RollSize = 1000 },
		"times must be positive":      func(c *archive.Config) { c.RollAfter = -1 },
		"a bucket and a clock":        func(c *archive.Config) { c.Bucket = nil },
		"probe-bcad5f33.txt: refused": func(c *archive.Config) { c.Bucket = refusing{} },
	} {
		cfg := config(newMemoryBucket())
		change(&cfg)
		if _, err := archive.Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

type refusing struct{ archive.Bucket }

func (refusing) Create(_ context.Context, name string, _ []byte) (string, error) {
	return "", errors.New(name + ": refused")
}

// What cannot come back as it was is refused, before it is deleted.
func TestRefusedCopies(t *testing.T) {
	w := open(t, config(newMemoryBucket()))
	defer closeWriter(t, w)
	for name, c := range map[string]store.Copy{
		"no data":    {Key: "k"},
		"no key":     {Data: []byte("{}")},
		"not UTF-8":  {Key: "k\xff", Data: []byte("{}")},
		"not JSON":   {Key: "k", Data: []byte("{")},
		"no type":    {Key: "k", Data: []byte("{}"), Expiry: store.Value{Type: 77}},
		"year 10000": {Key: "k", Data: []byte("{}"), Created: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		if _, err := w.Keep(t.Context(), "", []store.Copy{c}); err == nil {
			t.Errorf("%s was kept", name)
		}
	}
	if r, err := w.Keep(t.Context(), "", nil); err != nil {
		t.Error(err)
	} else {
		r.Done(all(archive.Deleted))
	}
}

// The memory bound serves requests for more than all of it.
func TestMemory(t *testing.T) {
	m := archive.NewMemory(100)
	if err := m.Acquire(t.Context(), 1000); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Acquire(ctx, 1); err == nil {
		t.Error("more than all was acquired")
	}
	m.Release(1000)
	if err := m.Acquire(t.Context(), 100); err != nil {
		t.Error(err)
	}
}
