// Package cursor records how far each range has been swept, durably, and who
// may move that record. A cursor moves only after what lies before it was
// disposed of: a crash may repeat work, but never skips any.
//
// The record of a range also names its holder. A worker claims a range by
// compare-and-set, which raises the fencing token and names the worker's epoch. It
// holds all its ranges by one heartbeat, which it renews every third of a lease: see
// [Pulse]. Every write of the record is a compare-and-set on the last revision that its
// writer knows, so a worker that lost its range cannot move the cursor, whatever its
// clock says.
//
// Limits: at most one write in ten seconds for each range while its cursor moves, plus one
// at the claim and one at the end. docs/records.md describes the fields.
package cursor

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// Schema is the version of cursor records that this program writes, and the newest that it
// reads. Since 2, a heartbeat keeps the claims of its process.
const Schema = 2

// ErrNewer is wrapped by the error for a record of a newer program.
var ErrNewer = store.WithHint(errors.New("the cursor record was written by a newer reaper"), "update this one")

// An ID names one range.
type ID struct {
	Target     string
	Namespace  string
	Generation int
	Shard      string
}

// Key returns the key of the range's record: target.generation.shard, and
// @namespace if that is not the default one. Each part is escaped, so that it may
// hold any character.
func (id ID) Key() string {
	var buf [64]byte // for most keys
	key := append(append(buf[:0], escape(id.Target)...), '.')
	number := strconv.Itoa(id.Generation)
	key = append(append(key, "00000000"[min(len("00000000"), len(number)):]...), number...)
	key = append(append(key, '.'), escape(id.Shard)...)
	if id.Namespace != "" {
		key = append(append(key, '@'), escape(id.Namespace)...)
	}
	return string(key)
}

