// Package index counts, reads and judges what the index of a target's expiry property holds,
// as anybody may: it claims nothing and writes nothing.
package index
