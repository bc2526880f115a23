package sweep

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// watchEvery is how often the target record is read during a sweep, at most:
	// what an operator changes takes effect within that time.
	watchEvery = 5 * time.Second
	// shareEvery is how often the shares of a total are set anew.
	shareEvery = time.Second
	// trustMost bounds for how long a snapshot of the leases is good; see
	// [throttle.Shares].
	trustMost = 15 * time.Second
	// gateEvery is how often the gate is asked.
	gateEvery = 2 * time.Second
	// rounds is how many of these may be missed before nobody writes without asking
	// first: the reads failed, or the process was frozen, or its machine asleep.
	rounds = 3
)

// A governor holds the claimed ranges of one pass to their pace: to the limits
// of the configuration or those that an operator has set since, to their share of
// the target's total, to the gate, and to the switch.
type governor struct {
	p       *pass
	reading door // held while somebody who is about to write reads the record, or asks

	mu     sync.Mutex
	record generation.Record // with the operator's switches, as read last
	read   time.Time         // when that read was sent
	asked  time.Time         // when the gate was
	pacers map[*throttle.Pacer]func(throttle.Limits) throttle.Limits
	claims map[string]int64 // that are held, with their tokens
	shares *throttle.Shares // nil where the target has no total
	share  throttle.Share
	gated  bool
	held   time.Time // since when nothing may be written; zero where it may
}

func newGovernor(p *pass) *governor {
	return &governor{p: p, reading: newDoor(), claims: map[string]int64{}, pacers: map[*throttle.Pacer]func(throttle.Limits) throttle.Limits{}, share: throttle.Share{Unlimited: true}}
}

// limits returns what a range may have, before anything is set aside.
func (g *governor) limits() throttle.Limits {
	l := g.p.target.Pace
	if most := g.record.PaceMax; most.Set {
		l.Unlimited, l.Max = most.Unlimited, most.PerSecond
		if l.Start <= 0 || g.p.target.Pace.Unlimited {
			l.Start = most.PerSecond
		}
		l.Start = min(l.Start, l.Max)
	}
	return l
}

// total returns what the target may have over all workers.
func (g *governor) total() throttle.Limit {
	if t := g.record.PaceTotal; t.Set {
		return throttle.Limit{PerSecond: t.PerSecond, Unlimited: t.Unlimited}
	}
	if t := g.p.target.Total; t.PerSecond > 0 {
		return t
	}
	return throttle.Limit{Unlimited: true}
}

// A said is the pace that an operator or the targets file sets.
type said struct {
	limits throttle.Limits
	total  throttle.Limit
}

func (g *governor) said() said {
	g.mu.Lock()
	defer g.mu.Unlock()
	return said{g.limits(), g.total()}
}

// open returns a pacer for a claimed range, or for one that is written into, with
// an empty bucket. Part says what of a range's limits is for it.
func (g *governor) open(kept throttle.State, part func(throttle.Limits) throttle.Limits) *throttle.Pacer {
	g.mu.Lock()
	defer g.mu.Unlock()
	pacer := throttle.Open(g.p.Now, part(g.limits()), kept, g.p.target.Page)
	pacer.SetTotal(g.share)
	pacer.Hold(g.reason())
	g.pacers[pacer] = part
	return pacer
}

// close forgets a pacer.
func (g *governor) close(pacer *throttle.Pacer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pacers, pacer)
}

// claimed tells of a claim, whose part of the total it will have to wait for.
func (g *governor) claimed(c cursor.Cursor) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.claims[c.Key()] = c.Lease.Token
	if g.shares != nil {
		g.shares.Claimed(c.Key(), c.Lease.Token)
		g.setShares()
	}
}

// leaving must be called before a claim is released.
func (g *governor) leaving(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.claims, key)
	if g.shares != nil {
		g.shares.Leaving(g.p.Now(), key)
		g.setShares()
	}
}

// setShares gives every pacer its share. The caller holds mu.
func (g *governor) setShares() {
	g.share = throttle.Share{Unlimited: true}
	if g.shares != nil {
		g.share = g.shares.Share(g.p.Now())
	}
	for pacer := range g.pacers {
		pacer.SetTotal(g.share)
	}
}

// reason returns why nothing may be written; empty where it may. The caller holds mu.
func (g *governor) reason() throttle.Reason {
	switch {
	case g.record.Paused:
		return throttle.ReasonPaused
	case g.gated:
		return throttle.ReasonGate
	}
	return ""
}

