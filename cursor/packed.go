package cursor

import (
	"math"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A packed is a cursor as a table keeps it, in about a quarter of the memory: a target
// may have 100,000 of them.
type packed struct {
	shared     *shared
	position   packedPosition
	rewind     *Rewind // nil if no read from the start is under way, and none had a window
	lease      *Lease  // nil if nobody holds the range
	swept      instant
	rewindDone instant
	next       instant
	emptied    instant
	rateUsed   instant
	released   instant
	deleted    int64
	rate       float64
	token      int64
	lineage    int64
	revision   string
	throttled  string
	suspects   bool
	refused    bool
	whole      *Cursor // of which the rest says less; nil if it says it all
}

// A shared is what many cursors have in common.
type shared struct {
	scope      Scope
	seen, sent time.Time
}

type packedPosition struct {
	kind store.Type
	text string
	at   instant
	key  string
}

// An instant is a time in microseconds since 1970, as records hold it.
type instant int64

// noInstant is the zero time.
const noInstant instant = math.MinInt64

func packTime(t time.Time) instant {
	if t.IsZero() {
		return noInstant
	}
	return instant(t.UnixMicro())
}

func (i instant) time() time.Time {
	if i == noInstant {
		return time.Time{}
	}
	return time.UnixMicro(int64(i)).UTC()
}

func packPosition(p store.Position) packedPosition {
	return packedPosition{p.Value.Type, p.Value.Text, packTime(p.Value.Time), p.Key}
}

func (p packedPosition) position() store.Position {
	return store.Position{Value: store.Value{Type: p.kind, Text: p.text, Time: p.at.time()}, Key: p.key}
}

// pack packs a cursor. Last is what the cursor before shared: it is shared on where it
// fits.
func pack(c Cursor, last *shared) *packed {
	if last == nil || *last != (shared{c.Scope, c.Seen, c.Sent}) {
		last = &shared{c.Scope, c.Seen, c.Sent}
	}
	p := &packed{shared: last, position: packPosition(c.Position), swept: packTime(c.Swept),
		rewindDone: packTime(c.Rewind.Done), next: packTime(c.Stock.Next), emptied: packTime(c.Stock.Emptied),
		rateUsed: packTime(c.RateUsed), released: packTime(c.Lease.Released), deleted: c.Deleted, rate: c.Rate,
		token: c.Lease.Token, lineage: c.TargetRevision, revision: c.Revision, throttled: c.Throttled,
		suspects: c.Stock.Suspects, refused: c.Stock.Refused}
	if c.Rewind != (Rewind{Done: c.Rewind.Done}) {
		rewind := c.Rewind // a pointer into c would keep all of it
		p.rewind = &rewind
	}
	if c.Lease != (Lease{Token: c.Lease.Token, Released: c.Lease.Released}) {
		lease := c.Lease
		p.lease = &lease
	}
	if p.cursor(c.ID) != c { // of finer times than records hold
		whole := c
		return &packed{shared: last, whole: &whole}
	}
	return p
}

// cursor returns the cursor of a range as it was packed.
func (p *packed) cursor(id ID) Cursor {
	if p.whole != nil {
		return *p.whole
	}
	c := Cursor{ID: id, Scope: p.shared.scope, Position: p.position.position(), Swept: p.swept.time(),
		Deleted: p.deleted, Rewind: Rewind{Done: p.rewindDone.time()},
		Stock: Stock{Next: p.next.time(), Suspects: p.suspects, Refused: p.refused, Emptied: p.emptied.time()},
		Rate:  p.rate, RateUsed: p.rateUsed.time(), Throttled: p.throttled,
		Lease:          Lease{Token: p.token, Released: p.released.time()},
		TargetRevision: p.lineage, Revision: p.revision, Seen: p.shared.seen, Sent: p.shared.sent}
	if p.rewind != nil {
		c.Rewind = *p.rewind
	}
	if p.lease != nil {
		c.Lease = *p.lease
	}
	return c
}
