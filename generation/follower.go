package generation

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// DefaultStaleness and DefaultSlack are the bounds if the record does not have them;
// see [Policy].
const (
	DefaultStaleness = time.Minute
	DefaultSlack     = 10 * time.Minute
)

// A Follower stamps entities for an application that writes them: it keeps a copy
// of the target record, refreshed in the background, and moves to a new generation
// gradually during its ramp, entity by entity, as all other followers do. Set the
// fields before the first use; the copy is safe for concurrent use.
//
// Stamping takes no lock and does no I/O, and it never fails because the record
// cannot be read: without a fresh copy it stamps the nursery, where anyone may
// write. So an application need not wait for the first refresh.
//
//	f := &generation.Follower{Store: db, Target: "sessions", Now: time.Now}
//	go f.Run(ctx) // until ctx is done
//	key, err := f.Name("s-1842", time.Now().Add(30*time.Minute))
type Follower struct {
	// Store is what the target record is read from: any driver, or a type of your own
	// that reads the record with the client that you have. docs/records.md describes it.
	Store  store.Loader
	Target string
	Shards int              // of the nursery until a record was read; zero means 16
	Now    func() time.Time // this process's clock, wall and monotonic
	Log    *slog.Logger     // for refreshes that fail; may be nil

	copy atomic.Pointer[copied]
}

// A copied is a record as it was read.
type copied struct {
	Record
	sent  time.Time // when its read was sent, on this process's clock
	store time.Time // the store's time in the reply
}

// Run refreshes the copy twice within the time for which it is valid, until ctx is
// done.
func (f *Follower) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.Refresh(ctx)
		wait := f.refreshEvery()
		if err != nil {
			wait = max(shortestWait, wait/4)
			if f.Log != nil && ctx.Err() == nil {
				f.Log.WarnContext(ctx, "cannot refresh the target record; stamping continues", "target", f.Target, "error", err)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Refresh reads the record once. After an error the Follower keeps the copy that it has,
// and uses it as long as it is valid.
func (f *Follower) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.refreshEvery())
	defer cancel()
	sent := f.Now()
	r, now, err := Load(ctx, f.Store, f.Target)
	if err != nil {
		return err
	}
	for next := (&copied{r, sent, now}); ; {
		known := f.copy.Load()
		if known != nil && sent.Before(known.sent) {
			return nil // another read, sent later, has answered before
		}
		if f.copy.CompareAndSwap(known, next) {
			return nil
		}
	}
}

// shortestWait is between two reads, and for one, whatever the record says: one that was edited to say a millisecond
// could otherwise never be read again.
const shortestWait = 100 * time.Millisecond

func (f *Follower) refreshEvery() time.Duration {
	var known Record
	if c := f.copy.Load(); c != nil {
		known = c.Record
	}
	staleness, _ := known.Bounds()
	return max(shortestWait, staleness/2)
}

// Stamper returns the stamper for an entity with this id at present.
func (f *Follower) Stamper(id string) Stamper {
	c := f.copy.Load()
	if c == nil {
		if f.Shards > 0 {
			return Stamper{Shards: f.Shards}
		}
		return Stamper{Shards: 16}
	}
	now := f.Now()
	// The larger of two measures: one of the clocks may have stopped while the machine
	// slept, the other may have been set.
	age := max(now.Sub(c.sent), now.Round(0).Sub(c.sent.Round(0)))
	if bound, _ := c.Bounds(); age > bound || now.Round(0).Before(c.sent.Round(0)) {
		return Stamper{Shards: max(1, c.NurseryShards)}
	}
	return c.StamperFor(id, c.store.Add(now.Sub(c.sent)))
}

// StamperFor returns the stamper for the writer of an entity, by this record at an
// instant in the store's time. Generations that are marked closed are never
// stamped. The caller ensures that the record is no older than its staleness.
func (r Record) StamperFor(id string, now time.Time) Stamper {
	for i := len(r.Generations) - 1; i >= 0; i-- {
		g := r.Generations[i]
		oldest := i == 0 || !r.Generations[i-1].Closed.IsZero()
		if oldest || moves(id, g.Number, Share(now.Sub(g.Opened), g.Ramp)) {
			return Stamper{Generation: g.Number, Shards: g.Shards}
		}
	}
	return Stamper{Shards: max(1, r.NurseryShards)}
}

// Name returns the expiry key of an entity whose key ends in a name.
func (f *Follower) Name(name string, expires time.Time) (expirykey.Key, error) {
	return f.Stamper(name).Name(name, expires)
}

// Number returns the expiry key of an entity whose key ends in a numeric id.
func (f *Follower) Number(id int64, expires time.Time) (expirykey.Key, error) {
	return f.Name(fmt.Sprint(id), expires)
}

// Steps of a ramp: 500/50/5 asks that traffic to a new range grow by at most a half
// every five minutes; twelve such steps, an hour, lead from under one per cent to
// all of it.
const (
	rampSteps  = 12
	rampGrowth = 1.5
)

// Share returns the share of entities that are stamped with a new generation some
// time after it was opened. It grows by a half in each twelfth of the ramp, and is
// 1 at its end.
func Share(elapsed, ramp time.Duration) float64 {
	if elapsed >= ramp {
		return 1
	}
	if ramp <= 0 { // it opens at once, but not yet by this clock
		return 0
	}
	return math.Pow(rampGrowth, rampSteps*(float64(max(0, elapsed))/float64(ramp)-1))
}

// moves reports whether an entity is among the share that has moved to a
// generation. A hash of both decides, so that all writers agree, an entity that has
// moved stays moved, and different entities move first each time.
func moves(id string, generation int, share float64) bool {
	return share >= 1 || float64(moveHash(id, generation)) < share*(1<<32)
}

// moveHash is FNV-1a (32 bit) over the id and the generation's eight digits, with
// its bits mixed. Unmixed, its upper bits would not be even, and it would depend on the
// shard, which comes from the same hash of the id.
func moveHash(id string, generation int) uint32 {
	const offset, prime = 2166136261, 16777619
	h := uint32(offset)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * prime
	}
	for div := 10_000_000; div > 0; div /= 10 {
		h = (h ^ uint32('0'+generation/div%10)) * prime
	}
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}
