// Package inspect describes the state of a target: of the whole target, of one entity, of
// its generations, or of the entities that sweeps keep.
//
// The invariant is that it changes nothing: no function here writes a record
// or an entity, claims a range, or takes from anybody's pace. So it is safe to run
// next to any number of workers, and with credentials that allow only reads.
//
// Limits: each part of a result was true at some instant during the call, but not all
// parts at the same instant. A status costs two queries for each range that is
// not at rest, and looks into those at rest only if it is asked to. An
// explanation costs a few reads, and the lives of generations a COUNT for each. A list
// of kept entities ends after a hundred thousand index entries.
package inspect
