package plan

import (
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// Rules are the part of a target's configuration that decides what is due, and
// when. They are immutable.
type Rules struct {
	Target      string
	Scope       cursor.Scope      // of its cursors, without Opened, which is each generation's
	Form        layout.Form       // of a well-formed expiry
	ShardValues []store.Value     // of the shard property, if there is one
	Generations bool              // the layout has generations in addition to the nursery
	Policy      generation.Policy // Every is 0 if the layout has none
	Retention   time.Duration     // kept this long past expires
	MaxAge      time.Duration     // an expiry older than this before the horizon is suspect
	Rewind      time.Duration     // how often a range is read from its start
	Namespaces  []string          // as configured: names, or [cursor.AllNamespaces]
	// ReadSince asks for a read of each range from its start that began then or later,
	// whatever is due; zero asks for none.
	ReadSince time.Time
}

// ID returns the name of a range's cursor record.
func (r Rules) ID(rng shardquery.Range) cursor.ID {
	return cursor.ID{Target: r.Target, Namespace: rng.Namespace, Generation: rng.Generation, Shard: rng.ShardName()}
}

// auditID returns the name of the cursor record of a namespace's audit.
func (r *Rules) auditID(namespace string) cursor.ID {
	return cursor.ID{Target: r.Target, Namespace: namespace, Generation: expirykey.Nursery, Shard: AuditShard}
}

// NextRewind returns when the next read of a range from its start is due. Ranges take
// turns: each has a fixed part of the period's last fifth.
func (r *Rules) NextRewind(c cursor.Cursor) time.Time {
	return c.Rewind.Done.Add(Jitter(r.Rewind, c.Key()))
}

// skipsRewinds reports whether a generation is sealed so soon that its ranges need no rewind
// before that: the read after the sealing finds everything.
func (r *Rules) skipsRewinds(number int) bool {
	every, settle := r.Policy.Every, time.Duration(r.Policy.Settle)
	return number != expirykey.Nursery && r.Generations && 0 < every && every <= 2*r.Rewind/(1+settle)
}

// A View is what was read from the store. It is replaced, never changed.
type View struct {
	Record     generation.Record
	Cursors    cursor.Table
	Seals      map[int]cursor.Seal // by generation
	Namespaces []string
	// When the read of each was sent, on this process's clock.
	RecordSent, CursorsSent time.Time
}

// CursorSent returns when the last read that covered a range's record was sent, even if it
// found no record.
func (v *View) CursorSent(id cursor.ID) time.Time {
	if sent := v.Cursors.Sent(id); !sent.IsZero() {
		return sent
	}
	return v.CursorsSent
}

// canRaiseSchema reports whether the target record has an older schema, and no process of an
// older version holds a range: it would stop at a record with the present one.
func (v *View) canRaiseSchema() bool {
	if s := v.Record.Schema; s == 0 || s >= generation.Schema {
		return false
	}
	for _, c := range v.Cursors.All() {
		if c.Lease.Owner != "" && c.Lease.Epoch == 0 {
			return false
		}
	}
	return true
}

// listsSame reports whether two views list the same generations and namespaces, and have
// the same seals.
func (v *View) listsSame(other *View) bool {
	isSame := func(a, b generation.Generation) bool {
		return a.Number == b.Number && a.Shards == b.Shards && a.Opened.Equal(b.Opened)
	}
	isSameSeal := func(a, b cursor.Seal) bool { return a.Revision == b.Revision && a.Done.Equal(b.Done) }
	isSameName := func(a, b generation.Swept) bool { return a.Name == b.Name } // whenever a deployment last named it
	return slices.Equal(v.Namespaces, other.Namespaces) && v.Record.Created.Equal(other.Record.Created) &&
		slices.EqualFunc(v.Record.Generations, other.Record.Generations, isSame) &&
		isSame(v.Record.Nursery(), other.Record.Nursery()) &&
		maps.EqualFunc(v.Seals, other.Seals, isSameSeal) &&
		slices.EqualFunc(v.Record.Namespaces, other.Record.Namespaces, isSameName)
}

// A Book is what one process remembers in addition to its view.
type Book struct {
	// Own are the cursors of claims that this process has released since the
	// view's cursors were read: newer than what the view shows of them.
	Own map[cursor.ID]cursor.Packed
	// Tried says when this process last ended a chore, with success or not, in the
	// store's time. At is not part of the key.
	Tried map[Chore]time.Time
}

// Jitter returns between four fifths of a period and all of it, always the same for the
// same name. So what is due once a period is spread over the period's last fifth.
func Jitter(period time.Duration, name string) time.Duration {
	return period - time.Duration(float64(period)/5*float64(spreadHash(name))/(1<<32))
}

// spreadHash is FNV-1a (32 bit) with the finalizer of MurmurHash3: names of shards
// differ in their last digits, which FNV alone leaves in a hash's lower bits.
func spreadHash(name string) uint32 {
	f := fnv.New32a()
	f.Write([]byte(name))
	h := f.Sum32()
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}
