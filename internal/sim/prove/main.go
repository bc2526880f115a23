// Prove runs the simulation for a given time, over seeds that were never run before,
// or runs one seed again.
//
//	go run ./internal/sim/prove -for 10m        fresh seeds
//	go run ./internal/sim/prove -n 1000         so many
//	go run ./internal/sim/prove -seed 4711      that one, with the part of its history that tells
//	go run ./internal/sim/prove -seed 4711 -all     with all of it
//	go run ./internal/sim/prove -report         how many have passed on the version that is here
//
// It shows each violation with the shortest history that still leads to it and the
// command that repeats it. The exit code is 1 if there was a violation. The last output,
// even after an interrupt, is exactly one line that counts seeds, steps and violations.
//
// What ran on which version is kept in a ledger outside the repository: see package
// ledger. Fresh seeds are such that no version has run them. A seed that does not end
// within a bound is named, counts as a violation, and is left out of the rest.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/sim"
)

// A command is what the flags say.
type command struct {
	hunt    sim.Hunt
	shrink  bool
	counts  bool
	seed    uint64
	until   time.Duration
	all     bool
	report  bool
	book    book
	profile string
	before  string // what the processes before this one have done: seeds, steps, violations
}

func main() {
	testing.Init()
	c := flags()
	debug.SetGCPercent(800) // lives are short: a fifth less time, for some tens of MB
	if c.hunt.Workers > 0 { // a core that nobody works for would only look for work: a third more time
		runtime.GOMAXPROCS(c.hunt.Workers)
	}
	// A bubble needs a test around it. The process ends in it: what comes after would
	// add its own lines.
	prove := func(t *testing.T) {
		switch {
		case c.report:
			os.Exit(c.book.tell())
		case c.seed > 0:
			os.Exit(c.again(t))
		}
		os.Exit(c.prove(t))
	}
	testing.Main(func(string, string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "prove", F: prove}}, nil, nil)
}

func flags() *command {
	c := &command{}
	flag.Uint64Var(&c.hunt.First, "first", 0, "first `seed`; 0 is a fresh one")
	flag.IntVar(&c.hunt.Count, "n", 0, "so many seeds")
	flag.DurationVar(&c.hunt.For, "for", 0, "no seed begins later than this; a machine that sleeps does not count")
	flag.IntVar(&c.hunt.Workers, "workers", 0, "seeds at the same time; 0 is one for each core")
	flag.BoolVar(&c.hunt.Stop, "stop", false, "stop at the first violation")
	flag.DurationVar(&c.hunt.Bound, "bound", sim.Endless, "a seed that takes longer does not end")
	flag.BoolVar(&c.shrink, "shrink", true, "look for the shortest history")
	flag.Uint64Var(&c.seed, "seed", 0, "run this `seed` again and show what tells of its history")
	flag.BoolVar(&c.all, "all", false, "with -seed: show all of its history")
	flag.DurationVar(&c.until, "until", 0, "with -seed: writers and faults stop then")
	flag.BoolVar(&c.counts, "counts", false, "show how often what happened")
	flag.BoolVar(&c.report, "report", false, "say how many seeds have passed, and on which versions")
	flag.StringVar(&c.book.path, "ledger", "", "`file` for what has run (default in the user's cache); off keeps none")
	flag.StringVar(&c.profile, "cpuprofile", "", "write a profile to this `file`")
	flag.StringVar(&c.before, "before", "", "for its own use: what ran before a seed did not end")
	flag.StringVar(&c.book.as, "as", "", "for its own use: the version and commit that run")
	with := flag.String("with", "", "lives that all have these features, separated by commas")
	without := flag.String("without", "", "leave these features out, separated by commas")
	skip := flag.String("skip", "", "leave these `seeds` out, separated by commas")
	flag.Parse()
	c.hunt.With, c.hunt.Without = featuresOf("with", *with, sim.IsOfSome), featuresOf("without", *without, sim.IsFeature)
	if len(c.hunt.With)+len(c.hunt.Without) > 0 {
		c.book.path = "off" // these are other lives
	}
	for _, text := range strings.FieldsFunc(*skip, func(r rune) bool { return r == ',' }) {
		var seed uint64
		if _, err := fmt.Sscan(text, &seed); err != nil {
			fmt.Fprintf(os.Stderr, "prove: -skip: %q is not a seed\n", text)
			os.Exit(2)
		}
		c.hunt.Skip = append(c.hunt.Skip, seed)
	}
	if c.hunt.Count == 0 && c.hunt.For == 0 {
		c.hunt.Count = 1000
	}
	return c
}

// featuresOf reads the value of a flag that lists features.
func featuresOf(name, value string, known func(string) bool) []string {
	list := strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
	for _, f := range list {
		if !known(f) {
			fmt.Fprintf(os.Stderr, "prove: -%s: %q is no feature of which that can be asked\n", name, f)
			os.Exit(2)
		}
	}
	return list
}

// again shows what happens in one seed.
func (c *command) again(t *testing.T) int {
	r := sim.Run(t, sim.Options{Seed: c.seed, With: c.hunt.With, Without: c.hunt.Without, Until: c.until, Trace: true,
		Bound: c.hunt.Bound})
	violations := 0
	if r.Violation != nil {
		violations = 1
	}
	switch {
	case c.all:
		fmt.Println(r.Plan)
		for _, e := range r.Events {
			fmt.Println(e)
		}
		if r.Violation != nil {
			fmt.Println(r.Violation)
		}
	case r.Violation != nil:
		fmt.Println(sim.Case{Report: r, First: r.Violation})
		fmt.Println("all of it: the same with -all")
	default:
		fmt.Println(r.Plan)
	}
	fmt.Printf("1 seeds, %d steps, 1 seeds/s, %d violations\n", r.Steps, violations)
	return violations
}

// prove hunts through seeds, a part after the other, and keeps each part in the ledger.
func (c *command) prove(t *testing.T) int {
	if c.profile != "" {
		f, err := os.Create(c.profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "prove: -cpuprofile:", err)
			return 2
		}
		defer pprof.StopCPUProfile()
	}
	if err := c.book.open(); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		return 2
	}
	if c.hunt.First == 0 {
		// Two that begin in one second must not run the same seeds.
		c.hunt.First = c.book.fresh(uint64(time.Now().UnixNano())>>10 + rand.Uint64N(1<<40))
	}
	underWay, err := newNotes()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		return 2
	}
	defer underWay.remove()
	fmt.Fprintf(os.Stderr, "first seed: %d (the seeds under way are in %s, should the process end in a panic)\n",
		c.hunt.First, underWay.Name())
	ctx, stopped := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stopped) // a second signal ends it at once, as in a seed that does not end
	c.hunt.Done, c.hunt.Begin, c.hunt.Found = ctx.Done(), underWay.note, func(r sim.Report) {
		if !c.shrink {
			fmt.Printf("seed %d: %v\n", r.Options.Seed, r.Violation)
			return
		}
		fmt.Println(sim.Shrink(t, r))
	}
	p := parts{command: c, sum: sim.Bag{Counts: map[string]int{}}, clock: startClock()}
	p.run(ctx, t)
	if c.counts {
		for _, what := range slices.Sorted(maps.Keys(p.sum.Counts)) {
			fmt.Printf("%9d %s\n", p.sum.Counts[what], what)
		}
	}
	c.book.close()
	fmt.Printf("%d seeds, %d steps, %.0f seeds/s, %d violations\n",
		p.sum.Seeds, p.sum.Steps, float64(p.sum.Seeds)/max(p.sum.Took.Seconds(), 1e-3), p.sum.Violations)
	return min(1, p.sum.Violations)
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
