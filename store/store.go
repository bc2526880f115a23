// Package store is the contract between the sweep and the databases it works
// on. Its drivers are store/embedded, store/datastore and store/firestore;
// store/storetest holds what each of them must do, as a suite of tests.
//
// The invariant that a driver keeps is that [Store.Dispose] and [Store.Settle]
// remove or carry an entity only while its expiry is what the caller has seen:
// a writer that changed it in between wins. The caller decides everything else: what
// is due, in which order, at what rate.
//
// Limits: a page holds at most [MaxPage] entries, because the services commit
// at most that many writes at once.
package store

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"
)

// MaxPage is the most entries a page may hold: 500 writes are what one commit
// of Firestore in either mode takes.
const MaxPage = 500

// A Store is implemented by each driver, and is safe for concurrent use.
//
// Every error wraps one of the sentinels of this package or is the context's.
// No method repeats a call that the service refused: a caller that paces itself
// must see the push-back. After an error that leaves the outcome of a write unknown
// ([ErrUnavailable], [ErrDeadline], a context's) the caller may repeat the call:
// every method is safe to repeat.
type Store interface {
	// Scan fills page with the entries of q in the order of (value, key), at
	// most q.Limit of them, and says whether there are more. It overwrites what
	// the page held, and reuses its memory. A page may be empty or short and
	// still have more after it. An entity whose property is a list appears once
	// for each element in q's bounds, or not at all if the store's index keeps
	// lists apart from single values.
	Scan(ctx context.Context, q Query, page *Page) error

	// Dispose deletes the entities of the batch whose expiry still is what the
	// scan saw, or carries them if the op has a To. A carry sets the expiry
	// property to To and changes nothing else; it checks the stored expiry, whatever the
	// target's Guard. Dispose sets the Outcome of each op. Ops may fail one by one or
	// all together. An Outcome is valid even if Dispose also returns an error.
	// Dispose starts no write once ctx is done.
	Dispose(ctx context.Context, b *Batch) error

	// Settle reads the one entity, asks decide about the expiry that it has
	// now, and does what decide says, all in one transaction: a change in
	// between makes it fail with ErrContention. decide may be called again when
	// the driver reads again, and must not block.
	Settle(ctx context.Context, q Query, e Entry, decide func(Value) Verdict) (Outcome, error)

	// Load reads a page of the reaper's own records, in the order of their keys,
	// together with the store's time. [LoadAll] reads all pages.
	Load(ctx context.Context, q RecordQuery) (Records, error)

	// Save writes (or, where r.Fields is nil, removes) a record if the revision
	// in the store is still prev; "" stands for a record that does not exist.
	// Otherwise it fails with ErrConflict. Finding r.Revision already there is
	// success: that is what a repeated call sees. A removed record leaves no
	// revision, so removing what does not exist is success too.
	Save(ctx context.Context, r Record, prev string) error
}

// A Counter is a store that can count without reading entities.
type Counter interface {
	// Count returns how many entities of the target carry its property with a
	// value in the span, but stops counting at upTo (> 0): the result is then
	// upTo, and there may be more. Zero or less counts all. Missing and null
	// values are in no span. If the target has a ShardProperty, Count sees only
	// entities that have that property, too. A point that no index can contain is
	// an ErrInvalid. Count bills a read for every 1,000 index entries counted, and
	// at least one for each query that it sends.
	Count(ctx context.Context, t Target, namespace string, s Span, upTo int64) (int64, error)

	// Holds reports whether the target holds any entity at all, whether or not
	// it carries the property.
	Holds(ctx context.Context, t Target, namespace string) (bool, error)
}

// A Namespacer is a store with namespaces.
type Namespacer interface {
	// Namespaces lists all namespaces that hold anything, the default one ("")
	// included if it does, in order.
	Namespaces(ctx context.Context) ([]string, error)
}

// An Exclusive store can be open in one process only.
type Exclusive interface {
	// Opening returns a text that no other opening of the store has ever
	// returned. Leases of other openings are void.
	Opening() string
}

// A Writer is a store that entities can be written to from NDJSON.
type Writer interface {
	// Put writes whole entities, at most MaxPage, all or none, replacing what
	// was there. No key may appear twice. It returns once they are durable or,
	// on the embedded store, in the log: see its Flush.
	Put(ctx context.Context, t Target, namespace string, entities []Entity) error
}

// A Dumper is a store whose entities can be listed.
type Dumper interface {
	// Dump yields the entities of the target in key order, and nothing after a
	// non-nil error.
	Dump(ctx context.Context, t Target, namespace string) iter.Seq2[Entity, error]
}

