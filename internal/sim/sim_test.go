package sim

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/sim/ledger"
)

const root = "../.."

// fixed is how many seeds always run.
const fixed = 100

func TestFixedSeeds(t *testing.T) {
	count := fixed
	if testing.Short() {
		count = 15
	}
	hunt(t, Hunt{First: 1, Count: count})
}

// TestFreshSeeds has other seeds for each version of the program, and the same for all runs of one, as far as they come:
// whether a change may land is hardly a matter of chance. `make prove` and `make nightly` take seeds that never ran.
func TestFreshSeeds(t *testing.T) {
	version, err := ledger.Version(t.Context(), root, "./internal/sim")
	if err != nil {
		t.Fatal(err)
	}
	first, err := strconv.ParseUint(version, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	h := Hunt{First: first, For: 8 * time.Second}
	if testing.Short() {
		h.For = time.Second
	}
	t.Logf("first seed: %d", h.First)
	hunt(t, h)
}

func hunt(t *testing.T, h Hunt) {
	h.Found = func(r Report) { t.Error(Shrink(t, r)) }
	bag := h.Run(t)
	t.Logf("%d seeds, %d steps, %.0f seeds/s, %d violations", bag.Seeds, bag.Steps, float64(bag.Seeds)/bag.Took.Seconds(), bag.Violations)
	if h.Count < fixed {
		return
	}
	// A simulation in which nothing happens proves nothing.
	for _, what := range strings.Split("deleted,carried,opened,closed,retired,dropped,strays,to the nursery,settled,changed meanwhile,gone meanwhile,"+
		"taken over,released,moved idle,kill,stop,freeze,suspend,advance,pause,resume,pace,late Save,late Dispose,locked,complete sweeps,"+
		"fault refuse,fault pushback,fault contention,fault toolarge,fault fail,fault lost,fault late,fault stall,fault slow,fault partial", ",") {
		if bag.Counts[what] == 0 {
			t.Errorf("in %d seeds there was no %q", bag.Seeds, what)
		}
	}
}

// A seed that runs twice does the same twice, even while others run. No two things that
// depend on each other happen at one instant: the runtime would decide which is first.
//
// A busy machine may stop a goroutine in the middle of an instant. Where two timers of one
// process meet there, as those for its own heartbeat and for the others' do once in seed 35,
// either may be first. A seed that ran differently is therefore run up to twelve times more,
// until two are alike (measured: two to four histories of six on a machine with five times
// the work it can do), while decisions that are left to chance make twelve.
func TestSeedsRepeat(t *testing.T) {
	if testing.Short() {
		t.Skip("it is how the race detector runs, whose scheduler takes goroutines at random (runtime: randomizeScheduler)")
	}
	seeds := nightly.Size(t, 50, 20)
	run := func(first uint64, n int, hashes map[uint64]uint64) (differ []uint64) {
		Hunt{First: first, Count: n, Each: func(r Report) {
			if was, ok := hashes[r.Options.Seed]; ok && was != r.Hash {
				differ = append(differ, r.Options.Seed)
			}
			hashes[r.Options.Seed] = r.Hash
		}}.Run(t)
		return differ
	}
	hashes := map[uint64]uint64{}
	run(1, seeds, hashes)
	for _, seed := range run(1, seeds, hashes) {
		histories := map[uint64]bool{}
		ran := 0
		for ; ran < 12 && len(histories) == ran; ran++ {
			once := map[uint64]uint64{}
			run(seed, 1, once)
			histories[once[seed]] = true
		}
		t.Logf("seed %d ran differently, and then made %d histories in %d runs", seed, len(histories), ran)
		if len(histories) == ran {
			t.Errorf("no two of %d runs of seed %d are alike", ran, seed)
		}
	}
}

func mutations(t *testing.T) []Mutation {
	t.Helper()
	list, err := Mutations("testdata/mutations")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

var violation = regexp.MustCompile(`(?m)^seed \d+: [A-Z]\d `)

// One of three mutations is tried each time, another one in each run; make nightly tries
// all that there are (make mutate).
func TestSomeMutationsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program again for each")
	}
	work := t.TempDir()
	names := nightly.Some(t, time.Now().UnixNano(), []string{"cursor-before-commit", "early-by-a-second", "takeover-after-half"})
	for _, m := range mutations(t) {
		if !slices.Contains(names, m.Name) {
			continue
		}
		overlay, err := m.Overlay(root, work)
		if err != nil {
			t.Fatal(err)
		}
		bin := filepath.Join(work, "prove")
		build := exec.Command("go", "build", "-overlay", overlay, "-o", bin, "./internal/sim/prove")
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", m.Name, err, out)
		}
		out, err := exec.Command(bin, "-n", "500", "-first", "1", "-stop", "-shrink=false", "-ledger", "off").CombinedOutput()
		if err == nil || !violation.Match(out) {
			t.Errorf("nobody noticed %s: %s\n%s", m.Name, m.What, out)
		}
	}
}

// A mutation that no longer fits, in any of its files, says so.
func TestMutationThatDoesNotFit(t *testing.T) {
	const fits = "What is wrong.\nfile: sweep/run.go\n<<<<\npackage sweep\n====\npackage sweep // mutated\n>>>>\n"
	m, err := parseMutation(fits + "file: internal/engine/schedule/book.go\n<<<<\nno such text\n====\n>>>>\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Files) != 2 || m.What != "What is wrong." || m.Files[1].Path != "internal/engine/schedule/book.go" {
		t.Errorf("%+v", m)
	}
	if _, err := m.Files[0].Apply(root); err != nil {
		t.Error(err)
	}
	if _, err := m.Overlay(root, t.TempDir()); err == nil || !strings.Contains(err.Error(), "no longer fits") {
		t.Errorf("%v", err)
	}
	for _, text := range []string{"", "x\nfile: y\n", "x\nfile: y\n<<<<\na\n", "x\n<<<<\na\n====\n>>>>\n", fits + "file: z\n"} {
		if _, err := parseMutation(text); err == nil {
			t.Errorf("%q is a mutation", text)
		}
	}
}
