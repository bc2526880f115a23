// Package inspect looks at a target and says where it stands: the whole of it, one
// entity, or its generations.
//
// The invariant is that looking changes nothing: no function here writes a record
// or an entity, claims a range, or takes from anybody's pace. So it is safe to run
// next to any number of workers, and with credentials that allow only reads.
//
// Limits: what is returned was true at some instant while the target was looked
// at, not all of it at the same one. A status costs a query for each range that is
// not at rest, and sees what was written behind a cursor only if it is asked to. An
// explanation costs a few reads, and the lives of generations a COUNT for each. A list
// of what is kept ends after a hundred thousand index entries.
package inspect
