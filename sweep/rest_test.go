package sweep_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// The busy shards of a generation have a backlog or some trouble. The shards after them
// are at rest, except for an entity that expires now and then.
const (
	busyShards = 64
	restShards = 8
)

// A crowd is a world with a daemon in it, a service's latencies, and shards of both
// kinds.
type crowd struct {
	*world
	mu     sync.Mutex
	delay  []time.Duration                                               // from due to deleted, of entities in shards at rest
	newest int                                                           // the generation that writers stamp
	meddle func(ctx context.Context, c modelstore.Call, shard int) error // with calls for busy shards; may be nil
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{world: newWorld(t), newest: 1}
	c.target.Shards, c.target.Page = busyShards+restShards, 100
	c.target.Pace = throttle.Limits{Start: 5, Max: 5}
	c.target.Next = everySecond
	c.s.Before = c.before
	c.s.After = c.after
	return c
}

func everySecond(at time.Time) time.Time { return at.Truncate(time.Second).Add(time.Second) }

// shardIn returns the shard that a call reads or writes; -1 if it concerns no shard.
func shardIn(c modelstore.Call) int {
	k := c.Query.Lo.Text
	if len(c.Ops) > 0 {
		k = c.Ops[0].Entry.Value.Text
	}
	if len(k) < 13 {
		return -1
	}
	var number, shard int
	if _, err := fmt.Sscanf(k[:13], "%08d.%04d", &number, &shard); err != nil || number == 0 {
		return -1
	}
	return shard
}

func (c *crowd) before(ctx context.Context, call modelstore.Call) error {
	if err := throttle.Sleep(ctx, 15*time.Millisecond); err != nil {
		return err
	}
	if shard := shardIn(call); c.meddle != nil && shard >= 0 && shard < busyShards {
		return c.meddle(ctx, call, shard)
	}
	return nil
}

// after measures for how long deleted entities of a shard at rest had been due.
func (c *crowd) after(ctx context.Context, call modelstore.Call) error {
	if call.Method != "Dispose" || shardIn(call) < busyShards {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, op := range call.Ops {
		if k, err := expirykey.Parse(op.Entry.Value.Text); err == nil && op.To.Type == store.Missing {
			c.delay = append(c.delay, time.Since(k.Expires))
		}
	}
	return nil
}

// entity writes an entity into a shard of a generation, whatever its name.
func (c *crowd) entity(number, shard int, name string, expires time.Time) {
	k, err := expirykey.New(number, shard, expires)
	if err != nil {
		c.t.Fatal(err)
	}
	c.raw(name, k.String())
}

// backlog writes entities that were due long ago into every busy shard.
func (c *crowd) backlog(each int) {
	c.sweep() // which makes ranges at rest of them all
	time.Sleep(2 * time.Hour)
	for shard := range busyShards {
		for i := range each {
			c.entity(1, shard, fmt.Sprintf("backlog-%02d-%03d", shard, i), time.Now().Add(-time.Hour+time.Duration(i)*time.Second))
		}
	}
}

// trickle lets an entity expire in a shard at rest ten times a second, while a
// daemon collects, and returns the delays of deletions in order.
func (c *crowd) trickle(forSo time.Duration, cfg sweep.Config) []time.Duration {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		sweep.NewDaemon(cfg, true).Run(ctx)
	}()
	time.Sleep(25 * time.Second) // it has found its work, and which ranges take long
	n := int(forSo / (100 * time.Millisecond))
	for i := range n {
		at := time.Now().Add(2*time.Second + time.Duration(i)*100*time.Millisecond)
		c.entity(c.newest, busyShards+i%restShards, fmt.Sprintf("due-%04d", i), at)
	}
	time.Sleep(forSo + 10*time.Second)
	cancel()
	<-done
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.delay) < n {
		c.t.Errorf("%d of %d entities in shards at rest were deleted", len(c.delay), n)
	}
	slices.Sort(c.delay)
	return c.delay
}

func (c *crowd) daemon() sweep.Config {
	cfg := c.config()
	cfg.Workers, cfg.Targets = 16, []sweep.Target{c.target}
	return cfg
}

