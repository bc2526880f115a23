// Package storeclock tells the store's time by the store's responses, and never runs ahead of it.
//
// Whatever is due by a [Clock] is due in the store's time, even if the local clock runs too
// fast, stops while the machine sleeps, or is set. A local clock that is too far off is refused:
// Check fails until a response has shown that it is right again.
package storeclock
