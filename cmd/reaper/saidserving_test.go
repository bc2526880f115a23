package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/internal/nightly"
)

// These tests try again what those of said_test.go try, while reaper serve runs: three
// processes on each emulator, and the one that an embedded store allows.

// Daemons are processes that serve the same targets.
type daemons []*daemonProcess

// A servedStore is a store, and how many processes serve it.
type servedStore struct {
	*workdir
	processes int
}

// isExclusive reports whether no other process can sweep or load while one serves.
func (s servedStore) isExclusive() bool { return s.processes == 1 }

// onServedStores runs a test on each store, in parallel: most of it is waiting. The race
// detector sees the embedded store and one emulator.
func onServedStores(t *testing.T, targets string, test func(t *testing.T, s servedStore)) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, servedStore{newEmbedded(t, targets), 1})
	})
	onServedEmulators(t, targets, test)
}

// onServedEmulators runs a test on both emulators.
func onServedEmulators(t *testing.T, targets string, test func(t *testing.T, s servedStore)) {
	t.Run("datastore", func(t *testing.T) {
		t.Parallel()
		b, _, _ := newDatastore(t, targets)
		test(t, servedStore{b, 3})
	})
	t.Run("firestore", func(t *testing.T) {
		noRaces(t)
		t.Parallel()
		b, _, _ := newFirestore(t, targets)
		test(t, servedStore{b, 3})
	})
}

// load writes entities that expire at an instant.
func (s servedStore) load(target string, n int, at time.Time) {
	s.t.Helper()
	s.must(strings.NewReader(keyed(n, at)), "load", "--target", target)
}

// serve starts all processes.
func (s servedStore) serve(args ...string) (all daemons) {
	s.t.Helper()
	for range s.processes {
		all = append(all, s.workdir.serve(append([]string{"--apply", "--schedule", "@every 1s"}, args...)...))
	}
	return all
}

// behindProxy lets all processes that start from now on speak with the emulator through a
// proxy.
func (s servedStore) behindProxy() *faultrpc.Proxy {
	s.t.Helper()
	variable, host, _ := strings.Cut(s.env[0], "=")
	p, err := faultrpc.NewProxy(host)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.Close)
	s.env[0] = variable + "=" + p.Addr()
	return p
}

