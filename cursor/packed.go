package cursor

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A Packed is a cursor without its ID in a fifth of the memory: a target may have 100,000
// of them.
type Packed struct {
	shared *shared
	text   string  // what else it says, field by field, as packer writes it
	whole  *Cursor // instead, of a cursor that says more than records can hold
}

// A shared is what many cursors have in common.
type shared struct {
	scope      Scope
	seen, sent time.Time
}

// Pack packs a cursor.
func Pack(c Cursor) Packed { return pack(c, nil) }

// pack packs a cursor. Last is what the cursor before shared: it is shared on where it
// fits.
func pack(c Cursor, last *shared) Packed {
	if last == nil || *last != (shared{c.Scope, c.Seen, c.Sent}) {
		last = &shared{c.Scope, c.Seen, c.Sent}
	}
	var buf [256]byte
	w := packer{buf: buf[:0]}
	w.cursor(&c)
	p := Packed{shared: last, text: string(w.buf)}
	if p.Cursor(c.ID) != c { // of finer times than records hold
		whole := c
		return Packed{shared: last, whole: &whole}
	}
	return p
}

// Cursor returns the cursor of a range as it was packed.
func (p Packed) Cursor(id ID) Cursor {
	if p.whole != nil {
		return *p.whole
	}
	c := Cursor{ID: id, Scope: p.shared.scope, Seen: p.shared.seen, Sent: p.shared.sent}
	u := unpacker(p.text)
	u.cursor(&c)
	return c
}

// A packer appends values, the usual ones in a byte or two.
type packer struct{ buf []byte }

func (w *packer) cursor(c *Cursor) {
	w.position(c.Position)
	w.time(c.Swept)
	w.int(c.Deleted)
	w.position(c.Rewind.Position)
	w.time(c.Rewind.Began)
	w.time(c.Rewind.Done)
	w.int(int64(c.Rewind.Window))
	w.time(c.Stock.Next)
	w.time(c.Stock.Emptied)
	w.int(int64(math.Float64bits(c.Rate)))
	w.time(c.RateUsed)
	w.string(c.Throttled)
	w.string(c.Lease.Owner)
	w.int(c.Lease.Epoch)
	w.int(c.Lease.Token)
	w.time(c.Lease.Released)
	w.int(c.Lease.Renewals)
	w.int(int64(c.Lease.Length))
	w.int(c.TargetRevision)
	w.string(c.Revision)
	w.bool(c.Stock.Suspects)
	w.bool(c.Stock.Refused)
	w.bool(c.Rewind.Refused)
}

// An unpacker is what is left to be read of what a packer has written.
type unpacker string

// cursor reads what packer.cursor writes, in the same order.
func (u *unpacker) cursor(c *Cursor) {
	c.Position = u.position()
	c.Swept = u.time()
	c.Deleted = u.int()
	c.Rewind.Position = u.position()
	c.Rewind.Began = u.time()
	c.Rewind.Done = u.time()
	c.Rewind.Window = time.Duration(u.int())
	c.Stock.Next = u.time()
	c.Stock.Emptied = u.time()
	c.Rate = math.Float64frombits(uint64(u.int()))
	c.RateUsed = u.time()
	c.Throttled = u.string()
	c.Lease.Owner = u.string()
	c.Lease.Epoch = u.int()
	c.Lease.Token = u.int()
	c.Lease.Released = u.time()
	c.Lease.Renewals = u.int()
	c.Lease.Length = time.Duration(u.int())
	c.TargetRevision = u.int()
	c.Revision = u.string()
	c.Stock.Suspects = u.bool()
	c.Stock.Refused = u.bool()
	c.Rewind.Refused = u.bool()
}

func (w *packer) int(n int64) { w.buf = binary.AppendVarint(w.buf, n) }

func (u *unpacker) int() int64 {
	var n uint64
	for i, shift := 0, 0; i < len(*u); i, shift = i+1, shift+7 {
		b := (*u)[i]
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			*u = (*u)[i+1:]
			return int64(n>>1) ^ -int64(n&1)
		}
	}
	return 0
}

func (w *packer) bool(is bool) {
	if is {
		w.int(1)
	} else {
		w.int(0)
	}
}

func (u *unpacker) bool() bool { return u.int() == 1 }

func (w *packer) string(s string) {
	w.int(int64(len(s)))
	w.buf = append(w.buf, s...)
}

// string returns a part of what is read, without a copy.
func (u *unpacker) string() string {
	n := u.int()
	s := (*u)[:n]
	*u = (*u)[n:]
	return string(s)
}

// time writes whole microseconds, as records hold them.
func (w *packer) time(t time.Time) {
	if w.bool(!t.IsZero()); !t.IsZero() {
		w.int(t.UnixMicro())
	}
}

func (u *unpacker) time() time.Time {
	if !u.bool() {
		return time.Time{}
	}
	return time.UnixMicro(u.int()).UTC()
}

func (w *packer) position(p store.Position) {
	w.int(int64(p.Value.Type))
	if p.Value.Type != store.Missing { // else it has nothing more: pack finds out where that is not so
		w.string(p.Value.Text)
		w.time(p.Value.Time)
		w.string(p.Key)
	}
}

func (u *unpacker) position() (p store.Position) {
	if p.Value.Type = store.Type(u.int()); p.Value.Type != store.Missing {
		p.Value.Text, p.Value.Time, p.Key = u.string(), u.time(), u.string()
	}
	return p
}
