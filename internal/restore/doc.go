// Package restore inserts what was archived again.
//
// The invariant is that it only ever inserts: what exists stays as it is, and so does what others
// write meanwhile. Of several copies of an entity the newest is inserted, and of what lies below an entity nothing
// before the entity itself.
//
// A restore keeps a record with its order and with how far it has come. One that is killed is continued by the next
// run with the same order; it repeats at most a batch, whose entities then exist. Only one restore of a target goes
// on at a time: it holds the record by a lease.
//
// Limits: a plan needs up to 200 bytes of memory for each archived copy, and takes no more than 5,000,000. Objects are
// read once for the plan, and once more for each depth at which their entities lie. docs/restore.md describes the
// command, docs/records.md the record.
package restore
