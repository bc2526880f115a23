package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/nightly"
)

// An accident lets much more come to be due than is usual, and later as much once more.
type accident struct {
	name     string
	settings [3]string     // of the target: before, from the first time on, and from the second on
	keeps    time.Duration // the retention before
	restamps bool          // somebody stamps entities that had a day to live; else they are due by the settings
	// expires is when the entities expire then, the one of n at a time.
	expires func(x accidentSize, again bool, i int, now time.Time) time.Time
	rule    breaker.Rule // that trips; empty if nothing does, and lives are warned about
}

// An accidentSize is how much an accident hits.
type accidentSize struct {
	entities, floor, page int
	pace                  int           // of each range: slow enough to be killed in the middle
	soon                  time.Duration // what "in a minute" is
	kills                 int
}

var accidents = []accident{
	{name: "everything to yesterday", restamps: true, rule: breaker.LateOnes,
		expires: func(_ accidentSize, _ bool, _ int, now time.Time) time.Time { return now.Add(-24 * time.Hour) }},
	{name: "everything to in a minute", restamps: true, rule: breaker.Burst,
		expires: func(x accidentSize, _ bool, _ int, now time.Time) time.Time { return now.Add(x.soon) }},
	{name: "a batch cuts lives of 30 days to one", restamps: true, rule: breaker.LateOnes,
		expires: func(x accidentSize, _ bool, i int, now time.Time) time.Time {
			written := now.Add(-30 * 24 * time.Hour * time.Duration(i) / time.Duration(x.entities))
			return notSoon(written.Add(24*time.Hour), now)
		}},
	{name: "retention taken out", keeps: 240 * time.Hour, rule: breaker.NewGround,
		settings: [3]string{"    retention: 240h\n", "    retention: 24h\n", ""},
		expires: func(_ accidentSize, again bool, _ int, now time.Time) time.Time {
			if again {
				return now.Add(-12 * time.Hour)
			}
			return now.Add(-48 * time.Hour)
		}},
	{name: "a misspelt property corrected", rule: breaker.NewGround,
		settings: [3]string{"    property: expiry_kez\n", "    property: expiry_key\n", "    property: expiry_keys\n"},
		expires:  func(_ accidentSize, _ bool, _ int, now time.Time) time.Time { return now.Add(-48 * time.Hour) }},
	{name: "lives cut at each write", restamps: true,
		expires: func(x accidentSize, _ bool, i int, now time.Time) time.Time {
			if i%5 == 0 { // the others were not written since
				return now.Add(x.soon)
			}
			return now.Add(23 * time.Hour)
		}},
}

// notSoon returns an instant, or a later one if it comes while a test runs.
func notSoon(at, now time.Time) time.Time {
	if at.After(now) && at.Before(now.Add(2*time.Hour)) {
		return now.Add(2 * time.Hour)
	}
	return at
}

// A way is how many processes work, as daemons or by one sweep after the other.
type way struct {
	name      string
	processes int
	serves    bool
}

var ways = []way{{"serve", 1, true}, {"sweeps", 1, false}, {"three serve", 3, true}, {"three sweep", 3, false}}

// A place is a store, and whether more than one process can have it open.
type place struct {
	name   string
	open   func(t *testing.T, targets string) *workdir
	shared bool
	tells  bool // when an entity was written
}

var places = []place{
	{"embedded", newEmbedded, false, false},
	{"datastore", func(t *testing.T, targets string) *workdir { b, _, _ := newDatastore(t, targets); return b }, true, true},
	{"firestore", func(t *testing.T, targets string) *workdir { b, _, _ := newFirestore(t, targets); return b }, true, true},
}

// A drill is one accident, on one store, in one way.
type drill struct {
	accident
	place
	way
}