// String names the range in logs and errors.
func (id ID) String() string { return id.Key() }

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func escape(s string) string {
	const hex = "0123456789ABCDEF"
	plain := 0
	for plain < len(s) && isPlain(s[plain]) {
		plain++
	}
	if plain == len(s) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; isPlain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// A Scope says what a position is valid for. If it no longer fits the target, position
// and marks are discarded.
type Scope struct {
	Kind     string
	Property string
	Layout   string
	Opened   time.Time // of the generation
}

// A Cursor is the record of one range. It is a value.
type Cursor struct {
	ID
	Scope
	Position  store.Position // everything before it was disposed of
	Swept     time.Time      // the horizon of the last complete pass
	Deleted   int64          // entities deleted in this range, in total
	Rewind    Rewind
	Stock     Stock
	Rate      float64   // the pace's last rate in entities/s; zero if it was unlimited
	RateUsed  time.Time // when the pace was used last, in the store's time
	Throttled string    // what held the range back when the record was written last
	Lease     Lease
	// TargetRevision is the count in the revision of the target record that the last
	// holder knew. A target record with a lower count is an old copy.
	TargetRevision int64
	Revision       string // as in the store; empty for a record not saved yet
	// Seen is when this process first saw this revision, and Sent when the read that
	// showed it last was sent, on its own clock.
	Seen, Sent time.Time
}

// Rewind is how far the current read from the range's start has come.
type Rewind struct {
	Position store.Position
	Began    time.Time // in the store's time; zero if none is running
	Done     time.Time // when the last complete one began
	// Window is the longest window of expires that the next query may read, in whole
	// milliseconds; zero if none was read yet.
	Window time.Duration
	// Refused says that a visit has met entities that the store refuses, and has read on, but
	// has not taken stock yet. It is of ranges of sealed generations.
	Refused bool
}

// Stock is what is left in a range of a sealed generation, as a read from the start found
// it that began after the last writer had committed.
type Stock struct {
	Next     time.Time // when the first survivor expires; zero if there is no survivor
	Suspects bool      // it has well-formed entries that expired implausibly long ago
	Refused  bool      // it has entities that the store refuses to delete or carry
	Emptied  time.Time // since when no well-formed entry is left, in the store's time; zero if one is left
}

// A Lease says who holds a range.
type Lease struct {
	Owner    string    // empty if nobody holds it
	Epoch    int64     // of the owner's heartbeat, from 1; the claim ends with it
	Token    int64     // rises with each claim, and is never reset
	Released time.Time // when the last holder began to give it back; that took effect within a lease
	// Renewals and Length are of records of schema 1, which have no epoch: their holder
	// renewed each lease in the record itself.
	Renewals int64
	Length   time.Duration
}

func (c Cursor) encode() store.Record {
	return store.Record{
		Sort: store.CursorRecord, Key: c.Key(), Target: c.Target, Revision: c.Revision,
		Fields: store.Fields{
			"schema":              int64(Schema),
			"namespace":           c.Namespace,
			"generation":          int64(c.Generation),
			"shard":               c.Shard,
			"kind":                c.Kind,
			"property":            c.Property,
			"layout":              c.Layout,
			"opened":              store.FormatTime(c.Opened),
			"position":            formatValue(c.Position.Value),
			"position_key":        c.Position.Key,
			"swept":               store.FormatTime(c.Swept),
			"deleted":             c.Deleted,
			"rewind_position":     formatValue(c.Rewind.Position.Value),
			"rewind_position_key": c.Rewind.Position.Key,
			"rewind_began":        store.FormatTime(c.Rewind.Began),
			"rewind_done":         store.FormatTime(c.Rewind.Done),
			"rewind_window_ms":    c.Rewind.Window.Milliseconds(),
			"rewind_refused":      c.Rewind.Refused,
			"next_expires":        store.FormatTime(c.Stock.Next),
			"suspects":            c.Stock.Suspects,
			"refused":             c.Stock.Refused,
			"emptied":             store.FormatTime(c.Stock.Emptied),
			"rate":                c.Rate,
			"rate_used":           store.FormatTime(c.RateUsed),
			"throttled_by":        c.Throttled,
			"owner":               c.Lease.Owner,
			"epoch":               c.Lease.Epoch,
			"token":               c.Lease.Token,
			"released":            store.FormatTime(c.Lease.Released),
			"target_revision":     c.TargetRevision,
		},
	}
}

func decode(rec store.Record) (Cursor, error) {
	key := strconv.Quote(rec.Key)
	f := rec.Fields.Reader("cursor record " + string(rec.Sort) + " " + key)
	if err := f.Schema(Schema, "cursor record "+key, ErrNewer); err != nil {
		return Cursor{}, err
	}
	c := Cursor{
		ID: ID{Target: rec.Target, Namespace: f.Text("namespace"),
			Generation: int(number(f, "generation", expirykey.MaxGeneration)), Shard: f.Text("shard")},
		Scope: Scope{Kind: f.Text("kind"), Property: f.Text("property"), Layout: f.Text("layout"),
			Opened: f.Time("opened")},
		Position: readPosition(f, "position"),
		Swept:    f.Time("swept"),
		Deleted:  number(f, "deleted", math.MaxInt64),
		Rewind: Rewind{
			Position: readPosition(f, "rewind_position"),
			Began:    f.Time("rewind_began"),
			Done:     f.Time("rewind_done"),
			Window:   millis(f, "rewind_window_ms"),
			Refused:  f.Bool("rewind_refused"),
		},
		Stock: Stock{Next: f.Time("next_expires"), Suspects: f.Bool("suspects"), Refused: f.Bool("refused"),
			Emptied: f.Time("emptied")},
		Rate:      f.Float("rate"),
		RateUsed:  f.Time("rate_used"),
		Throttled: f.Text("throttled_by"),
		Lease: Lease{
			Owner:    f.Text("owner"),
			Epoch:    number(f, "epoch", math.MaxInt64),
			Token:    number(f, "token", math.MaxInt64),
			Released: f.Time("released"),
			Renewals: number(f, "renewals", math.MaxInt64),
			Length:   millis(f, "lease_ms"),
		},
		TargetRevision: number(f, "target_revision", math.MaxInt64),
		Revision:       rec.Revision,
	}
	if !(c.Rate >= 0) || math.IsInf(c.Rate, 1) {
		f.Fail("rate", "%v is not a valid rate", c.Rate)
	}
	if err := f.Err(); err != nil {
		return Cursor{}, err
	}
	// A record under another key than its own could be swept under two names.
	if c.Key() != rec.Key {
		return Cursor{}, fmt.Errorf("cursor record %s %q says that it belongs to %q", rec.Sort, rec.Key, c.Key())
	}
	return c, nil
}

// number reads an integer between 0 and most. A record with any other number was edited by
// hand, and must not become a lease or a count.
func number(f *store.FieldReader, name string, most int64) int64 {
	n := f.Int(name)
	if n < 0 || n > most {
		f.Fail(name, "%d is not between 0 and %d", n, most)
		return 0
	}
	return n
}

// millis reads a length of time in milliseconds.
func millis(f *store.FieldReader, name string) time.Duration {
	return time.Duration(number(f, name, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}

func formatValue(v store.Value) string {
	if v.Type == store.Instant {
		return store.FormatTime(v.Time)
	}
	return v.Text
}

func readPosition(f *store.FieldReader, name string) store.Position {
	p := store.Position{Value: readValue(f, name), Key: f.Text(name + "_key")}
	if p.Value.Type == store.Missing && p.Key != "" {
		f.Fail(name, "it is missing, but there is a key: %q", p.Key)
	}
	return p
}

// readValue tells an instant from an expiry key by its form, since the record
// may have been written for another layout.
func readValue(f *store.FieldReader, name string) store.Value {
	s := f.Text(name)
	if s == "" {
		return store.Value{}
	}
	if t, err := time.Parse(store.TimeLayout, s); err == nil {
		return store.InstantValue(t)
	}
	return store.TextValue(s)
}
