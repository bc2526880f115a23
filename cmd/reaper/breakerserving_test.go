package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/nightly"
)

// An accident lets much more come to be due than is usual.
type accident struct {
	before, after string // settings of the target
	expires       time.Duration
	then          time.Duration // when all expires after the accident, if somebody stamps it again
	rule          breaker.Rule
	most          int // how much of it may go
}

const careful = `targets:
  - name: sessions
    kind: Session
    shards: 4
    lease: 5s
    rewind: 10s
    overlap: 1s
    breaker: {floor: 50}
`

var accidents = map[string]accident{
	"everything to yesterday": {"", "", 240 * time.Hour, -24 * time.Hour, breaker.LateOnes, 100},
	"retention taken out":     {"    retention: 240h\n", "", -5 * time.Hour, 0, breaker.NewGround, 0},
	"property misspelt":       {"    property: expiry_kez\n", "", -5 * time.Hour, 0, breaker.NewGround, 0},
}

// Accidents happen to one process and to three, to daemons and to sweeps, which are killed and
// start again in the middle: little goes, it stays so, and after the approval all of it goes.
func TestAccidents(t *testing.T) {
	noRaces(t)
	names := []string{"everything to yesterday", "retention taken out", "property misspelt"}
	for _, name := range nightly.Some(t, time.Now().UnixNano(), names) {
		t.Run(name, func(t *testing.T) {
			onServedStores(t, careful+accidents[name].before, accidents[name].happenTo)
		})
	}
}

func (x accident) happenTo(t *testing.T, s servedStore) {
	n := 300
	now := time.Now()
	s.write("right.yaml", careful)
	s.must(strings.NewReader(keyed(n, now.Add(x.expires))), "load", "--config", "right.yaml")
	s.must(strings.NewReader(liveOnes(40, now)), "load", "--config", "right.yaml") // 20 are due: all cursors come here
	s.sweep("--apply", "--from-start")
	s.write("reaper.yaml", careful+x.after)
	if x.then != 0 {
		s.must(strings.NewReader(keyed(n, now.Add(x.then))), "load")
	}
	for range 3 {
		all := s.serve()
		all.until("it deletes, or the breaker trips", func() bool { return all.deleted("sessions") > 0 || s.breaker().Trip != "" })
		for _, d := range all {
			_ = d.cmd.Process.Kill()
			if err := <-d.gone; err == nil {
				t.Error("a process that was killed ended in good order")
			}
		}
	}
	all := s.serve()
	all.until("the breaker trips", func() bool { return s.breaker().Trip != "" })
	all.until("all know it", func() bool {
		return all.value(`reaper_breaker_open{target="sessions"}`) == float64(len(all))
	})
	all.stop()
	st := s.breaker()
	for range 2 {
		if r := s.run(nil, "sweep", "--apply", "--from-start"); r.code != exitBreaker {
			t.Fatalf("a sweep ends with %d: %s", r.code, r.log)
		}
	}
	if r := s.run(nil, "audit", "--apply"); r.code != exitBreaker && r.code != 0 {
		t.Errorf("an audit ends with %d: %s", r.code, r.log)
	}
	left := 0
	for id := range s.dumped("--config", "right.yaml") {
		if strings.HasPrefix(id, `"s-`) {
			left++
		}
	}
	if st.Rule != x.rule || n-left > x.most {
		t.Fatalf("%d are gone: %+v", n-left, st)
	}
	s.must(nil, "breaker", "approve", "sessions", st.Trip, "--reason", "an exercise")
	live := map[string]bool{}
	for i := range 20 {
		live[fmt.Sprintf(`"live-%d"`, 2*i+1)] = true
	}
	s.sweep("--apply", "--from-start")
	if again := s.breaker(); again.Trip != "" {
		t.Errorf("after the approval it trips again: %+v", again)
	}
	s.wantLive(live)
}

// liveOnes returns NDJSON of n entities, of which every other one is due.
func liveOnes(n int, now time.Time) string {
	var b strings.Builder
	for i := range n {
		at := now.Add(-time.Minute)
		if i%2 == 1 {
			at = now.Add(1000 * time.Hour)
		}
		fmt.Fprintf(&b, `{"id":"live-%d","expires":%q}`+"\n", i, at.UTC().Format(time.RFC3339))
	}
	return b.String()
}

// until waits for something that all may take part in.
func (all daemons) until(what string, ok func() bool) {
	all[0].t.Helper()
	all[0].until(what, ok)
}
