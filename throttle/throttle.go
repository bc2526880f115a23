// Package throttle holds a range to its pace: how many entities a second may be
// deleted in one stretch of keys. The arithmetic takes the time as an argument
// and reads no clock; [Pacer] is the thin waiter around it.
//
// The invariant is that in any window a range is granted at most its limit
// times the window, plus one burst. A bucket starts empty, so that a process
// that crashes and starts again gains nothing.
//
// This version knows a fixed limit. The rule that it serves is that a tablet
// should take load gradually, as the services' own pages on best practice ask.
package throttle

import (
	"context"
	"math"
	"time"
)

// A Limit is a rate in entities per second. The zero Limit grants nothing and
// is refused by the configuration.
type Limit struct {
	PerSecond float64
	Unlimited bool // PerSecond does not count
}

// Part returns a part of the limit, such as a half.
func (l Limit) Part(share float64) Limit {
	l.PerSecond *= share
	return l
}

// A Reason names what held a range back, as logs, status and metrics show it.
type Reason string

const (
	ReasonMax   Reason = "max"   // the range's own limit
	ReasonLease Reason = "lease" // another worker's lease on the range
)

// A Bucket is a token bucket. A token is the right to delete one entity.
type Bucket struct {
	limit  Limit
	burst  float64   // most tokens the bucket holds
	tokens float64   // may be negative: a debt that time pays
	at     time.Time // when tokens was right
}

// NewBucket returns an empty bucket for pages of at most page entities. Its
// burst is one page or one second, whichever is less, and at least one token.
func NewBucket(now time.Time, l Limit, page int) Bucket {
	return Bucket{limit: l, burst: math.Max(1, math.Min(float64(page), l.PerSecond)), at: now}
}

// Burst returns the most entities that may be deleted at once, at most page.
func (b *Bucket) Burst(page int) int {
	if b.limit.Unlimited {
		return page
	}
	return min(page, int(b.burst))
}

// Take asks for n tokens, at most [Bucket.Burst]. It takes them and returns
// zero, or takes nothing and returns how long to wait before asking again.
func (b *Bucket) Take(now time.Time, n int) time.Duration {
	if b.limit.Unlimited || n <= 0 {
		return 0
	}
	if passed := now.Sub(b.at); passed > 0 { // a clock that went back grants nothing
		b.tokens = math.Min(b.burst, b.tokens+passed.Seconds()*b.limit.PerSecond)
	}
	b.at = now
	missing := math.Min(float64(n), b.burst) - b.tokens
	// A billionth of a token is rounding, and waiting for it would never end.
	if missing > 1e-9 {
		return max(time.Microsecond, time.Duration(math.Ceil(missing/b.limit.PerSecond*float64(time.Second))))
	}
	b.tokens -= float64(n)
	return 0
}

// A Pacer waits for the tokens of one claimed range. It belongs to the one
// goroutine that sweeps the range.
type Pacer struct {
	bucket Bucket
	now    func() time.Time
}

// NewPacer returns a pacer with an empty bucket.
func NewPacer(now func() time.Time, l Limit, page int) *Pacer {
	return &Pacer{NewBucket(now(), l, page), now}
}

// Burst returns the most entities that Wait may be asked for, at most page.
func (p *Pacer) Burst(page int) int { return p.bucket.Burst(page) }

// Wait blocks until n entities may be deleted, or ctx is done. It returns how
// long it waited and for what, also beside an error.
func (p *Pacer) Wait(ctx context.Context, n int) (waited time.Duration, why Reason, err error) {
	for {
		wait := p.bucket.Take(p.now(), n)
		if wait == 0 {
			return waited, why, nil
		}
		why = ReasonMax
		began := p.now()
		err := Sleep(ctx, wait)
		waited += p.now().Sub(began)
		if err != nil {
			return waited, why, err
		}
	}
}

// Sleep waits for d or until ctx is done, whose error it then returns.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
