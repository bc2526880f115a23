package shardquery

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// A Stretch reads all expiry keys from one text to another in the order of the
// index, over generations and shards, page by page. Where a query takes too long
// it reads windows, as a [Reader] does. Set the exported fields before the first
// Next and leave them alone; it belongs to one goroutine.
type Stretch struct {
	Store     store.Store
	Target    store.Target
	Namespace string
	From, To  string         // bounds of keys, [From, To), as package expirykey has them
	After     store.Position // begin after this; zero begins with From
	Plain     time.Time      // nothing is expected to expire before
	Page      int            // most entries per page, 1 to store.MaxPage
	Timeout   time.Duration  // bounds one query; zero means 30s
	Now       func() time.Time
	Refused   func(error) // told of each try that failed for a passing reason; may be nil

	pager
	begun  bool
	end    string   // of the window that is being read
	window *big.Int // how long it is; nil is all that is left
}

// Next reads the next page, of any size, also empty, and reports whether there
// may be more after it.
func (s *Stretch) Next(ctx context.Context, page *store.Page) (more bool, err error) {
	if !s.begun {
		s.begun, s.after, s.limit, s.end = true, s.After, s.Page, s.To
		if s.Timeout == 0 {
			s.Timeout = queryTimeout
		}
	}
	for {
		page.Entries, page.SteppedOver = page.Entries[:0], 0
		s.query = store.Query{Target: s.Target, Namespace: s.Namespace, Lo: store.TextValue(s.From), Hi: store.TextValue(s.end),
			After: s.after, Next: s.next, Limit: s.limit}
		took, err := attempt(ctx, s.Store, s.query, page, s.Timeout, s.Now, s.Refused)
		if less := (*shrink)(nil); errors.As(err, &less) {
			if ctx.Err() == nil && s.smaller(less.err) {
				continue
			}
			err = less.err
		}
		if err != nil {
			return false, fmt.Errorf("scan %q to %q: %w", s.From, s.To, err)
		}
		// A query's end is inclusive.
		for n := len(page.Entries); n > 0 && page.Entries[n-1].Position().Value.Text >= s.end; n-- {
			page.Entries, page.More = page.Entries[:n-1], false
		}
		if s.read(page, s.Page); page.More {
			return true, nil
		}
		if s.end == s.To {
			return false, nil
		}
		s.onward(took)
		return true, nil
	}
}

// smaller makes the next query ask for less, and reports whether it could.
func (s *Stretch) smaller(why error) bool {
	if ok := s.fewer(why); !ok || !slow(why) {
		return ok
	}
	from, to := s.place(max(s.From, s.after.Value.Text)), s.place(s.end)
	s.window = new(big.Int).Rsh(new(big.Int).Sub(to, from), 1)
	if s.window.Sign() <= 0 {
		return false
	}
	s.end = s.key(from.Add(from, s.window))
	return true
}

// onward goes on to the next window, twice as long where there is time for it.
func (s *Stretch) onward(took time.Duration) {
	from := s.place(s.end)
	s.after, s.next = store.Position{Value: store.TextValue(s.end)}, nil
	if took < s.Timeout/4 {
		s.window.Lsh(s.window, 1)
	}
	if end := s.key(from.Add(from, s.window)); end < s.To {
		s.end = end
	} else {
		s.end = s.To
	}
}

// spread is how many milliseconds of a shard's key space are told apart, from the
// plain instant on: twenty years. What expires before or after counts as if it
// did at the first or the last of them.
const spread = 20 * 366 * 24 * 60 * 60 * 1000

// place returns where a text stands among all keys, as a number.
func (s *Stretch) place(text string) *big.Int {
	var row, ms int64
	if k, err := expirykey.Parse(text); err == nil {
		row = int64(k.Generation)*(expirykey.MaxShard+1) + int64(k.Shard)
		ms = min(max(0, k.Expires.Sub(s.Plain).Milliseconds()), spread-1)
	} else {
		row = digits(text, 0, 8) * (expirykey.MaxShard + 1)
		switch { // the bounds of a generation, or of a shard
		case len(text) > 8 && text[8] == '/':
			row += expirykey.MaxShard + 1
		case len(text) > 13 && text[13] == '/':
			row += digits(text, 9, 13) + 1
		default:
			row += digits(text, 9, 13)
		}
	}
	n := big.NewInt(row)
	return n.Mul(n, big.NewInt(spread)).Add(n, big.NewInt(ms))
}

// digits reads a number between two places of a text; what is none is 0.
func digits(text string, from, to int) int64 {
	if len(text) < to {
		return 0
	}
	n, _ := strconv.ParseInt(text[from:to], 10, 64)
	return max(0, n)
}

// key returns the first key at a place.
func (s *Stretch) key(place *big.Int) string {
	row, ms := new(big.Int).DivMod(place, big.NewInt(spread), new(big.Int))
	generation, shard := row.Int64()/(expirykey.MaxShard+1), row.Int64()%(expirykey.MaxShard+1)
	if ms.Sign() == 0 {
		return expirykey.Prefix(int(generation), int(shard))
	}
	key, ok := expirykey.UpTo(int(generation), int(shard), s.Plain.Add(time.Duration(ms.Int64())*time.Millisecond))
	if !ok { // before year 1: nothing stands there
		return expirykey.Prefix(int(generation), int(shard))
	}
	return key
}
