package draw

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// A Chart is drawn as SVG. All places in it are in percent, so it has any width and its letters
// stay as large as they are; a table next to it says the same.
type Chart struct {
	ID, Title, Unit string
	Series          []series // for the legend
	Bars            []bar
	Marks           []chartMark
	Marked          int // events; those that are near each other share a mark
	Axes            axes
	stacked         bool // bars stand on each other: together they mean something, too
	Columns         []string
	Rows            [][]string
	Summary         string
	Empty           string // why there is nothing to see; empty if there is
}

type series struct{ Name, Class string }

type bar struct {
	X, Y, W, H string
	Class      string
	Title      string
}

type chartMark struct{ X, Letter, Class, Title string }

// Axes have the lines at some heights, and the times below.
type axes struct {
	Grid  []gridLine
	Ticks []tick
}

type gridLine struct{ Y, Label string }

type tick struct{ X, Anchor, Label string }

// The plot leaves room above for the letters of marks, and below for the time.
const plotTop, plotBottom = 12.0, 86.0

func percent(p float64) string { return fmt.Sprintf("%.2f%%", p) }

// A value is one column of buckets: how it is named, drawn and read.
type value struct {
	series
	of func(Bucket) (v float64, known bool)
}

func always(of func(Bucket) float64) func(Bucket) (float64, bool) {
	return func(b Bucket) (float64, bool) { return of(b), true }
}

var amountValues = []value{
	{series{"found due", "s-due"}, always(func(b Bucket) float64 { return b.Due })},
	{series{"deleted", "s-deleted"}, always(func(b Bucket) float64 { return b.Deleted })},
}

var operationValues = []value{
	{series{"reads", "s-reads"}, always(func(b Bucket) float64 { return b.Reads })},
	{series{"writes", "s-writes"}, always(func(b Bucket) float64 { return b.Writes })},
	{series{"deletes", "s-deletes"}, always(func(b Bucket) float64 { return b.Deletes })},
}

var moneyValues = []value{
	{series{"dollars", "s-deleted"}, func(b Bucket) (float64, bool) { return known(b.Dollars) }},
}

var delayValues = []value{
	{series{"half (p50)", "s-p50"}, func(b Bucket) (float64, bool) { return known(b.P50) }},
	{series{"99 % (p99)", "s-p99"}, func(b Bucket) (float64, bool) { return known(b.P99) }},
}

func known(v *float64) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return *v, true
}

// ChartsOf returns the charts of a span.
func ChartsOf(sp Span, list []Bucket, events []Event) []Chart {
	id := fmt.Sprintf("c%d", sp.number)
	charts := []Chart{
		newChart(id+"-amount", "Entities", "", sp, list, events, amountValues),
		newChart(id+"-operations", "Operations billed", "", sp, list, events, operationValues),
	}
	if list[0].Dollars != nil {
		charts = append(charts, newChart(id+"-money", "Money for them", "$", sp, list, events, moneyValues))
	}
	delay := newChart(id+"-delay", "Delay until deleted", "s", sp, list, events, delayValues)
	if delay.Empty != "" {
		delay.Empty = "Nothing was deleted in this time, or by a version that kept no delays."
	}
	return append(charts, delay)
}

func newChart(
	id, title, unit string, sp Span, list []Bucket, events []Event, values []value,
) Chart {
	c := Chart{ID: id, Title: title + ", " + sp.Name, Unit: unit, Columns: []string{"from (UTC)"},
		stacked: len(values) > 2}
	sums := make([]float64, len(values))
	for _, v := range values {
		c.Series = append(c.Series, v.series)
		c.Columns = append(c.Columns, v.Name)
	}
	top := 0.0
	for _, b := range list {
		together := 0.0
		for i, v := range values {
			n, _ := v.of(b)
			sums[i] += n
			together += n
			top = max(top, n)
		}
		if c.stacked {
			top = max(top, together)
		}
	}
	if slices.Max(sums) == 0 {
		c.Empty = "Nothing in this time."
	}
	least := 1.0
	if unit == "$" {
		least = .01
	}
	top = niceTop(max(least, top))
	c.drawGrid(top, unit)
	for i, b := range list {
		c.drawBucket(sp, values, b, i, len(list), top)
		if i == 0 || i == len(list)/2 || i == len(list)-1 {
			x, anchor := (float64(i)+.5)*100/float64(len(list)), "middle"
			switch i {
			case 0:
				x, anchor = 0, "start"
			case len(list) - 1:
				x, anchor = 100, "end"
			}
			c.Axes.Ticks = append(c.Axes.Ticks, tick{percent(x), anchor, b.Begin.Format(sp.label)})
		}
	}
	c.drawMarks(sp, list, events)
	c.Summary = c.summary(values, sums, list)
	return c
}

