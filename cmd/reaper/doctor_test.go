package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/internal/doctor"
)

// doctor runs the command with --json, and returns what it has found.
func (b *workdir) doctor(code int, args ...string) (r doctor.Report, ids []string) {
	b.t.Helper()
	got := b.run(nil, append([]string{"doctor", "--json"}, args...)...)
	r = decodeReport(b.t, got)
	if got.code != code || got.log != "" {
		b.t.Errorf("exit code %d, want %d: %s%s", got.code, code, got.out, got.log)
	}
	for _, f := range r.Findings {
		if f.ID != "store-slow" && f.ID != "sweeps-late" { // the machine may be busy
			ids = append(ids, f.ID+"@"+f.Target)
		}
	}
	return r, ids
}

// decodeReport reads what doctor --json has printed.
func decodeReport(t *testing.T, got reply) (r doctor.Report) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(got.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("stdout is not one JSON document: %v\n%s%s", err, got.out, got.log)
	}
	return r
}

// wantFound compares ids with those that should be found.
func wantFound(t *testing.T, r doctor.Report, ids []string, want ...string) {
	t.Helper()
	slices.Sort(ids)
	slices.Sort(want)
	if !slices.Equal(ids, want) {
		t.Errorf("found %q, want %q\n%s", ids, want, doctorText(r, false))
	}
}

// healthy writes entities, most of them live, and sweeps them.
func (b *workdir) healthy() {
	b.t.Helper()
	var in strings.Builder
	for i := range 60 {
		at := time.Now().Add(time.Hour)
		if i%10 == 0 {
			at = time.Now().Add(-time.Minute)
		}
		fmt.Fprintf(&in, `{"id":"s-%x","expires":%q,"data":{"user":"u"}}`+"\n", i*7919, at.UTC().Format(time.RFC3339Nano))
	}
	b.must(strings.NewReader(in.String()), "load")
	b.must(nil, "sweep", "--apply")
}

const doctorTarget = `targets:
  - name: sessions
    kind: Session
    breaker: off
`

// An examination that was stopped has not found the store healthy.
func TestDoctorIsStopped(t *testing.T) {
	b := newEmbedded(t, doctorTarget)
	b.must(strings.NewReader(lapsed("s", 4)), "load")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, log bytes.Buffer
	if code := run(ctx, append([]string{"doctor"}, b.flags("doctor")...), strings.NewReader(""), &out, &log); code != exitFailed ||
		!strings.Contains(log.String(), "stopped before its end") || strings.Contains(out.String(), "healthy") ||
		!strings.Contains(out.String(), "stopped before its end: ") {
		t.Errorf("exit code %d\n%s%s", code, out.String(), log.String())
	}
}

// On the embedded store everything can be checked: nothing is wrong with a healthy one, and what is
// wrong with the targets file is found.
func TestDoctorEmbedded(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, doctorTarget)
	b.healthy()
	before := b.dumped()
	r, ids := b.doctor(exitDone, "--strict", "--wait", "5m")
	wantFound(t, r, ids)
	if len(r.Unchecked) > 0 || r.Checks < 10 || r.Store != "embedded:data" {
		t.Errorf("%+v", r)
	}
	text := b.run(nil, "doctor", "--wait", "5m")
	if text.code != exitDone || text.log != "" || !strings.HasPrefix(text.out, "embedded:data\n") || !strings.Contains(text.out, " checks of 1 target in ") {
		t.Errorf("exit code %d: %s%s", text.code, text.out, text.log)
	}

	b.write("reaper.yaml", doctorTarget+`  - {name: misspelt, kind: session, breaker: off}
  - {name: missing, kind: Session, property: expiry, breaker: off}
`)
	r, ids = b.doctor(exitFailed, "--wait", "5m")
	wantFound(t, r, ids, "kind-misspelt@misspelt", "property-missing@missing", "targets-overlap@missing")
	r, ids = b.doctor(exitDone, "--wait", "5m", "--target", "sessions")
	wantFound(t, r, ids, "targets-overlap@missing")
	b.doctor(exitFailed, "--wait", "5m", "--target", "sessions", "--strict")

	b.write("reaper.yaml", doctorTarget)
	b.must(nil, "pause", "--reason", "looking")
	r, ids = b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids, "paused@sessions")
	b.must(nil, "resume")

	b.write("reaper.yaml", strings.ReplaceAll(doctorTarget, "sessions", "renamed"))
	r, ids = b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids, "target-renamed@renamed")
	b.write("reaper.yaml", "targets:\n  - {name: orders, kind: Order, breaker: off}\n")
	r, ids = b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids, "kind-empty@orders", "target-unconfigured@sessions")

	b.write("reaper.yaml", doctorTarget)
	b.env = append(b.env, "FIRESTORE_EMULATOR_HOST=127.0.0.1:1")
	r, ids = b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids, "emulator-unused@")
	if after := b.dumped(); len(after) != len(before) {
		t.Error("the doctor changed something")
	}
}

