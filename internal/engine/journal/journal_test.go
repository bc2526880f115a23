package journal

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/store"
)

// Thousands of namespaces whose audits fail for one cause make neither a long line nor a
// growing memory.
func TestJournalOfManyTasks(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	var log bytes.Buffer
	j := New(slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	for i := range 10_000 {
		j.Failed(fmt.Sprintf("audit@tenant-%05d", i), "", fmt.Errorf("read: %w", store.ErrDenied))
	}
	log.Reset()
	j.End()
	if n := log.Len(); n == 0 || n > 2000 {
		t.Errorf("the last line has %d bytes", n)
	}
}

// A conflict that the next try resolves is not an error, and gets no line before it lasts. A
// range that another process has claimed meanwhile gets one at once.
func TestJournalOfConflicts(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	var log bytes.Buffer
	j := New(slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	conflict := fmt.Errorf("write heartbeat: %w", store.ErrConflict)
	for range 2 {
		j.Failed("claim a range", "r", conflict)
		now = now.Add(logAfter)
	}
	if log.Len() > 0 {
		t.Errorf("before it lasts: %s", log.String())
	}
	j.Failed("claim a range", "r", conflict)
	if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "level=WARN") {
		t.Errorf("once it lasts: %s", said)
	}
	log.Reset()
	j.Failed("hold a range", "r", fmt.Errorf("%w: %w", cursor.ErrLost, store.ErrConflict))
	if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "cause=taken_over") {
		t.Errorf("of a claim that is lost: %s", said)
	}
}
