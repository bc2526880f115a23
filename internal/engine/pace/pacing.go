package pace

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// trustMost is the longest time for which a read of heartbeats is valid; see
	// [throttle.Shares].
	trustMost = 15 * time.Second
	// joinEvery is how often a process reads the heartbeats while it waits for its share
	// of the total; beatsEvery is how often while nothing depends on them.
	joinEvery  = time.Second
	beatsEvery = 5 * time.Minute
)

// The parts of a range's limit that are reserved for carriers. A generation that is drained
// has a carrier for each of its ranges; the audit of a namespace has a single one.
const (
	DrainPart   = 0.5
	NurseryPart = 0.1
)

// A Config says what the pace of a target is.
type Config struct {
	Limits throttle.Limits // of each range
	Total  throttle.Limit  // of the target, over all workers
	Page   int             // entries per page
	Lease  time.Duration
	Owner  string // the key of this process's heartbeat
	Dry    bool   // nothing is written: other processes do not know of this one, and it uses all of the total
	Clock  *storeclock.Clock
}

// A Pacing applies the pace of one target to its claimed ranges: the limits that the
// configuration or an operator has set, their share of the target's total, and whatever holds
// the target as a whole.
type Pacing struct {
	Config
	Gate *Gatekeeper // nil if the target has none

	mu     sync.Mutex
	view   *plan.View        // the latest; nil before the first
	record generation.Record // of the view, with the operator's switches
	pacers map[*throttle.Pacer]func(throttle.Limits) throttle.Limits
	claims map[string]*throttle.Pacer // of the claims, by the keys of their cursors
	shares *throttle.Shares
	share  throttle.Share // of this process, divided among its claims
	held   throttle.Reason

	Awaiting Seats // of steps that wait for the share to be renewed
}

// Seats are places to wait for those that keep their worker meanwhile.
type Seats struct{ taken atomic.Int64 }

// Take takes a seat until leave is called, if fewer than most are taken; leave is nil if not.
func (s *Seats) Take(most int) (leave func()) {
	if s.taken.Add(1) > int64(most) {
		s.taken.Add(-1)
		return nil
	}
	return func() { s.taken.Add(-1) }
}

func New(cfg Config) *Pacing {
	p := &Pacing{Config: cfg, claims: map[string]*throttle.Pacer{},
		pacers: map[*throttle.Pacer]func(throttle.Limits) throttle.Limits{}, share: throttle.Share{Unlimited: true}}
	p.shares = throttle.NewShares(p.Owner, p.Lease, p.Trust())
	return p
}

// Orders are the limits that an operator or the targets file sets: of each range, and of
// the target.
type Orders struct {
	limits throttle.Limits
	total  throttle.Limit
}

// Orders returns what is in force now.
func (p *Pacing) Orders() Orders {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Orders{p.limitsLocked(), p.totalLocked()}
}

// GrantHolds reports whether tokens that were granted under these orders may still be
// used: the orders are the same, and the share that they came from has lapsed neither by
// the wall nor by the monotonic clock.
func (p *Pacing) GrantHolds(granted Orders) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if granted != (Orders{p.limitsLocked(), p.totalLocked()}) {
		return false
	}
	now := p.Clock.Local()
	return p.share.Unlimited || now.Before(p.share.Until) && now.Round(0).Before(p.share.Until.Round(0))
}

// limitsLocked returns the limits of a range, before any part is reserved.
func (p *Pacing) limitsLocked() throttle.Limits {
	l := p.Limits
	if most := p.record.PaceMax; most.Set {
		l.Unlimited, l.Max = most.Unlimited, most.PerSecond
		if l.Start <= 0 || p.Limits.Unlimited {
			l.Start = most.PerSecond
		}
		l.Start = min(l.Start, l.Max)
	}
	return l
}

// totalLocked returns the limit of the target over all workers.
func (p *Pacing) totalLocked() throttle.Limit {
	if t := p.record.PaceTotal; t.Set {
		return throttle.Limit{PerSecond: t.PerSecond, Unlimited: t.Unlimited}
	}
	if t := p.Total; t.PerSecond > 0 {
		return t
	}
	return throttle.Limit{Unlimited: true}
}

