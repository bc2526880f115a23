// Package datastore is the driver for Firestore in Datastore mode, on Google's
// public client.
//
// The invariant is the contract's: an entity is deleted only while its expiry
// is what the scan saw. The public client has no conditional delete, so a
// target's guard says how that is achieved, and at what price:
//
//	auto    The default: query for a text property that the target promises to be
//	        single valued, if the database can do it, else lookup. [DB.Guard]
//	        says which, and why.
//	lookup  Reads the batch's entities, of which only the expiry property is
//	        transferred, in the transaction that deletes them. One read per
//	        entity; transactions on different entities do not hinder each
//	        other. It sees the stored value, and so recognises a list, a blob
//	        or an integer that the index shows like a text or a timestamp.
//	query   Reads the batch's own part of the index in the deleting transaction,
//	        from its first entry to its last. About one read per batch, but the
//	        service locks what was read: writers of entries there wait, or
//	        make the transaction fail with ErrContention. Google's emulator
//	        refuses a second such transaction at the same time. It sees what
//	        the index shows: the property must always be one plain text, never
//	        a list, a blob or a map.
//
// # Indexes
//
// The built-in ascending index of the expiry property is all that scans, the
// query guard and counts need; the property must not be excluded from indexes.
// No composite index is needed for the layouts whose property holds an expiry
// key. The reaper's own records need the built-in index of their property
// "target".
//
// # What is hidden in an index
//
// Index rows order values by type: null, then integers and timestamps mixed,
// booleans, then texts and blobs mixed by their bytes, floats, geographical
// points, keys. A projection shows a timestamp as an integer, a blob as a text,
// and an element of a list as a plain value, once for each element within the
// bounds. Entity values and empty lists have no rows.
//
// # Limits
//
// A page holds at most 500 entries, what one commit takes. A request is
// limited to 10 MiB, a transaction to 270 s and to 60 s of idleness, an indexed
// text to 1,500 bytes. A call that is too large or too slow fails with ErrTooLarge
// or ErrDeadline, and the caller continues with fewer entries. The
// service asks for at most 500 operations a second on a new or cold key range,
// and then 50 % more every five minutes. It pushes back with ErrPushback,
// ErrContention, ErrUnavailable or ErrDeadline. Nothing in this package retries any
// of them: the client's own retries are switched off.
//
// An entity is limited to 1,048,572 bytes; reading a page of large ones with
// Dump takes that memory.
//
// # Archives
//
// With an Archive, the guard is lookup, and a lookup transfers whole entities, raw: the
// client's own form of them lacks meanings, flags and the databases of keys. They are
// kept while the transaction that read them is open, for up to 60 s without a
// call: others that write these entities wait or make it fail with ErrContention, as
// without an Archive, but for as long as Keep takes. How many are read at a time goes
// by the sizes of those before. Insert strips what the service gives but does not take
// back: some meanings of old values, and indexes of long texts; Stripped names it.
//
// # Costs
//
// In billed units: a scan is one read, or two if it resumes after an entry (first the
// rest at the same value, then later values). A dispose with lookup is one read for
// each entity and one delete for each that is deleted. With query it is one read (two
// or three if several of its entities share a value, and others do not), and one more
// for each entity that the index no longer shows. Count is a read for every 1,000
// entries that it counts up to its bound, and at least one for each of the up to three
// queries that it takes. Load is a read for each record; Dump is a read, and Put a
// write, for each entity. Walk is a read for each entity; Restamp is another one, and a
// write for each that changes. Descendants is one read for a page, and one for each
// entity of an owner's kind; DeleteBelow is a read, and a delete for each descendant,
// also for one that is gone. An Archive makes a dispose by query one by lookup, and
// DeleteBelow and DeleteOrphans a read more for each entity; their deletes are then of
// those that exist. Fetch is a read for each key; Insert is a read for each entity, and
// a write for each that did not exist.
//
// # Databases and emulators
//
// In a database of the concurrency mode optimistic with entity groups, which some
// have that were upgraded from Cloud Datastore, a transaction takes 25 groups and
// no queries without an ancestor. The driver learns that from the service's
// refusal and remembers it: auto is lookup then, a batch of more than 25 is
// ErrTooLarge, and an explicit guard query is ErrUnsupported. An entity and its
// descendants are one group.
//
// The default database is called "(default)" by the command line and the
// console, and "" by the Datastore API; both are understood here. If
// DATASTORE_EMULATOR_HOST is set, the driver connects there without
// credentials, as all of Google's clients do; [DB.Endpoint] says so.
package datastore