// follow takes in the record as it was when its read was sent.
func (g *governor) follow(r generation.Record, sent time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if sent.Before(g.read) {
		return
	}
	g.record, g.read = r, sent
	for pacer, part := range g.pacers {
		pacer.SetLimits(part(g.limits()))
	}
	switch total := g.total(); {
	case total.Unlimited:
		g.shares = nil
	case g.shares == nil:
		g.shares = throttle.NewShares(g.p.keeper.Owner, total.PerSecond, g.p.target.Page, g.p.target.Lease, g.trust())
		for key, token := range g.claims {
			g.shares.Claimed(key, token)
		}
		g.observe()
	default:
		g.shares.SetTotal(total.PerSecond, g.p.target.Page)
	}
	g.setShares()
	g.hold()
}

// hold stops or lets go all pacers. The caller holds mu.
func (g *governor) hold() {
	why := g.reason()
	for pacer := range g.pacers {
		pacer.Hold(why)
	}
	switch {
	case why == "":
		g.held = time.Time{}
	case g.held.IsZero():
		g.held = g.p.Now()
	}
}

func (g *governor) trust() time.Duration { return min(trustMost, g.p.target.Lease/2) }

// observe takes in the leases as the table shows them. The caller holds mu.
func (g *governor) observe() {
	p := g.p
	p.mu.Lock()
	defer p.mu.Unlock()
	leases := make([]throttle.Lease, 0, len(p.table))
	now := p.clock.Now()
	for _, c := range p.table {
		l := throttle.Lease{Range: c.Key(), Owner: c.Lease.Owner, Token: c.Lease.Token, Renewals: c.Lease.Renewals, Length: max(p.target.Lease, c.Lease.Length)}
		if c.Lease.Owner == "" && !c.Lease.Released.IsZero() {
			// The release took effect before the lease was over.
			l.Free = max(0, now.Sub(c.Lease.Released)-p.target.Lease)
		}
		leases = append(leases, l)
	}
	g.shares.Observe(p.loaded, p.seen, leases)
}

// errHeld is why a sweep ends that may not write for longer than one lease.
var errHeld = fmt.Errorf("%w: nothing may be deleted at present", errStopped)

