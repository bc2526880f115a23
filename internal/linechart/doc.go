// Package linechart draws one line over time as an SVG, for a plan that is kept in a file.
//
// The invariant is that the picture is well-formed XML whatever its texts hold, and that it needs
// nothing from elsewhere: no script, no font, no style sheet. It has the colour of the text around
// it, so that it can be read on light and on dark ground.
//
// Limits: one line, which begins at zero on both axes.
package linechart