// stop ends all in good order.
func (all daemons) stop() {
	for _, d := range all { // one does not wait for the other
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, d := range all {
		if err := <-d.gone; err != nil {
			d.t.Errorf("%v\n%s", err, d.said())
		}
	}
}

// value adds up one sample of the metrics of all.
func (all daemons) value(name string) (sum float64) {
	for _, d := range all {
		sum += d.value(name)
	}
	return sum
}

// deleted returns how many entities of a target they have deleted.
func (all daemons) deleted(target string) int {
	return int(all.value(fmt.Sprintf("reaper_deleted_entities_total{target=%q}", target)))
}

// say waits until the log of each has a line that matches all patterns, and fails if one
// has several.
func (all daemons) say(patterns ...string) {
	for _, d := range all {
		d.t.Helper()
		n := 0
		d.until(strings.Join(patterns, " and "), func() bool {
			n = len(d.lines(patterns...))
			return n > 0
		})
		// A machine that stands still for a while interrupts a pause by another hold.
		if n != 1 && len(d.lines(`"deletes suspended: a record cannot be read or written".*the target record was not read`)) == 0 {
			d.t.Errorf("%d lines say %q:\n%s", n, patterns, d.said())
		}
	}
}

// lines returns the lines of the log that match all patterns.
func (d *daemonProcess) lines(patterns ...string) (list []string) {
	for line := range strings.Lines(d.said()) {
		matches := true
		for _, p := range patterns {
			matches = matches && regexp.MustCompile(p).MatchString(line)
		}
		if matches {
			list = append(list, line)
		}
	}
	return list
}

const (
	saidPaused = `"target is paused; run reaper resume to continue".*"target":"halted".*"actor":"ann".*"reason":"a restore"`
	saidClosed = `"gate closed: deletes suspended".*"target":"gated".*"why":"gate: the file ./closed exists"`
)

// One target is paused, the gate of another one closes, and the entities of a third are
// restamped to yesterday, while it is served: everything says so, and nothing is deleted.
func TestSaidWhileServing(t *testing.T) {
	t.Parallel()
	const n = 8
	onServedStores(t, `targets:
  - {name: halted, kind: Halted, shards: 2}
  - {name: gated, kind: Gated, shards: 2, pace: {gate: ./closed}}
  - {name: restamped, kind: Restamped, shards: 2}
`, func(t *testing.T, s servedStore) {
		targets := []string{"halted", "gated", "restamped"}
		for _, name := range targets {
			s.load(name, n, time.Now().Add(-time.Minute))
		}
		all := s.serve()
		for _, name := range targets {
			all[0].until("the deletes of "+name, func() bool { return all.deleted(name) == n })
		}
		s.write("closed", "")
		s.must(nil, "pause", "--target", "halted", "--reason", "a restore", "--actor", "ann")
		all.say(saidPaused)
		all.say(saidClosed)
		if s.isExclusive() {
			all.stop() // nobody else can write to its store
		}
		s.load("halted", n, time.Now())
		s.load("gated", n, time.Now())
		s.load("restamped", n, time.Now().Add(-24*time.Hour))
		if s.isExclusive() {
			all = s.serve()
			all.say(saidPaused)
			all.say(saidClosed)
		}
		before := all.deleted("halted") + all.deleted("gated") + all.deleted("restamped")
		for name, why := range map[string]string{"halted": "paused", "gated": "gate"} {
			for _, d := range all {
				d.until("a look at "+name, func() bool {
					return d.value(fmt.Sprintf("reaper_held{target=%q,why=%q}", name, why)) == 1 &&
						d.value(fmt.Sprintf("reaper_oldest_due_timestamp_seconds{target=%q}", name)) > 0
				})
			}
		}
		says(t, "status --all", s.must(nil, "status", "--all").out, `(?m)^halted: PAUSED, by ann until reaper resume`,
			`reason +a restore`, `(?m)^gated: HELD, by its gate`, `(?m)^restamped: BEHIND, 8 lie behind the cursors, written late or refused; the read from the start`,
			`behind +8, gone by the first sweep after `+instantText)
		for name, why := range map[string]string{
			"halted":    `nothing is deleted while the target is paused, by ann until reaper resume`,
			"gated":     `nothing is deleted while the target's gate is closed`,
			"restamped": `written behind its range's cursor.*by the first sweep after ` + instantText,
		} {
			says(t, "explain", s.must(nil, "explain", "--target", name, "s-7").out, `(?s)`+why)
		}
		if s.isExclusive() {
			all.stop()
		}
		says(t, "a dry run", s.must(nil, "sweep").out, `halted: held: paused by ann \(a restore\): with --apply nothing would be deleted`,
			`gated: held: gate: with --apply nothing would be deleted`, `restamped: behind the cursors: 8, by the first sweep after `+instantText)
		says(t, "a sweep", s.must(nil, "sweep", "--apply").out, `halted: held: paused by ann \(a restore\): nothing was deleted`,
			`gated: held: gate: nothing was deleted`)
		for _, name := range targets {
			if left := len(s.dumped("--target", name)); left != n {
				t.Errorf("%d of %d %s are left", left, n, name)
			}
		}
		if err := os.Remove(filepath.Join(s.dir, "closed")); err != nil {
			t.Fatal(err)
		}
		s.must(nil, "resume", "--target", "halted", "--reason", "done")
		if s.isExclusive() {
			if r := s.must(nil, "sweep", "--apply"); strings.Contains(r.out, "held") || len(s.dumped("--target", "halted", "--target", "gated")) > 0 {
				t.Errorf("after the end of the pause: %s", r.out)
			}
			return
		}
		all[0].until("the deletes after the pause", func() bool {
			return all.deleted("halted")+all.deleted("gated")+all.deleted("restamped") == before+2*n
		})
		all.say(`"deletes go on".*"target":"halted"`)
		all.say(`"gate open: deletes resumed".*"target":"gated"`)
		all.stop()
		if left := len(s.dumped("--target", "restamped")); left != n {
			t.Errorf("%d of %d that lie behind the cursors are left", left, n)
		}
	})
}

// A storm is something that all processes meet, and that passes.
type storm struct {
	cause, error string
	fails        func(method string) error
}

var storms = map[string]storm{
	"every write is aborted": {"contention", "Aborted", func(method string) error {
		if method == "Commit" || method == "BatchWrite" {
			return status.Error(codes.Aborted, "too much contention on these entities")
		}
		return nil
	}},
	"the store is gone": {"unavailable", "Unavailable", func(string) error {
		return status.Error(codes.Unavailable, "connection refused")
	}},
}

// While three processes work, every write is aborted, or the store is gone: the log of each
// names the true cause once when it begins and once when it is over.
func TestSaidInAStorm(t *testing.T) {
	nightly.Races(t)
	t.Parallel()
	for name, storm := range storms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onServedEmulators(t, `targets:
  - {name: sessions, kind: Session, shards: 6, lease: 5s, pace: {start: 2, max: 2}, breaker: {floor: 1000000}}
`, storm.happenTo)
		})
	}
}

