package bench_test

import (
	"fmt"
	"testing"

	"gonum.org/v1/plot/plotter"
)

// memory measures the peak of processes that empty ever larger backlogs. The bare
// loop shows what the store itself takes.
func memory(tb testing.TB, r *report) {
	r.section("Memory against backlog", "Peak resident memory of a process of its own, embedded store, every entity expired.")
	names := [2]string{"sweep", "bare loop"}
	var curves [2]plotter.XYs
	peaks := [2]map[int]float64{{}, {}}
	for _, n := range r.backlogs {
		f := generational(n)
		f.all = true
		t := newTemplate(tb, false, f)
		var rounds [2][]float64
		for range min(3, r.rounds) {
			for i := range names {
				dir, remove := t.copied(tb)
				p := begin(tb, job{Dir: dir, Bare: i == 1})
				p.release()
				o := p.end()
				if o.Deleted != int64(n) {
					tb.Fatalf("%s: deleted %d of %d", names[i], o.Deleted, n)
				}
				rounds[i] = append(rounds[i], o.PeakKiB/1024)
				remove()
			}
		}
		for i := range names {
			peaks[i][n] = median(rounds[i])
			curves[i] = append(curves[i], plotter.XY{X: float64(n), Y: median(rounds[i])})
		}
		r.add(fmt.Sprintf("%d expired: sweep / bare loop", n), fmt.Sprintf("%.0f / %.0f MiB", peaks[0][n], peaks[1][n]), "sweep under 300 MiB")
	}
	// Below a hundred thousand the store has not yet filled its own buffers.
	from, to := r.backlogs[0], r.backlogs[len(r.backlogs)-1]
	for _, n := range r.backlogs {
		if n <= 100_000 {
			from = n
		}
	}
	r.add(fmt.Sprintf("**peak at %d / at %d, sweep**", to, from), fmt.Sprintf("%.2f", peaks[0][to]/peaks[0][from]), "at most 1.1")
	r.add("the same, bare loop: the store's own share", fmt.Sprintf("%.2f", peaks[1][to]/peaks[1][from]), "reported")
	r.chart(chart{file: "memory", title: "Peak memory of a process against its backlog", x: "expired entities", y: "MiB", logX: true,
		lines: []line{{names[0], curves[0]}, {names[1], curves[1]}}})
}
