package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
)

// familyTarget has a few ranges, and pages and a pace at which sweeps last long enough to be killed.
const familyTarget = `targets:
  - name: users
    kind: u
    layout: sharded-timestamp
    property: expires
    shard_values: [0, 1, 2, 3]
    descendants: {mode: delete}
    breaker: off
    lease: 10s
    page: %d
    pace: {max: %d}
`

// A familySize is in how many databases there are how many parents, what lies below each and below one, and how
// many sweeps of a database are killed. A query of the emulator reads all that is in a database.
type familySize struct{ databases, parents, children, huge, kills, page, pace int }

// Sweeps are killed again and again while an application extends parents in the middle of their descendants,
// deletes and re-creates them, and writes below them. In the end all due parents are gone with all that was below
// them, but for what was written below them after the last look; whatever was extended or re-created lives, with
// what was left below it; and no other parent, however near its name, has lost anything. Google's client for
// Node writes, reads and compares.
func TestFamilyIsKilled(t *testing.T) {
	noRaces(t)
	t.Parallel() // emulators keep the locks of a killed process for a minute
	size := nightly.Size(t, familySize{20, 10, 2000, 2000, 2, 200, 300}, familySize{1, 20, 40, 120, 2, 7, 30})
	for mode, open := range map[string]func(*testing.T, string) (*workdir, *emulator.Emulator, string){
		"datastore": newDatastore, "native": newFirestore,
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			all := nodewriter.Acts{InMiddle: map[string]int{}}
			for range size.databases {
				b, e, project := open(t, fmt.Sprintf(familyTarget, size.page, size.pace))
				f := nodewriter.StartFamily(t, nodewriter.FamilyOptions{Emulator: e, Mode: mode, Project: project})
				acts := b.killFamily(f, size)
				all.Bears += acts.Bears
				for what, times := range acts.InMiddle {
					all.InMiddle[what] += times
				}
				if t.Failed() {
					return
				}
			}
			for what, times := range all.InMiddle {
				if times == 0 || all.Bears == 0 {
					t.Errorf("%s: %+v", what, all)
				}
			}
		})
	}
}

// killFamily fills a database, kills sweeps of it, and looks at what is left after one that is not killed. It returns
// what the application did meanwhile.
func (b *workdir) killFamily(f *nodewriter.Family, size familySize) (acts nodewriter.Acts) {
	t := b.t
	began, seed := time.Now(), uint64(time.Now().UnixNano())
	done := func(what string, values ...any) {
		t.Log(append([]any{time.Since(began).Round(100 * time.Millisecond), what}, values...)...)
	}
	done("filled:", f.Fill(size.parents, size.children, size.huge), "seed:", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	before := 0
	for i := range size.kills {
		f.Begin()
		lines, acts := 1, before+2
		if i%3 == 2 { // anywhere
			lines, acts = 1+random.IntN(20), 0
		}
		later := time.Duration(random.IntN(300)) * time.Millisecond
		killed := b.killSweep(lines, later, func() bool { return f.HasActed(acts) })
		are := f.Rest(true)
		before = are.Sum()
		done("killed:", killed, are)
	}
	b.familyEnds(f)
	acts = f.Rest(false)
	done("swept:", acts)
	orphans, wrong := f.Audit(false)
	if wrong.N > 0 {
		t.Fatalf("%d are wrong: %q", wrong.N, wrong.Few)
	}
	if res := b.orphans(exitDone); res.Orphans != int64(orphans) || orphans == 0 {
		t.Errorf("%d orphans in Node, and %+v", orphans, res)
	}
	b.orphans(exitDone, "--apply", "--rate", "unlimited")
	if left, wrong := f.Audit(true); left > 0 || wrong.N > 0 {
		t.Errorf("%d orphans are left, %d are wrong: %q", left, wrong.N, wrong.Few)
	}
	done("audited; orphans:", orphans)
	return acts
}

// familyEnds sweeps, without a pace, until no parent is left that must be deleted.
func (b *workdir) familyEnds(f *nodewriter.Family) {
	b.t.Helper()
	b.must(nil, "pace", "--max", "unlimited")
	for range 20 {
		res := b.sweepOnce()
		left := f.Due()
		b.t.Logf("%d are left after %+v", left, res)
		if left == 0 {
			return
		}
	}
	b.t.Fatal("twenty sweeps did not delete all parents")
}

// killSweep begins a sweep, and kills it some time after it has written so many lines of its log and a function
// says that it may. It reports whether it did, or the sweep was done before.
func (b *workdir) killSweep(lines int, later time.Duration, mayKill func() bool) (killed bool) {
	b.t.Helper()
	cmd, _, _ := b.command(nil, "sweep", "--apply", "--log-level", "debug", "--log-format", "json")
	log := bufio.NewReader(b.start(cmd))
	var err error
	for ; lines > 0 && err == nil; lines-- {
		_, err = log.ReadString('\n')
	}
	ended := make(chan string, 1)
	go func() {
		rest, _ := io.ReadAll(log)
		ended <- string(rest)
	}()
	for len(ended) == 0 && !mayKill() {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(later)
	_ = cmd.Process.Kill()
	rest := <-ended
	_ = cmd.Wait() // "signal: killed"
	if killed = !cmd.ProcessState.Exited(); !killed && cmd.ProcessState.ExitCode() != exitDone {
		b.t.Errorf("the sweep: exit code %d\n%s", cmd.ProcessState.ExitCode(), rest)
	}
	if !killed {
		b.t.Logf("the sweep was done before it was killed:\n%s", rest[max(0, len(rest)-4000):])
	}
	return killed
}