// A Keyer is a store that converts between an entity's key and its id.
type Keyer interface {
	// ID returns the id in the canonical text of a key: a name, or the decimal
	// digits of a number. The entity's shard is a hash of its id.
	ID(key string) (string, error)

	// Key returns the canonical text of the key of an entity with the Name, or
	// Number, and the Parent of e.
	Key(t Target, namespace string, e Entity) (string, error)
}

// A Pressured store reports when writes come faster than it can compact.
type Pressured interface {
	// Pressed reports whether deletes should wait, so that other writers need
	// not. It is cheap, and called before each write.
	Pressed() bool
}

// A Dropper is a store that can forget a whole span of a target at once.
type Dropper interface {
	// Drop makes sure that no well-formed entry is in the span [from, to) of
	// the target's index, replaces the span's tombstones with a single one, and
	// refuses writes into the span from then on. If it finds a well-formed entry,
	// it fails with ErrConflict and changes nothing.
	Drop(ctx context.Context, t Target, from, to string) error

	// Dropped returns the end of the last span, in the order of texts, that was ever
	// dropped from the target's index, whatever the target's name was then; it is empty
	// if none was.
	Dropped(ctx context.Context, t Target) (to string, err error)
}

// A Guarder is a store with more than one way to make deletes conditional.
type Guarder interface {
	// Guard returns how deletes of the target are made conditional now. It sends
	// nothing, and its answer may change as the driver learns about the database.
	Guard(t Target) Guarding
}

// A Guarding is how the deletes of a target are made conditional.
type Guarding struct {
	Guard Guard  // GuardLookup or GuardQuery
	Why   string // the reason for GuardLookup, in words
	Most  int    // the most ops that a batch may have: up to MaxPage
}

// A Target is what a driver must know of one kind, collection or table under
// expiry. It is immutable.
type Target struct {
	Name     string // as in the configuration and in records
	Kind     string // Datastore kind, Firestore collection path, embedded table
	Group    bool   // Firestore: Kind is a collection group
	Property string // the indexed property that says when an entity expires
	// ShardProperty, if not empty, comes before Property in the scanned index, and
	// each query names one of its values.
	ShardProperty string
	Type          Type  // of a well-formed value: Text or Instant
	Guard         Guard // Datastore: how a delete is made conditional; "" stands for GuardAuto
	SingleValued  bool  // the owner promises that Property is always one plain text: never a list, blob or map
}

// A Guard is how a delete in Datastore mode is made conditional. Other stores
// have one way of their own and ignore it. There is no way to delete without a
// check.
type Guard string

const (
	GuardAuto   Guard = "auto"   // query for texts that are SingleValued, if the database can do it; else lookup
	GuardLookup Guard = "lookup" // read the batch's entities in the deleting transaction
	GuardQuery  Guard = "query"  // read the batch's part of the index in it; needs texts that are SingleValued
)

// A Type is the type of an expiry property's value.
type Type uint8

const (
	Missing Type = iota // no property, or null: the entity never expires
	Text                // a string, as expiry keys are
	Instant             // a timestamp
	List                // an array of values of any type
	Other               // anything else: a number, a boolean, a map, …
)

// A Value is the value of an expiry property.
type Value struct {
	Type Type
	Text string    // if Type is Text; if it is List or Other, the value as JSON, for people and for Put
	Time time.Time // if Type is Instant: UTC, microseconds
}

// TextValue returns the value that holds s.
func TextValue(s string) Value { return Value{Type: Text, Text: s} }

// InstantValue returns the value that holds t, to the microsecond.
func InstantValue(t time.Time) Value {
	return Value{Type: Instant, Time: t.UTC().Round(0).Truncate(time.Microsecond)}
}

// IntegerValue returns the value that holds n. A shard property may have such values.
func IntegerValue(n int64) Value { return Value{Type: Other, Text: strconv.FormatInt(n, 10)} }

// Integer returns the integer that the value holds, if it holds one.
func (v Value) Integer() (n int64, ok bool) {
	if v.Type != Other {
		return 0, false
	}
	n, err := strconv.ParseInt(v.Text, 10, 64)
	return n, err == nil
}

// String returns the value in a form for people: an instant in TimeLayout, or the text.
func (v Value) String() string {
	if v.Type == Instant {
		return v.Time.UTC().Format(TimeLayout)
	}
	return v.Text
}

// Compare orders two values of one type, both texts or both instants, as every
// store's index does. A Missing value is before all others.
func (v Value) Compare(w Value) int {
	if v.Type == Missing || w.Type == Missing {
		return cmp.Compare(v.Type, w.Type)
	}
	return cmp.Or(v.Time.Compare(w.Time), strings.Compare(v.Text, w.Text))
}

// A Position is a place in an index: after the entry with this value and key
// or, if Key is empty, before the first entry with this value. The zero
// Position is before everything.
type Position struct {
	Value Value
	Key   string
}

