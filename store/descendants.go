package store

import (
	"context"
	"slices"
)

// A Descender is a store whose entities may have descendants: Datastore entities with an ancestor, documents
// in subcollections below one. A descendant may outlive what is above it, and be below something that never
// existed.
type Descender interface {
	// Descendants fills page with descendants of an entity, at any depth and of any kind, the entity itself
	// left out, at most q.Limit of them, in an order in which each comes before those below it. A page that
	// has more after it is not empty. It bills a read for each; or, if the store can list keys alone, one for
	// the query, and one for each that is of a kind of q.Owners.
	Descendants(ctx context.Context, q DescendantQuery, page *Descendants) error

	// DeleteBelow deletes descendants of one entity, all or none, while isDue says yes to the expiry that
	// the entity has in the same transaction: a change in between makes it fail with [ErrContention]. A
	// descendant that is gone already is deleted, and one whose Premise is no longer true is another such
	// change; one that Stays has only to have that. The outcome is that of the list: [Deleted]; or, if nothing
	// was deleted, [Kept] where isDue says no, and [Gone] where the entity does not exist. isDue may be called
	// again when the driver reads again, and must not block. More than MaxPage-1 descendants are an
	// [ErrTooLarge], and a key that is not below the entity is an [ErrInvalid].
	DeleteBelow(ctx context.Context, q Query, e Entry, list []Descendant, isDue func(Value) bool) (Outcome, error)
}

// A DescendantQuery asks for descendants of one entity of a target.
type DescendantQuery struct {
	Target    Target
	Namespace string
	Key       string   // of the entity, as an [Entry] has it
	After     string   // the key of a descendant to go on behind; "" is before all
	Limit     int      // most descendants wanted, 1 to MaxPage
	Owners    []Target // targets whose own entities are told apart: see [Descendant]
}

// A Descendant is an entity below another one.
type Descendant struct {
	Key string // the driver's canonical text for its key, unique in the namespace, ancestors included
	// Owner is the name of the one of q.Owners whose kind it is of and whose property it carries, so that it
	// has an expiry of its own; [OwnerReaper] if it is of a kind of the reaper's own records; else "".
	Owner string
	// Premise is what has to be true of it still when it is deleted, so that it has got no owner meanwhile, in
	// the driver's own words; empty if it is of no owner's kind.
	Premise string
	// Stays says that DeleteBelow is not to delete it, but only while its Premise is true what lies below it.
	Stays bool
	// Above says that it is above the last one of the page, or is that one, so that more may follow that lie
	// below it.
	Above bool
}

// OwnerReaper is the owner of what is of a kind of the reaper's own records. No target has this name.
const OwnerReaper = "@reaper"

// Descendants are what one query of descendants read.
type Descendants struct {
	List []Descendant
	More bool // there may be more behind the last one
}

// recordSorts are all sorts of the reaper's own records.
var recordSorts = []RecordSort{
	TargetRecord, CursorRecord, SweepRecord, WorkerRecord, SealRecord, BudgetRecord, AdoptRecord, RestoreRecord,
}

// IsRecordKind reports whether a kind, or a collection with this id, is one of the reaper's own records.
func IsRecordKind(kind string) bool { return slices.Contains(recordSorts, RecordSort(kind)) }
