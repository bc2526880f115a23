package sweep

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// Thousands of namespaces whose audits fail for one cause make neither a long line nor a
// growing memory.
func TestJournalOfManyTasks(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	var log bytes.Buffer
	j := newJournal(slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	for i := range 10_000 {
		j.failed(fmt.Sprintf("audit@tenant-%05d", i), "", fmt.Errorf("read: %w", store.ErrDenied))
	}
	log.Reset()
	j.end()
	if n := log.Len(); n == 0 || n > 2000 {
		t.Errorf("the last line has %d bytes", n)
	}
}
