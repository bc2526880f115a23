// Package nightly gives tests two sizes. Everybody waits for `go test ./...` and for
// .ci/run; nobody waits for `make nightly`, which sets NIGHTLY=1 and runs every test at its
// full size.
//
// The invariant is that a test proves the same in both runs: the everyday size covers the
// same code and the same cases, with fewer entities, kills, seeds or combinations of them.
// Nothing is skipped, so that CI can go on treating a skip as a failure. The page
// docs/correctness.md names each test that asks for a size. A test of this package
// fails if the page does not.
package nightly

import (
	"os"
	"testing"
)

// Variable is the environment variable that a nightly run sets to 1.
const Variable = "NIGHTLY"

// Run reports whether this is a nightly run.
func Run() bool { return os.Getenv(Variable) == "1" }

// Size returns the full size in a nightly run, and the everyday size in any other. It logs
// which one, so that the output of a failed test says how to repeat it.
func Size[T any](t testing.TB, full, everyday T) T {
	t.Helper()
	if Run() {
		t.Logf("full size: %v", full)
		return full
	}
	t.Logf("everyday size: %v; with %s=1 it is %v", everyday, Variable, full)
	return everyday
}

// Races leaves a test out where -short asks for what only the race detector needs, except in
// a nightly run: its goroutines meet in other tests, too, and it takes long.
func Races(t testing.TB) {
	t.Helper()
	if testing.Short() && !Run() {
		t.Skip("make nightly looks for races here")
	}
}

// Some returns all elements of a list in a nightly run. In any other it returns one of them,
// a different one each time: pick is any number that changes from run to run, such as the
// time. It suits combinations that share all but a little code.
func Some[T any](t testing.TB, pick int64, all []T) []T {
	t.Helper()
	if Run() || len(all) == 0 {
		return all
	}
	i := int(uint64(pick) % uint64(len(all)))
	t.Logf("everyday size: element %d of %d; with %s=1 all", i, len(all), Variable)
	return all[i : i+1]
}