// watch reads the record, the leases and the gate until ctx is done. It calls end
// once nothing may be written for longer than one lease.
func (g *governor) watch(ctx context.Context, end func(error)) {
	tick := time.NewTicker(shareEvery)
	defer tick.Stop()
	began := g.p.Now()
	record, leases, gate := began, began, began
	every := min(watchEvery, g.staleness()/2)
	for {
		now := g.p.Now()
		if g.p.target.Gate != nil && now.Sub(gate) >= gateEvery {
			gate = now
			g.ask(ctx)
		}
		if now.Sub(record) >= every {
			record = now
			if err := g.glance(ctx); err != nil && ctx.Err() == nil {
				g.p.Log.DebugContext(ctx, "cannot read the target record", "error", err)
			}
		}
		if g.shared() && now.Sub(leases) >= g.trust()/3 {
			leases = now
			if err := g.p.refresh(ctx, now); err == nil {
				g.mu.Lock()
				if g.shares != nil {
					g.observe()
				}
				g.mu.Unlock()
			}
		}
		g.p.publish()
		g.mu.Lock()
		if g.shares != nil {
			g.setShares()
		}
		held, why := g.held, g.reason()
		g.mu.Unlock()
		if !held.IsZero() && g.p.Now().Sub(held) > g.p.target.Lease {
			g.p.Log.WarnContext(ctx, "the sweep ends: nothing may be deleted for longer than one lease", "why", why)
			end(errHeld)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// load reads the record once.
func (g *governor) load(ctx context.Context) error {
	sent := g.p.Now()
	r, _, err := generation.Load(ctx, g.p.Store, g.p.target.Name)
	if err == nil {
		g.follow(r, sent)
	}
	return err
}

// glance reads the record once, and not for long.
func (g *governor) glance(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	return g.load(ctx)
}

// latest returns the record, read not longer ago than so.
func (g *governor) latest(ctx context.Context, most time.Duration) (generation.Record, error) {
	if err := g.reading.enter(ctx); err != nil {
		return generation.Record{}, err
	}
	defer g.reading.leave()
	g.mu.Lock()
	r, sent := g.record, g.read
	g.mu.Unlock()
	if g.age(sent) <= most {
		return r, nil
	}
	err := patiently(ctx, g.load)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.record, err
}

// informed returns once the record and the gate's answer are recent enough to write
// by, so that nothing that an operator has said is overlooked, and whether they hold
// writes back.
func (g *governor) informed(ctx context.Context) (held bool, err error) {
	if _, err := g.latest(ctx, rounds*watchEvery); err != nil {
		return false, err
	}
	if g.p.target.Gate != nil {
		if err := g.gateAnswered(ctx, rounds*gateEvery); err != nil {
			return false, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reason() != "", nil
}

// gateAnswered returns once the gate was asked, not longer ago than so.
func (g *governor) gateAnswered(ctx context.Context, most time.Duration) error {
	if err := g.reading.enter(ctx); err != nil {
		return err
	}
	defer g.reading.leave()
	g.mu.Lock()
	asked := g.asked
	g.mu.Unlock()
	if g.age(asked) > most {
		g.ask(ctx)
	}
	return ctx.Err()
}

// age returns how long ago an instant was, by the clock that says more: one of them
// may have stood still while the machine slept.
func (g *governor) age(at time.Time) time.Duration {
	now := g.p.Now()
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}

// staleness returns for how long followers stamp by what they have read.
func (g *governor) staleness() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	staleness, _ := g.record.Bounds()
	return staleness
}

func (g *governor) shared() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shares != nil
}

// ask asks the gate.
func (g *governor) ask(ctx context.Context) {
	asked := g.p.Now()
	err := g.p.target.Gate(ctx)
	if ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = asked
	if shut := err != nil; shut != g.gated {
		g.gated = shut
		if shut {
			g.p.Log.WarnContext(ctx, "the gate is shut: deletes wait", "why", err)
		} else {
			g.p.Log.InfoContext(ctx, "the gate is open: deletes go on")
		}
		g.hold()
	}
}

// keptPace returns what the last claim's pace left behind.
func (p *pass) keptPace(c cursor.Cursor) throttle.State {
	kept := throttle.State{Rate: c.Rate}
	if !c.RateUsed.IsZero() { // in the store's time
		kept.Used = p.Now().Add(c.RateUsed.Sub(p.clock.Now()))
	}
	return kept
}

// pageSize returns how many entries the pages of a range may have: what is found
// is to go in one write.
func (p *pass) pageSize(r shardquery.Range, c cursor.Cursor) int {
	now := p.Now()
	return p.paceOf(r, c, now).Burst(now, p.target.Page)
}

// paceOf returns the pace that a claim of the range would have now.
func (p *pass) paceOf(r shardquery.Range, c cursor.Cursor, now time.Time) *throttle.Pace {
	p.governor.mu.Lock()
	limits := p.ownPart(r)(p.governor.limits())
	p.governor.mu.Unlock()
	return throttle.NewPace(now, limits, p.keptPace(c), p.target.Page)
}

// slowDown tells the pace of an error.
func (w *worker) slowDown(err error) {
	if w.pacer != nil && store.Transient(err) && w.pacer.PushBack(throttle.ReasonPushBack) {
		w.update(w.keepPace)
	}
}

// pressedEvery is how often a store under pressure is asked whether it still is.
const pressedEvery = 20 * time.Millisecond

// giveWay waits while the store is behind with its compaction, so that others who
// write do not have to.
func (w *worker) giveWay() error {
	s, ok := w.Store.(store.Pressured)
	if !ok || !s.Pressed() {
		return nil
	}
	if !w.pacer.Status().Unlimited { // else there is no rate to halve: waiting is enough
		w.pacer.PushBack(throttle.ReasonCompaction)
	}
	began := w.Now()
	defer func() { w.waited(throttle.ReasonCompaction, w.Now().Sub(began)) }()
	for s.Pressed() {
		if throttle.Sleep(w.ctx, pressedEvery) != nil {
			return errStopped
		}
		if err := w.claim.Err(); err != nil {
			return err
		}
	}
	return nil
}

// manySteps is how many deleted points for each of its entries a page of a normal
// read may step over before that counts as push-back: with a start position there
// are next to none.
const manySteps = 20

// tombstones tells the pace of a page that stepped over many.
func (w *worker) tombstones() {
	if n := int64(len(w.page.Entries)); n > 0 && w.page.SteppedOver > manySteps*n && !w.pacer.Status().Unlimited {
		w.pacer.PushBack(throttle.ReasonCompaction)
	}
}

// keepPace puts the pace into the cursor.
func (w *worker) keepPace(c *cursor.Cursor) {
	state, status := w.pacer.State(), w.pacer.Status()
	c.Rate, c.Throttled = state.Rate, string(status.Reason)
	c.RateUsed = time.Time{}
	if !state.Used.IsZero() {
		c.RateUsed = w.clock.Now().Add(state.Used.Sub(w.Now())).Truncate(time.Microsecond)
	}
}

// refused is told of a query that the store refused, or was late with.
func (w *worker) refused(err error) {
	w.Metrics.Error(w.target.Name, metrics.OpScan, code(err))
	w.slowDown(err)
}

// release gives the claim back.
func (w *worker) release() error {
	w.Metrics.LeaseHeld(w.target.Name, -1)
	claim := w.claim
	w.claim = nil
	w.governor.leaving(w.key)
	defer w.governor.close(w.pacer)
	claim.Update(w.keepPace)
	return claim.Release(w.work)
}
