// Package draw turns what is known of a target into what the templates of the page show: the
// map of its ranges, charts of its history, and texts.
//
// The invariant is that it is pure: it has no I/O and no clock, so that the same status looks
// the same for everybody. A map folds ranges by the worst, so none that is behind gets lost, and
// [Visible] leaves no character that would hide, or turn around, what is next to it.
//
// Limits: a map has about 480 cells, and a cell lists fifty ranges. Charts are only as exact as
// the history: a run that lasted hours is spread over them evenly.
package draw
