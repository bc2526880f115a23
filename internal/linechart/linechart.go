package linechart

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// A Chart is a line with its axes.
type Chart struct {
	Title  string
	About  string // what the picture shows, for those who cannot see it
	Points []Point
	X, Y   func(float64) string // the labels of the axes
	Data   string               // kept in the file for programs, as metadata
}

// A Point is a point of the line.
type Point struct{ X, Y float64 }

// The size of a picture, and where in it the line is.
const (
	width, height = 760, 360
	left, top     = 90, 50
	right, bottom = width - 30, height - 50
	ticks         = 5
)

type svg struct {
	XMLName  xml.Name `xml:"http://www.w3.org/2000/svg svg"`
	Width    int      `xml:"width,attr"`
	Height   int      `xml:"height,attr"`
	ViewBox  string   `xml:"viewBox,attr"`
	Role     string   `xml:"role,attr"`
	Title    string   `xml:"title"`
	Desc     string   `xml:"desc"`
	Metadata string   `xml:"metadata,omitempty"`
	Group    group    `xml:"g"`
}

type group struct {
	Fill   string  `xml:"fill,attr"`
	Stroke string  `xml:"stroke,attr"`
	Font   string  `xml:"font-family,attr"`
	Size   int     `xml:"font-size,attr"`
	Paths  []path  `xml:"path"`
	Labels []label `xml:"text"`
}

type path struct {
	D       string  `xml:"d,attr"`
	Width   float64 `xml:"stroke-width,attr"`
	Opacity float64 `xml:"stroke-opacity,attr"`
}

type label struct {
	X      float64 `xml:"x,attr"`
	Y      float64 `xml:"y,attr"`
	Anchor string  `xml:"text-anchor,attr"`
	Fill   string  `xml:"fill,attr"`
	Stroke string  `xml:"stroke,attr"`
	Text   string  `xml:",chardata"`
}

// Write writes the picture.
func (c Chart) Write(w io.Writer) error {
	most := Point{1, 1}
	for _, p := range c.Points {
		if bad(p.X) || bad(p.Y) {
			return fmt.Errorf("draw %q: the point %v is not finite", c.Title, p)
		}
		most.X, most.Y = max(most.X, p.X), max(most.Y, p.Y)
	}
	g := group{Fill: "none", Stroke: "currentColor", Font: "sans-serif", Size: 13}
	at := func(p Point) (x, y float64) {
		return left + p.X/most.X*(right-left), bottom - p.Y/most.Y*(bottom-top)
	}
	text := func(x, y float64, anchor, s string) {
		g.Labels = append(g.Labels, label{x, y, anchor, "currentColor", "none", s})
	}
	text(left, top/2, "start", c.Title)
	for i := range ticks {
		share := float64(i) / (ticks - 1)
		x, y := at(Point{share * most.X, share * most.Y})
		g.Paths = append(g.Paths, path{fmt.Sprintf("M%d %.1fH%d", left, y, right), 1, 0.2})
		text(left-8, y+4, "end", c.Y(share*most.Y))
		text(x, bottom+22, "middle", c.X(share*most.X))
	}
	var line strings.Builder
	for i, p := range c.Points {
		x, y := at(p)
		step := "L"
		if i == 0 {
			step = "M"
		}
		fmt.Fprintf(&line, "%s%.1f %.1f", step, x, y)
	}
	g.Paths = append(g.Paths, path{line.String(), 2, 1})
	e := xml.NewEncoder(w)
	e.Indent("", " ")
	err := e.Encode(svg{Width: width, Height: height, ViewBox: fmt.Sprintf("0 0 %d %d", width, height), Role: "img",
		Title: c.Title, Desc: c.About, Metadata: c.Data, Group: g})
	if err != nil {
		return fmt.Errorf("draw %q: %w", c.Title, err)
	}
	_, err = io.WriteString(w, "\n")
	return err
}

func bad(n float64) bool { return math.IsNaN(n) || math.IsInf(n, 0) || n < 0 }

// Data returns the metadata of a picture that Write has drawn.
func Data(r io.Reader) (string, error) {
	var s struct {
		Metadata string `xml:"metadata"`
	}
	if err := xml.NewDecoder(r).Decode(&s); err != nil {
		return "", fmt.Errorf("read a picture: %w", err)
	}
	return s.Metadata, nil
}
