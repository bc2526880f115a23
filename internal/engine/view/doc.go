// Package view reads the records of one target, and writes its target record.
//
// A [Viewer] alone replaces the [plan.View] that all others use; it never changes one. The answer
// to an earlier read never undoes what was written, or read, later. Marks in the target record
// are written by compare-and-set, by a clock that was checked, and within seconds of the
// instant that they stand for.
package view
