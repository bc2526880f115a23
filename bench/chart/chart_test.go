package chart

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"gonum.org/v1/plot/plotter"
)

// The same charts give the same file, alone and in a row.
func TestSameChartSameFile(t *testing.T) {
	c := Chart{Title: "title", X: "x", Y: "y", LogY: true, Lines: []Line{
		{"one", plotter.XYs{{X: 1, Y: 10}, {X: 2, Y: 3e9}}}, {"no points", nil}}}
	var files [4][]byte
	for i := range files {
		name, draw := filepath.Join(t.TempDir(), "x.svg"), c.Write
		if i%2 == 1 {
			draw = func(file string) error { return WriteRow(file, c, c) }
		}
		if err := draw(name); err != nil {
			t.Fatal(err)
		}
		var err error
		if files[i], err = os.ReadFile(name); err != nil || !bytes.Contains(files[i], []byte("1G")) {
			t.Fatalf("%v: %s", err, files[i])
		}
	}
	if !bytes.Equal(files[0], files[2]) || !bytes.Equal(files[1], files[3]) || bytes.Equal(files[0], files[1]) {
		t.Error("drawn twice, a chart differs, or a row is as a chart")
	}
}
