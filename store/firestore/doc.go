// Package firestore is the driver for Firestore in native mode, on Google's
// generated client for the service's own protocol.
//
// The invariant is the contract's: a document is deleted or carried only while it
// is what the scan saw. A scan returns each document's update time, and every
// write demands that it still is the same. So any change, even of another field,
// keeps the document, which is then read again.
//
// # Writes
//
// A page is one BatchWrite, in which each write has a status of its own: a
// document that has changed fails only its own write. Nothing in this package
// retries: the client's own retries are switched off. A refusal by the service is
// returned as ErrPushback, ErrContention, ErrUnavailable or ErrDeadline, together
// with the outcomes of the successful writes. If a reply is lost, the repeated
// write finds its document absent or changed; the caller then counts an absent
// document as deleted.
//
// Deletes leave subcollections behind, as everywhere in Firestore. DeleteBelow deletes
// what lies below a document in a transaction that reads the document: writers of it
// wait, or make the transaction fail with ErrContention.
//
// # Archives
//
// With an Archive, documents are deleted on condition that they are as they were kept. No
// lock is held while Keep runs. Once a Dispose had an Archive, scans of its target read
// whole documents, and hold up to 64 MiB of them in memory, of which the oldest make room. A
// document that is not held is read again, such as those of the first page. How many are
// read at a time goes by the sizes of those before. Insert takes back all that the
// service gives: nothing is ever stripped.
//
// # Documents and keys
//
// A target's kind is a collection path, such as "users/u1/sessions", or the id of
// a collection group. The canonical text of a key is the document's path below
// the database. A numeric id is the service's own form of one, `__id7__`: such
// documents come from databases that once were in Datastore mode.
//
// # Indexes
//
// The automatic ascending index of the expiry property serves scans and counts of
// a collection. A collection group needs that index in group scope, which is off
// by default, and a target with a shard property the composite index (shard
// ascending, expiry ascending). `reaper indexes` prints the definitions. The
// reaper's own records need the automatic index of their field "target".
//
// # What is hidden in an index
//
// A range of texts or of timestamps holds values of that type only. Numbers,
// arrays, maps and all other values lie elsewhere: counts include them, but scans
// never return them. So a list is never taken for one of its elements.
//
// # Limits
//
// A page holds at most 500 documents. A request is limited to 10 MiB, an indexed
// text to 1,500 bytes, a document to 1 MiB; a collection whose indexed field
// rises steadily takes 500 writes a second, deletes included, and 500 for each
// value of a shard field that stands before it.
//
// # Costs
//
// In billed units: a scan is a read for each document in it, and at least one,
// though only names and expiries are transferred. A dispose is a delete for each
// document deleted, and a read for each that had changed; a dry run reads each
// again. Count is a read for every 1,000 index entries that it counts up to its
// bound, and at least one. Walk is a read for each document, and one for the empty
// page at its end; Restamp is a write for each that changes, and a read for each that
// had changed. Descendants is a read for each document, and at least one for each page;
// DeleteBelow is a read, and a delete for each descendant, also for one that is gone.
// An Archive adds a read for each document that a dispose is to delete and no scan holds,
// for each that DeleteBelow or DeleteOrphans is to delete, and one for each DeleteBelow;
// the deletes of the latter two are then of those that exist. Fetch is a read for each
// key; Insert is a write for each document that did not exist.
//
// # Databases and emulators
//
// The default database is called "(default)". If FIRESTORE_EMULATOR_HOST is
// set, the driver connects there without credentials, as all of Google's clients
// do; [DB.Endpoint] says so.
package firestore
