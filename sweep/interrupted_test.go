package sweep_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// refuses lets the store refuse one entity for good, and calls tried after each try.
func (w *world) refuses(name string, tried func()) func(modelstore.Call) error {
	return func(c modelstore.Call) error {
		for _, op := range c.Ops {
			if op.Entry.Key == fmt.Sprintf("%q", name) {
				tried()
				return fmt.Errorf("no: %w", store.ErrInvalid)
			}
		}
		return nil
	}
}

// serveFor runs a daemon that sweeps every minute, until it is stopped or the time is over.
func (w *world) serveFor(ctx context.Context, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	c := w.config()
	c.Targets[0].Next = everyMinute
	sweep.NewDaemon(c, true).Run(ctx)
}

// A read from the start that is interrupted after the store has refused an entity, and that another
// process completes, still tells of that entity: its generation does not retire.
func TestRefusedBeforeAnInterruption(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy, w.target.Shards = hourly, 1
		w.begin()
		w.put(1, 1, "refused", time.Now().Add(time.Minute))
		w.put(1, 1, "other", time.Now().Add(2*time.Minute))
		var stop context.CancelFunc
		tries := 0
		refuse := w.refuses("refused", func() {
			if tries++; tries == 3 { // it is known for refused, and the read has gone on
				time.AfterFunc(25*time.Second, stop)
			}
		})
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Scan" && strings.HasPrefix(c.Query.Lo.Text, "00000001.0000") {
				_ = throttle.Sleep(ctx, 4*time.Second)
			}
			return refuse(c)
		}
		done := make(chan struct{})
		defer close(done)
		go func() { // deletes that succeed show that the store does not refuse all
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				case <-time.After(5 * time.Second):
					w.put(0, 1, fmt.Sprint("n-", i), time.Now())
				}
			}
		}()
		for began := time.Now(); time.Since(began) < 5*time.Hour; {
			var ctx context.Context
			ctx, stop = context.WithCancel(t.Context())
			tries = 0
			w.serveFor(ctx, time.Hour)
			stop()
		}
		if live := numbers(w.record()); live[0] != 1 {
			t.Errorf("generation 1 has retired with what the store refuses; these are live: %v", live)
		}
	})
}

// An interrupted drain goes on at its position, and does not step over all that it has carried.
func TestInterruptedDrainGoesOn(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy, w.target.Shards, w.target.Page = hourly, 1, 5
		w.target.Policy.Keep = 1
		w.begin()
		w.put(1, 1, "refused", time.Now().Add(time.Minute))
		for i := range 300 {
			w.put(1, 1, fmt.Sprint("s-", i), time.Now().Add(100*time.Hour+time.Duration(i)*time.Minute))
		}
		refuse := w.refuses("refused", func() {})
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Scan" && strings.HasPrefix(c.Query.Lo.Text, "00000001.0000") &&
				!w.record().Generations[0].Draining.IsZero() {
				_ = throttle.Sleep(ctx, 3*time.Second)
			}
			return refuse(c)
		}
		for began := time.Now(); time.Since(began) < 4*time.Hour; {
			w.serveFor(t.Context(), 2*time.Minute)
		}
		last, back := "", 0
		for _, s := range w.saves {
			if !strings.HasPrefix(s.key, "sessions.00000001.0000") {
				continue
			}
			p, _ := s.fields["position"].(string)
			if p < last {
				back++
			}
			last = p
		}
		if back > 0 || last < "00000001.0000.20000105" {
			t.Errorf("the position went back %d times, and is %s at the end", back, last)
		}
	})
}

// sealTwoShards lets a generation of two shards be sealed, with something that falls due much later in some.
func (w *world) sealTwoShards(withEarly ...int) {
	w.target.Policy, w.target.Shards = hourly, 2
	w.target.Policy.Keep = 9
	w.begin()
	for shard := range 2 {
		w.dueIn(1, shard, fmt.Sprint("due-", shard), time.Now().Add(time.Minute))
	}
	for _, shard := range withEarly {
		w.dueIn(1, shard, fmt.Sprint("early-", shard), time.Now().Add(300*time.Hour))
	}
	w.serveFor(w.t.Context(), 2*time.Hour)
}

// A range of a sealed generation whose record somebody removes counts as empty until it is looked at again. A probe that
// finds nothing due in it, and takes long, must not turn that into a record: the generation would retire with
// what falls due later.
func TestRecordOfASealedRangeIsRemoved(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sealTwoShards(1)
		removed := w.removeCursors(func(c cursor.Cursor) bool { return c.Generation == 1 && c.Shard == "0001" })
		if removed != 1 || numbers(w.record())[0] != 1 {
			t.Fatalf("%d records removed; these are live: %v", removed, numbers(w.record()))
		}
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			switch {
			case c.Method != "Scan":
			case strings.HasSuffix(c.Query.Hi.Text, "/"): // the pass over a sealed generation
				_ = throttle.Sleep(ctx, 4*time.Second)
			case strings.HasPrefix(c.Query.Lo.Text, "00000001.0001"):
				_ = throttle.Sleep(ctx, time.Second)
			}
			return nil
		}
		w.serveFor(t.Context(), 5*time.Hour)
		if live := numbers(w.record()); live[0] != 1 {
			t.Errorf("generation 1 has retired with an entity in it; these are live: %v", live)
		}
	})
}

// The records of a sealed generation are removed again and again: each time a pass finds what lies in the
// ranges, and they have not been empty since the first pass.
func TestRecordsOfASealedGenerationAreRemovedAgain(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sealTwoShards(0, 1)
		for i := range 3 {
			w.removeCursors(func(c cursor.Cursor) bool { return c.Generation == 1 })
			w.serveFor(t.Context(), 2*time.Hour)
			if live := numbers(w.record()); live[0] != 1 {
				t.Fatalf("removed %d times: generation 1 has retired, with entities; live are %v", i+1, live)
			}
		}
	})
}

// A turn that ends while a page is read ahead does not waste that page, and no page is read ahead that another
// lane would read again: in Firestore, reads cost more than the deletes that follow them.
func TestNoPageIsReadTwice(t *testing.T) {
	for _, takes := range []time.Duration{0, 20 * time.Millisecond, 400 * time.Millisecond, 1200 * time.Millisecond} {
		t.Run(takes.String(), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.target.Shards, w.target.Page = 4, 100
				w.begin()
				for i := range 4 * 250 {
					w.dueIn(1, i%4, fmt.Sprint("e-", i), time.Now().Add(-time.Minute))
				}
				var scans atomic.Int64
				w.s.Before = func(ctx context.Context, c modelstore.Call) error {
					isPage := c.Method == "Scan" && c.Query.Limit == w.target.Page
					if isPage && strings.HasPrefix(c.Query.Lo.Text, "00000001.") {
						scans.Add(1)
					}
					if c.Method == "Scan" || c.Method == "Dispose" {
						return throttle.Sleep(ctx, takes)
					}
					return nil
				}
				c := w.config()
				c.Workers = 2
				if res := sweep.Run(t.Context(), c); res.Targets[0].Deleted != 1000 || scans.Load() != 4*3 {
					t.Errorf("%d scans for 12 pages: %+v", scans.Load(), res.Targets[0])
				}
			})
		})
	}
}