// IsZero reports whether the position is before everything.
func (p Position) IsZero() bool { return p == Position{} }

// A Query asks for a span of one namespace of a target's index.
type Query struct {
	Target    Target
	Namespace string
	Shard     Value    // of the target's ShardProperty, if it has one: a text or an integer
	Lo, Hi    Value    // first and last value wanted, both inclusive
	After     Position // go on from here; not before Lo
	Next      any      // the Next of the page before, if the same query read it; it then replaces After
	Limit     int      // most entries wanted, 1 to MaxPage
	Archive   Archive  // of an [Archiver]: it is given whole entities before they are deleted; may be nil
}

// An Entry is one row of a target's index.
type Entry struct {
	Key   string // the driver's canonical text for the entity's key, unique in target and namespace
	Value Value  // as the index shows it; List if the driver can tell from the index alone
	At    Value  // if Value is a List: the element that puts the entry at this place in the index
	Ref   any    // for the driver alone
	// Written is when the entity was last written, if Scan or Dispose learnt it on the way.
	Written time.Time
}

// Position returns the place right after the entry.
func (e Entry) Position() Position {
	if e.At.Type != Missing {
		return Position{e.At, e.Key}
	}
	return Position{e.Value, e.Key}
}

// A Page is what one Scan read.
type Page struct {
	Entries     []Entry
	More        bool  // there may be more entries after the last one
	Next        any   // the driver's own cursor behind this page; nil if the next query needs a Position
	SteppedOver int64 // deleted points that the scan stepped over, or UnknownSteps
}

// UnknownSteps is the SteppedOver of a store that cannot tell.
const UnknownSteps int64 = -1

// A Batch is a set of entries of one page that are to be deleted or carried.
type Batch struct {
	Query       Query // the one that found them, with its After, Next and Limit
	Ops         []Op  // in page order
	DryRun      bool  // read and compare, but write nothing: Deleted then means "would be deleted"
	SteppedOver int64 // set by Dispose: deleted points that the check stepped over, or UnknownSteps
}

// An Op is one entry to delete or to carry, and what became of it.
type Op struct {
	Entry   Entry
	To      Value // the expiry that a carried entity gets; Missing: it is deleted
	Outcome Outcome
	Now     Value // if Known is true: the expiry that the entity had when it was last looked at
	Known   bool  // Now is set: a driver does that with the outcome Changed
	Premise Premise
}

// Held returns the expiry that the entity is known to have had last.
func (op *Op) Held() Value {
	if op.Known {
		return op.Now
	}
	return op.Entry.Value
}

// IsCarry reports whether the op carries its entry, instead of deleting it.
func (op *Op) IsCarry() bool { return op.To.Type != Missing }

// A Premise is a second property of an entity that a delete rests on, and what it held when the
// delete was decided: if it holds something else by then, the entity has changed. The zero Premise
// asks for nothing. All premises of a batch are of one property.
type Premise struct {
	Property string
	Value    Value
}

// Holds reports whether the premise is still true, by what the property holds now.
func (p Premise) Holds(now Value) bool { return p.Property == "" || p.Value.Equal(now) }

// PremiseProperty returns the property that the premises of the batch are of; empty without any.
func (b *Batch) PremiseProperty() string {
	for i := range b.Ops {
		if p := b.Ops[i].Premise.Property; p != "" {
			return p
		}
	}
	return ""
}

// An Outcome is what became of an entity that was to be disposed of.
type Outcome uint8

const (
	Unknown  Outcome = iota // not tried, or nobody knows
	Deleted                 // removed by this call, or by an earlier try of it
	Gone                    // it did not exist any more
	Changed                 // the entity or its expiry changed since the scan; it was left alone
	Kept                    // Settle only: decide returned Keep
	Carried                 // its expiry is the op's To, by this call or by an earlier try of it
	Inserted                // Insert only: written by this call
)

// A Verdict is what is to be done with an entity: [Keep], [Delete] or [CarryTo].
type Verdict struct {
	act uint8
	to  Value
}

// The verdicts without an argument.
var (
	Keep   = Verdict{}
	Delete = Verdict{act: 1}
)

// CarryTo is the verdict that an entity's expiry becomes v.
func CarryTo(v Value) Verdict { return Verdict{act: 2, to: v} }

// To returns the expiry that a carried entity gets.
func (v Verdict) To() (to Value, carry bool) { return v.to, v.act == 2 }

// A Span is a part of a target's index, [From, To), with values of any type in
// the index's own order. A zero bound is open, but null is in no span.
type Span struct {
	From, To Point
}

