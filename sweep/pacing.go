package sweep

import (
	"math"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

// trustMost bounds for how long a snapshot of the leases is good; see
// [throttle.Shares].
const trustMost = 15 * time.Second

// The parts of a range's limit. A generation that is drained has one carrier for
// each of its ranges; the audit has one in all.
const (
	drainPart   = 0.5
	nurseryPart = 0.1
)

// A pacing holds the claimed ranges of one target to their pace: to the limits of
// the configuration or those that an operator has set since, to their share of the
// target's total, and to whatever holds the target as a whole.
type pacing struct {
	target *Target
	owner  string // as it is in leases
	clock  *clock
	gate   *gatekeeper // nil if the target has none

	mu     sync.Mutex
	view   *plan.View        // that all of this goes by; nil before the first
	record generation.Record // of the view, with the operator's switches
	pacers map[*throttle.Pacer]func(throttle.Limits) throttle.Limits
	claims map[string]int64 // that are held, with their tokens
	shares *throttle.Shares // nil if the target has no total
	share  throttle.Share
	held   throttle.Reason
}

func newPacing(t *Target, owner string, clock *clock) *pacing {
	return &pacing{target: t, owner: owner, clock: clock, claims: map[string]int64{},
		pacers: map[*throttle.Pacer]func(throttle.Limits) throttle.Limits{}, share: throttle.Share{Unlimited: true}}
}

// Orders are the pace that an operator or the targets file sets, and what a share
// of the total is good for.
type orders struct {
	limits throttle.Limits
	total  throttle.Limit
}

// orders returns what is in force now.
func (p *pacing) orders() orders {
	p.mu.Lock()
	defer p.mu.Unlock()
	return orders{p.limitsLocked(), p.totalLocked()}
}

// grantHolds reports whether what was granted under these orders may still be
// used: they are the same, and the share that it came from has not lapsed, by the
// clock that says more.
func (p *pacing) grantHolds(granted orders) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if granted != (orders{p.limitsLocked(), p.totalLocked()}) {
		return false
	}
	now := p.clock.now()
	return p.share.Unlimited || now.Before(p.share.Until) && now.Round(0).Before(p.share.Until.Round(0))
}

// limitsLocked returns what a range may have, before anything is set aside.
func (p *pacing) limitsLocked() throttle.Limits {
	l := p.target.Pace
	if most := p.record.PaceMax; most.Set {
		l.Unlimited, l.Max = most.Unlimited, most.PerSecond
		if l.Start <= 0 || p.target.Pace.Unlimited {
			l.Start = most.PerSecond
		}
		l.Start = min(l.Start, l.Max)
	}
	return l
}

// totalLocked returns what the target may have over all workers.
func (p *pacing) totalLocked() throttle.Limit {
	if t := p.record.PaceTotal; t.Set {
		return throttle.Limit{PerSecond: t.PerSecond, Unlimited: t.Unlimited}
	}
	if t := p.target.Total; t.PerSecond > 0 {
		return t
	}
	return throttle.Limit{Unlimited: true}
}

// open returns a pacer for a claimed range, or for one that is written into, with
// an empty bucket. Part says what of a range's limits is for it.
func (p *pacing) open(kept throttle.State, part func(throttle.Limits) throttle.Limits) *throttle.Pacer {
	p.mu.Lock()
	defer p.mu.Unlock()
	pacer := throttle.Open(p.clock.now, part(p.limitsLocked()), kept, p.target.Page)
	pacer.SetTotal(p.share)
	pacer.Hold(p.held)
	p.pacers[pacer] = part
	return pacer
}

// close forgets a pacer.
func (p *pacing) close(pacer *throttle.Pacer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pacers, pacer)
}

// claimed tells of a claim, whose part of the total it will have to wait for.
func (p *pacing) claimed(c cursor.Cursor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims[c.Key()] = c.Lease.Token
	if p.shares != nil {
		p.shares.Claimed(c.Key(), c.Lease.Token)
		p.setSharesLocked()
	}
}

// leaving must be called before a claim is released.
func (p *pacing) leaving(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claims, key)
	if p.shares != nil {
		p.shares.Leaving(p.clock.now(), key)
		p.setSharesLocked()
	}
}

// renewShares gives every pacer its share as it is now.
func (p *pacing) renewShares() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shares != nil {
		p.setSharesLocked()
	}
}

func (p *pacing) setSharesLocked() {
	p.share = throttle.Share{Unlimited: true}
	if p.shares != nil {
		p.share = p.shares.Share(p.clock.now())
	}
	for pacer := range p.pacers {
		pacer.SetTotal(p.share)
	}
}

// trust returns how long a snapshot of the leases is good.
func (p *pacing) trust() time.Duration { return min(trustMost, p.target.Lease/2) }

