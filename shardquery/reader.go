package shardquery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A Reader reads one range page by page, one query for each call of Next, in
// windows of time where one query for all of it would take too long. Set the
// exported fields before the first Next; afterwards change only what Seek and
// Extend change. It belongs to one goroutine at a time.
type Reader struct {
	Store   store.Store
	Target  store.Target
	Range   Range
	From    store.Position // begin after this; zero begins with the range
	Until   time.Time      // last instant of expiry wanted
	Floor   time.Time      // nothing is expected to expire before: a window may end here, and timestamps begin here
	Window  time.Duration  // how long a window of time to begin with; zero is all that is left
	Timeout time.Duration  // bounds one query; zero means 30s
	Now     func() time.Time

	pager
	current, previous window
	above             stride // of windows from Floor on
	below             stride // of windows that begin before Floor
}

// A window is what one query may step over: the entries that expire from its
// first instant to its last one.
type window struct{ start, end time.Time }

// Next makes one query for at most so many entries, 1 to store.MaxPage, and
// reports whether there may be more after this page. The page may be empty with
// more after it. After an error the next call asks for the same again, but for
// less where the query was late (fewer entries, half the window) or too large
// (fewer entries). Such an error wraps [ErrShrunk], too, while less can be asked
// for; once nothing smaller is possible it is the store's alone. At the end of
// what is wanted it makes no query.
func (r *Reader) Next(ctx context.Context, page *store.Page, most int) (more bool, err error) {
	emptyPage(page)
	r.begin()
	if !r.isOpen {
		if !r.hasMore() {
			return false, nil
		}
		r.openWindow()
	}
	hi, ok := r.Range.UpTo(r.current.end)
	if !ok { // all that is wanted lies before year 1
		r.isOpen = false
		return false, nil
	}
	q := store.Query{Target: r.Target, Namespace: r.Range.Namespace, Shard: r.Range.Value,
		Lo: r.Range.Lo(r.Floor), Hi: hi, Limit: min(most, r.limit)}
	if r.after.Value.Compare(q.Lo) >= 0 {
		q.After = r.after
	}
	if err := r.ask(ctx, r.Store, q, page, r.Timeout, r.Now); err != nil {
		return false, fmt.Errorf("scan %v: %w", r.Range, r.shrink(ctx, q.Limit, r.Timeout, err, r))
	}
	if r.read(page); page.More {
		return true, nil
	}
	r.closeWindow(hi)
	return r.hasMore(), nil
}

// Position returns the place before which everything was read.
func (r *Reader) Position() store.Position {
	if !r.hasBegun {
		return r.From
	}
	return r.after
}

// Seek has the reader go on after a position inside what it read: it reads the
// window that this lies in to its end, and goes on from there.
func (r *Reader) Seek(p store.Position) {
	if !r.hasBegun {
		r.From = p
		return
	}
	r.after, r.next = p, nil
	at := r.instant(p)
	for _, w := range []window{r.current, r.previous} {
		if !at.Before(w.start) && !at.After(w.end) {
			r.current, r.isOpen = w, true
			return
		}
	}
	// Windows further back are forgotten; one as long as they are now will do.
	r.openWindow()
}

// Extend moves the last instant wanted forward, never back, even after the reader
// has ended. What was read is not read again: a new window begins behind it.
func (r *Reader) Extend(until time.Time) {
	if until.After(r.Until) {
		r.Until = until
	}
}

// NextWindow returns the Window that a later reader of the range should begin
// with; zero while everything from Floor on was read in one.
func (r *Reader) NextWindow() time.Duration {
	if !r.hasBegun {
		return r.Window
	}
	return r.above.length
}

// begin makes the reader ready for its first query.
func (r *Reader) begin() {
	if r.hasBegun {
		return
	}
	r.start(r.From)
	if r.Window > 0 {
		r.above.length = max(r.Window, r.Range.Resolution())
	}
	r.openWindow()
}

// hasMore reports whether there is something left to read behind a window that was
// read to its end.
func (r *Reader) hasMore() bool {
	step := r.Range.Resolution()
	return !r.current.end.Truncate(step).Add(step).After(r.until())
}

// until returns the last instant that the reader wants and a store can have:
// windows behind that would be empty.
func (r *Reader) until() time.Time {
	if r.Until.After(LastInstant) {
		return LastInstant
	}
	return r.Until
}

// floor returns the Floor as instants of the range are told apart.
func (r *Reader) floor() time.Time { return r.Floor.Truncate(r.Range.Resolution()) }

