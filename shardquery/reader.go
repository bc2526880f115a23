package shardquery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

const (
	// queryTimeout bounds one query. The services end a query after 60 s; one
	// that takes half of that steps over more than it should.
	queryTimeout = 30 * time.Second
	// patience is how long a query is tried against a store that does not take it.
	patience = 2 * time.Minute
	// smallPage is how far a page shrinks before the window does.
	smallPage = 50
)

// A Reader reads one range page by page. Set the exported fields before the
// first Next and leave them alone; a Reader belongs to one goroutine.
type Reader struct {
	Store   store.Store
	Target  store.Target
	Range   Range
	From    store.Position // begin after this; zero begins with the range
	Until   time.Time      // last instant of expiry wanted
	Plain   time.Time      // nothing is expected to expire before: a window may end here, and timestamps begin here
	Page    int            // most entries per page, 1 to store.MaxPage
	Timeout time.Duration  // bounds one query; zero means 30s
	Now     func() time.Time
	Refused func(error) // told of each try that failed for a passing reason; may be nil

	pager
	begun  bool
	window time.Duration // the longest window tried now; zero is all that is left
	end    time.Time     // of the window that is being read
}

// Next reads the next page, of any size, also empty, and reports whether there
// may be more after it. It repeats what failed for a passing reason, asks for
// fewer entries where they are too large, and halves its window where a query
// takes too long.
func (r *Reader) Next(ctx context.Context, page *store.Page) (more bool, err error) {
	if !r.begun {
		r.begun, r.after, r.limit, r.end = true, r.From, r.Page, r.Until
		if r.Timeout == 0 {
			r.Timeout = queryTimeout
		}
	}
	page.Entries = page.Entries[:0]
	page.SteppedOver = 0
	for {
		hi, ok := r.Range.UpTo(r.end)
		if !ok {
			return false, nil
		}
		lo := r.Range.Lo(r.Plain)
		if r.after.Value.Compare(lo) < 0 {
			r.after = store.Position{}
		}
		r.query = store.Query{Target: r.Target, Namespace: r.Range.Namespace, Shard: r.Range.Value,
			Lo: lo, Hi: hi, After: r.after, Next: r.next, Limit: r.limit}
		took, err := attempt(ctx, r.Store, r.query, page, r.Timeout, r.Now, r.Refused)
		if s := (*shrink)(nil); errors.As(err, &s) {
			if ctx.Err() == nil && r.smaller(s.err) {
				continue
			}
			err = s.err
		}
		if err != nil {
			return false, fmt.Errorf("scan %v: %w", r.Range, err)
		}
		if r.read(page, r.Page); page.More {
			return true, nil
		}
		return r.onward(took), nil
	}
}

// A pager is what the readers of an index have in common: how far they have come,
// and how much they ask for.
type pager struct {
	limit  int
	growth Growth
	after  store.Position
	next   any         // the store's own cursor; it belongs to the last query as it was
	query  store.Query // that read the last page
}

// Query returns the query that read the last page, as a batch names it.
func (p *pager) Query() store.Query { return p.query }

// Position returns the place before which everything was read.
func (p *pager) Position() store.Position { return p.after }

// read goes on behind a page, of at most so many entries.
func (p *pager) read(page *store.Page, most int) {
	p.next = page.Next
	n := len(page.Entries)
	if n == 0 {
		return
	}
	p.after = page.Entries[n-1].Position()
	if size := p.growth.After(p.limit, most, n == p.limit); size > p.limit {
		p.limit, p.next = size, nil
	}
}

// fewer makes the next query ask for fewer entries, and reports whether that or,
// where it was slow, a smaller window may help.
func (p *pager) fewer(why error) bool {
	p.next = nil
	if slow(why) {
		if p.limit > smallPage {
			p.limit = max(smallPage, p.limit/2)
		}
		return true
	}
	if p.limit == 1 {
		return false
	}
	p.limit /= 2
	return true
}

// attempt runs a query until it has one page or an error that patience does not
// help against, and returns how long the last try took.
func attempt(ctx context.Context, s store.Store, q store.Query, page *store.Page, timeout time.Duration, now func() time.Time, refused func(error)) (took time.Duration, err error) {
	err = store.Retry(ctx, patience, func() error {
		try, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		began := now()
		err := s.Scan(try, q, page)
		took = now().Sub(began)
		if refused != nil && store.Transient(err) && ctx.Err() == nil {
			refused(err)
		}
		if slow(err) || errors.Is(err, store.ErrTooLarge) {
			return &shrink{err}
		}
		return err
	})
	return took, err
}

// A Growth lets pages that had to shrink grow again, slowly, so that the size that
// is just small enough is mostly kept.
type Growth struct{ fine int }

// patientPages is how many full pages in a row go well before the next is larger.
const patientPages = 8

// After returns the next size, after a page of that size went well or did not.
func (g *Growth) After(size, most int, well bool) int {
	if g.fine++; !well {
		g.fine = 0
	}
	if g.fine < patientPages || size >= most {
		return size
	}
	g.fine = 0
	return min(most, size+max(1, size/4))
}

// shrink carries an error through Retry that asks for less, not for patience.
type shrink struct{ err error }

func (s *shrink) Error() string { return s.err.Error() }

func slow(err error) bool {
	return errors.Is(err, store.ErrDeadline) || errors.Is(err, context.DeadlineExceeded)
}

// smaller makes the next query ask for less, and reports whether it could.
func (r *Reader) smaller(why error) bool {
	if ok := r.fewer(why); !ok || !slow(why) {
		return ok
	}
	start := r.start()
	left := r.end.Sub(start)
	if left <= r.Range.Resolution() {
		return false
	}
	if start.Before(r.Plain) && r.end.After(r.Plain) {
		r.end = r.Plain
	} else {
		r.end = start.Add(left / 2).Truncate(r.Range.Resolution())
	}
	r.window = r.end.Sub(start)
	return true
}

// start returns where the rest of the window begins.
func (r *Reader) start() time.Time {
	if t, err := r.Range.Expires(r.after.Value); err == nil {
		return t
	}
	if r.Range.Instants && r.Plain.After(FirstInstant) {
		return r.Plain
	}
	return FirstInstant
}

// onward goes on to the next window and reports whether there is one. A window
// that was read in a quarter of the time it may take is followed by one twice
// as long.
func (r *Reader) onward(took time.Duration) bool {
	if !r.end.Before(r.Until) {
		return false
	}
	start := r.end.Truncate(r.Range.Resolution()).Add(r.Range.Resolution())
	if took < r.Timeout/4 {
		r.window *= 2
	}
	r.after, r.next = r.Range.At(start), nil
	// The comparison is made with what is left: a window of centuries, added,
	// would overflow the clock.
	if left := r.Until.Sub(start); r.window <= 0 || r.window > left {
		r.end = r.Until
	} else {
		r.end = start.Add(r.window)
	}
	return !start.After(r.Until)
}
