// Package throttle holds a range to its pace: how many entities a second may be
// deleted in one range of keys. The arithmetic ([Pace], [Shares]) takes the
// time as an argument and reads no clock; [Pacer] is the thin, locked clock around it.
//
// The invariant is that in any window a range is granted at most the integral of
// its rate over the window, plus one burst: one page or one second's worth,
// whichever is less, and at least one entity. A bucket starts empty, so that a
// process that crashes and starts again gains nothing. With a total the rates
// that all processes together have at any instant add up to no more than it.
//
// The rate starts low and grows by half for every five minutes in which it was
// what the range waited for, because a tablet should take load gradually, as the
// services' own pages on best practice ask. It grows continuously, not in jumps:
// then the rate alone says how far the ramp has come, and runs of four minutes
// ramp as one long run does. Push-back halves it at once.
//
// Limits: all processes' clocks must run equally fast, though they may differ. A
// write that was granted and is in flight comes on top, at most a page of it.
package throttle

import (
	"math"
	"slices"
	"time"
)

const (
	// growEvery is how much waiting it takes to grow by growBy.
	growEvery = 5 * time.Minute
	growBy    = 1.5
	// idleAfter is when a range counts as cold again: tablets may have moved.
	idleAfter = 30 * time.Minute
	// pushBackEvery is how far apart two halvings are at least. Whatever was in
	// flight at the first one has mostly been answered by then, and says nothing
	// about the new rate.
	pushBackEvery = 10 * time.Second
	// floorPart of the start is as low as push-back goes. Growing back from there
	// takes 34 minutes, about as long as a range takes to be cold again, and then
	// it may have the start anyway: a lower floor would slow the range for longer
	// than the tablets remember the load. Writes that keep failing are spaced out by
	// their own back-off, at any rate.
	floorPart = 1.0 / 16
	// leastFloor is the least that push-back leaves: a range's own record is saved
	// as often, so that less would spare the store nothing.
	leastFloor = 1.0
	// askAgain is what Take returns if no instant is known at which to ask again.
	askAgain = time.Second
)

// Latency far above the range's own is push-back too.
const (
	baselinePages = 9 // the median of so many first pages is unmoved by four odd ones
	// A page is slow at five times the baseline, but not below 100 ms: a baseline
	// of 0.2 ms would make every pause for garbage a signal.
	slowFactor  = 5
	slowAtLeast = 100 * time.Millisecond
	// slowPages in a row make a signal. One slow page is a tablet that moved; three
	// are a trend, and at a page a second still seen in three seconds.
	slowPages = 3
)

// Limits bound the rate of one range, in entities per second. Max may be
// infinite. A start above it counts as Max. The zero Limits grant nothing.
type Limits struct {
	Start, Max float64
	Unlimited  bool // Start and Max do not count
}

// Part returns a part of the limits, such as a half.
func (l Limits) Part(share float64) Limits {
	l.Start *= share
	l.Max *= share
	return l
}

func (l Limits) bounds() (start, most float64) {
	if l.Unlimited {
		return math.Inf(1), math.Inf(1)
	}
	return math.Min(l.Start, l.Max), l.Max
}

// A State is what is kept of a range's pace between two claims. Tokens are not.
type State struct {
	Rate float64   // zero if there was no limit, or if nothing was kept
	Used time.Time // when the range was last granted something, or waited for it
}

// A Share is what one claim may use of its target's total.
type Share struct {
	PerSecond float64
	Burst     float64   // its part of the target's burst
	Until     time.Time // from here on it grants nothing
	Unlimited bool      // the target has no total; nothing else counts
}

// A Reason names what holds a range back, as logs, status and metrics show it.
type Reason string

// The reasons. None, the empty one, is that of a range without limits.
const (
	ReasonRamp       Reason = "ramp"       // the rate is still growing
	ReasonMax        Reason = "max"        // the range's own limit
	ReasonTotal      Reason = "total"      // its share of the target's limit
	ReasonPushBack   Reason = "pushback"   // the store refused or was late
	ReasonLatency    Reason = "latency"    // pages take far longer than they did
	ReasonCompaction Reason = "compaction" // the embedded store's brakes
	ReasonLease      Reason = "lease"      // another worker's lease on the range
	ReasonPaused     Reason = "paused"     // the operator
	ReasonGate       Reason = "gate"       // the gate is closed
	ReasonBreaker    Reason = "breaker"    // too much comes to be due at once, or is counted
	ReasonLimit      Reason = "limit"      // as much was deleted as the target's limits allow, or is not counted yet
	ReasonArchive    Reason = "archive"    // the archive cannot be written, so nothing may go
	ReasonRecord     Reason = "record"     // the target record, or heartbeats that divide the total, cannot be read
)

