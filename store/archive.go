package store

import (
	"context"
	"time"
)

// An Archiver is a store that shows whole entities before it deletes them, and inserts them again.
//
// A [Query] with an Archive asks for the former: then Dispose, Settle, DeleteBelow and DeleteOrphans give it all that
// they are about to delete, as it is when it is deleted, and delete nothing if Keep fails. So what changes after it
// was kept is not deleted by that call. No lock that other callers or an application need is held while Keep runs,
// but those of a transaction. A call may read less than it was asked to delete, about [CopyBytes]: then the other
// ops stay Unknown, and the call may be made again with these. Nothing that is deleted is missing from what was
// kept; what was kept is not always deleted.
type Archiver interface {
	// Archives reports whether the store can do it for the target; else why not.
	Archives(t Target) error

	// Fetch reads entities of one namespace by their keys, of any kind, as they were at an instant; the
	// zero time is now. The result has a copy for each key, in the same order, without Data where there
	// was none. It reads no more than about CopyBytes: the result may be shorter than the list, but is not
	// empty. An instant of which the store no longer knows is an [ErrInvalid], and one to a fraction of a
	// minute that it cannot read an ErrUnsupported.
	Fetch(ctx context.Context, t Target, namespace string, keys []string, at time.Time) ([]Copy, error)

	// Insert writes entities that do not exist, in order, and sets the Outcome of each: [Inserted]; [Kept] if
	// an entity with that key exists, whatever it holds; or Unknown. It never changes what exists. A list
	// of more than MaxPage, or with a key twice, is an [ErrInvalid]. Insert may write less than it was
	// asked to, bounded by bytes; the others stay Unknown, and the call may be repeated with these.
	Insert(ctx context.Context, t Target, namespace string, list []Insertion) error
}

// CopyBytes is about how many bytes of whole entities one call reads or writes: requests and replies of the
// services have at most 10 MiB, and those of their emulators 4.
const CopyBytes = 3 << 20

// A Copy is a whole entity.
type Copy struct {
	Key string // the driver's canonical text, as in an [Entry] or a [Descendant]
	// Data is the entity in the encoding of its service, in one line: protojson of google.datastore.v1.Entity
	// or google.firestore.v1.Document; of the embedded store a line as [Dumper] and [Writer] have it.
	Data []byte
	// Version tells apart what an entity holds at different times: its update time in native mode, its version
	// in Datastore mode, nothing on the embedded store.
	Version          string
	Created, Updated time.Time // zero if the store does not tell
	Expiry           Value     // what the target's property holds
}

// An Archive takes copies of entities that are about to be deleted. It is a pointer, so that queries can be
// compared.
type Archive interface {
	// Keep returns once the copies are safe. It may block for seconds, and keeps neither the list nor the Data.
	Keep(ctx context.Context, list []Copy) error
}

// An Insertion is a copy that is to be inserted, and what became of it.
type Insertion struct {
	Copy
	// To is what the target's property holds afterwards, instead of what the copy does; Missing: it lacks it.
	// Entities of other kinds than the target's, and those with AsIs, keep what they hold.
	To      Value
	AsIs    bool
	Outcome Outcome
	// Stripped names what the store refuses to take back, and was left out, in words; empty if nothing was.
	Stripped string
}

// Known returns how many of the ops have an outcome.
func Known(ops []Op) (n int) {
	for i := range ops {
		if ops[i].Outcome != Unknown {
			n++
		}
	}
	return n
}
