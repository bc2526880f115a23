package ledger_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/sim/ledger"
)

var at = time.Date(2026, 11, 24, 3, 0, 0, 0, time.UTC)

// Seeds that ran twice count once, on each version apart; a violation or a seed that hung is named.
func TestSums(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "proof.ndjson")
	for i, r := range []ledger.Run{
		{Version: "old", First: 1, Count: 1000, Violations: []uint64{7}},
		{Version: "new", First: 100, Count: 50},
		{Version: "new", First: 120, Count: 10},
		{Version: "new", First: 140, Count: 20, Violations: []uint64{141}, Hung: []uint64{150}},
		{Version: "new", First: 500, Count: 1, Commit: "abc", Violations: []uint64{141}},
	} {
		r.Ended = at.Add(time.Duration(i) * time.Second)
		if err := ledger.Append(path, r); err != nil {
			t.Fatal(err)
		}
	}
	runs, damaged, err := ledger.Read(path)
	if err != nil || damaged > 0 || len(runs) != 5 {
		t.Fatal(len(runs), damaged, err)
	}
	got := ledger.Sums(runs)
	if len(got) != 2 || got[0].Version != "new" || got[0].Seeds != 61 || got[0].Commit != "abc" ||
		!slices.Equal(got[0].Violations, []uint64{141, 150}) || got[1].Seeds != 1000 {
		t.Errorf("%+v", got)
	}
}

// A process that was killed while it wrote leaves half a line. It is skipped, it is told, and
// what is added later can be read.
func TestTornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "proof.ndjson")
	run := ledger.Run{Version: "v", First: 1, Count: 10, Ended: at}
	if err := ledger.Append(path, run); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, text[:len(text)/2]...), 0o600); err != nil {
		t.Fatal(err)
	}
	run.First = 11
	if err := ledger.Append(path, run); err != nil {
		t.Fatal(err)
	}
	runs, damaged, err := ledger.Read(path)
	if err != nil || damaged != 1 || len(runs) != 2 || ledger.Sums(runs)[0].Seeds != 20 {
		t.Errorf("%d runs, %d damaged lines, %v", len(runs), damaged, err)
	}
}

// Processes that share a ledger lose no line of each other.
func TestTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "proof.ndjson")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if err := ledger.Append(path, ledger.Run{Version: "v", First: uint64(i * 10), Count: 10, Ended: at}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	runs, damaged, err := ledger.Read(path)
	if err != nil || damaged > 0 || ledger.Sums(runs)[0].Seeds != 200 {
		t.Errorf("%d runs, %d damaged lines, %v", len(runs), damaged, err)
	}
}

// Fresh seeds ran on no version.
func TestFresh(t *testing.T) {
	runs := []ledger.Run{{Version: "a", First: 10, Count: 10}, {Version: "b", First: 25, Count: 5}, {Version: "a", First: 20, Count: 2}}
	for first, want := range map[uint64]uint64{0: 0, 5: 30, 12: 30, 22: 30, 31: 31} {
		if got := ledger.Fresh(runs, first, 8); got != want {
			t.Errorf("from %d on: %d, want %d", first, got, want)
		}
	}
	if runs, _, err := ledger.Read(filepath.Join(t.TempDir(), "none")); err != nil || ledger.Fresh(runs, 3, 8) != 3 {
		t.Error("without a ledger each seed is fresh", err)
	}
}

// The version is that of the sources: the same each time, and another one for another program.
func TestVersion(t *testing.T) {
	version := func(pkg string) string {
		t.Helper()
		v, err := ledger.Version(context.Background(), "../../..", pkg)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	sim := version("./internal/sim")
	if len(sim) != 12 || sim != version("./internal/sim") || sim == version("./expirykey") {
		t.Error(fmt.Sprint("versions: ", sim, version("./internal/sim"), version("./expirykey")))
	}
	if _, err := ledger.Version(context.Background(), t.TempDir(), "./internal/sim"); err == nil {
		t.Error("there is a version where there are no sources")
	}
}