// A Pace is the rate of one claimed range, and its token bucket. A token is the
// right to delete one entity. Its methods want instants that do not go back;
// one that does grants nothing.
type Pace struct {
	start, most float64
	page        float64
	share       Share
	hold        Reason

	rate   float64   // the range's own; below start only while pushed back
	free   float64   // what it would be without push-back; zero if it is not pushed back
	why    Reason    // of the push-back
	halved time.Time // the last time

	tokens float64   // may be negative: a debt that time pays
	at     time.Time // when all of this was right
	until  time.Time // the bucket is what is waited for until then
	asked  time.Time // when somebody last wanted tokens
	denied bool      // there were too few
	used   time.Time

	count, before  float64 // granted since counting, and in the spell before it
	counting, then time.Time

	early  [baselinePages]time.Duration
	pages  int           // in early
	size   int           // of the largest early page
	normal time.Duration // their median; zero while there are too few
	slow   int           // slow pages in a row
}

// NewPace returns the pace of a range that was just claimed: with an empty
// bucket, and the rate of the last claim as far as it is still good. The rate
// is never more than was kept; without one it is the start.
func NewPace(now time.Time, l Limits, kept State, page int) *Pace {
	p := &Pace{page: float64(page), share: Share{Unlimited: true}, at: now, counting: now, then: now, used: now}
	p.start, p.most = l.bounds()
	p.rate = p.start
	if kept.Rate > 0 && !math.IsInf(kept.Rate, 1) && !math.IsInf(p.start, 1) {
		p.rate = math.Min(kept.Rate, p.most)
		if kept.Used.Before(now) { // a clock that is ahead makes nothing idle
			p.used = kept.Used
		}
		p.fallBack(now)
		if p.rate < p.start { // as only push-back leaves it, or a lower limit
			p.free, p.why = p.start, ReasonPushBack
		}
	}
	p.used, p.asked = now, now
	return p
}

const (
	// wantsFor is how long after it was asked for tokens a bucket counts as wanted: as long
	// as most pages take.
	wantsFor = 10 * time.Second
	// deniedFor is how long it does if there were none: the range may wait that long for a worker.
	deniedFor = 10 * time.Minute
)

// Wants reports whether the range asks for tokens, or has done so recently. One that does
// not needs no part of a total.
func (p *Pace) Wants(now time.Time) bool {
	if p.denied { // while it waits for its tokens, however long, they drip in
		return p.until.After(now) || now.Sub(p.asked) <= deniedFor
	}
	return now.Sub(p.asked) <= wantsFor
}

// fallBack takes an idle range back to the start.
func (p *Pace) fallBack(now time.Time) {
	if now.Sub(p.used) < idleAfter || math.IsInf(p.start, 1) {
		return
	}
	p.rate = math.Min(p.rate, p.start)
	if p.free > 0 {
		p.free = p.start
		p.recovered()
	}
}

// recovered ends a push-back that is over.
func (p *Pace) recovered() {
	if p.free > 0 && p.rate >= p.free {
		p.free = 0
		if math.IsInf(p.start, 1) {
			p.rate = p.start
		}
	}
}

// shareAt returns the share's rate, which is nothing once it has lapsed.
func (p *Pace) shareAt(now time.Time) float64 {
	switch {
	case p.share.Unlimited:
		return math.Inf(1)
	case now.Before(p.share.Until):
		return p.share.PerSecond
	default:
		return 0
	}
}

func (p *Pace) effective(now time.Time) float64 { return math.Min(p.rate, p.shareAt(now)) }

// burst returns how much the bucket holds. It keeps that while a share has lapsed: nobody else gets that one meanwhile.
func (p *Pace) burst() float64 {
	b := math.Min(p.page, p.rate)
	if !p.share.Unlimited {
		b = math.Min(b, math.Min(p.share.PerSecond, p.share.Burst))
	}
	return math.Max(1, b)
}

// Lapsed reports whether the range has a share that can be used again once it is renewed.
func (p *Pace) Lapsed(now time.Time) bool {
	return !p.share.Unlimited && p.share.PerSecond > 0 && !now.Before(p.share.Until)
}

