package linechart_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/internal/linechart"
)

func chart() linechart.Chart {
	text := func(n float64) string { return fmt.Sprint(n) }
	return linechart.Chart{Title: "left", About: "falls", X: text, Y: text, Points: []linechart.Point{{X: 0, Y: 10}, {X: 5, Y: 0}}}
}

func Example() {
	var b bytes.Buffer
	if err := chart().Write(&b); err != nil {
		fmt.Println(err)
	}
	fmt.Println(strings.Contains(b.String(), `d="M90.0 50.0L730.0 310.0"`))
	// Output: true
}

// Texts come back as they were, whatever they hold, and nothing of them is markup.
func TestTexts(t *testing.T) {
	for _, s := range []string{`<script>alert(1)</script>`, `"&'`, "\u202ebidi", strings.Repeat("x", 1500), `{"a": "]]>"}`} {
		c := chart()
		c.Title, c.About, c.Data = s, s, s
		var b bytes.Buffer
		if err := c.Write(&b); err != nil || strings.Contains(b.String(), "<script") {
			t.Errorf("%q: %v\n%s", s, err, b.String())
		}
		if data, err := linechart.Data(&b); err != nil || data != s {
			t.Errorf("%q came back as %q, %v", s, data, err)
		}
	}
}

// What cannot be drawn is an error.
func TestBadPoints(t *testing.T) {
	for _, n := range []float64{math.NaN(), math.Inf(1), -1} {
		c := chart()
		c.Points = append(c.Points, linechart.Point{X: 1, Y: n})
		if err := c.Write(&bytes.Buffer{}); err == nil {
			t.Errorf("%v was drawn", n)
		}
	}
	if _, err := linechart.Data(strings.NewReader("no picture")); err == nil {
		t.Error("no picture was read")
	}
}
