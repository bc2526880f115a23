package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
)

// A crew is some processes that sweep one project at the same time.
type crew struct {
	n       int
	rates   []float64    // deletes per second, by round
	busy    [2][]float64 // cores that the emulator used, and the crew
	tail    []float64    // seconds from the last delete to the end of the last process
	deleted []string     // by each process, in the last round
	sum     outcome      // of the last round
}

func (c *crew) name(mode emulator.Mode) string {
	if c.n == 1 {
		return string(mode) + ": 1 process"
	}
	return fmt.Sprintf("%s: %d processes", mode, c.n)
}

// processes has one, two and four processes share a project.
func processes(tb testing.TB, r *report) {
	r.section("One, two and four processes on one emulator", fmt.Sprintf("Each project has %d ranges. The time is from the start of all until the last delete; "+
		"a process ends later, when it has seen that others are done with what they hold. "+
		"Where the sum of what the processes deleted is the number of expired entities, no two of them deleted the same one. "+
		"Each further process asks once more for each range; where emulator and processes together keep the cores busy, that is what bounds them. "+
		"One emulator is one Java process on this machine, so that this says nothing about how the service scales.", shards))
	if !emulator.Available(tb.Context()) {
		r.add("rates", "the emulator is not installed here", "")
		return
	}
	c := chart{file: "processes", title: "Deletes of several processes on one emulator", x: "processes", y: "times the rate of one process"}
	for _, mode := range []emulator.Mode{emulator.Datastore, emulator.Native} {
		c.lines = append(c.lines, line{string(mode), crews(tb, r, mode)})
	}
	r.chart(c)
}

func crews(tb testing.TB, r *report, mode emulator.Mode) (points plotter.XYs) {
	// Its own, with a larger heap: for each query it holds an entry of each entity of the kind, some
	// 25 MB, and four processes ask 64 at a time. With too little it only collects garbage, and answers
	// nobody for minutes.
	e := emulator.StartOwn(tb, mode)
	_, port, err := net.SplitHostPort(e.Host)
	if err != nil {
		tb.Fatal(err)
	}
	var list []*contestant[string]
	var all []*crew
	for _, n := range r.crews {
		crew := &crew{n: n}
		all = append(all, crew)
		list = append(list, &contestant[string]{what: crew.name(mode), ready: func(project string) func(context.Context) (int, error) {
			members := make([]*process, n)
			for i := range members {
				members[i] = begin(tb, job{Mode: mode, Host: e.Host, Project: project, Lease: r.lease})
			}
			return func(context.Context) (int, error) { return crew.sweep(members, port), nil }
		}})
	}
	race(tb, r.rounds, r.cloud/2, r.warm, list, func(*contestant[string]) (string, func()) {
		project := e.Project(tb)
		s, t, err := job{Mode: mode, Host: e.Host, Project: project}.open(tb.Context())
		if err != nil {
			tb.Fatal(err)
		}
		expiryKeys(r.cloud).into(tb, s.(store.Writer))
		lookedAround(tb, s, t)
		closed(tb, s)
		return project, func() {}
	})
	for i, crew := range all {
		crew.forget(len(crew.rates) - r.rounds)
		times := ratios(crew.rates, all[0].rates)
		points = append(points, plotter.XY{X: float64(crew.n), Y: median(times)})
		r.add(list[i].what, rate(crew.rates), "")
		if i > 0 {
			r.ratio("**"+list[i].what+" / 1**", times, "reported")
		}
		r.add("cores busy meanwhile: emulator / sweeping processes", fmt.Sprintf("%.1f / %.1f of %d", median(crew.busy[0]), median(crew.busy[1]), runtime.NumCPU()), "")
		r.add("from the last delete to the end of the last process", fmt.Sprintf("%.1f s", median(crew.tail)), "")
		r.add("deleted by each; entries read, and conflicts", fmt.Sprintf("%s = %d of %d; %d, %d", strings.Join(crew.deleted, " + "), crew.sum.Deleted, r.cloud/2,
			crew.sum.Scanned, crew.sum.Conflicts), "each entity once")
	}
	return points
}

// sweep has all members sweep, and returns what they deleted together.
func (c *crew) sweep(members []*process, port string) int {
	began := time.Now()
	busy := cpuOf(port)
	for _, p := range members {
		p.release()
	}
	c.sum, c.deleted = outcome{}, nil
	for _, p := range members {
		o := p.end()
		c.sum.Deleted += o.Deleted
		c.sum.Scanned += o.Scanned
		c.sum.Conflicts += o.Conflicts
		if o.Last.After(c.sum.Last) {
			c.sum.Last = o.Last
		}
		c.deleted = append(c.deleted, strconv.FormatInt(o.Deleted, 10))
	}
	took, ended := c.sum.Last.Sub(began).Seconds(), time.Now()
	var own time.Duration
	for _, p := range members {
		own += p.cpu() // waiting at the end takes none
	}
	c.rates = append(c.rates, float64(c.sum.Deleted)/took)
	c.busy[0] = append(c.busy[0], busy(c.sum.Last).Seconds()/took)
	c.busy[1] = append(c.busy[1], own.Seconds()/took)
	c.tail = append(c.tail, ended.Sub(c.sum.Last).Seconds())
	return int(c.sum.Deleted)
}

// forget drops the first rounds, which warmed the emulator up.
func (c *crew) forget(n int) {
	c.rates, c.tail = c.rates[n:], c.tail[n:]
	c.busy[0], c.busy[1] = c.busy[0][n:], c.busy[1][n:]
}

// cpuOf watches the emulator on a port. The function that it returns says how long
// it was on a core until some instant. Where there is no /proc, that is not at all.
func cpuOf(port string) func(until time.Time) time.Duration {
	var stats []string
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		args, err := os.ReadFile(file)
		if err == nil && bytes.Contains(args, []byte("--port="+port+"\x00")) {
			stats = append(stats, filepath.Join(filepath.Dir(file), "stat"))
		}
	}
	type sample struct {
		at  time.Time
		sum time.Duration
	}
	samples := []sample{{time.Now(), onCore(stats)}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			samples = append(samples, sample{time.Now(), onCore(stats)})
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func(until time.Time) (sum time.Duration) {
		cancel()
		<-done
		for _, s := range samples {
			if !s.at.After(until) {
				sum = s.sum - samples[0].sum
			}
		}
		return sum
	}
}

// onCore adds up what processes have had, by their stat files in /proc.
func onCore(stats []string) (sum time.Duration) {
	const tick = time.Second / 100 // of the kernel, as it shows itself to programs
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, field := range fields[11:13] { // in user and in system mode
			n, _ := strconv.ParseInt(field, 10, 64)
			sum += time.Duration(n) * tick
		}
	}
	return sum
}