// drills returns all that there are; if they are not to be all, one of each accident, on all the
// stores in turn. Pick is any number that changes from run to run.
func drills(all bool, pick int) (list []drill) {
	for i, x := range accidents {
		var on [][]drill
		for _, p := range places {
			var in []drill
			for _, w := range ways {
				if (p.shared || w.processes == 1) && (p.tells || x.rule != "") {
					in = append(in, drill{x, p, w})
				}
			}
			if len(in) > 0 {
				on = append(on, in)
			}
		}
		if all {
			list = append(list, slices.Concat(on...)...)
			continue
		}
		in := on[(pick+i)%len(on)]
		list = append(list, in[(pick/len(places)+i)%len(in)])
	}
	return list
}

// Accidents happen on each store, to one process and to three, to daemons and to sweeps, which are
// killed and start again in the middle. At most the floor and a slice of each process is gone
// before a person approves the event, and it stays so. Then exactly that event goes. The same
// accident trips once more.
func TestAccidents(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	size := nightly.Size(t, accidentSize{3000, 1000, 50, 200, time.Minute, 2},
		accidentSize{300, 50, 10, 20, 2 * time.Second, 1})
	pick := int(time.Now().UnixNano()/1000) % 1_000_000
	list := drills(nightly.Run(), pick)
	seen := map[string]bool{}
	for _, d := range list {
		seen[d.accident.name], seen[d.place.name] = true, true
		t.Run(strings.Join([]string{d.accident.name, d.place.name, d.way.name}, ", "), func(t *testing.T) {
			t.Parallel() // most of it is waiting
			d.happen(t, size)
		})
	}
	if len(seen) != len(accidents)+len(places) {
		t.Errorf("only these were drilled: %v", seen)
	}
}

// happen lets the accident happen twice. Generations that fill for longer than two rewinds are
// read from their start once a day, which finds what is late; others once they are sealed.
func (d drill) happen(t *testing.T, size accidentSize) {
	files := make([]string, len(d.settings))
	for i, more := range d.settings {
		files[i] = fmt.Sprintf(`targets:
  - name: sessions
    kind: Session
    shards: 4
    lease: 5s
    overlap: 1s
    generations: {every: 100h}
    page: %d
    pace: {start: %d, max: %d}
    breaker: {floor: %d}
`, size.page, size.pace, size.pace, size.floor) + more
	}
	s := servedStore{d.open(t, files[0]), d.processes}
	s.write("first.yaml", files[1])
	s.write("second.yaml", files[2])
	now := time.Now()
	first, second := d.stamp("a", size, false, now), d.stamp("b", size, true, now)
	if d.restamps {
		s.must(strings.NewReader(aDayToLive("a", size.entities, now)), "load")
	} else {
		s.must(strings.NewReader(first.ndjson), "load", "--config", "first.yaml")
		s.must(strings.NewReader(second.ndjson), "load", "--config", "second.yaml")
	}
	others, live := othersOf(40, d.keeps, now) // 20 are due: all cursors come here
	s.must(strings.NewReader(others), "load")
	s.sweepOthers(live)
	s.ageRecords()
	s.write("reaper.yaml", files[1])
	if d.restamps {
		first = d.stamp("a", size, false, time.Now())
		s.must(strings.NewReader(first.ndjson), "load")
	}
	if d.rule == "" {
		d.checkWarned(s, first)
		return
	}
	most := size.floor + size.page*d.processes
	trip := d.holds(s, first, "", most, size.kills)
	s.must(nil, "breaker", "approve", "sessions", trip.Trip, "--reason", "a drill")
	d.goes(s, first)
	for _, keeps := range []map[string]bool{live, first.live} {
		s.wantAll(keeps)
	}
	if !d.restamps {
		s.wantAll(second.due)
	}
	most += size.page * d.processes // went in spite of the trip, and is left of its approval
	s.ageRecords()
	s.write("reaper.yaml", files[2])
	if d.restamps {
		second = d.stamp("b", size, true, time.Now())
		s.must(strings.NewReader(second.ndjson), "load")
	}
	d.holds(s, second, trip.Trip, most, 0)
}

// A stamped is what an accident hits.
type stamped struct {
	ndjson    string
	due, live map[string]bool // ids; what is due is due within a minute or so
}