// instant returns an instant that nothing behind the position expires before: that
// of its value, or the last one before a value that is malformed.
func (r *Reader) instant(p store.Position) time.Time {
	at, err := r.Range.Expires(p.Value)
	switch {
	case err == nil:
	case !r.Range.Form.HoldsMalformed() || p.IsZero():
		at = FirstInstant
	default:
		first, end := FirstInstant.UnixMilli(), LastInstant.UnixMilli()+1
		at = time.UnixMilli(first + last(end-first, func(ms int64) bool {
			return r.Range.At(time.UnixMilli(first+ms)).Value.Compare(p.Value) <= 0
		})).UTC()
	}
	if floor := r.floor(); r.Range.Form.BeginsAtFloor() && at.Before(floor) {
		return floor // its values begin there
	}
	return at
}

// strideOf returns how long windows are where this one begins.
func (r *Reader) strideOf(w window) *stride {
	if w.start.Before(r.floor()) {
		return &r.below
	}
	return &r.above
}

// openWindow begins the window that follows what was read. What lies before the
// floor is one of its own, as far as there are windows at all: nothing is expected
// there, and how long that takes says nothing about what comes behind.
func (r *Reader) openWindow() {
	w := window{r.instant(r.after), r.until()}
	length := r.strideOf(w).length
	if floor := r.floor(); w.start.Before(floor) && floor.Before(w.end) && (r.above.length > 0 || r.below.length > 0) {
		w.end = floor
	}
	// An instant has room for the longest of windows; a difference of instants has not.
	if end := w.start.Add(length); length > 0 && end.Before(w.end) {
		w.end = end
	}
	r.current, r.previous = w, r.current
	r.isOpen, r.isQuick, r.isEven = true, true, true
}

// closeWindow goes on to the end of a window that was read up to a value. The next
// one begins with that value and not behind it: what is malformed may lie between
// two instants. The position never goes back.
func (r *Reader) closeWindow(hi store.Value) {
	r.isOpen, r.next = false, nil
	if r.after.Value.Compare(hi) < 0 {
		r.after = store.Position{Value: hi}
	}
	r.strideOf(r.current).read(r.current.end.Sub(r.current.start), r.isQuick, r.isEven)
}

func (r *Reader) keepWindow() (restore func()) {
	w, above, below := r.current, r.above, r.below
	return func() { r.current, r.above, r.below = w, above, below }
}

func (r *Reader) narrowWindow() { r.current.end = r.current.start.Add(r.Range.Resolution()) }

func (r *Reader) shrinkWindow() bool {
	step := r.Range.Resolution()
	w := window{r.instant(r.after), r.current.end}
	if floor := r.floor(); w.start.Before(floor) && floor.Before(w.end) {
		w.end = floor
		if r.above.length == 0 {
			r.above.shrinkTo(max(step, r.until().Sub(floor)))
		}
	} else {
		left := w.end.Sub(w.start)
		if left <= step {
			return false
		}
		half := max(step, (left / 2).Truncate(step))
		w.end = w.start.Add(half)
		r.strideOf(w).shrinkTo(half)
	}
	r.current, r.isQuick, r.isEven = w, true, true
	return true
}

// A stride is how long windows are, by what is known of those before.
type stride struct {
	length  time.Duration // zero is all that is left
	wasLate bool          // one of them was too long
	run     int           // of windows that were read quickly
}

// shrinkTo makes windows shorter: one of them took too long.
func (s *stride) shrinkTo(length time.Duration) { *s = stride{length: length, wasLate: true} }

// read is told of a window that was read. One that was quick is followed by one
// twice as long; once one was late, only a run of them is, so that the deadline is
// not met in every second one. A window that was cut short says little about the
// length that others have. Where all queries take about as long, quick or not, it is not
// the windows that take the time: they grow, too, after a run of them.
func (s *stride) read(length time.Duration, isQuick, isEven bool) {
	if !isQuick && !isEven {
		s.run = 0
		return
	}
	if s.length == 0 || length < s.length {
		return
	}
	if s.run++; (s.wasLate || !isQuick) && s.run < goodRun {
		return
	}
	s.run = 0
	if s.length <= math.MaxInt64/2 {
		s.length *= 2
	}
}

// A pager is what the readers of an index have in common: how far they have come,
// and how much they ask for.
type pager struct {
	hasBegun bool
	isOpen   bool // a window is being read
	isQuick  bool // each query in it was, so far
	isEven   bool // none took longer than twice as long as the fastest of all
	fastest  time.Duration
	limit    int // most entries that the store bears at once
	growth   Growth
	late     lateness
	after    store.Position
	next     any         // the store's own cursor; it belongs to the last query as it was
	query    store.Query // that read the last page
}

// start begins to read after a position.
func (p *pager) start(from store.Position) { p.hasBegun, p.after, p.limit = true, from, store.MaxPage }

// Query returns the query that read the last page, as a batch names it.
func (p *pager) Query() store.Query { return p.query }