func (w storm) happenTo(t *testing.T, s servedStore) {
	s.load("sessions", 4000, time.Now()) // more than they delete in the time of a test
	proxy := s.behindProxy()
	all := s.serve()
	for _, d := range all {
		d.until("the first sweep", func() bool { return d.value(`reaper_oldest_due_timestamp_seconds{target="sessions"}`) > 0 })
	}
	all[0].until("the first deletes", func() bool { return all.deleted("sessions") > 0 })
	var before []int // lines; a busy machine has causes of its own
	for _, d := range all {
		before = append(before, len(d.lines()))
	}
	proxy.Fail(w.fails)
	all.say(`"failing; trying again"`, `"severity":"WARNING"`, `"cause":"`+w.cause+`"`, w.error)
	if w.cause == "unavailable" {
		says(t, "status", s.run(nil, "status").out, `^sessions: UNKNOWN, the store has not answered within 3s`,
			`not read +the target's records: .*(Unavailable|DeadlineExceeded)`) // a slow dial is late
	}
	for i, d := range all {
		for _, line := range d.lines()[before[i]:] {
			if strings.Contains(line, "another worker") || strings.Contains(line, "taken_over") || strings.Contains(line, `"ERROR"`) {
				t.Errorf("a line names another cause than the true one: %s", line)
			}
		}
	}
	proxy.Fail(nil)
	all.quiet()
	all.stop()
	all.say(`"no longer failing"`, `"cause":"`+w.cause+`"`, `"times":\d+`, `"seconds":\d`)
	for _, d := range all {
		if list := d.lines(`"severity":"ERROR"`); len(list) > 0 {
			t.Errorf("an error in the log: %s", list)
		}
	}
}

// quiet waits until no call has failed for twenty seconds, by what each process counts: a task may fail some seconds
// after its last call, and one that failed less than five seconds before the end is not said to be over.
func (all daemons) quiet() {
	errors := regexp.MustCompile(`(?m)^reaper_store_errors_total\{.* (\S+)$`)
	count := func() (text string) {
		for _, d := range all {
			_, metrics := d.get("/metrics")
			text += fmt.Sprint(errors.FindAllString(metrics, -1))
		}
		return text
	}
	last, since := count(), time.Now()
	all[0].until("an end of the failures", func() bool {
		if now := count(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) >= 20*time.Second
	})
}

// A retention is taken out of the targets file, and a property and a kind are misspelt, of
// targets that were swept before: a dry run and the daemons say so, and what it means.
func TestSaidOfChangedTargetsWhileServing(t *testing.T) {
	t.Parallel()
	const n = 8
	before := `targets:
  - {name: kept, kind: Kept, shards: 2, retention: 400d}
  - {name: property, kind: Property, shards: 2}
  - {name: kind, kind: Kind, shards: 2}
`
	after := strings.NewReplacer(", retention: 400d", "", "kind: Property", "kind: Property, property: expires_at", "kind: Kind", "kind: Kid").Replace(before)
	changes := map[string]string{
		"kept":     `"target changed: a shorter retention makes more entities due at once".*"retention_seconds":0,"before_retention_seconds":34560000`,
		"property": `"target changed: what its old kind and property hold is no longer swept".*"property":"expires_at","before_property":"expiry_key"`,
		"kind":     `"target changed: what its old kind and property hold is no longer swept".*"kind":"Kid","before_kind":"Kind"`,
	}
	onServedStores(t, before, func(t *testing.T, s servedStore) {
		s.load("kept", n, time.Now().Add(-24*time.Hour))
		s.load("property", n, time.Now().Add(time.Hour))
		s.load("kind", n, time.Now().Add(time.Hour))
		for _, res := range s.result(s.must(nil, "sweep", "--apply", "--json").out).Targets {
			if res.Deleted != 0 || !res.Complete {
				t.Errorf("%+v", res)
			}
		}
		s.write("reaper.yaml", after)
		r := s.must(nil, "sweep", "--log-format", "json")
		for _, line := range changes {
			says(t, "the log of a dry run", r.log, line)
		}
		says(t, "a dry run", r.out, `kept +8 +8 `, `property: .*none has an entry in any range: check the property's name and index`,
			`kind: its kind holds no entity: if there should be some`)
		all := s.serve()
		all[0].until("the deletes", func() bool { return all.deleted("kept") == n })
		for _, d := range all {
			d.until("the look around", func() bool { return d.value(`reaper_empty_index{target="property"}`) == 1 })
		}
		noEntry := regexp.MustCompile(`(?m)^property: IDLE, it holds entities`)
		all[0].until("the findings in the record", func() bool { // a process counts them before it saves them
			return noEntry.MatchString(s.must(nil, "status").out)
		})
		for name, line := range changes {
			said := 0
			for _, d := range all {
				said += len(d.lines(line, `"severity":"WARNING"`, `"target":"`+name+`"`))
			}
			if said != 1 { // by the one that writes it into the target record
				t.Errorf("%d lines say %q", said, line)
			}
		}
		says(t, "status", s.must(nil, "status").out, `(?m)^property: IDLE, it holds entities, but none has an entry in any range`,
			`(?m)^kind: IDLE, nothing is due: its kind Kid holds no entity`)
		all.stop()
	})
}
