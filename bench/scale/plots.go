package main

import (
	"math"
	"path/filepath"

	"gonum.org/v1/plot/plotter"

	"github.com/reaper-ttl/reaper/bench/chart"
)

// draw writes the curves into a directory.
func (s *study) draw(dir string) error {
	for _, row := range []struct {
		file string
		list []*trial
	}{
		{"scale-kind", []*trial{s.kind[0], s.kind[1], s.kind[2], s.kind[4]}},
		{"scale-tenants", []*trial{s.tenants[0], s.tenants[1], s.tenants[2], s.tenants[4]}},
		{"scale-ranges", []*trial{s.ranges[0], s.ranges[1], s.ranges[2], s.ranges[4]}},
	} {
		if err := chart.WriteRow(filepath.Join(dir, row.file+".svg"), curves(row.list)...); err != nil {
			return err
		}
	}
	return s.rampChart().Write(filepath.Join(dir, "scale-ramp.svg"))
}

// curves returns three charts of the same collectors, to be drawn side by side. The first has
// the legend of all.
func curves(list []*trial) []chart.Chart {
	charts := []chart.Chart{
		{Title: "Backlog", X: "hours", Y: "entities that are due", LogY: true, FromZero: true},
		{Title: "The oldest that is due", X: "hours", Y: "seconds", LogY: true, Bare: true, FromZero: true},
		{Title: "A query for a page", X: "hours", Y: "ms", Bare: true, FromZero: true},
	}
	values := []func(sample) float64{
		func(s sample) float64 { return s.backlog }, func(s sample) float64 { return s.oldest },
		func(s sample) float64 { return s.page * 1000 },
	}
	for i, value := range values {
		for _, t := range list {
			charts[i].Lines = append(charts[i].Lines, chart.Line{Name: t.name, Points: points(t.samples, value)})
		}
	}
	charts[2].LogY = spread(charts[2].Lines) > 10
	return charts
}

// spread returns how often the smallest value goes into the largest one.
func spread(lines []chart.Line) float64 {
	low, high := math.Inf(1), 0.0
	for _, l := range lines {
		for _, p := range l.Points {
			low, high = min(low, p.Y), max(high, p.Y)
		}
	}
	return high / low
}

// points leaves out zeros, which a logarithmic axis has not. So a collector that asks for no
// pages has no line, but keeps its colour.
func points(samples []sample, value func(sample) float64) plotter.XYs {
	var list plotter.XYs
	for _, s := range samples {
		if v := value(s); v > 0 {
			list = append(list, plotter.XY{X: s.at / 3600, Y: max(v, 1)})
		}
	}
	return list
}

func (s *study) rampChart() chart.Chart {
	c := chart.Chart{Title: "200,000 writes a second move to a new generation", X: "minutes since it opened",
		Y: "writes refused, % of all"}
	for _, m := range s.moves {
		if m.minutes == 0 { // all of them are refused: the other curves could not be read
			continue
		}
		var list plotter.XYs
		for _, at := range m.timeline {
			if at.at <= 2*3600 {
				list = append(list, plotter.XY{X: at.at / 60, Y: at.page * 100})
			}
		}
		c.Lines = append(c.Lines, chart.Line{Name: "ramp: " + number(m.minutes) + "m", Points: list})
	}
	return c
}
