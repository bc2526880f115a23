package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/doctor/repair"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
)

// repair runs doctor --repair with --json, and returns what it has done.
func (b *workdir) repair(code int, id string, args ...string) (r repair.Result) {
	b.t.Helper()
	got := b.run(nil, append([]string{"doctor", "--json", "--repair", id}, args...)...)
	d := json.NewDecoder(strings.NewReader(got.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() || got.code != code {
		b.t.Fatalf("exit code %d, want %d; %v\n%s%s", got.code, code, err, got.out, got.log)
	}
	return r
}

// spoil leaves in the embedded store what no program leaves: a target record that makes no sense;
// and what a killed one does: the heartbeat of an opening before this one; and what remains of a
// target that was removed from the targets file long ago.
func (b *workdir) spoil() {
	b.t.Helper()
	db, err := embedded.Open(filepath.Join(b.dir, "data"), embedded.Options{Now: time.Now})
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			b.t.Fatal(err)
		}
	}()
	ctx := b.t.Context()
	got, err := db.Load(ctx, store.RecordQuery{Sort: store.TargetRecord, Target: "sessions"})
	if err != nil || len(got.List) != 1 {
		b.t.Fatalf("%+v, %v", got, err)
	}
	r := got.List[0]
	was := r.Revision
	r.Revision, r.Fields["created"] = store.NewRevision(was), "yesterday"
	if err := db.Save(ctx, r, was); err != nil {
		b.t.Fatal(err)
	}
	at, owner := store.FormatTime(time.Now().Add(-time.Minute)), "an earlier opening/host/1"
	beat := store.Record{Sort: store.WorkerRecord, Target: "sessions", Key: cursor.HeartbeatKey("sessions", owner),
		Revision: store.NewRevision(""), Fields: store.Fields{"schema": int64(2), "owner": owner, "process": "p",
			"epoch": int64(1), "count": int64(3), "lease_ms": int64(30_000), "read": at, "begun": at, "renewed": at,
			"claims": int64(2), "version": "v1", "why": ""}}
	if err := db.Save(ctx, beat, ""); err != nil {
		b.t.Fatal(err)
	}
	old := generation.New("old", "Order", "expiry_key", 4, true, time.Now().Add(-60*24*time.Hour))
	if _, err := generation.Save(ctx, db, old); err != nil {
		b.t.Fatal(err)
	}
}

// What can be repaired is repaired with --apply alone, and then is healthy.
func TestRepair(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, doctorTarget)
	b.healthy()
	b.must(nil, "pause", "--reason", "legal hold", "--actor", "bob")
	b.spoil()
	r, ids := b.doctor(exitFailed, "--wait", "5m")
	wantFound(t, r, ids, "record-malformed@sessions", "target-unconfigured@old")

	b.env = append(b.env, "REAPER_APPLY=true") // it is for sweeps
	for id, args := range map[string][]string{"record-malformed": nil, "worker-dead": nil, "target-unconfigured": {"--name", "old"}} {
		if r := b.repair(exitDone, id, args...); len(r.Changes) != 1 || r.Changes[0].Done != 0 || r.Apply {
			t.Errorf("%+v", r)
		}
	}
	text := b.run(nil, "doctor", "--repair", "record-malformed")
	says(t, "a repair", text.out, `rebuild +sessions: ReaperTarget sessions`, `it stays paused`, `with --apply 1 record would be`)
	if r := b.repair(exitDone, "target-renamed"); len(r.Changes) != 1 {
		t.Errorf("%+v", r)
	}
	for id, args := range map[string][]string{"record-malformed": nil, "worker-dead": nil, "target-unconfigured": {"--name", "old"}} {
		args = append(args, "--apply")
		if r := b.repair(exitDone, id, args...); len(r.Changes) != 1 || r.Changes[0].Done != 1 || !r.Apply {
			t.Errorf("%+v", r)
		}
		if r := b.repair(exitDone, id, args...); len(r.Changes) != 0 { // it has healed
			t.Errorf("%+v", r)
		}
	}
	r, ids = b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids, "paused@sessions")
	says(t, "history", b.must(nil, "history").out, `repair`)
	b.must(nil, "resume")
	b.must(nil, "sweep", "--apply")

	// While reaper serve has the store open, it does the same.
	b.spoil()
	d := b.serve("--apply")
	if r := b.repair(exitDone, "target-unconfigured", "--name", "old"); len(r.Changes) != 1 || r.Apply {
		t.Errorf("%+v", r)
	}
	for id, args := range map[string][]string{"record-malformed": nil, "target-unconfigured": {"--name", "old"}} {
		if r := b.repair(exitDone, id, append(args, "--apply")...); r.Changes[0].Done != 1 {
			t.Errorf("%+v", r)
		}
	}
	for _, c := range b.repair(exitDone, "worker-dead", "--apply").Changes { // its own lives
		if !strings.Contains(c.Key, "earlier") {
			t.Errorf("%+v", c)
		}
	}
	d.stop()
	r, ids = b.doctor(exitDone, "--wait", "5m")
	wantFound(t, r, ids)
}

// What cannot be repaired, or not like that, is refused with exit code 2 and before the store is opened.
func TestRepairUsage(t *testing.T) {
	b := newWorkdir(t, doctorTarget)
	b.env = []string{"REAPER_STORE=embedded:missing"}
	for want, args := range map[string][]string{
		"record-lost, record-malformed, target-renamed, target-unconfigured, worker-dead": {"--repair", "paused"},
		"is in the targets file": {"--repair", "target-renamed", "--name", "sessions"},
		"needs the name":         {"--repair", "target-unconfigured", "--apply"},
		"too short":              {"--repair", "target-unconfigured", "--name", "old", "--older-than", "1m"},
		"goes by no age":         {"--repair", "record-lost", "--older-than", "2h"},
		"positive duration":      {"--repair", "worker-dead", "--older-than", "0s"},
		"--apply is for":         {"--apply"},
		"--name is for":          {"--name", "old"},
		"--older-than is for":    {"--older-than", "2h"},
		"--strict goes with no":  {"--repair", "worker-dead", "--strict"},
		"--sample is for":        {"--sample", "5"},
		"--wait is for":          {"--writers", "--wait", "5s"},
		"from 1 to":              {"--writers", "--sample", "0"},
		"--repair is empty":      {"--repair", ""},
		`--name "" is not a valid target name: want [a-z][a-z0-9-]{0,62}`: {"--repair", "target-unconfigured", "--name", ""},
		`--name "Old" is not a valid target name`:                         {"--repair", "target-renamed", "--name", "old", "--name", "Old"},
		"with --name": {"--repair", "target-unconfigured", "--target", "sessions"},
	} {
		if r := b.run(nil, append([]string{"doctor"}, args...)...); r.code != exitUsage || r.out != "" || !strings.Contains(r.log, want) {
			t.Errorf("%q: exit code %d: %s%s", args, r.code, r.out, r.log)
		}
	}
}