// Open returns a pacer with an empty bucket, for a claimed range or for a carrier into a
// range. It gets that part of the range's limits which the function part returns.
func (p *Pacing) Open(kept throttle.State, part func(throttle.Limits) throttle.Limits) *throttle.Pacer {
	p.mu.Lock()
	defer p.mu.Unlock()
	pacer := throttle.Open(p.Clock.Local, part(p.limitsLocked()), kept, p.Page)
	pacer.SetTotal(p.partLocked(0)) // until it is claimed
	pacer.Hold(p.held)
	p.pacers[pacer] = part
	return pacer
}

// Close forgets a pacer.
func (p *Pacing) Close(pacer *throttle.Pacer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pacers, pacer)
}

// Register registers a claim: from now on it gets a part of this process's share.
func (p *Pacing) Register(key string, pacer *throttle.Pacer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pacer.SetTotal(p.partLocked(0)) // what it got while it did not count is void
	p.claims[key] = pacer
	p.setSharesLocked()
}

// Unregister unregisters a claim. It must be called before the claim is released.
func (p *Pacing) Unregister(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claims, key)
	p.setSharesLocked()
}

// RenewShares gives every pacer its current share.
func (p *Pacing) RenewShares() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setSharesLocked()
}

// setSharesLocked divides this process's share evenly among the claims that want it.
func (p *Pacing) setSharesLocked() {
	was := p.share
	p.share = p.shareLocked()
	if was.Unlimited && p.share.Unlimited { // there may be thousands of claims, and none of them is limited
		return
	}
	idle := map[*throttle.Pacer]bool{}
	for _, pacer := range p.claims {
		if !pacer.Wants() {
			idle[pacer] = true
		}
	}
	part := p.partLocked(1 / float64(max(1, len(p.claims)-len(idle))))
	for pacer := range p.pacers {
		if idle[pacer] {
			pacer.SetTotal(p.partLocked(0))
		} else {
			pacer.SetTotal(part)
		}
	}
}

// shareLocked returns this process's share of the total.
func (p *Pacing) shareLocked() throttle.Share {
	now := p.Clock.Local()
	if total := p.totalLocked(); p.Dry && !total.Unlimited {
		return throttle.Share{PerSecond: total.PerSecond, Burst: total.PerSecond, Until: now.Add(p.Trust())}
	}
	return p.shares.Share(now)
}

// partLocked returns a part of this process's share.
func (p *Pacing) partLocked(part float64) throttle.Share {
	s := p.share
	s.PerSecond *= part
	s.Burst *= part
	return s
}

// Trust returns how long a read of heartbeats is valid.
func (p *Pacing) Trust() time.Duration { return min(trustMost, p.Lease/2) }

// readEvery returns how often to read the heartbeats.
func (p *Pacing) readEvery() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch divides := p.dividesLocked(); {
	case divides && p.shares.Joining():
		return joinEvery
	case !p.shares.Joining() && !p.shares.Joined():
		return beatsEvery
	}
	return p.Trust() / 3
}

// beat handles a change of this process's own heartbeat.
func (p *Pacing) beat(b cursor.Beat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.Live {
		p.shares.Renewed(b.Sent, b.Acked)
	} else {
		p.shares.Ended()
	}
	p.setSharesLocked()
}

// observe handles a read of the heartbeats of all processes. It reports whether this process
// should write its own soon, because another one waits for it.
func (p *Pacing) observe(sent, answered, stored time.Time, beats cursor.Heartbeats) (news bool) {
	all := make([]throttle.Heartbeat, 0, len(beats))
	for _, h := range beats {
		one := throttle.Heartbeat{Owner: h.Key(), Epoch: h.Epoch, Mark: h.Revision, Lease: h.Lease, Read: h.Read}
		if h.Invalid != nil {
			one.Lease = p.Lease // it counts as alive until it has not changed for a lease
		}
		all = append(all, one)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	news = p.shares.Observe(sent, answered, stored, all)
	p.setSharesLocked()
	return news && p.dividesLocked()
}

// Divides reports whether the target has a total that processes divide.
func (p *Pacing) Divides() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dividesLocked()
}