// niceTop returns the end of an axis: 1, 2 or 5 times a power of ten.
func niceTop(most float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(most)))
	for _, n := range []float64{1, 2, 5, 10} {
		if n*power >= most {
			return n * power
		}
	}
	return most
}

func (c *Chart) drawGrid(top float64, unit string) {
	for _, part := range []float64{0, .5, 1} {
		label := short(top * part)
		switch unit {
		case "s":
			label = Age(time.Duration(top * part * float64(time.Second)))
		case "$":
			label = fmt.Sprintf("$%.3g", top*part)
		}
		c.Axes.Grid = append(c.Axes.Grid, gridLine{percent(height(part)), label})
	}
}

// height returns where a part of the axis is, from the top.
func height(part float64) float64 { return plotBottom - part*(plotBottom-plotTop) }

// drawBucket draws the bars of a bucket, and adds a row to the table.
func (c *Chart) drawBucket(sp Span, values []value, b Bucket, i, of int, top float64) {
	each := 100 / float64(of)
	wide, bottom := each*.84, plotBottom
	if !c.stacked {
		wide /= float64(len(values))
	}
	row := []string{b.Begin.Format(sp.label)}
	for j, v := range values {
		n, isKnown := v.of(b)
		if !isKnown {
			row = append(row, "–")
			continue
		}
		text := Count(int64(n))
		switch {
		case c.Unit == "$":
			text = dollars(n)
		case c.Unit == "s" && b.Over && j == 1:
			text = "over " + seconds(n)
		case c.Unit == "s":
			text = seconds(n)
		}
		row = append(row, text)
		if n <= 0 {
			continue
		}
		high := max(.6, (plotBottom-plotTop)*n/top)
		x := float64(i)*each + each*.08
		if c.stacked {
			bottom -= high
		} else {
			x, bottom = x+float64(j)*wide, plotBottom-high
		}
		c.Bars = append(c.Bars, bar{percent(x), percent(bottom), percent(wide), percent(high), v.Class,
			fmt.Sprintf("%s: %s %s", row[0], text, v.Name)})
	}
	c.Rows = append(c.Rows, row)
}

// dollars writes an amount with cents, or with two digits if it is less than a cent.
func dollars(n float64) string {
	if n > 0 && n < .01 {
		return fmt.Sprintf("$%.2g", n)
	}
	return fmt.Sprintf("$%.2f", n)
}

// seconds writes a delay, from a minute on as an age.
func seconds(n float64) string {
	if n >= 60 {
		return Age(time.Duration(n * float64(time.Second)))
	}
	return fmt.Sprintf("%.3g s", n)
}

// markRoom is how near to each other two marks of a chart may be, in percent of its width. Marks
// that are nearer are shown as one.
const markRoom = 2.5

func (c *Chart) drawMarks(sp Span, list []Bucket, events []Event) {
	begin := list[0].Begin
	long := time.Duration(len(list)) * sp.each
	var last float64
	for _, e := range slices.Backward(events) { // from the oldest on
		x := 100 * float64(e.At.Sub(begin)) / float64(long)
		if x < 0 || x > 100 {
			continue
		}
		c.Marked++
		title := Minute(e.At) + ": " + Visible(e.What)
		if n := len(c.Marks); n > 0 && x-last < markRoom {
			m := &c.Marks[n-1]
			m.Title += "; " + title
			if strings.Index(markOrder, e.Letter) < strings.Index(markOrder, m.Letter) {
				m.Letter, m.Class = e.Letter, e.Class
			}
			continue
		}
		last = x
		c.Marks = append(c.Marks, chartMark{percent(min(99, x)), e.Letter, e.Class, title})
	}
}

// markOrder has the letters of marks, the most important first.
const markOrder = "TAG"

// summary says in a sentence what a chart shows, for people who do not see it.
func (c *Chart) summary(values []value, sums []float64, list []Bucket) string {
	if c.Empty != "" {
		return c.Empty
	}
	text := ""
	for i, v := range values {
		if i > 0 {
			text += ", "
		}
		if c.Unit == "$" {
			text += dollars(sums[i])
			continue
		}
		if c.Unit == "s" {
			most := 0.0
			for _, b := range list {
				n, _ := v.of(b)
				most = max(most, n)
			}
			text += fmt.Sprintf("%s at most %s", v.Name, seconds(most))
			continue
		}
		text += Count(int64(sums[i])) + " " + v.Name
	}
	return text + fmt.Sprintf("; %s marked.", Plural(c.Marked, "event is", "events are"))
}
