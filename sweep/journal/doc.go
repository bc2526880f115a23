// Package journal is the log of one target, in which each cause of failures stands once when
// it begins and once when it is over, however many ranges and calls fail for it.
//
// A cause that may pass by itself is told of only once it lasts. What is remembered is
// bounded, whatever the number of ranges, namespaces and errors.
package journal
