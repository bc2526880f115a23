package selftest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
)

// A tb runs one check: it is what *testing.T is to a test. It is safe for concurrent use.
type tb struct {
	ctx context.Context

	mu       sync.Mutex
	failures []string
	notes    []string // evidence, if the check passes, too
	why      string   // why it cannot be checked
	cleanups []func()
}

// run calls test in a goroutine of its own, which Fatalf and Skipf may end, and then the
// cleanups. A panic is a failure.
func (t *tb) run(test func()) {
	call := func(f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("internal error, please report it: %v\n%s", r, debug.Stack())
				}
			}()
			f()
		}()
		<-done
	}
	call(test)
	for _, f := range slices.Backward(t.cleanups) {
		call(f)
	}
}

func (t *tb) Helper() {}

// Logf implements storetest.TB. What cases say on their way is no evidence.
func (t *tb) Logf(string, ...any) {}

func (t *tb) Errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, shorten(fmt.Sprintf(format, args...)))
}

func (t *tb) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// Notef adds evidence.
func (t *tb) Notef(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes = append(t.notes, shorten(fmt.Sprintf(format, args...)))
}

// Skipf ends a check that cannot be made.
func (t *tb) Skipf(format string, args ...any) {
	t.mu.Lock()
	t.why = fmt.Sprintf(format, args...)
	t.mu.Unlock()
	runtime.Goexit()
}

func (t *tb) Context() context.Context { return t.ctx }

func (t *tb) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *tb) TempDir() string {
	dir, err := os.MkdirTemp("", "reaper-selftest-")
	if err != nil {
		t.Fatalf("make a directory: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// result returns how the check ended, with at most mostEvidence texts.
func (t *tb) result() (failures, notes []string, why string) {
	const mostEvidence = 8
	t.mu.Lock()
	defer t.mu.Unlock()
	return first(t.failures, mostEvidence), first(t.notes, mostEvidence), t.why
}

func first(list []string, most int) []string {
	if len(list) <= most {
		return slices.Clone(list)
	}
	return append(slices.Clone(list[:most]), fmt.Sprintf("and %d more", len(list)-most))
}

// shorten keeps evidence readable.
func shorten(text string) string {
	const most = 600
	text = strings.TrimSpace(text)
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