// advance brings everything up to now.
func (p *Pace) advance(now time.Time) {
	from := p.at
	p.at = now
	if now.After(from) && p.hold == "" {
		p.pass(from, now)
	}
	p.fallBack(now)
	p.tokens = math.Min(p.tokens, p.burst())
}

// pass adds the tokens of a span of time, and grows the rate.
func (p *Pace) pass(from, now time.Time) {
	end := now // of the time that brings tokens
	if !p.share.Unlimited && p.share.Until.Before(end) {
		end = p.share.Until
	}
	rate := p.effective(from)
	if d := end.Sub(from).Seconds(); d > 0 && !math.IsInf(rate, 1) {
		p.tokens += d * rate
	}
	if p.until.Before(end) {
		end = p.until
	}
	// The rate grows only while it is what counts, and after its tokens were
	// reckoned: a bucket never gets more than the rate it shows.
	if d := end.Sub(from); d > 0 {
		p.used = from.Add(d)
		if p.rate <= p.shareAt(from) && p.rate < math.Inf(1) {
			p.grow(d)
		}
	}
}

func (p *Pace) grow(waited time.Duration) {
	p.rate = math.Min(math.Max(p.rate, p.most), p.rate*math.Pow(growBy, float64(waited)/float64(growEvery)))
	if p.free > 0 && math.IsInf(p.start, 1) {
		p.rate = math.Min(p.rate, p.free)
	}
	p.recovered()
}

// Burst returns the most entities that may be deleted at once, at most page.
func (p *Pace) Burst(now time.Time, page int) int {
	p.advance(now)
	return min(page, int(math.Min(p.burst(), math.MaxInt32)))
}

// Take asks for n tokens. It takes them and returns zero, or takes nothing and
// returns how long to wait before asking again. If n is more than the burst,
// which may have shrunk since it was asked for, a full bucket is enough, and what
// is missing remains as a debt.
func (p *Pace) Take(now time.Time, n int) time.Duration {
	if n <= 0 {
		return 0
	}
	if wait := p.wait(now, n); wait > 0 {
		return wait
	}
	if math.IsInf(p.effective(now), 1) {
		p.tokens = 0 // a limit that comes later begins with an empty bucket
	} else {
		p.tokens -= float64(n)
	}
	p.granted(now, n)
	return 0
}

// Ready returns how many entities, at most so many, may be deleted now. It takes
// nothing. If the bucket holds less than half a burst, and less than asked for, it
// returns 0 and how long to wait: fewer at a time would cost more calls than they
// are worth, and a bucket that is full loses what drips in.
func (p *Pace) Ready(now time.Time, most int) (n int, wait time.Duration) {
	burst := p.Burst(now, most)
	if wait := p.wait(now, min(most, (burst+1)/2)); wait > 0 {
		return 0, wait
	}
	if math.IsInf(p.effective(now), 1) {
		return most, 0
	}
	return max(1, min(burst, int(p.tokens+rounding))), 0
}

// rounding is what a bucket may lack: a billionth of a token is an error of
// arithmetic, and waiting for it would never end.
const rounding = 1e-9

// wait returns how long it is until n tokens are there, at most a full bucket. The
// bucket counts as waited for until then.
func (p *Pace) wait(now time.Time, n int) (d time.Duration) {
	p.advance(now)
	p.until, p.asked = now, now
	defer func() { p.denied = d > 0 }()
	rate := p.effective(now)
	if p.hold != "" || rate <= 0 {
		return askAgain
	}
	if math.IsInf(rate, 1) {
		return 0
	}
	missing := math.Min(float64(n), p.burst()) - p.tokens
	if missing <= rounding {
		return 0
	}
	seconds := math.Min(missing/rate, time.Hour.Seconds())
	d = max(time.Microsecond, time.Duration(math.Ceil(seconds*float64(time.Second))))
	p.until = now.Add(d)
	return d
}

// granted counts, so that what has no limit can be halved too.
func (p *Pace) granted(now time.Time, n int) {
	p.used = now
	if now.Sub(p.counting) >= pushBackEvery {
		p.before, p.then = p.count, p.counting
		p.count, p.counting = 0, now
	}
	p.count += float64(n)
}

// achieved returns how many entities a second were granted recently.
func (p *Pace) achieved(now time.Time) float64 {
	return math.Max(1, (p.before+p.count)/math.Max(1, now.Sub(p.then).Seconds()))
}

