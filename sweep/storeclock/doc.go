// Package storeclock tells the store's time, by what its responses say, and never runs ahead
// of it.
//
// What a Clock takes for due is due, though the local clock runs too fast, stands still while
// the machine sleeps, or is set. One that is too far off is refused: Check fails until a
// response has shown that it is right again.
package storeclock