// Wrong usage and configuration exit with 2, before anything is examined; a store that is missing
// or damaged is a finding.
func TestDoctorOfWhatCannotBeOpened(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, doctorTarget)
	r, ids := b.doctor(exitFailed)
	wantFound(t, r, ids, "database-missing@")
	if len(r.Unchecked) == 0 {
		t.Errorf("%+v", r)
	}
	b.env = []string{"REAPER_STORE=embedded:."}
	r, ids = b.doctor(exitFailed)
	wantFound(t, r, ids, "store-unusable@")
	for _, wrong := range [][]string{{"doctor", "--wait", "0s"}, {"doctor", "--wait", "10"}, {"doctor", "--target", "none"}, {"doctor", "sessions"}} {
		if r := b.run(nil, wrong...); r.code != exitUsage || r.out != "" {
			t.Errorf("reaper %s: exit code %d: %s%s", strings.Join(wrong, " "), r.code, r.out, r.log)
		}
	}
	b.write("reaper.yaml", doctorTarget+"  - {name: again, kind: Session}\n")
	if r := b.run(nil, "doctor", "--json"); r.code != exitUsage || r.out != "" {
		t.Errorf("two targets of one property: exit code %d: %s%s", r.code, r.out, r.log)
	}
	b = newWorkdir(t, doctorTarget)
	b.env = []string{"REAPER_STORE=datastore:my-project", "DATASTORE_EMULATOR_HOST=127.0.0.1:1"}
	r, ids = b.doctor(exitFailed)
	wantFound(t, r, ids, "store-unreachable@")
}

// emulatorsSilence are the checks that no emulator can make.
var emulatorsSilence = []string{"database", "field policies", "permissions"}

func wantOnlyEmulatorsSilence(t *testing.T, r doctor.Report) {
	t.Helper()
	var ids []string
	for _, u := range r.Unchecked {
		switch {
		case u.Why == "not available on the emulator":
			ids = append(ids, u.ID)
		case u.ID == "status": // it gives up after five seconds, and the machine may be busy
		default:
			t.Errorf("%+v", u)
		}
	}
	if !slices.Equal(slices.Compact(ids), emulatorsSilence) {
		t.Errorf("unchecked: %q", ids)
	}
}

// wantReadersSilent makes sure that commands that only read do not say on stderr where the store is,
// while others and --log-level debug do.
func (b *workdir) wantReadersSilent() {
	b.t.Helper()
	for _, args := range [][]string{{"status"}, {"explain", "s-0"}, {"list", "--kept", "suspect"}, {"history"}, {"dump"},
		{"breaker", "show", "sessions"}, {"generation", "list"}, {"doctor", "--writers"}, {"doctor", "--repair", "worker-dead"}} {
		r := b.run(nil, args...)
		if strings.Contains(r.log, `"endpoint"`) || strings.Contains(r.log, `"INFO"`) && args[0] != "list" {
			b.t.Errorf("reaper %s says %s", strings.Join(args, " "), r.log)
		}
		if r := b.run(nil, append(args, "--log-level", "debug")...); !strings.Contains(r.log, `"endpoint"`) {
			b.t.Errorf("reaper %s does not say with --log-level debug where the store is: %s", strings.Join(args, " "), r.log)
		}
	}
	if r := b.run(nil, "sweep"); !strings.Contains(r.log, `"endpoint"`) {
		b.t.Errorf("a sweep does not say where the store is: %s", r.log)
	}
}

// wantWritersDated makes sure that the store tells when each entity was last written.
func (b *workdir) wantWritersDated() {
	b.t.Helper()
	var res writersResult
	if err := json.Unmarshal([]byte(b.must(nil, "doctor", "--writers", "--json").out), &res); err != nil || len(res.Targets) != 1 {
		b.t.Fatalf("%+v, %v", res, err)
	}
	w := res.Targets[0]
	for _, h := range w.Hours {
		if h.From == nil || time.Since(*h.From).Abs() > 24*time.Hour || h.Unexplained > 0 {
			b.t.Errorf("%+v", h)
		}
	}
	if w.Sampled != 54 || w.Reads < 54 || w.Note != "" || len(w.Hours) == 0 || w.Hours[0].Newest == 0 {
		b.t.Errorf("%+v", w)
	}
	says(b.t, "the table", b.must(nil, "doctor", "--writers").out, `sessions: 54 entities sampled, \d+ reads`, `last written +entities +newest`)
}

