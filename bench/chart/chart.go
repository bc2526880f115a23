// Package chart draws what the benchmarks measure, and what the model of the service
// reckons, as SVG files that look alike.
//
// The invariant is that the same chart gives the same file. Limits: at most four lines a
// chart have colours of their own.
package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Chart is one plot of a few lines.
type Chart struct {
	Title, X, Y string
	Lines       []Line
	LogX, LogY  bool
	Bare        bool // without a legend
	FromZero    bool // on the X axis
}

// A Line is what one contestant comes to.
type Line struct {
	Name   string
	Points plotter.XYs
}

// manyPoints of a line run into each other: only the line is drawn.
const manyPoints = 100

// Sizes of a chart, alone and in a row.
const (
	width    = 18 * vg.Centimeter
	rowWidth = 11 * vg.Centimeter
	height   = 10 * vg.Centimeter
)

// Colours that people who cannot tell red from green tell apart.
var colours = []color.Color{
	color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff},
	color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff},
	color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff},
	color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
}

// Write draws the chart into a file.
func (c Chart) Write(file string) error {
	canvas := vgsvg.New(width, height)
	if err := c.drawOn(draw.New(canvas)); err != nil {
		return err
	}
	return write(file, canvas)
}

// WriteRow draws charts side by side into a file.
func WriteRow(file string, charts ...Chart) error {
	canvas := vgsvg.New(rowWidth*vg.Length(len(charts)), height)
	all := draw.New(canvas)
	tiles := draw.Tiles{Rows: 1, Cols: len(charts)}
	for i, c := range charts {
		if err := c.drawOn(tiles.At(all, i, 0)); err != nil {
			return err
		}
	}
	return write(file, canvas)
}

func (c Chart) drawOn(canvas draw.Canvas) error {
	p, err := c.plot()
	if err != nil {
		return err
	}
	p.Draw(draw.Crop(canvas, vg.Millimeter, -3*vg.Millimeter, vg.Millimeter, -2*vg.Millimeter))
	return nil
}

func write(file string, canvas *vgsvg.Canvas) error {
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// The font that measured the texts is not everywhere; these are as wide.
	text := bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans;"),
		[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
	return os.WriteFile(file, text, 0o644)
}

func (c Chart) plot() (*plot.Plot, error) {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans"}
	for _, style := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		*style = font.From(sans, style.Size)
	}
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Title.Padding = vg.Millimeter * 3
	p.Legend.Top, p.Legend.Left = true, true
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{Y: 0xdd}, color.Gray{Y: 0xdd}
	p.Add(grid)
	p.X.Tick.Marker, p.Y.Tick.Marker = numbers{plot.DefaultTicks{}}, numbers{plot.DefaultTicks{}}
	if c.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, numbers{plot.LogTicks{}}
	}
	if c.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, numbers{plot.LogTicks{}}
	}
	if err := c.addLines(p); err != nil {
		return nil, err
	}
	if c.FromZero {
		p.X.Min = 0
	}
	if !c.LogY {
		p.Y.Min = min(0, p.Y.Min)
	}
	if c.Bare {
		return p, nil
	}
	p.Y.Max += (p.Y.Max - p.Y.Min) * 0.15 * float64(len(c.Lines)) / 2 // room for the legend
	if c.LogY {
		p.Y.Max *= 4
	}
	return p, nil
}

func (c Chart) addLines(p *plot.Plot) error {
	for i, l := range c.Lines {
		stroke, points, err := plotter.NewLinePoints(l.Points)
		if err != nil {
			return fmt.Errorf("line %q: %w", l.Name, err)
		}
		stroke.Color, points.Color = colours[i%len(colours)], colours[i%len(colours)]
		stroke.Width = vg.Points(1.5)
		points.Shape, points.Radius = draw.CircleGlyph{}, vg.Points(2)
		p.Add(stroke)
		if len(l.Points) <= manyPoints {
			p.Add(points)
		}
		if !c.Bare {
			p.Legend.Add(l.Name, stroke, points)
		}
	}
	return nil
}

// numbers labels ticks as people write numbers, with k, M and G.
type numbers struct{ plot.Ticker }

func (n numbers) Ticks(low, high float64) []plot.Tick {
	ticks := n.Ticker.Ticks(low, high)
	for i, t := range ticks {
		switch {
		case t.Label == "":
		case t.Value >= 1e9:
			ticks[i].Label = fmt.Sprintf("%gG", t.Value/1e9)
		case t.Value >= 1e6:
			ticks[i].Label = fmt.Sprintf("%gM", t.Value/1e6)
		case t.Value >= 1e4:
			ticks[i].Label = fmt.Sprintf("%gk", t.Value/1e3)
		default:
			ticks[i].Label = fmt.Sprintf("%.4g", t.Value)
		}
	}
	return ticks
}