// ask makes one query, with the store's own cursor where that belongs to it.
func (p *pager) ask(
	ctx context.Context, s store.Store, q store.Query, page *store.Page, timeout time.Duration, now func() time.Time,
) error {
	if bounds(q) == bounds(p.query) {
		q.Next = p.next
	}
	least := cmp.Or(timeout, queryTimeout)
	timeout = max(least, p.late.timeout)
	try, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := now()
	if err := s.Scan(try, q, page); err != nil {
		emptyPage(page)
		return err
	}
	took := now().Sub(began)
	if p.fastest == 0 || took < p.fastest {
		p.fastest = took
	}
	p.isQuick, p.isEven = p.isQuick && took < timeout/4, p.isEven && took <= 2*p.fastest
	p.late.answered(took < least/4)
	p.query = q
	return nil
}

// A windowed reader can make its windows shorter, and longer again.
type windowed interface {
	// keepWindow returns what makes the windows as long again as they are now.
	keepWindow() (restore func())
	// shrinkWindow halves what is left of the window, and reports whether it could.
	shrinkWindow() bool
	// narrowWindow makes this window, and no later one, as short as can be.
	narrowWindow()
}

// A lateness is what is known of queries that were late, one after the other.
type lateness struct {
	run     int
	restore func()        // makes the windows as long as they were before the first of them
	timeout time.Duration // of the next query, if that is longer than the caller's
}

// again is told of a query that was late. Shorter windows help where they step over
// less. After a run of them one query asks for next to nothing: where that is late, too,
// the store is slow whatever it is asked. Then windows are as long as they were, and
// queries have twice the time, up to what any query has. Again reports whether the next
// query asks for less, or has more time.
func (l *lateness) again(timeout time.Duration, w windowed) bool {
	if timeout = max(timeout, l.timeout); timeout >= queryTimeout {
		return w.shrinkWindow()
	}
	if l.run++; l.run == 1 {
		l.restore = w.keepWindow()
	}
	if l.run <= lateRun {
		isLess := w.shrinkWindow()
		if isLess && l.run == lateRun {
			w.narrowWindow()
		}
		return isLess
	}
	l.restore()
	*l = lateness{timeout: min(2*timeout, queryTimeout)}
	return true
}

// answered is told of a query that was not late.
func (l *lateness) answered(isQuick bool) {
	l.run, l.restore = 0, nil
	if isQuick {
		l.timeout = 0
	}
}

// bounds returns the part of a query that a store's cursor belongs to.
func bounds(q store.Query) store.Query {
	q.After, q.Next = store.Position{}, nil
	return q
}

// emptyPage leaves nothing in a page but its memory.
func emptyPage(page *store.Page) { *page = store.Page{Entries: page.Entries[:0]} }

// read goes on behind a page.
func (p *pager) read(page *store.Page) {
	p.next = page.Next
	n := len(page.Entries)
	if n == 0 {
		return
	}
	p.after = page.Entries[n-1].Position()
	if p.query.Limit == p.limit { // what the caller alone kept small says nothing
		p.limit = p.growth.After(p.limit, store.MaxPage, n == p.limit)
	}
}

// shrink makes the next query ask for less than so many entries, or for a shorter
// window, or gives it more time, where that may help against an error. It returns the
// error, which then says so.
func (p *pager) shrink(
	ctx context.Context, asked int, timeout time.Duration, why error, w windowed,
) error {
	var isLess bool
	switch {
	case ctx.Err() != nil: // it was not the query's fault
	case store.TookTooLong(why):
		isLess = p.shrinkPage(asked, smallPage)
		isLess = p.late.again(cmp.Or(timeout, queryTimeout), w) || isLess
		isLess = isLess || p.shrinkPage(asked, 1)
	case errors.Is(why, store.ErrTooLarge):
		isLess = p.shrinkPage(asked, 1)
	}
	if isLess {
		return fmt.Errorf("%w: %w", why, ErrShrunk)
	}
	return why
}

// shrinkPage halves what the next query asks for, down to so many entries, and
// reports whether it could.
func (p *pager) shrinkPage(asked, least int) bool {
	if asked <= least {
		return false
	}
	p.limit, p.growth = max(least, asked/2), Growth{}
	return true
}

// A Growth lets pages that had to shrink grow again, slowly, so that the size that
// is just small enough is mostly kept.
type Growth struct{ run int }

// After returns the next size, after a page of that size went well or did not.
func (g *Growth) After(size, most int, wentWell bool) int {
	if g.run++; !wentWell {
		g.run = 0
	}
	if g.run < goodRun || size >= most {
		return size
	}
	g.run = 0
	return min(most, size+max(1, size/4))
}
