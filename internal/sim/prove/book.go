package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/sim/ledger"
)

// fresh seeds are asked for by the million: nobody runs more at once.
const atOnce = 1_000_000

// A book is the ledger, as far as one process writes it.
type book struct {
	path            string // "off": no ledger
	version, commit string
	as              string // version and commit, if this process goes on for another one
	runs            []ledger.Run
	failed          bool
}

// open finds the version and reads what has run. Without the sources, as in a binary that was
// built elsewhere, nothing is kept, which it says.
func (b *book) open() (err error) {
	if b.path == "off" {
		return nil
	}
	if b.path == "" {
		if b.path, err = ledger.Path(); err != nil {
			return err
		}
	}
	runs, damaged, err := ledger.Read(b.path)
	if err != nil {
		return err
	}
	b.runs = runs
	if damaged > 0 {
		fmt.Fprintf(os.Stderr, "%s: %d damaged lines are skipped\n", b.path, damaged)
	}
	if b.as != "" { // the sources may have changed since
		b.version, b.commit, _ = strings.Cut(b.as, " ")
		return nil
	}
	if b.version, err = ledger.Version(context.Background(), ".", "./internal/sim"); err != nil {
		fmt.Fprintln(os.Stderr, "the seeds are not kept in the ledger: run this in the repository:", err)
		b.path = "off"
		return nil
	}
	b.commit = ledger.Commit(context.Background(), ".")
	return nil
}

// fresh returns a seed from which on no version has run any.
func (b *book) fresh(first uint64) uint64 { return ledger.Fresh(b.runs, first, atOnce) }

// add keeps a run. If that fails the seeds have passed anyway.
func (b *book) add(r ledger.Run) {
	if b.path == "off" || r.Count == 0 {
		return
	}
	r.Version, r.Commit, r.Ended = b.version, b.commit, time.Now().UTC().Truncate(time.Second)
	if err := ledger.Append(b.path, r); err != nil && !b.failed {
		fmt.Fprintln(os.Stderr, "prove:", err)
		b.failed = true
	}
}

// close says how many seeds have passed on this version by now.
func (b *book) close() {
	if b.path != "off" {
		_ = b.sums(os.Stderr, true)
	}
}

// tell says what has run on this version and on others.
func (b *book) tell() int {
	if err := b.open(); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		return 2
	}
	if b.path == "off" {
		return 2
	}
	if err := b.sums(os.Stdout, false); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		return 2
	}
	return 0
}

// sums writes a line for this version and, unless onlyThis, one for each other version.
func (b *book) sums(to *os.File, onlyThis bool) error {
	runs, _, err := ledger.Read(b.path)
	if err != nil {
		return err
	}
	this, others := ledger.Sum{Version: b.version, Commit: b.commit}, []ledger.Sum{}
	for _, s := range ledger.Sums(runs) {
		if s.Version == b.version {
			this = s
		} else {
			others = append(others, s)
		}
	}
	fmt.Fprintf(to, "this version (%s, commit %s): %d seeds, %s\n", this.Version, this.Commit, this.Seeds, broken(this))
	if onlyThis {
		return nil
	}
	for _, s := range others {
		fmt.Fprintf(to, "another version (%s, commit %s, %s): %d seeds, %s\n", s.Version, s.Commit,
			s.Last.Format(time.DateOnly), s.Seeds, broken(s))
	}
	fmt.Fprintln(to, "ledger:", b.path)
	return nil
}

// broken names the seeds that broke a rule.
func broken(s ledger.Sum) string {
	const most = 10
	switch n := len(s.Violations); {
	case n == 0:
		return "no violation"
	case n > most:
		return fmt.Sprintf("%d violations: %v and more", n, s.Violations[:most])
	default:
		return fmt.Sprintf("%d violations: %v", n, s.Violations)
	}
}
