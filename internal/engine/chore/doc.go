// Package chore does what a target needs in addition to the work on its ranges: it opens, closes and
// retires generations, looks around, passes over what is sealed, and forgets records.
//
// A generation retires only by records that were read after a plan had listed it, and by
// compare-and-set of the target record. A chore that fails is tried again later; no range
// waits for one.
package chore
