// Package index counts, reads and judges what the index of a target's expiry property holds.
// It claims no range and writes nothing.
package index
