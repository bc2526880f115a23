package guard

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/store"
)

// A switchable store says of its guard what it is told to.
type switchable struct{ store.Guarding }

func (s *switchable) Guard(store.Target) store.Guarding { return s.Guarding }

// batchOf returns a batch with these values.
func batchOf(values string) (ops []store.Op) {
	for _, v := range values {
		ops = append(ops, store.Op{Entry: store.Entry{Value: store.TextValue(string(v))}})
	}
	return ops
}

// What a range's contention comes to: commands in, decisions out.
func TestContention(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	s := &switchable{store.Guarding{Guard: store.GuardQuery, Most: store.MaxPage}}
	var log bytes.Buffer
	g := New(nil, store.Target{Guard: store.GuardAuto, Type: store.Text},
		journal.New(slog.New(slog.NewTextHandler(&log, nil)), time.Now), func() time.Time { return now })
	g.store = s
	next := func(values string) string { return string(g.Next("r", batchOf(values))) }
	contended := func(values string) string {
		by := g.Next("r", batchOf(values))
		return fmt.Sprintf("%s, again %v", by, g.Retries("r", by, batchOf(values)))
	}
	fine := func(values string) { g.WentWell("r", g.Next("r", batchOf(values))) }
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	want("nothing happened", next("abcd"), "auto")
	want("first try", contended("abcd"), "auto, again true")
	want("in between", next("abcd"), "auto")
	want("second try", contended("abcd"), "auto, again false")
	want("its first half", next("ab"), "lookup")
	want("contended by lookup", contended("ab"), "lookup, again false")
	fine("a")
	want("its second half, read again", next("cd"), "lookup")
	want("the next page", next("efgh"), "auto")
	want("a read from the start", next("0"), "auto")
	want("another range", string(g.Next("other", batchOf("b"))), "auto")

	want("one try", contended("efgh"), "auto, again true")
	fine("efgh")
	want("a success forgives", contended("ijkl"), "auto, again true")
	want("second page", contended("ijkl"), "auto, again false")
	now = now.Add(time.Minute + time.Second) // the first page is too long ago by now
	contended("mnop")
	want("third page, but late", contended("mnop"), "auto, again false")
	want("goes on by query", next("qrst"), "auto")
	now = now.Add(10 * time.Second)
	contended("qrst")
	if want("within a minute of the second?", contended("qrst"), "auto, again false"); strings.Contains(log.String(), "contended") {
		t.Errorf("the log complains early: %s", &log)
	}
	now = now.Add(10 * time.Second)
	contended("uvwx")
	want("third within a minute", contended("uvwx"), "auto, again false")
	want("all that follows", next("yz"), "lookup")
	if !strings.Contains(log.String(), "range=r for_seconds=3600") {
		t.Errorf("the log says %s", &log)
	}
	now = now.Add(time.Hour - time.Second)
	want("nearly an hour later", next("yz"), "lookup")
	now = now.Add(2 * time.Second)
	want("an hour later", next("yz"), "auto")
	fine("yz")
	if len(g.ranges) != 0 {
		t.Errorf("an expired contention is remembered: %+v", g.ranges["r"])
	}

	log.Reset()
	s.Guarding = store.Guarding{Guard: store.GuardLookup, Why: "of groups", Most: 25}
	want("where the store cannot", contended("abcd"), "auto, again false")
	next("abcd")
	if n := strings.Count(log.String(), "deletes are checked by lookup"); n != 1 || !strings.Contains(log.String(), "of groups") {
		t.Errorf("the log says %d times: %s", n, &log)
	}
}