// A Point is a place between entries of a target's index: before the first one
// with this value or, with After, behind the last one. If the target has a
// ShardProperty, the point lies among the entries of one Shard; a point without a
// Value is before, or behind, all entries of that shard.
type Point struct {
	Shard Value
	Value Value
	After bool
}

// Between returns the span of texts [from, to), of a target without a
// ShardProperty. An empty text leaves that side open.
func Between(from, to string) Span {
	var s Span
	if from != "" {
		s.From.Value = TextValue(from)
	}
	if to != "" {
		s.To.Value = TextValue(to)
	}
	return s
}

// An Entity is what load writes and dump reads.
type Entity struct {
	Name      string // empty if the id is a number
	Number    int64
	Parent    string // the driver's canonical text for the ancestors' key; empty at the root
	Namespace string // set by Dump
	Expiry    Value  // the expiry property
	Shard     Value  // the target's ShardProperty, if it has one: a text, an integer or Missing
	Data      []byte // the other properties, as a JSON object; nil stands for {}
}

// A RecordSort is a sort of the reaper's own records.
type RecordSort string

const (
	TargetRecord RecordSort = "ReaperTarget" // one for each target, its key the target's name
	CursorRecord RecordSort = "ReaperCursor" // one for each range
	SweepRecord  RecordSort = "ReaperSweep"  // what was done: see package history
	WorkerRecord RecordSort = "ReaperWorker" // the heartbeat of one process for one target
	SealRecord   RecordSort = "ReaperSeal"   // the last pass over one sealed generation
	BudgetRecord RecordSort = "ReaperBudget" // what may be deleted of one target, by hour of expiry
	AdoptRecord  RecordSort = "ReaperAdopt"  // the adoption of a target, and each part of its keys

	RestoreRecord RecordSort = "ReaperRestore" // the last restore of a target
)

// A Record is one of the reaper's own, kept in the store's default namespace.
type Record struct {
	Sort     RecordSort
	Key      string
	Target   string // the target's name
	Revision string // never used twice for one record; see NewRevision
	// Fields has string, int64, float64 and bool values, and []Fields for
	// nested ones. Instants are strings in TimeLayout. Nil means no record.
	Fields Fields
}

// Fields are the named values of a record.
type Fields map[string]any

// TimeLayout is the form of instants in records: UTC, microseconds, fixed width,
// so that the order of the strings is the order of time.
const TimeLayout = "2006-01-02T15:04:05.000000Z"

// MaxRecords is the most records that one Load reads, and the most keys that it
// looks up: a page of cursor records stays below the 4 MiB that a message of gRPC
// may have, and below the 1,000 keys that one lookup of Datastore mode takes.
const MaxRecords = 500

// A RecordQuery asks for records of one sort that belong to a target: those with
// the given keys, if there are any, or else those between two keys.
type RecordQuery struct {
	Sort   RecordSort
	Target string
	Keys   []string // at most MaxRecords, none twice; keys without a record are left out of the answer
	After  string   // exclusive; "" is before all keys
	Before string   // exclusive; "" is behind all keys
	Limit  int      // most records wanted, up to MaxRecords; 0 means MaxRecords
}

// Most returns how many records the answer may have.
func (q RecordQuery) Most() int {
	if len(q.Keys) > 0 {
		return len(q.Keys)
	}
	if q.Limit <= 0 {
		return MaxRecords
	}
	return min(q.Limit, MaxRecords)
}

// Check returns an error that wraps ErrInvalid for a query that no store answers.
func (q RecordQuery) Check() error {
	switch {
	case q.Sort == "" || q.Target == "":
		return fmt.Errorf("%w: records have a sort and a target", ErrInvalid)
	case len(q.Keys) > MaxRecords:
		return fmt.Errorf("%w: %d keys at once; at most %d", ErrInvalid, len(q.Keys), MaxRecords)
	case len(q.Keys) > 0 && (q.After != "" || q.Before != "" || q.Limit != 0):
		return fmt.Errorf("%w: records are asked for by keys or by bounds, not both", ErrInvalid)
	}
	return nil
}

// Records is what Load read.
type Records struct {
	List []Record
	More bool      // there may be more records behind the last one
	Now  time.Time // the store's time at some instant between call and return, UTC
}

// A Loader is the part of a Store that reads records.
type Loader interface {
	Load(ctx context.Context, q RecordQuery) (Records, error)
}

// LoadAll reads all records that a query asks for, page by page, and gives each page
// to use. Each page is as the store has it when the page is read.
func LoadAll(ctx context.Context, s Loader, q RecordQuery, use func(Records) error) error {
	for {
		page, err := s.Load(ctx, q)
		if err != nil {
			return err
		}
		if err := use(page); err != nil || !page.More || len(page.List) == 0 {
			return err
		}
		q.After = page.List[len(page.List)-1].Key
	}
}