func (d drill) stamp(prefix string, size accidentSize, again bool, now time.Time) stamped {
	x := stamped{due: map[string]bool{}, live: map[string]bool{}}
	var b strings.Builder
	for i := range size.entities {
		id := fmt.Sprintf("%q", fmt.Sprint(prefix, "-", i))
		at := d.expires(size, again, i, now)
		if x.live[id] = at.After(now.Add(time.Hour)); !x.live[id] {
			delete(x.live, id)
			x.due[id] = true
		}
		fmt.Fprintf(&b, `{"id":%s,"expires":%q}`+"\n", id, at.UTC().Format(time.RFC3339Nano))
	}
	x.ndjson = b.String()
	return x
}

// aDayToLive returns NDJSON of entities that expire evenly within the next day, but not soon.
func aDayToLive(prefix string, n int, now time.Time) string {
	var b strings.Builder
	for i := range n {
		at := now.Add(2*time.Hour + time.Duration(i)*22*time.Hour/time.Duration(n))
		fmt.Fprintf(&b, `{"id":"%s-%d","expires":%q}`+"\n", prefix, i, at.UTC().Format(time.RFC3339Nano))
	}
	return b.String()
}

// othersOf returns NDJSON of n entities, of which every other one is due with a retention, and the
// ids of those that stay.
func othersOf(n int, keeps time.Duration, now time.Time) (ndjson string, live map[string]bool) {
	var b strings.Builder
	live = map[string]bool{}
	for i := range n {
		at := now.Add(-time.Minute - keeps)
		if i%2 == 1 {
			at = now.Add(1000 * time.Hour)
			live[fmt.Sprintf(`"live-%d"`, i)] = true
		}
		fmt.Fprintf(&b, `{"id":"live-%d","expires":%q}`+"\n", i, at.UTC().Format(time.RFC3339))
	}
	return b.String(), live
}

// holds lets the processes work until the breaker trips, and kills them before in the middle. It
// checks that it stays so, what is gone, and what breaker show says. Before is the trip before.
func (d drill) holds(s servedStore, x stamped, before string, most, kills int) inspect.BreakerStatus {
	s.t.Helper()
	for range kills {
		d.killInTheMiddle(s)
	}
	d.workUntilHeld(s)
	left := s.leftOf(x)
	d.workUntilHeld(s) // again, after a kill
	st := s.described()
	if r := s.run(nil, "audit", "--apply"); r.code != exitBreaker && r.code != exitDone {
		s.t.Errorf("an audit ends with %d: %s", r.code, r.log)
	}
	if again := s.leftOf(x); again != left {
		s.t.Errorf("%d were left when it was held, and %d are later", left, again)
	}
	if d.rule == breaker.NewGround {
		most = 0
	}
	gone := len(x.due) - left
	s.t.Logf("%d of %d are gone, %d may be", gone, len(x.due), most)
	if st.Trip == "" || st.Trip == before || st.Rule != d.rule || gone > most {
		s.t.Fatalf("%d of %d are gone, at most %d may be: %+v", gone, len(x.due), most, st)
	}
	due := st.Due
	for _, a := range st.Approved {
		due += a.Count - a.Gone // some may go by what was left of the approval before
	}
	if len(st.Approved) > 0 {
		due += int64(gone) // and may have gone so between two counts of the event
	}
	if due < int64(left) || st.Limit <= 0 || st.Due+st.Deleted <= st.Limit {
		s.t.Errorf("%d are left, and breaker show says %+v", left, st)
	}
	for _, id := range st.Samples {
		if !x.due[fmt.Sprintf("%q", id)] {
			s.t.Errorf("sample %q is no part of the event", id)
		}
	}
	text := s.must(nil, "breaker", "show", "sessions").out
	for _, want := range []string{"the breaker is open since", st.Trip, string(d.rule) + ": ",
		grouped(st.Due) + ", limit " + grouped(st.Limit), "reaper breaker approve sessions " + st.Trip} {
		if !strings.Contains(text, want) {
			s.t.Errorf("breaker show lacks %q:\n%s", want, text)
		}
	}
	if r := s.status(); r.Verdict != inspect.Held || r.Held != "breaker" {
		s.t.Errorf("status: %+v", r)
	}
	return st
}

