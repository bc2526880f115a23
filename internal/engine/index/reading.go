package index

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// firstWindow is how long the first window of a read from the start is.
	firstWindow = time.Minute
	// FromStartTimeout bounds a query of a read from the start. Such a query goes over
	// tombstones, and a shorter window helps more than patience.
	FromStartTimeout = 5 * time.Second
)

// A Reader reads a span of an index page by page, with one query for each call.
type Reader interface {
	Next(ctx context.Context, page *store.Page, most int) (more bool, err error)
	Query() store.Query       // that read the last page
	Position() store.Position // everything before was read
	Seek(store.Position)      // goes back there
}

// Window returns how long the first window of a read from the start is.
func Window(c cursor.Cursor) time.Duration {
	if c.Rewind.Window > 0 {
		return c.Rewind.Window
	}
	return firstWindow
}

// ReadFloor returns the instant before which hardly anything in a range expires.
func (x *Index) ReadFloor(r shardquery.Range, cur cursor.Cursor, horizon time.Time) time.Time {
	floor := x.Floor(horizon)
	if r.Generation != expirykey.Nursery && cur.Opened.After(floor) {
		return cur.Opened
	}
	return floor
}

// IsBehind reports whether an entry lies behind the cursor. An entry at the cursor's own
// value counts as behind if the cursor has passed some keys there: only the store knows the
// order of keys.
func IsBehind(e store.Entry, c cursor.Cursor) bool {
	at := e.Position().Value.Compare(c.Position.Value)
	return at < 0 || at == 0 && c.Position.Key != ""
}

// Later returns the later of two positions in a range, because a cursor never goes back.
// If both have the same value, that is b: only the store knows the order of keys, and b
// was read after a.
func Later(a, b store.Position) store.Position {
	if c := b.Value.Compare(a.Value); c < 0 || c == 0 && b.Key == "" {
		return a
	}
	return b
}
