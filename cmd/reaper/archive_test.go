package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/store"
)

// filled returns a directory with archives of two targets: sessions has a confirmed and an unconfirmed object.
func filled(t *testing.T) (b *workdir, url string) {
	t.Helper()
	b = newWorkdir(t, oneTarget)
	url = "file://" + filepath.ToSlash(filepath.Join(b.dir, "kept"))
	bucket, err := archive.OpenBucket(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	for _, target := range []string{"sessions", "gone"} {
		w, err := archive.Open(t.Context(), archive.Config{Bucket: bucket, Now: func() time.Time { return now },
			RollAfter: 40 * time.Millisecond, Header: archive.Header{Mode: archive.Full, Store: "embedded:data", Target: target,
				Kind: "Session", Property: "expiry", Owner: "host/1"}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			var list []store.Copy
			for j := range 3 {
				list = append(list, store.Copy{Key: fmt.Sprintf("Session/s-%d%d", i, j), Expiry: store.TextValue("20260101"),
					Data: fmt.Appendf(nil, `{"n":%d}`, j)})
			}
			r, err := w.Keep(t.Context(), "", list)
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				r.Done(func(key string) archive.State {
					return map[bool]archive.State{true: archive.Kept, false: archive.Deleted}[key == "Session/s-01"]
				})
			}
			now = now.Add(time.Hour)
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		now = now.Add(-2 * time.Hour)
	}
	return b, url
}

const (
	confirmedObject   = "sessions/2026/01/02/030405.678-bcad5f33-0001.ndjson.zst"
	unconfirmedObject = "sessions/2026/01/02/040405.678-bcad5f33-0002.ndjson.zst"
)

func TestArchiveCommands(t *testing.T) {
	noRaces(t)
	b, url := filled(t)
	list := b.must(nil, "archive", "list", "sessions", "--archive", url).out
	says(t, "list", list, `(?m)^sessions in file://.*: 2 objects, \d+ bytes$`,
		`(?m)^  2026-01-02T03:04:05Z  3 entities: 2 deleted, 1 kept, 0 unconfirmed; \d+ bytes\n    `+confirmedObject+`$`,
		`(?m)^  2026-01-02T04:04:05Z  unconfirmed, \d+ bytes\n    `+unconfirmedObject+`$`)
	says(t, "list of all", b.must(nil, "archive", "list", "--archive", url).out, `^file://.*: 4 objects`, `gone/2026`)
	says(t, "list until then", b.must(nil, "archive", "list", "sessions", "--archive", url, "--until",
		"2026-01-02T04:00:00Z").out, `: 1 object, `)

	b.write("reaper.yaml", oneTarget+"    archive: {mode: full, to: \""+url+"\"}\n")
	var res archiveResult
	out := b.must(nil, "archive", "verify", "--json").out
	if err := json.Unmarshal([]byte(out), &res); err != nil || len(res.Archives) != 1 || len(res.Archives[0].Objects) != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	if o := res.Archives[0].Objects[1]; o.Confirmed || *o.Entities != 3 || *o.Unconfirmed != 3 || o.Problem != "" {
		t.Errorf("verify reads unconfirmed objects, too: %s", out)
	}
	show := b.must(nil, "archive", "show", confirmedObject).out
	says(t, "show", show, `(?m)^1  deleted  Session/s-00\n    kept 2026-01-02T03:04:05Z, expiry = 20260101\n    \{"n":0\}$`,
		`(?m)^2  kept  Session/s-01$`)
	var shown shownObject
	out = b.must(nil, "archive", "show", confirmedObject, "--id", "s-02", "--json").out
	if err := json.Unmarshal([]byte(out), &shown); err != nil || len(shown.Entities) != 1 || shown.Entities[0].Line != 3 ||
		shown.Header.Store != "embedded:data" || !shown.Confirmed {
		t.Errorf("%v: %s", err, out)
	}
}

// Verify names what is damaged or missing, and exits with 1; show prints what can be read.
func TestArchiveVerifyNamesDamage(t *testing.T) {
	noRaces(t)
	b, url := filled(t)
	file := filepath.Join(b.dir, "kept", filepath.FromSlash(unconfirmedObject))
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-3] ^= 1
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(b.dir, "kept", filepath.FromSlash(confirmedObject))); err != nil {
		t.Fatal(err)
	}
	r := b.run(nil, "archive", "verify", "sessions", "--archive", url)
	if r.code != exitFailed {
		t.Errorf("exit code %d", r.code)
	}
	says(t, "verify", r.log, "object "+unconfirmedObject+" is damaged: ", "object "+confirmedObject+" is missing")
	says(t, "verify", r.out, "problem: object "+unconfirmedObject)
	if r := b.must(nil, "archive", "verify", "gone", "--archive", url); strings.Contains(r.out, "problem") {
		t.Error(r.out)
	}
	if r := b.run(nil, "archive", "show", unconfirmedObject, "--archive", url); r.code != exitFailed {
		t.Errorf("exit code %d: %s", r.code, r.out)
	}
}

func TestArchiveUsage(t *testing.T) {
	noRaces(t)
	b, url := filled(t)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"archive", exitUsage, "want the subcommand"},
		{"archive list", exitUsage, "no archive: archive.to of the targets file is empty"},
		{"archive list --archive s3://x", exitUsage, `unknown scheme "s3"`},
		{"archive list other", exitUsage, "other"},
		{"archive list --archive " + url + " --since 0s", exitUsage, "--since: 0s is not a positive duration"},
		{"archive list --archive " + url + " --since 1h --until 2h", exitUsage, "--since 1h is not before --until 2h"},
		{"archive list --archive " + url + "/nowhere", exitFailed, "nowhere: no such object"},
		{"archive show x --archive " + url, exitUsage, `"x": not the name of an object`},
		{"archive list --since= --archive " + url, exitUsage, "--since"},
		{"archive show " + strings.Replace(confirmedObject, "0001", "0009", 1) + " --archive " + url, exitFailed, "no such object"},
	} {
		r := b.run(nil, strings.Fields(c.args)...)
		if r.code != c.code || !strings.Contains(r.log, c.says) {
			t.Errorf("%s: exit code %d, %s", c.args, r.code, r.log)
		}
	}
}