// snapshotAge returns how old a snapshot of the leases may be before the next one
// is read; 0 if nobody needs any.
func (p *pacing) snapshotAge() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shares == nil {
		return 0
	}
	return p.trust() / 3
}

// follow takes in a view. Whoever is about to write does so first: what the view
// says must not be overlooked because nobody has told the pacers yet.
func (p *pacing) follow(v *plan.View) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.view == v {
		return
	}
	p.view, p.record = v, v.Record
	after := orders{p.limitsLocked(), p.totalLocked()}
	for pacer, part := range p.pacers {
		pacer.SetLimits(part(after.limits))
	}
	switch {
	case after.total.Unlimited:
		p.shares = nil
	case p.shares == nil:
		p.shares = throttle.NewShares(p.owner, after.total.PerSecond, p.target.Lease, p.trust())
		for key, token := range p.claims {
			p.shares.Claimed(key, token)
		}
		p.observeLocked(v)
	default:
		p.shares.SetTotal(after.total.PerSecond)
		p.observeLocked(v)
	}
	p.setSharesLocked()
}

// observeLocked takes in the leases as the view shows them.
func (p *pacing) observeLocked(v *plan.View) {
	leases := make([]throttle.Lease, 0, len(v.Cursors))
	now := p.clock.Now()
	for _, c := range v.Cursors {
		l := throttle.Lease{Range: c.Key(), Owner: c.Lease.Owner, Token: c.Lease.Token, Renewals: c.Lease.Renewals,
			Length: max(p.target.Lease, c.Lease.Length)}
		if c.Lease.Owner == "" && !c.Lease.Released.IsZero() {
			// The release took effect before the lease was over.
			l.Free = max(0, now.Sub(c.Lease.Released)-p.target.Lease)
		}
		leases = append(leases, l)
	}
	p.shares.Observe(v.CursorsSent, v.CursorsSeen, leases)
}

// hold stops all pacers for the reason given, and with an empty one lets them go
// on. It reports whether that is new.
func (p *pacing) hold(why throttle.Reason) (changed bool) {
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

// ownPart returns the part of a range's limits that is for its own deletes.
func (p *pacing) ownPart(r shardquery.Range) func(throttle.Limits) throttle.Limits {
	return func(l throttle.Limits) throttle.Limits {
		rec := p.record // the lock is held, or the view not yet followed
		n := len(rec.Generations)
		switch {
		case n == 0:
		case r.Generation == expirykey.Nursery:
			return l.Part(1 - nurseryPart)
		case r.Generation == rec.Generations[n-1].Number && rec.Draining():
			return l.Part(1 - drainPart)
		}
		return l
	}
}

// keptPace returns what the last claim's pace left behind.
func (p *pacing) keptPace(c cursor.Cursor) throttle.State {
	kept := throttle.State{Rate: c.Rate}
	if !c.RateUsed.IsZero() { // in the store's time
		kept.Used = p.clock.now().Add(c.RateUsed.Sub(p.clock.Now()))
	}
	return kept
}

// save puts a pace into the cursor.
func (p *pacing) save(c *cursor.Cursor, pacer *throttle.Pacer) {
	state, status := pacer.State(), pacer.Status()
	c.Rate, c.Throttled = state.Rate, string(status.Reason)
	c.RateUsed = time.Time{}
	if !state.Used.IsZero() {
		c.RateUsed = p.clock.Now().Add(state.Used.Sub(p.clock.now())).Truncate(time.Microsecond)
	}
}

// paceOf returns the pace that a claim of the range would have now.
func (p *pacing) paceOf(r shardquery.Range, c cursor.Cursor) *throttle.Pace {
	p.mu.Lock()
	limits := p.ownPart(r)(p.limitsLocked())
	p.mu.Unlock()
	return throttle.NewPace(p.clock.now(), limits, p.keptPace(c), p.target.Page)
}

// rate returns what the claimed ranges may have now, added up; +Inf if one of them is
// unlimited.
func (p *pacing) rate() (sum float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pacer := range p.pacers {
		status := pacer.Status()
		if status.Unlimited {
			return math.Inf(1)
		}
		sum += status.Rate
	}
	return sum
}

// manySteps is how many deleted points for each of its entries a page of a normal
// read may step over before that counts as push-back: with a start position there
// are next to none.
const manySteps = 20

// judgePage tells the pace how a page of a normal read was.
func judgePage(pacer *throttle.Pacer, page *store.Page, took time.Duration) {
	n := len(page.Entries)
	if n == 0 {
		return
	}
	pacer.Latency(n, took)
	if page.SteppedOver > manySteps*int64(n) && !pacer.Status().Unlimited {
		pacer.PushBack(throttle.ReasonCompaction)
	}
}
