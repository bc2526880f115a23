package store

import (
	"context"
	"strings"
	"time"
)

// An Orphaner is a store in which entities may lie below one that does not exist, and that lists and
// deletes them. An entity of a target is above all whose keys begin with its own key and a slash.
//
// The span of a target are the keys of its entities at their usual place, and all below them: of a
// collection its documents; of a kind those entities that have no ancestor of another kind.
type Orphaner interface {
	// IsScattered reports whether the target may have entities outside of its span. It sees what
	// exists: an entity of a kind that is gone shows only in a lineage of the whole namespace.
	IsScattered(ctx context.Context, t Target, namespace string) (bool, error)

	// Roots returns some of the roots between the bounds of a query, in the order of keys and each
	// once, at most so many, evenly spaced as far as the store can tell. They part a lineage: from
	// behind one root and all below it to the next one and all below that.
	Roots(ctx context.Context, q LineageQuery, most int) ([]string, error)

	// Lineage fills page with the names of the entities of a target and of all that lies below them,
	// in the order of their keys, whatever their kinds: what is below an entity follows it at once,
	// and so it does if that entity does not exist. It overwrites what page held.
	Lineage(ctx context.Context, q LineageQuery, page *Lineage) error

	// Claim reads what is unsure in a list, at a read for each, and sets its Owner.
	Claim(ctx context.Context, q LineageQuery, list []Relative) error

	// DeleteOrphans deletes entities below one that does not exist, all or none, in one step with the
	// check that it does not: a change in between makes the call fail with [ErrContention]. What is
	// gone already counts as deleted. The outcome is that of the list: [Deleted]; or, if nothing was
	// deleted, [Kept] if the entity above exists, and [Changed] if some of the list have an owner by
	// now, which is then set. The call may be repeated with the same list, whose elements it may
	// bring up to date. An empty list asks for the entity above alone. More than MaxPage-1 are an
	// [ErrTooLarge].
	DeleteOrphans(ctx context.Context, q LineageQuery, above string, list []Relative) (Outcome, error)
}

// A LineageQuery asks for the names between two keys, in the span of a target or in the whole namespace.
type LineageQuery struct {
	Target    Target
	Namespace string
	Whole     bool     // the whole namespace (native mode: the database), and not only the target's span
	After     string   // go on behind this key; "" is before all
	Behind    bool     // behind all that lies below After, too
	Until     string   // a key; it is the last one, with all that lies below it; "" is behind all
	Limit     int      // most names wanted, 1 to MaxPage
	Owners    []Target // targets whose own entities are told apart: see [Relative]
	Archive   Archive  // of an [Archiver]: it is given whole entities before they are deleted; may be nil
}

// A Relative is an entity as a lineage shows it.
type Relative struct {
	Key  string // the driver's canonical text; see [Orphaner]
	Kind string // of the entity, or the id of its collection
	Root string // the key of the first entity of the span, or of the namespace, that it is below, or is
	Of   string // the key of the nearest entity of the target that it is below; "" if it is below no such entity
	Own  bool   // it is an entity of the target itself
	// Owner is the name of the one of q.Owners whose kind it is of and whose property it carries, so
	// that it has an expiry of its own; [OwnerReaper] if it is of a kind of the reaper's own records;
	// else "". If Unsure is true, only Claim can tell.
	Owner   string
	Unsure  bool
	Written time.Time // when it was last written; zero if the store does not tell
}

// IsBelow reports whether a key is that of something below another one. In the canonical texts of keys of
// both services it begins with the other one and a slash, which no id has in it.
func IsBelow(key, above string) bool {
	return len(key) > len(above) && key[len(above)] == '/' && strings.HasPrefix(key, above)
}

// A Lineage is what one query of names read.
type Lineage struct {
	List   []Relative
	More   bool // there may be more behind the last one
	Billed bool // each name was billed as a read, and not the query alone
}

// longestName is how many bytes a kind, a collection id, or a name in a key may have.
const longestName = 1500

// NextName returns the first name behind one, and behind no other that a key may have.
func NextName(name string) string {
	if len(name) < longestName {
		return name + "\x00"
	}
	runes := []rune(name)
	for len(runes) > 0 {
		last := &runes[len(runes)-1]
		*last++
		if *last == 0xd800 { // no UTF-8 has what lies in between
			*last = 0xe000
		}
		if next := string(runes); *last <= 0x10ffff && len(next) <= longestName {
			return next
		}
		runes = runes[:len(runes)-1]
	}
	return name // of the highest characters alone: nothing follows it
}