// No due entity waits for the work of another range (L5).
func TestDueBesideBusyRanges(t *testing.T) {
	nightly.Races(t)
	locked := func(ctx context.Context, call modelstore.Call, every int) error {
		for _, op := range call.Ops {
			var shard, i int
			if _, err := fmt.Sscanf(op.Entry.Key, `"backlog-%02d-%03d"`, &shard, &i); err == nil && i%every == 0 {
				return fmt.Errorf("%s: %w", op.Entry.Key, store.ErrContention)
			}
		}
		return nil
	}
	for name, trouble := range map[string]func(*crowd){
		"a backlog":                func(c *crowd) { c.backlog(450) },
		"a backlog without a pace": func(c *crowd) { c.target.Pace = throttle.Limits{Unlimited: true}; c.backlog(400) },
		"contended entities": func(c *crowd) {
			c.backlog(60)
			c.meddle = func(ctx context.Context, call modelstore.Call, _ int) error {
				err := locked(ctx, call, 20)
				if err != nil { // a service takes its time to find out
					_ = throttle.Sleep(ctx, 3*time.Second)
				}
				return err
			}
		},
		"push-back": func(c *crowd) {
			c.backlog(60)
			c.meddle = func(_ context.Context, call modelstore.Call, _ int) error {
				if call.Method == "Dispose" {
					return fmt.Errorf("quota: %w", store.ErrPushback)
				}
				return nil
			}
		},
		"refused entities": func(c *crowd) {
			c.backlog(60)
			c.meddle = func(_ context.Context, call modelstore.Call, _ int) error {
				for _, op := range call.Ops {
					if slices.Contains([]byte("37"), op.Entry.Key[len(op.Entry.Key)-2]) {
						return fmt.Errorf("%s: %w", op.Entry.Key, store.ErrInvalid)
					}
				}
				return nil
			}
		},
		"reads from the start that time out": func(c *crowd) {
			c.backlog(0)
			time.Sleep(24 * time.Hour) // rewinds are due
			c.meddle = func(ctx context.Context, call modelstore.Call, _ int) error {
				if call.Method == "Scan" && call.Query.After.IsZero() {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
		},
		"queries that take long": func(c *crowd) {
			c.backlog(60)
			c.meddle = func(ctx context.Context, call modelstore.Call, _ int) error {
				if call.Method == "Scan" {
					return throttle.Sleep(ctx, 4*time.Second)
				}
				return nil
			}
		},
		"a drain and an audit": (*crowd).draining,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t)
				trouble(c)
				delays := c.trickle(30*time.Second, c.daemon())
				if len(delays) == 0 {
					t.Fatal("nothing was deleted")
				}
				p99 := delays[len(delays)*99/100]
				t.Logf("due to deleted: median %v, p99 %v, longest %v", delays[len(delays)/2], p99, delays[len(delays)-1])
				if p99 > 3*time.Second {
					t.Errorf("p99 is %v", p99)
				}
			})
		})
	}
}

// draining gives the world a generation that is drained, with survivors in every
// busy shard, and strays in one that has retired.
func (c *crowd) draining() {
	now := time.Now().UTC().Truncate(time.Microsecond)
	p := generation.Policy{Every: 1000 * time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 1, Shards: c.target.Shards}
	c.target.Policy = p
	r := generation.New("sessions", "Session", "expiry_key", c.target.Shards, true, now.Add(-300*time.Hour)).WithWriterBounds(p)
	r.Generations[0].Number = 2 // the first one has retired
	for i, ago := range []time.Duration{200 * time.Hour, 100 * time.Hour} {
		r.Generations[i].Closed = now.Add(-ago)
		r.Generations = append(r.Generations, generation.Generation{Number: i + 3, Shards: c.target.Shards, Opened: now.Add(-ago),
			Staleness: p.Staleness, Slack: p.Slack})
	}
	r.Generations[0].Draining = now.Add(-time.Hour)
	if _, err := generation.Save(c.t.Context(), c.s, r); err != nil {
		c.t.Fatal(err)
	}
	for shard := range busyShards {
		for i := range 100 {
			c.entity(2, shard, fmt.Sprintf("survivor-%02d-%03d", shard, i), now.Add(100*time.Hour))
		}
		c.entity(1, shard, fmt.Sprintf("stray-%02d", shard), now.Add(-time.Hour))
	}
	c.newest = 4
}

