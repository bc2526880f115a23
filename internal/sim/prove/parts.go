package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/sim"
	"github.com/reaper-ttl/reaper/internal/sim/ledger"
)

// partSeeds is how many seeds a line of the ledger has. A process that is killed loses no more
// than these.
const partSeeds = 500

// Parts are the seeds of a hunt, some hundreds at a time.
type parts struct {
	*command
	sum   sim.Bag
	clock clock
	began time.Time // the part under way
	first uint64    // its first seed
}

// run hunts until all seeds ran or the time is over.
func (p *parts) run(ctx context.Context, t *testing.T) {
	p.resume()
	h := p.hunt
	began, end := time.Now(), h.First+uint64(h.Count)
	for ctx.Err() == nil && (h.Count == 0 || h.First < end) {
		part := h
		part.Count = partSeeds
		if h.Count > 0 {
			part.Count = int(min(partSeeds, end-h.First))
		}
		if h.For > 0 {
			if part.For = h.For - time.Since(began); part.For <= 0 {
				return
			}
		}
		p.began, p.first = time.Now(), h.First
		var broken []uint64
		part.Found = func(r sim.Report) {
			broken = append(broken, r.Options.Seed)
			h.Found(r)
		}
		part.Hung = func(seed uint64) { p.goOnWithout(seed, part.For, end) }
		bag := part.Run(t)
		p.add(bag)
		p.book.add(ledger.Run{First: h.First, Count: bag.Tried, Steps: bag.Steps, Violations: broken,
			Seconds: bag.Took.Seconds()})
		p.clock.look()
		if bag.Tried < part.Count || h.Stop && bag.Violations > 0 {
			return
		}
		h.First += uint64(bag.Tried)
	}
}

func (p *parts) add(bag sim.Bag) {
	p.sum.Seeds += bag.Seeds
	p.sum.Steps += bag.Steps
	p.sum.Violations += bag.Violations
	p.sum.Took += bag.Took
	for what, n := range bag.Counts {
		p.sum.Counts[what] += n
	}
}

// resume takes in what the processes before this one have done.
func (p *parts) resume() {
	if p.before == "" {
		return
	}
	var millis int64
	_, _ = fmt.Sscan(p.before, &p.sum.Seeds, &p.sum.Steps, &p.sum.Violations, &millis)
	p.sum.Took = time.Duration(millis) * time.Millisecond
}

// goOnWithout names a seed that does not end, and goes on without it in the place of this
// process: nothing else can end what loops without a pause. The part under way begins again.
func (p *parts) goOnWithout(seed uint64, left time.Duration, end uint64) {
	fmt.Printf("seed %d: does not end within %v: go run ./internal/sim/prove -seed %[1]d\n", seed, p.hunt.Bound)
	p.book.add(ledger.Run{First: seed, Count: 1, Hung: []uint64{seed}, Seconds: time.Since(p.began).Seconds()})
	if p.hunt.Stop {
		os.Exit(1)
	}
	skip := strconv.FormatUint(seed, 10)
	for _, s := range p.hunt.Skip {
		skip += "," + strconv.FormatUint(s, 10)
	}
	done := fmt.Sprint(p.sum.Seeds+1, p.sum.Steps, p.sum.Violations+1, (p.sum.Took + time.Since(p.began)).Milliseconds())
	args := []string{os.Args[0], "-first", strconv.FormatUint(p.first, 10), "-skip", skip,
		"-bound", p.hunt.Bound.String(), "-workers", strconv.Itoa(p.hunt.Workers), "-ledger", p.book.path,
		fmt.Sprintf("-shrink=%v", p.shrink), fmt.Sprintf("-counts=%v", p.counts),
		"-with", strings.Join(p.hunt.With, ","), "-without", strings.Join(p.hunt.Without, ","), "-before", done,
		"-as", strings.TrimSpace(p.book.version + " " + p.book.commit)}
	if p.hunt.Count > 0 {
		args = append(args, "-n", strconv.FormatUint(end-p.first, 10))
	}
	if p.hunt.For > 0 {
		args = append(args, "-for", max(time.Second, left-time.Since(p.began)).String())
	}
	self, err := os.Executable()
	if err == nil {
		err = syscall.Exec(self, args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "prove: go on without that seed:", err)
	os.Exit(1)
}

// A clock notices that the machine has slept: then the wall clock has gone further than the
// monotonic one, by which everything here counts.
type clock struct{ began time.Time }

func startClock() clock { return clock{time.Now()} }

func (c *clock) look() {
	now := time.Now()
	if slept := now.Round(0).Sub(c.began.Round(0)) - now.Sub(c.began); slept > time.Minute {
		fmt.Fprintf(os.Stderr, "this machine slept, or its clock was set, for %v: that does not count\n",
			slept.Round(time.Second))
		c.began = now
	}
}