// describing lets one drill at a time ask for a description: several that count again and again take an
// emulator longer than breaker show waits.
var describing sync.Mutex

// described returns what breaker show says once it has a histogram and samples: an emulator on a
// busy machine may take too long to count.
func (s servedStore) described() (st inspect.BreakerStatus) {
	s.t.Helper()
	s.until("breaker show describes the event", func() bool {
		describing.Lock()
		defer describing.Unlock()
		r := s.run(nil, "breaker", "show", "sessions", "--json")
		return r.code == exitDone && json.Unmarshal([]byte(r.out), &st) == nil && len(st.Histogram) > 0 && len(st.Samples) > 0
	})
	return st
}

// killInTheMiddle lets all processes begin, and kills them once something is deleted, or the breaker
// has tripped.
func (d drill) killInTheMiddle(s servedStore) {
	s.t.Helper()
	if d.serves {
		all := s.serve()
		all[0].until("it deletes, or the breaker trips", func() bool {
			return all.deleted("sessions") > 0 || all.value(`reaper_breaker_open{target="sessions"}`) > 0
		})
		all.kill()
		return
	}
	s.until("a sweep is killed in the middle, or the breaker trips", func() bool {
		args := []string{"sweep", "--apply", "--log-level", "debug", "--log-format", "json"}
		watched, _, _ := s.command(nil, args...)
		var others []*exec.Cmd
		for range s.processes - 1 {
			cmd, _, _ := s.command(nil, args...)
			if err := cmd.Start(); err != nil {
				s.t.Fatal(err)
			}
			others = append(others, cmd)
		}
		s.startAndWatch(watched, 1, 0) // or it is done: nothing is due yet, or the others have it
		for _, cmd := range append(others, watched) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		return !watched.ProcessState.Exited() || watched.ProcessState.ExitCode() == exitBreaker
	})
}

// workUntilHeld lets all processes work until each of them says that the breaker holds it.
func (d drill) workUntilHeld(s servedStore) {
	s.t.Helper()
	if d.serves {
		all := s.serve()
		all[0].until("all are held by the breaker", func() bool {
			return all.value(`reaper_breaker_open{target="sessions"}`) == float64(len(all)) &&
				all.value(`reaper_held{target="sessions",why="breaker"}`) == float64(len(all))
		})
		for _, one := range all {
			if code, body := one.get("/readyz"); code != http.StatusOK {
				s.t.Errorf("held, and not ready: %d %s", code, body)
			}
		}
		all.kill()
		return
	}
	s.until("a sweep ends with exit code 4", func() bool {
		codes, logs := s.sweepTogether()
		for i, code := range codes {
			if code != exitDone && code != exitBreaker {
				s.t.Fatalf("a sweep ends with %d: %s", code, logs[i])
			}
		}
		return slices.Contains(codes, exitBreaker)
	})
	if codes, logs := s.sweepTogether(); slices.Contains(codes, exitDone) {
		s.t.Errorf("the breaker is open, and sweeps end with %v: %s", codes, logs)
	}
}

// goes lets all processes work until an approved event is gone.
func (d drill) goes(s servedStore, x stamped) {
	s.t.Helper()
	if d.serves {
		left, all := s.leftOf(x), s.serve()
		last := -1
		all[0].until("the event goes", func() bool {
			before, now := last, all.deleted("sessions")
			last = now
			// On a machine under load an emulator's reply may be lost: what it said to be deleted, nobody has counted.
			return now >= left || d.shared && now == before && s.leftOf(x) == 0
		})
		all.stop()
	}
	s.until("the event is gone", func() bool {
		if s.leftOf(x) == 0 {
			return true
		}
		if codes, logs := s.sweepTogether(); slices.ContainsFunc(codes, func(code int) bool { return code != exitDone }) {
			s.t.Fatalf("after the approval sweeps end with %v: %s\n%+v", codes, logs, s.breaker())
		}
		return false
	})
	if st := s.breaker(); st.Trip != "" {
		s.t.Errorf("after the approval it trips again: %+v", st)
	}
}

