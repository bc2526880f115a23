// Mutate puts deliberate bugs into the program, one after the other, and checks whether
// the simulation finds them. Nothing is written to the tree: the go command replaces the
// files as it builds (go build -overlay).
//
//	go run ./internal/sim/mutate            all of them
//	go run ./internal/sim/mutate NAME...    some
//
// A mutation is a file in testdata/mutations: it describes the bug, names the files that
// it changes, and gives each text and its replacement. What -n seeds do not catch gets four
// times as many others. The exit code is 1 if a mutation was not caught by these either, did
// not build, or no longer finds its text.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/sim"
)

// notCaught is how the result of a bug begins that the seeds did not show.
const notCaught = "NOT CAUGHT"

// otherSeeds is how far from the first ones those begin that a rare bug gets.
const otherSeeds = 1_000_000

func main() {
	root := flag.String("root", ".", "the repository's `directory`")
	most := flag.Int("n", 6000, "seeds that a mutation may take to be caught, and then four times as many")
	first := flag.Uint64("first", 1, "first `seed`")
	flag.Parse()
	if err := run(*root, *most, *first, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root string, most int, first uint64, only []string) error {
	list, err := sim.Mutations(filepath.Join(root, "internal/sim/testdata/mutations"))
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, name := range only {
		if !slices.ContainsFunc(list, func(m sim.Mutation) bool { return m.Name == name }) {
			return fmt.Errorf("there is no mutation %q in internal/sim/testdata/mutations", name)
		}
	}
	began, missed, tried := time.Now(), []string{}, 0
	for _, m := range list {
		if len(only) > 0 && !slices.Contains(only, m.Name) {
			continue
		}
		tried++
		result, caught := try(root, work, m, most, first)
		if strings.HasPrefix(result, notCaught) {
			fmt.Printf("%-34s %s\n", m.Name, result)
			result, caught = try(root, work, m, 4*most, first+otherSeeds)
		}
		if !caught {
			missed = append(missed, m.Name)
		}
		fmt.Printf("%-34s %s\n", m.Name, result)
	}
	fmt.Printf("%d mutations, %d caught, %.0f s\n", tried, tried-len(missed), time.Since(began).Seconds())
	if len(missed) > 0 {
		return fmt.Errorf("not caught: %s", strings.Join(missed, ", "))
	}
	return nil
}

var (
	count = regexp.MustCompile(`(?m)^(\d+) seeds, \d+ steps, .* (\d+) violations$`)
	rule  = regexp.MustCompile(`(?m)^seed (\d+): (\w+) `)
	// A life has an end, in minutes of a real clock: a program that goes round in circles
	// is a violation, too.
	unending = regexp.MustCompile(`(?m)^seed (\d+): does not end `)
)

// try builds one mutant and lets seeds loose on it.
func try(root, work string, m sim.Mutation, most int, first uint64) (result string, caught bool) {
	began := time.Now()
	overlay, err := m.Overlay(root, work)
	if err != nil {
		return err.Error(), false
	}
	bin := filepath.Join(work, m.Name)
	build := exec.Command("go", "build", "-overlay", overlay, "-o", bin, "./internal/sim/prove")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Sprintf("does not build: %v\n%s", err, out), false
	}
	defer os.Remove(bin)
	prove := exec.Command(bin, "-n", fmt.Sprint(most), "-first", fmt.Sprint(first), "-stop", "-shrink=false",
		"-with", strings.Join(m.Lives, ","), "-ledger", "off")
	out, _ := prove.CombinedOutput()
	if endless := unending.FindSubmatch(out); endless != nil {
		took := time.Since(began).Seconds()
		return fmt.Sprintf("caught, for seed %s does not end, in %.0f s: %s", endless[1], took, m.What), true
	}
	seeds := count.FindSubmatch(out)
	found := rule.FindSubmatch(out)
	switch {
	case found != nil:
		took := time.Since(began).Seconds()
		return fmt.Sprintf("caught by %s with seed %s in %.0f s: %s", found[2], found[1], took, m.What), true
	case seeds == nil:
		return fmt.Sprintf("the simulation did not end as it should:\n%s", out), false
	}
	return fmt.Sprintf(notCaught+" by %s seeds in %.0f s: %s", seeds[1], time.Since(began).Seconds(), m.What), false
}