// On the emulator of Datastore mode: a property that its writer has not indexed, one of another
// type, a namespace that was left out or misspelt.
func TestDoctorDatastore(t *testing.T) {
	noRaces(t)
	b, e, project := newDatastore(t, doctorTarget)
	b.healthy()
	r, ids := b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids)
	wantOnlyEmulatorsSilence(t, r)
	b.wantReadersSilent()
	b.wantWritersDated()

	client := datastoreClient(t, e, project)
	put := func(kind, namespace string, p sdk.Property) {
		t.Helper()
		for i := range 3 {
			key := sdk.NameKey(kind, fmt.Sprintf("e-%d", i), nil)
			key.Namespace = namespace
			if _, err := client.Put(t.Context(), key, &sdk.PropertyList{p}); err != nil {
				t.Fatal(err)
			}
		}
	}
	live := "00000000.0001." + time.Now().Add(time.Hour).UTC().Format("20060102T150405.000Z")
	if err := client.Delete(t.Context(), sdk.NameKey("ReaperTarget", "sessions", nil)); err != nil {
		t.Fatal(err)
	}
	r, ids = b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids, "record-lost@sessions")
	if r := b.repair(exitDone, "record-lost", "--apply"); len(r.Changes) != 1 || r.Changes[0].Done != 1 {
		t.Errorf("%+v", r)
	}
	b.must(nil, "sweep", "--apply")
	r, ids = b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids)
	put("Unindexed", "", sdk.Property{Name: "expiry_key", Value: live, NoIndex: true})
	put("Typed", "", sdk.Property{Name: "expiry_key", Value: time.Now()})
	put("Elsewhere", "eu", sdk.Property{Name: "expiry_key", Value: live})
	b.write("reaper.yaml", doctorTarget+`  - {name: unindexed, kind: Unindexed, breaker: off}
  - {name: typed, kind: Typed, breaker: off}
  - {name: misspelt, kind: Sessions, breaker: off}
  - {name: elsewhere, kind: Elsewhere, namespaces: [eu], breaker: off}
`)
	r, ids = b.doctor(exitFailed, "--wait", "5m")
	want := []string{"property-unindexed@unindexed", "property-type@typed", "outside@typed"}
	// Google's emulator may list no kinds; then it says so.
	if slices.ContainsFunc(r.Unchecked, func(u doctor.Unchecked) bool { return u.ID == "kinds" }) {
		want = append(want, "kind-empty@misspelt")
	} else {
		want = append(want, "kind-misspelt@misspelt")
	}
	wantFound(t, r, ids, want...)
}

// On the emulator of native mode, which indexes everything.
func TestDoctorFirestore(t *testing.T) {
	noRaces(t)
	b, _, _ := newFirestore(t, doctorTarget)
	b.healthy()
	r, ids := b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids)
	wantOnlyEmulatorsSilence(t, r)
	b.wantReadersSilent()
	b.wantWritersDated()
	b.write("reaper.yaml", doctorTarget+`  - {name: misspelt, kind: Sesion, breaker: off}
  - {name: missing, kind: Session, property: expires, layout: timestamp, breaker: off}
`)
	r, ids = b.doctor(exitFailed, "--wait", "5m")
	wantFound(t, r, ids, "kind-misspelt@misspelt", "property-missing@missing", "targets-overlap@missing")
	b.write("reaper.yaml", strings.ReplaceAll(doctorTarget, "sessions", "renamed"))
	r, ids = b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids, "target-renamed@renamed")
}

// What many targets have in common takes a few lines.
func TestDoctorTextIsShort(t *testing.T) {
	r := doctor.Report{Store: "embedded:x", Duration: 1, Checks: 2000}
	for i := range 200 {
		name := fmt.Sprintf("t-%d", i)
		r.Targets = append(r.Targets, name)
		r.Findings = append(r.Findings, doctor.Finding{ID: "kind-empty", Severity: doctor.Warning, Group: doctor.Configuration,
			Target: name, What: "The kind holds no entity\x1b[2J.", Evidence: []string{"none"}, Mend: "check it"})
		r.Unchecked = append(r.Unchecked, doctor.Unchecked{ID: "lives", Target: name, Why: "no time was left"})
	}
	text := doctorText(r, false)
	for _, want := range []string{"likewise t-5, t-6, t-7, t-8, t-9 and 190 more", "lives of t-0, t-1, t-2, t-3, t-4 and 195 more: no time was left",
		"200 warnings: 2,000 checks of 200 targets in 1.0 s; 200 not checked"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n"); n > 30 || strings.Contains(text, "\x1b") {
		t.Errorf("%d lines:\n%s", n, text)
	}
}