// checkWarned lets all processes work until what is due is gone, and somebody warns of shorter lives.
func (d drill) checkWarned(s servedStore, x stamped) {
	s.t.Helper()
	const warning = "half as long to live"
	warned := false
	if d.serves {
		all := s.serve()
		all[0].until("a warning", func() bool { return all.value(`reaper_lives_halved{target="sessions"}`) > 0 })
		for _, one := range all {
			warned = warned || strings.Contains(one.said(), warning)
		}
		all.stop()
	}
	s.until("all that is due is gone", func() bool {
		codes, logs := s.sweepTogether()
		if slices.ContainsFunc(codes, func(code int) bool { return code != exitDone }) {
			s.t.Fatalf("sweeps end with %v: %s", codes, logs)
		}
		warned = warned || strings.Contains(fmt.Sprint(logs), warning)
		return s.leftOf(x) == 0
	})
	if st := s.breaker(); !warned || st.Trip != "" {
		s.t.Errorf("warned: %v; %+v", warned, st)
	}
	s.wantAll(x.live)
}

// until waits for something, as a daemon does.
func (s servedStore) until(what string, ok func() bool) {
	s.t.Helper()
	(&daemonProcess{t: s.t}).until(what, ok)
}

// sweepTogether lets all processes sweep at the same time, and returns their exit codes and logs.
func (s servedStore) sweepTogether() (codes []int, logs []string) {
	s.t.Helper()
	var cmds []*exec.Cmd
	var said []*bytes.Buffer
	for range s.processes {
		cmd, _, log := s.command(nil, "sweep", "--apply")
		if err := cmd.Start(); err != nil {
			s.t.Fatal(err)
		}
		cmds, said = append(cmds, cmd), append(said, log)
	}
	for i, cmd := range cmds {
		_ = cmd.Wait() // the exit code tells
		codes, logs = append(codes, cmd.ProcessState.ExitCode()), append(logs, said[i].String())
	}
	return codes, logs
}

// sweepOthers deletes the entities that were due before the accident: of what is left, only those in live may be
// others. On a machine under load a sweep may lose its lease of five seconds, and leave them to the next one.
func (s servedStore) sweepOthers(live map[string]bool) {
	s.t.Helper()
	for try := 1; ; try++ {
		res := s.sweep("--apply", "--from-start")
		if !res.Complete && try < 5 {
			s.t.Logf("try %d: the sweep before the accident is not complete: %s", try, res.Error)
			continue
		}
		for id := range s.dumped() {
			if strings.HasPrefix(id, `"live-`) && !live[id] {
				s.t.Fatalf("%s is left by a sweep that deleted %d, complete %t: %s", id, res.Deleted, res.Complete, res.Error)
			}
		}
		return
	}
}

// leftOf counts what is left of what came to be due by an accident.
func (s servedStore) leftOf(x stamped) (n int) {
	s.t.Helper()
	for id := range s.dumped() {
		if x.due[id] {
			n++
		}
	}
	return n
}

// wantAll wants all of some entities to be there.
func (s servedStore) wantAll(ids map[string]bool) {
	s.t.Helper()
	is := s.dumped()
	for id := range ids {
		if is[id] == "" {
			s.t.Fatalf("%s is gone; %d are left", id, len(is))
		}
	}
}

// kill ends all without warning.
func (all daemons) kill() {
	for _, d := range all {
		_ = d.cmd.Process.Kill()
	}
	for _, d := range all {
		if err := <-d.gone; err == nil {
			d.t.Error("a process that was killed ended in good order")
		}
	}
}
