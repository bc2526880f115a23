package main

import (
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"
)

// The picture of a live demo: how much is due above, and what is deleted below.
const (
	drawWidth, drawHeight = 960, 470
	drawLeft, drawRight   = 64, 944
	drawTop, drawMiddle   = 120, 290 // the upper part
	drawLower, drawBottom = 320, 430 // the lower part
)

// A drawing is what the template shows.
type drawing struct {
	Due, Rate      string // points of the two curves
	DueMost        string
	RateMost       string
	Held           []drawnSpan
	Marks          []drawnMark
	Times          []drawnTime
	Width, Height  int
	Left, Right    int
	Top, Middle    int
	Lower, Bottom  int
	Beats, Deleted string
	LastX          string
}

// A drawnSpan is a time during which something held the target.
type drawnSpan struct{ X, Width, Why string }

// A drawnMark is something that happened.
type drawnMark struct {
	X, Text string
	Y       int
	Anchor  string
}

// A drawnTime is a label of the axis of time.
type drawnTime struct{ X, Text string }

// drawDemo draws what a live demo has shown, as SVG.
func drawDemo(w io.Writer, samples []liveSample, marks []liveMark, beat time.Duration) error {
	if len(samples) < 2 {
		return fmt.Errorf("the demo ended too early to be drawn")
	}
	last := samples[len(samples)-1].Beat
	x := func(at int) float64 { return drawLeft + float64(drawRight-drawLeft)*float64(at)/float64(last) }
	most, fastest := int64(1), int64(1)
	rates := make([]int64, len(samples))
	for i, s := range samples {
		if most = max(most, s.Due); i > 0 {
			rates[i] = int64(float64(s.Deleted-samples[i-1].Deleted) / (float64(s.Beat-samples[i-1].Beat) * beat.Seconds()))
			fastest = max(fastest, rates[i])
		}
	}
	d := drawing{DueMost: grouped(most), RateMost: grouped(fastest), Width: drawWidth, Height: drawHeight, Left: drawLeft,
		Right: drawRight, Top: drawTop, Middle: drawMiddle, Lower: drawLower, Bottom: drawBottom,
		Deleted: grouped(samples[len(samples)-1].Deleted), LastX: number(x(last))}
	var due, rate strings.Builder
	for i, s := range samples {
		fmt.Fprintf(&due, "%s,%s ", number(x(s.Beat)),
			number(drawMiddle-float64(drawMiddle-drawTop)*float64(s.Due)/float64(most)))
		fmt.Fprintf(&rate, "%s,%s ", number(x(s.Beat)),
			number(drawBottom-float64(drawBottom-drawLower)*float64(rates[i])/float64(fastest)))
	}
	d.Due, d.Rate = strings.TrimSpace(due.String()), strings.TrimSpace(rate.String())
	d.Held = heldSpans(samples, x)
	for i, m := range marks {
		one := drawnMark{X: number(x(min(m.Beat, last))), Text: m.What, Y: 62 + 18*(i%3), Anchor: "start"}
		if x(m.Beat) > drawWidth*3/4 {
			one.Anchor = "end"
		}
		d.Marks = append(d.Marks, one)
	}
	for at := 0; at <= last; at += 15 {
		d.Times = append(d.Times, drawnTime{number(x(at)), seconds(at, beat)})
	}
	return demoPicture.Execute(w, d)
}

// heldSpans returns when something held the target.
func heldSpans(samples []liveSample, x func(int) float64) (spans []drawnSpan) {
	for i := 0; i < len(samples); i++ {
		why, from := samples[i].Held, samples[i].Beat
		for why != "" && i+1 < len(samples) && samples[i+1].Held == why {
			i++
		}
		if why != "" {
			spans = append(spans, drawnSpan{number(x(from)), number(max(2, x(samples[i].Beat)-x(from))), why})
		}
	}
	return spans
}

// number formats a coordinate.
func number(v float64) string { return fmt.Sprintf("%.1f", v) }

var demoPicture = template.Must(template.New("demo").Parse(`<svg
  xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}"
  role="img" 
  aria-label="A live demo: sessions that are due, and deletes a second">
<style>
svg { background: #fff; font: 13px system-ui, sans-serif; fill: #24292f; color: #24292f }
.title { font-size: 17px; font-weight: 600 } .soft { fill: #57606a } .line { stroke: #d0d7de; stroke-width: 1 }
.due { fill: none; stroke: #bc4c00; stroke-width: 2 } .rate { fill: none; stroke: #0969da; stroke-width: 2 }
.held { fill: #bc4c00; fill-opacity: .12 } .mark { stroke: #57606a; stroke-dasharray: 2 3 }
@media (prefers-color-scheme: dark) {
 svg { background: #0d1117; fill: #e6edf3; color: #e6edf3 } .soft { fill: #9198a1 } .line { stroke: #30363d }
 .due { stroke: #f0883e } .rate { stroke: #58a6ff } .held { fill: #f0883e; fill-opacity: .18 } .mark { stroke: #9198a1 }
}
</style>
<text class="title" x="{{.Left}}" y="30">
reaper demo --live: {{.Deleted}} expired sessions deleted, and what happened meanwhile</text>
{{range .Held}}<rect class="held" x="{{.X}}" y="{{$.Top}}" width="{{.Width}}" height="310">
<title>held: {{.Why}}</title></rect>
{{end}}{{range .Marks}}<line class="mark" x1="{{.X}}" x2="{{.X}}" y1="{{.Y}}" y2="{{$.Bottom}}"/>
<text x="{{.X}}" y="{{.Y}}" dx="{{if eq .Anchor "end"}}-4{{else}}4{{end}}" dy="4"
  text-anchor="{{.Anchor}}">{{.Text}}</text>
{{end}}<line class="line" x1="{{.Left}}" x2="{{.Right}}" y1="{{.Middle}}" y2="{{.Middle}}"/>
<line class="line" x1="{{.Left}}" x2="{{.Right}}" y1="{{.Bottom}}" y2="{{.Bottom}}"/>
<text class="soft" x="{{.Left}}" y="{{.Top}}" dx="-6" dy="4" text-anchor="end">{{.DueMost}}</text>
<text class="soft" x="{{.Left}}" y="{{.Middle}}" dx="-6" dy="4" text-anchor="end">0</text>
<text class="soft" x="{{.Left}}" y="{{.Lower}}" dx="-6" dy="4" text-anchor="end">{{.RateMost}}</text>
<text class="soft" x="{{.Left}}" y="{{.Bottom}}" dx="-6" dy="4" text-anchor="end">0</text>
<polyline class="due" points="{{.Due}}"/>
<polyline class="rate" points="{{.Rate}}"/>
<text class="soft" x="{{.Right}}" y="{{.Middle}}" dy="-8" text-anchor="end">sessions that are due</text>
<text class="soft" x="{{.Right}}" y="{{.Lower}}" dy="4" text-anchor="end">deleted a second</text>
{{range .Times}}<text class="soft" x="{{.X}}" y="450" text-anchor="middle">{{.Text}}</text>
{{end}}</svg>
`))
