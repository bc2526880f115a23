package shardquery

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// A SpanReader reads all expiry keys from one text to another in the order of the
// index, over generations and shards, page by page, one query for each call of
// Next. Where a query takes too long it reads windows, as a [Reader] does. Set the
// exported fields before the first Next and leave them alone. It belongs to one
// goroutine at a time.
type SpanReader struct {
	Store     store.Store
	Target    store.Target
	Namespace string
	From, To  string         // bounds of keys, [From, To), as package expirykey has them
	After     store.Position // begin after this; zero begins with From
	Floor     time.Time      // nothing is expected to expire before
	Timeout   time.Duration  // bounds one query; zero means 30s
	Now       func() time.Time

	pager
	current, previous keyWindow
	length            *big.Int // of windows; nil is all that is left
	isNarrow          bool     // the window is no longer than can be: that it was quick says nothing
}

// A keyWindow is what one query may step over: the keys in [start, end).
type keyWindow struct{ start, end string }

// Next makes one query for at most so many entries, as [Reader.Next] does.
func (s *SpanReader) Next(ctx context.Context, page *store.Page, most int) (more bool, err error) {
	emptyPage(page)
	if !s.hasBegun {
		s.start(s.After)
	}
	if !s.isOpen {
		if s.at() >= s.To {
			return false, nil
		}
		s.openWindow()
	}
	q := store.Query{Target: s.Target, Namespace: s.Namespace, Lo: store.TextValue(s.From),
		Hi: store.TextValue(s.current.end), Limit: min(most, s.limit)}
	if s.after.Value.Compare(q.Lo) >= 0 {
		q.After = s.after
	}
	if err := s.ask(ctx, s.Store, q, page, s.Timeout, s.Now); err != nil {
		return false, fmt.Errorf("scan %q to %q: %w", s.From, s.To, s.shrink(ctx, q.Limit, s.Timeout, err, s))
	}
	// A query's end is inclusive.
	for n := len(page.Entries); n > 0 && page.Entries[n-1].Position().Value.Text >= s.current.end; n-- {
		page.Entries, page.More = page.Entries[:n-1], false
	}
	if s.read(page); page.More {
		return true, nil
	}
	s.closeWindow()
	return s.at() < s.To, nil
}

// Position returns the place before which everything was read.
func (s *SpanReader) Position() store.Position {
	if !s.hasBegun {
		return s.After
	}
	return s.after
}

// Seek has the reader go on after a position inside what it read, as
// [Reader.Seek] does.
func (s *SpanReader) Seek(p store.Position) {
	if !s.hasBegun {
		s.After = p
		return
	}
	s.after, s.next, s.isOpen = p, nil, false
	for _, w := range []keyWindow{s.current, s.previous} {
		if at := s.at(); w.start <= at && at < w.end {
			s.current, s.isOpen = w, true
			return
		}
	}
}

// at returns the first key that may be left to read.
func (s *SpanReader) at() string { return max(s.From, s.after.Value.Text) }

// openWindow begins the window that follows what was read.
func (s *SpanReader) openWindow() {
	w := keyWindow{s.at(), s.To}
	if s.length != nil {
		// Places are compared, not keys: a place behind the last key has none.
		end := s.place(w.start)
		if end.Add(end, s.length).Cmp(s.place(w.end)) < 0 {
			w.end = s.key(end)
		}
	}
	s.current, s.previous = w, s.current
	s.isOpen, s.isQuick, s.isNarrow = true, true, false
}

// closeWindow goes on to the end of a window that was read; one that was quick is
// followed by one twice as long.
func (s *SpanReader) closeWindow() {
	s.isOpen, s.next = false, nil
	s.after = store.Position{Value: store.TextValue(s.current.end)} // behind all that is in the window
	if s.length != nil && s.isQuick && !s.isNarrow {
		s.length.Lsh(s.length, 1)
	}
}

func (s *SpanReader) keepWindow() (restore func()) {
	w, length := s.current, s.length
	if length != nil {
		length = new(big.Int).Set(length)
	}
	return func() { s.current, s.length = w, length }
}

func (s *SpanReader) narrowWindow() {
	next := s.place(s.current.start)
	s.current.end = min(s.current.end, s.key(next.Add(next, big.NewInt(1))))
	s.isNarrow = true
}

func (s *SpanReader) shrinkWindow() bool {
	w := keyWindow{s.at(), s.current.end}
	from, to := s.place(w.start), s.place(w.end)
	half := to.Rsh(to.Sub(to, from), 1)
	if half.Sign() <= 0 {
		return false
	}
	if w.end = s.key(from.Add(from, half)); w.end >= s.current.end {
		return false // no key tells these places apart
	}
	s.current, s.length, s.isQuick = w, half, true
	return true
}

const (
	// A row is where the keys of one shard of a generation stand.
	rows = (expirykey.MaxGeneration + 1) * (expirykey.MaxShard + 1)
	// spread is how many milliseconds of a row are told apart, from the floor on:
	// twenty years. What expires before or after counts as if it did at the first
	// or the last of them.
	spread = 20 * 366 * 24 * 60 * 60 * 1000
)

// place returns where a text stands among all keys, as a number: the last place
// whose key is not behind it, or the first one. So the key of the next place is
// always behind the text, and a window that ends there moves on.
func (s *SpanReader) place(text string) *big.Int {
	row := last(rows, func(row int64) bool { return s.keyIn(row, 0) <= text })
	ms := last(spread, func(ms int64) bool { return s.keyIn(row, ms) <= text })
	n := big.NewInt(row)
	return n.Mul(n, big.NewInt(spread)).Add(n, big.NewInt(ms))
}

// key returns the first key at a place.
func (s *SpanReader) key(place *big.Int) string {
	row, ms := new(big.Int).DivMod(place, big.NewInt(spread), new(big.Int))
	return s.keyIn(row.Int64(), ms.Int64())
}

// keyIn returns the first key of a row that expires the given number of milliseconds after
// the floor; for 0 milliseconds, the row's first key.
func (s *SpanReader) keyIn(row, ms int64) string {
	generation, shard := int(row/(expirykey.MaxShard+1)), int(row%(expirykey.MaxShard+1))
	if ms > 0 {
		key, ok := expirykey.UpTo(generation, shard, s.Floor.Add(time.Duration(ms)*time.Millisecond))
		if ok { // no key is before the year 1
			return key
		}
	}
	return expirykey.Prefix(generation, shard)
}

// last returns the last number below n for which holds is true; 0 if there is no such
// number. All numbers for which it is true must come before the others.
func last(n int64, holds func(int64) bool) int64 {
	low, high := int64(0), n // what is asked for is in [low, high)
	for high-low > 1 {
		if middle := low + (high-low)/2; holds(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}
