//go:build linux

package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
)

// unwritten is how old the numbers of a killed run may be in the history: half a minute, the quarter of a minute for
// which a process works on that cannot write them, and a freeze, after which it goes on before it has looked at a clock.
const unwritten = 60 * second

// A runSum is what the history has of one process.
type runSum struct {
	deleted int64
	atLeast bool
}

// compareHistory compares the history of each target with what the processes logged and, where the
// deletes are known exactly, with the count from outside.
func (w *world) compareHistory(t *testing.T) {
	t.Helper()
	for _, target := range slices.Sorted(maps.Values(targets)) {
		h, err := w.history(target)
		if err != nil {
			t.Errorf("history of %s: %v", target, err)
			continue
		}
		runs := map[string]runSum{}
		for _, r := range h.Records {
			if r.Run != nil {
				s := runs[r.Owner]
				runs[r.Owner] = runSum{s.deleted + r.Run.Deleted, s.atLeast || r.Run.AtLeast}
			}
		}
		logged, lost := w.compareRuns(target, runs)
		t.Logf("history of %s: %d runs of %d processes deleted %d, and by their logs %d, of which %d were lost with a process; %s, and its budget: %s",
			target, h.Sums.Runs, len(runs), h.Sums.Deleted, logged, lost, h.Check.Why, h.Check.Budget.Why)
		w.compareCheck(target, h)
		b := w.books[target]
		if b == nil {
			continue
		}
		// A process may have a page in each worker when it is killed, or loses its lease: nearly always it has less.
		inFlight := page*workers + page*(w.kills.Load()+w.freezes.Load()+w.holds.Load())
		switch missing := b.deletes() - h.Sums.Deleted; {
		case missing > lost+inFlight+b.unsure:
			w.violation(nil, fmt.Sprintf("history: of %s %d were deleted, and it has %d; %d may be missing", target, b.deletes(), h.Sums.Deleted, lost+inFlight))
		// A delete whose reply is lost counts if its entity is gone when it is tried again, though its writer, or
		// another process, may have removed it meanwhile. Both must meet at one entity: that is rare.
		case missing < -(page + h.Sums.Deleted/20 + b.unsure):
			w.violation(nil, fmt.Sprintf("history: of %s %d were deleted, and it has %d", target, b.deletes(), h.Sums.Deleted))
		}
	}
}

// history asks reaper for all that a target's history has.
func (w *world) history(target string) (h inspect.TargetHistory, err error) {
	for range 5 {
		var res struct{ Targets []inspect.TargetHistory }
		var out []byte
		out, err = w.output("history", "--target", target, "--check", "--json", "--since", "30d", "--limit", "1000000")
		if jerr := json.Unmarshal(out, &res); jerr == nil && len(res.Targets) == 1 && res.Targets[0].Check != nil {
			return res.Targets[0], nil
		}
		time.Sleep(second)
	}
	return h, err
}

// compareRuns compares what each process logged with what the history has of it, and returns what all of them
// logged, and what of that the history lacks.
func (w *world) compareRuns(target string, runs map[string]runSum) (logged, lost int64) {
	for _, p := range w.swarm {
		for run, lines := range p.pages {
			owner, ok := strings.CutPrefix(run, target+"@")
			if !ok {
				continue
			}
			var sum, early int64
			last := lines[len(lines)-1].at
			for _, l := range lines {
				sum += l.deleted
				if last.Sub(l.at) > unwritten {
					early += l.deleted
				}
			}
			is := runs[owner]
			logged += sum
			lost += max(0, sum-is.deleted)
			switch {
			case is.deleted < early:
				w.violation(nil, fmt.Sprintf("history: %s had logged %d deletes of %s long before it was killed, and it has %d", owner, early, target, is.deleted))
			case !is.atLeast && is.deleted < sum && runs[owner] != (runSum{}):
				w.violation(nil, fmt.Sprintf("history: %s ended after %d deletes of %s, and it has %d", owner, sum, target, is.deleted))
			}
		}
	}
	return logged, lost
}

// compareCheck looks at what reaper makes of the sums itself. One difference is explained by no record: a
// process that was killed in the second of its first delete has none.
func (w *world) compareCheck(target string, h inspect.TargetHistory) {
	unexplained := w.kills.Load() * page * workers
	c := h.Check
	differ := max(c.Counted-c.Deleted, c.Deleted-c.Counted)
	if c.Verdict == inspect.Differs && differ > unexplained || c.Verdict == inspect.NotCompared {
		w.violation(nil, fmt.Sprintf("history --check of %s: %s: %s", target, c.Verdict, c.Why))
	}
	differ = max(c.Budget.Deleted-c.Budget.Reported, c.Budget.Reported-c.Budget.Deleted)
	if c.Budget.Verdict == inspect.Differs && differ > unexplained || c.Budget.Verdict == inspect.NotCompared {
		w.violation(nil, fmt.Sprintf("history --check of %s: its budget %s: %s", target, c.Budget.Verdict, c.Budget.Why))
	}
	kinds := map[history.Kind]int{}
	for _, r := range h.Records {
		kinds[r.Kind]++
	}
	// The process that trips writes that into the history afterwards: if it is killed in between, or the
	// reply to its trip is lost, nobody does.
	if n := kinds[history.KindTrip]; target == "events" && int64(n) < w.trips.Load()-w.kills.Load()-w.holds.Load() {
		w.violation(nil, fmt.Sprintf("history: %d trips were seen, and it has %d", w.trips.Load(), n))
	}
}
