// Package embedded is a [store.Store] in a local directory, on the Pebble
// key-value engine: a real log-structured store, whose deletes leave tombstones
// as those of the services do. One process at a time can have it open.
//
// # Rows
//
//	entity  'e' kind key                 the expiry properties' names and values, and the data
//	index   'i' kind property value key  empty; or a mark: one element of a list, one of two properties
//	record  'r' sort target key          the reaper's own records, as JSON
//	dropped 'd' kind property from to    a span that Drop closed
//
// The first invariant is that entity and index never differ: an entity whose
// expiry is a plain value has exactly one unmarked index row, one whose expiry
// is a list has a marked row for each distinct element, and one without an
// expiry has none. An entity that was put with one property and adopted by another
// has rows for both, which are marked. All are written in one batch, under the write lock. So
// Dispose can check the index row alone, and delete an entity without reading it.
//
// The second invariant is about crashes. Deletes are committed without waiting
// for the disk, but records wait for it. Both go through one write-ahead log, of
// which a crash keeps a prefix. So everything written before a surviving record
// has survived too, and a durable cursor is never past a lost delete. What Put and
// Dispose wrote is durable after the next Save, Flush or Close.
//
// # Order
//
// Within a table (a kind) and property the index is ordered by value and then
// by key. Values order as Firestore's do: false, true, numbers, instants,
// strings, and then everything else. Null is not indexed. Numbers order as
// 64-bit floating point, ties by their text; strings and keys order bytewise.
// Numeric keys come before names. A key's text ([store.Entry].Key) is the
// decimal number, or the quoted name.
//
// # Limits
//
// An Archive is shown lines like those of load and dump, which hold all that an entity's row does, so that Insert
// restores each byte of it but line breaks in its data. Of earlier instants the store knows nothing.
//
// There is only the default namespace, and no ancestors. Only the expiry
// property that an entity was put with is indexed, and one that it got by adoption: a
// target that names another property finds nothing. Names and indexed strings have at most 1,500 bytes.
//
// If the disk refuses a write, or the read of a table, every later call fails with [store.ErrFailed], and
// goroutines of the engine may stay blocked. The directory stays locked until the
// process ends, because the engine may still be working there. The next opening
// recovers what the log holds.
//
// An opening reads the log and the list of tables before it writes anything;
// damage within a table shows when the table is read.
package embedded
