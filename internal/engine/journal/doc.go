// Package journal is the log of one target. It logs each cause of failures once when it begins
// and once when it is over, however many ranges and calls fail because of it.
//
// A cause that may pass by itself is logged only if it lasts. What is remembered is
// bounded, whatever the number of ranges, namespaces and errors.
package journal