// Ranges that are held to a slow pace reach it together, though there are four
// times as many of them as workers.
func TestManyPacedRangesReachTheirPace(t *testing.T) {
	nightly.Races(t)
	for _, of := range []struct {
		name      string
		pace      throttle.Limits
		total     throttle.Limit
		want      float64
		tolerance float64
	}{
		{"each", throttle.Limits{Start: 20, Max: 20}, throttle.Limit{}, 1280, 0.05},
		{"total", throttle.Limits{Unlimited: true}, throttle.Limit{PerSecond: 640}, 640, 0.05},
	} {
		t.Run(of.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t)
				c.target.Shards = busyShards
				c.target.Pace, c.target.Total = of.pace, of.total
				c.backlog(400)
				gone := map[int]int{}
				counting := false
				c.s.After = func(_ context.Context, call modelstore.Call) error {
					c.mu.Lock()
					defer c.mu.Unlock()
					if call.Method == "Dispose" && counting {
						gone[shardIn(call)] += len(call.Ops)
					}
					return nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					sweep.NewDaemon(c.daemon(), true).Run(ctx)
				}()
				time.Sleep(10 * time.Second)
				c.mu.Lock()
				counting = true
				c.mu.Unlock()
				const span = 10 * time.Second
				time.Sleep(span)
				c.mu.Lock()
				counting = false
				sum, least, most := 0, 1<<30, 0
				for _, n := range gone {
					sum += n
					least, most = min(least, n), max(most, n)
				}
				c.mu.Unlock()
				cancel()
				<-done
				rate := float64(sum) / span.Seconds()
				t.Logf("%.0f/s of %.0f/s; in a range %d to %d", rate, of.want, least, most)
				if rate < of.want*(1-of.tolerance) || rate > of.want*(1+of.tolerance) || len(gone) != busyShards || most > 2*least {
					t.Errorf("%.0f/s of %.0f/s, in %d ranges: %d to %d", rate, of.want, len(gone), least, most)
				}
			})
		})
	}
}

// An entity that the store refuses for good is kept, counted and named; its range continues
// past it.
func TestRefusedEntityHoldsUpNothingElse(t *testing.T) {
	for _, refusal := range []error{store.ErrInvalid, store.ErrFailed, store.ErrTooLarge} {
		in(t, func(t *testing.T, w *world) {
			live := w.fill(600, 48*time.Hour)
			refused := ""
			w.s.Before = func(_ context.Context, c modelstore.Call) error {
				for _, op := range c.Ops {
					if refused == "" && len(c.Ops) > 10 {
						refused = c.Ops[3].Entry.Key
					}
					if op.Entry.Key == refused {
						return fmt.Errorf("%s: %w", refused, refusal)
					}
				}
				return nil
			}
			res := w.sweep()
			if res.Error != "" || !res.Complete || res.Refused != 1 {
				t.Errorf("%v: %+v", refusal, res)
			}
			w.wantLeft(append(live, refused[1:len(refused)-1])...)
			for _, c := range w.cursors() {
				if c.Lease != (cursor.Lease{Token: c.Lease.Token, Released: c.Lease.Released}) {
					t.Errorf("%v is still held", c.ID)
				}
			}
		})
	}
}

// A tick at rest costs one query for each range that writers may stamp, however many
// generations are live, and reads next to no records.
func TestCallsOfATickAtRest(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts calls over a day and a half: nothing for the race detector")
	}
	generations := nightly.Size(t, 32, 8)
	in(t, func(t *testing.T, w *world) {
		const shards, ticks = 16, 10
		w.target.Shards = shards
		w.target.Policy = generation.Policy{Every: time.Hour, Staleness: time.Minute, Slack: 5 * time.Minute, Keep: 2 * generations}
		w.begin()
		for number := 1; number < generations; number++ { // each stays live for its survivors
			for shard := range shards {
				w.dueIn(number, shard, fmt.Sprintf("survivor-%d-%d", number, shard), time.Now().Add(5000*time.Hour))
			}
		}
		c := w.config()
		measured := time.Now().Add(time.Duration(generations-1)*time.Hour + 30*time.Minute)
		c.Targets[0].Next = func(at time.Time) time.Time {
			if at.Before(measured) {
				return at.Truncate(10 * time.Minute).Add(10 * time.Minute)
			}
			return everyMinute(at)
		}
		s := w.serve(c)
		rest := func() (queries, records float64) {
			w.forget()
			reads := func() float64 { return s.counter("reaper_store_operations_total", "op", "read") }
			before := reads()
			time.Sleep(ticks * time.Minute)
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			scans := float64(w.calls["Scan"])
			return scans / ticks, (reads() - before - scans) / ticks
		}
		time.Sleep(time.Until(measured.Add(10*time.Minute + 30*time.Second)))
		if r := w.record(); len(r.Live()) != generations+1 {
			t.Fatalf("%d generations are live, with the nursery", len(r.Live()))
		}
		queries, records := rest()
		t.Logf("%d live generations, at rest: %.1f queries and %.1f records a tick", generations, queries, records)
		opens := w.record().Generations[generations-1].Opened.Add(time.Hour)
		time.Sleep(time.Until(opens.Add(time.Minute + 30*time.Second))) // the next one is open, and the last one closing
		closing, _ := rest()
		t.Logf("while one is closing: %.1f queries", closing)
		if queries != 2*shards || closing > 3*shards {
			t.Errorf("want %d queries, and at most %d", 2*shards, 3*shards)
		}
	})
}
