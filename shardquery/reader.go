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

// A Reader reads one range page by page, one query for each call of Next. It reads in
// windows of time if one query for the whole range would take too long. Set the
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

// Next makes one query for at most the given number of entries, 1 to store.MaxPage,
// and reports whether there may be more after this page. The page may be empty with
// more after it. After an error the next call asks for the same again, but for
// less if the query was late (fewer entries, half the window) or too large
// (fewer entries). Such an error also wraps [ErrShrunk], as long as less can be asked
// for. At the end of the range it makes no query.
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
	if !ok { // Until is before the year 1
		r.isOpen = false
		return false, nil
	}
	if r.after.Value.Compare(hi) > 0 { // at a malformed text behind the last key of the window
		r.closeWindow(hi)
		return r.hasMore(), nil
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

// Seek moves the reader back to a position inside what it has read. It reads the window
// of that position to its end, and continues from there.
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
	// Earlier windows are forgotten; one of the present length is used instead.
	r.openWindow()
}

// Extend moves Until forward, never back, even after the reader has ended. Nothing is
// read again: a new window begins after what was read.
func (r *Reader) Extend(until time.Time) {
	if until.After(r.Until) {
		r.Until = until
	}
}

// NextWindow returns the Window with which a later reader of the range should begin;
// zero as long as everything from Floor on was read in one window.
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

// hasMore reports whether anything is left to read after a window that was read to its
// end.
func (r *Reader) hasMore() bool {
	step := r.Range.Resolution()
	return !r.current.end.Truncate(step).Add(step).After(r.until())
}

// until returns Until, or the last instant that a store can hold if that is earlier:
// windows after it would be empty.
func (r *Reader) until() time.Time {
	if r.Until.After(LastInstant) {
		return LastInstant
	}
	return r.Until
}

// floor returns the Floor as instants of the range are told apart.
func (r *Reader) floor() time.Time { return r.Floor.Truncate(r.Range.Resolution()) }

// instant returns a lower bound for the expiries after the position.
func (r *Reader) instant(p store.Position) time.Time {
	at, ok := r.Range.Passed(p.Value)
	switch {
	case ok:
	case p.Value.Compare(r.Range.Lo(FirstInstant)) > 0: // past the range
		at = LastInstant
	default:
		at = FirstInstant
	}
	if floor := r.floor(); r.Range.Form.BeginsAtFloor() && at.Before(floor) {
		return floor // its values begin there
	}
	return at
}

// strideOf returns the lengths of windows that begin at this instant.
func (r *Reader) strideOf(w window) *stride {
	if w.start.Before(r.floor()) {
		return &r.below
	}
	return &r.above
}

// openWindow begins the window that follows what was read. Everything before the floor
// is a window of its own, if there are windows at all: little is expected there, and its
// time says nothing about the windows after it.
func (r *Reader) openWindow() {
	w := window{r.instant(r.after), r.until()}
	length := r.strideOf(w).length
	if floor := r.floor(); w.start.Before(floor) && floor.Before(w.end) && (r.above.length > 0 || r.below.length > 0) {
		w.end = floor
	}
	// Adding to an instant cannot overflow; the difference of two instants can.
	if end := w.start.Add(length); length > 0 && end.Before(w.end) {
		w.end = end
	}
	r.current, r.previous = w, r.current
	r.isOpen, r.isQuick, r.isEven = true, true, true
}

// closeWindow moves the position to the end of a window that was read up to a value. The
// next window begins with that value, not after it: malformed texts may sort between
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

// A stride is the length of the next windows, by what is known of earlier ones.
type stride struct {
	length  time.Duration // zero means all that is left
	wasLate bool          // one of them was too long
	run     int           // of windows that were read quickly
}

// shrinkTo makes windows shorter: one of them took too long.
func (s *stride) shrinkTo(length time.Duration) { *s = stride{length: length, wasLate: true} }

// read takes in a window that was read. A quick window is followed by one twice as long.
// Once a window was late, that takes a run of quick ones, so that not every second window
// hits the deadline. A window that was cut short says little about the usual length. If
// all queries take about the same time, it does not depend on the windows: then they grow
// after a run of such windows, too.
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

// A pager is the common part of the readers of an index: how far they have read, and how
// much they ask for.
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

// Query returns the query that read the last page; a [store.Batch] names it.
func (p *pager) Query() store.Query { return p.query }

// ask makes one query, with the store's own cursor if that belongs to this query.
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
	// keepWindow returns a function that restores the present length of windows.
	keepWindow() (restore func())
	// shrinkWindow halves what is left of the window, and reports whether it could.
	shrinkWindow() bool
	// narrowWindow makes this window, and no later one, as short as possible.
	narrowWindow()
}

// A lateness is what is known of queries that were late, one after the other.
type lateness struct {
	run     int
	restore func()        // makes the windows as long as they were before the first of them
	timeout time.Duration // of the next query, if that is longer than the caller's
}

// again takes in a query that was late. Shorter windows help if they step over fewer
// tombstones. After several late queries in a row, one query asks for next to nothing. If
// that is late, too, the store is slow for every query: then windows get their old length
// back, and queries twice the time, up to the usual timeout. Again reports whether the next
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

// answered takes in a query that was not late.
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

// emptyPage empties a page, and keeps its memory.
func emptyPage(page *store.Page) { *page = store.Page{Entries: page.Entries[:0]} }

// read moves the pager behind a page.
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

// shrink makes the next query ask for fewer entries, or for a shorter window, or gives it
// more time, if that may help against an error. It then returns the error wrapped with
// [ErrShrunk].
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

// shrinkPage halves the number of entries that the next query asks for, down to a minimum,
// and reports whether it could.
func (p *pager) shrinkPage(asked, least int) bool {
	if asked <= least {
		return false
	}
	p.limit, p.growth = max(least, asked/2), Growth{}
	return true
}

// A Growth lets pages that had to shrink grow again, slowly, so that most pages keep the
// largest size that works.
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
