// Package guard chooses, batch by batch, how the deletes of one target are made conditional.
//
// The store checks in either way: a wrong choice costs only reads or time.
package guard