func (p *Pacing) dividesLocked() bool { return !p.totalLocked().Unlimited }

// Follow sets the limits that a view has. A worker calls it before each write, so that the
// write obeys the latest view even if the scheduler has not seen it yet.
func (p *Pacing) Follow(v *plan.View) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.view == v || p.view != nil && v.RecordSent.Before(p.view.RecordSent) { // a step's view may be older
		return
	}
	p.view, p.record = v, v.Record
	after := Orders{p.limitsLocked(), p.totalLocked()}
	for pacer, part := range p.pacers {
		pacer.SetLimits(part(after.limits))
	}
	p.shares.SetTotal(after.total)
	p.setSharesLocked()
}

// Hold stops all pacers for a reason; an empty reason releases them. It reports whether the
// reason has changed.
func (p *Pacing) Hold(why throttle.Reason) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == why {
		return false
	}
	p.held = why
	for pacer := range p.pacers {
		pacer.Hold(why)
	}
	return true
}

// OwnPart returns the part of a range's limits that its own deletes get.
func (p *Pacing) OwnPart(r shardquery.Range) func(throttle.Limits) throttle.Limits {
	return func(l throttle.Limits) throttle.Limits {
		rec := p.record // the lock is held, or the view not yet followed
		n := len(rec.Generations)
		switch {
		case n == 0:
		case r.Generation == expirykey.Nursery:
			return l.Part(1 - NurseryPart)
		case !rec.Draining():
		case slices.ContainsFunc(rec.Generations, func(g generation.Generation) bool {
			return g.Number == r.Generation && g.Closed.IsZero() // survivors are carried into it, as writers write
		}):
			return l.Part(1 - DrainPart)
		}
		return l
	}
}

// KeptPace returns the state of the pace that the last claim saved in its cursor.
func (p *Pacing) KeptPace(c cursor.Cursor) throttle.State {
	kept := throttle.State{Rate: c.Rate}
	if !c.RateUsed.IsZero() { // in the store's time
		kept.Used = p.Clock.Local().Add(c.RateUsed.Sub(p.Clock.Now()))
	}
	return kept
}

// Save saves the state of a pace in the cursor.
func (p *Pacing) Save(c *cursor.Cursor, pacer *throttle.Pacer) {
	state, status := pacer.State(), pacer.Status()
	c.Rate, c.Throttled = state.Rate, string(status.Reason)
	c.RateUsed = time.Time{}
	if !state.Used.IsZero() {
		c.RateUsed = p.Clock.Now().Add(state.Used.Sub(p.Clock.Local())).Truncate(time.Microsecond)
	}
}

// PaceOf returns the pace that a claim of the range would have now.
func (p *Pacing) PaceOf(r shardquery.Range, c cursor.Cursor) *throttle.Pace {
	p.mu.Lock()
	limits := p.OwnPart(r)(p.limitsLocked())
	p.mu.Unlock()
	return throttle.NewPace(p.Clock.Local(), limits, p.KeptPace(c), p.Page)
}

// Rate returns the sum of the current limits of the claimed ranges; +Inf if one of them
// is unlimited.
func (p *Pacing) Rate() (sum float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pacer := range p.claims {
		status := pacer.Status()
		if status.Unlimited {
			return math.Inf(1)
		}
		sum += status.Rate
	}
	return sum
}

// manySteps is how many deleted points a page of a normal read may step over for each entry
// that it returns; more counts as push-back. Reads that begin at a saved position step over
// nearly none.
const manySteps = 20

// JudgePage tells the pace how long a page of a normal read took, and how many deleted
// points it stepped over.
func JudgePage(pacer *throttle.Pacer, page *store.Page, took time.Duration) {
	n := len(page.Entries)
	if n == 0 {
		return
	}
	pacer.Latency(n, took)
	if page.SteppedOver > manySteps*int64(n) && !pacer.Status().Unlimited {
		pacer.PushBack(throttle.ReasonCompaction)
	}
}