// PushBack halves the rate in force, for the reason given, and reports whether
// it did. It does not halve again within ten seconds, so that a volley of errors
// counts once, and not below a sixteenth of the start. A range without limits is
// held to half of what it was granted recently, and not below a sixteenth of that.
func (p *Pace) PushBack(now time.Time, why Reason) bool {
	p.advance(now)
	if !p.halved.IsZero() && now.Sub(p.halved) < pushBackEvery {
		return false
	}
	p.halved, p.why, p.slow = now, why, 0
	before, inForce := p.rate, p.effective(now)
	if math.IsInf(p.rate, 1) {
		p.free = p.achieved(now)
		inForce = math.Min(inForce, p.free)
	} else if p.free == 0 {
		p.free = p.rate
	}
	start := math.Min(p.start, p.free)
	if share := p.shareAt(now); share > 0 { // a lapsed one says nothing about the store
		start = math.Min(start, share)
	} else {
		inForce = p.rate
	}
	p.rate = math.Min(inForce, math.Max(inForce/2, math.Max(leastFloor, start*floorPart)))
	p.recovered() // where it could not be halved
	p.tokens = math.Min(p.tokens, p.burst())
	return p.rate < before
}

// Latency tells how long a page of n entities took. A few pages in a row that
// are far slower than the first ones of this claim are push-back; it reports
// whether they halved the rate. Larger pages than those may take longer.
func (p *Pace) Latency(now time.Time, n int, took time.Duration) bool {
	if p.normal == 0 {
		p.early[p.pages] = took
		p.size = max(p.size, n)
		if p.pages++; p.pages == baselinePages {
			slices.Sort(p.early[:])
			p.normal = max(1, p.early[baselinePages/2])
		}
		return false
	}
	larger := math.Max(1, float64(n)/float64(max(1, p.size)))
	if took <= slowAtLeast || float64(took) <= slowFactor*larger*float64(p.normal) {
		p.slow = 0
		return false
	}
	if p.slow++; p.slow < slowPages {
		return false
	}
	return p.PushBack(now, ReasonLatency)
}

// SetLimits changes the limits at once, both ways: the rate falls to a lower
// maximum and rises to a higher start, unless push-back holds it.
func (p *Pace) SetLimits(now time.Time, l Limits) {
	p.advance(now)
	start, most := l.bounds()
	if start == p.start && most == p.most {
		return // asked every few seconds: it must not undo anything
	}
	bounded := !math.IsInf(start, 1)
	if p.free > 0 && bounded {
		p.free = math.Min(math.Max(p.free, start), most)
		p.rate = math.Min(p.rate, most)
	} else if p.free == 0 {
		if math.IsInf(p.rate, 1) {
			p.rate = start
		}
		p.rate = math.Min(math.Max(p.rate, start), most)
	}
	p.start, p.most = start, most
	p.recovered()
	p.tokens = math.Min(p.tokens, p.burst())
}

// SetTotal changes the share of the target's total, at once.
func (p *Pace) SetTotal(now time.Time, s Share) {
	p.advance(now)
	p.share = s
	p.tokens = math.Min(p.tokens, p.burst())
}

// Hold stops the range for the reason given, such as [ReasonPaused], and with an
// empty one lets it go on. The bucket does not fill meanwhile.
func (p *Pace) Hold(now time.Time, why Reason) {
	p.advance(now)
	p.hold = why
	p.until = now
}

// Reason names what holds the range to its rate: the lowest of its limits, or
// what stops it altogether. It is empty only where there is no limit.
func (p *Pace) Reason(now time.Time) Reason {
	p.advance(now)
	switch {
	case p.hold != "":
		return p.hold
	case p.shareAt(now) < p.rate:
		return ReasonTotal
	case p.free > 0:
		return p.why
	case math.IsInf(p.rate, 1):
		return ""
	case p.rate < p.most:
		return ReasonRamp
	default:
		return ReasonMax
	}
}

// Rate returns the rate in force, infinite where there is no limit.
func (p *Pace) Rate(now time.Time) float64 {
	p.advance(now)
	if p.hold != "" {
		return 0
	}
	return p.effective(now)
}

// State returns what is to be kept with the range's record.
func (p *Pace) State(now time.Time) State {
	p.advance(now)
	s := State{Rate: p.rate, Used: p.used.UTC().Round(0)}
	if math.IsInf(p.start, 1) {
		s.Rate = 0
	}
	return s
}
