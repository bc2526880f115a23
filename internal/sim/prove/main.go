// Prove runs the simulation for a given time, over seeds that were never run before,
// or runs one seed again.
//
//	go run ./internal/sim/prove -for 10m        fresh seeds
//	go run ./internal/sim/prove -n 1000         so many
//	go run ./internal/sim/prove -seed 4711      that one, with its history
//
// It shows each violation with the shortest history that still leads to it and the
// command that repeats it. The exit code is 1 if there was a violation. The last output,
// even after an interrupt, is exactly one line that counts seeds, steps and violations.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/sim"
)

func main() {
	testing.Init()
	var (
		first   = flag.Uint64("first", 0, "first `seed`; 0 is a fresh one")
		count   = flag.Int("n", 0, "so many seeds")
		length  = flag.Duration("for", 0, "no seed begins later than this")
		workers = flag.Int("workers", 0, "seeds at the same time; 0 is one for each core")
		stop    = flag.Bool("stop", false, "stop at the first violation")
		shrink  = flag.Bool("shrink", true, "look for the shortest history")
		seed    = flag.Uint64("seed", 0, "run this `seed` again and show its history")
		without = flag.String("without", "", "leave these features out, separated by commas")
		until   = flag.Duration("until", 0, "with -seed: writers and faults stop then")
		counts  = flag.Bool("counts", false, "show how often what happened")
	)
	flag.Parse()
	var left []string
	if *without != "" {
		left = strings.Split(*without, ",")
	}
	if *count == 0 && *length == 0 {
		*count = 1000
	}
	if *first == 0 {
		*first = uint64(time.Now().UnixNano()) >> 10
	}
	debug.SetGCPercent(800) // lives are short: a fifth less time, for some tens of MB
	// A bubble needs a test around it. The process ends in it: what comes after would
	// add its own lines.
	prove := func(t *testing.T) {
		if *seed > 0 {
			os.Exit(again(t, sim.Options{Seed: *seed, Without: left, Until: *until, Trace: true}))
		}
		underWay, err := newNotes()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		fmt.Fprintf(os.Stderr, "first seed: %d (the seeds under way stand in %s, should the process end in a panic)\n",
			*first, underWay.Name())
		ctx, stopped := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(ctx, stopped) // a second signal ends it at once, as in a seed that does not end
		bag := sim.Hunt{First: *first, Count: *count, For: *length, Workers: *workers, Stop: *stop, Without: left,
			Done: ctx.Done(), Begin: underWay.note,
			Found: func(r sim.Report) {
				if !*shrink {
					fmt.Printf("seed %d: %v\n", r.Options.Seed, r.Violation)
					return
				}
				fmt.Println(sim.Shrink(t, r))
			}}.Run(t)
		if *counts {
			for _, what := range slices.Sorted(maps.Keys(bag.Counts)) {
				fmt.Printf("%9d %s\n", bag.Counts[what], what)
			}
		}
		fmt.Printf("%d seeds, %d steps, %.0f seeds/s, %d violations\n",
			bag.Seeds, bag.Steps, float64(bag.Seeds)/bag.Took.Seconds(), bag.Violations)
		underWay.remove()
		os.Exit(min(1, bag.Violations))
	}
	testing.Main(func(string, string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "prove", F: prove}}, nil, nil)
}

// again shows everything that happens in one seed.
func again(t *testing.T, o sim.Options) int {
	r := sim.Run(t, o)
	fmt.Println(r.Plan)
	for _, e := range r.Events {
		fmt.Println(e)
	}
	violations := 0
	if r.Violation != nil {
		violations = 1
		fmt.Println(r.Violation)
	}
	fmt.Printf("1 seeds, %d steps, 1 seeds/s, %d violations\n", r.Steps, violations)
	return violations
}

// Notes are a file with a line for each worker: the seed that it runs. What panics in a
// goroutine of its own ends the process, and nobody is left to say which seed it was.
type notes struct{ *os.File }

func newNotes() (notes, error) {
	f, err := os.CreateTemp("", "prove-*.seeds")
	return notes{f}, err
}

func (n notes) note(worker int, seed uint64) {
	line := fmt.Sprintf("%20d\n", seed)
	_, _ = n.WriteAt([]byte(line), int64(worker*len(line))) // what cannot be noted is found by running again
}

func (n notes) remove() {
	n.Close()
	_ = os.Remove(n.Name())
}
