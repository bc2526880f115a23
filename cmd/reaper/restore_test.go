package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/restore"
)

// archivedTarget has an archive in the directory of the test, for %s.
const archivedTarget = `targets:
  - name: sessions
    kind: Session
    breaker: {floor: 1000000}
    archive: {mode: full, to: "file://%s"}
`

func newArchived(t *testing.T) *workdir {
	b := newEmbedded(t, "")
	b.write("reaper.yaml", fmt.Sprintf(archivedTarget, filepath.Join(b.dir, "archive")))
	return b
}

// contents strips the expiry and its key from the lines of a dump.
func contents(t *testing.T, dumped map[string]string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for id, text := range dumped {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &fields); err != nil {
			t.Fatal(err)
		}
		all[id] = string(fields["data"])
	}
	return all
}

func (b *workdir) restore(code int, args ...string) (res restoreResult) {
	b.t.Helper()
	r := b.run(nil, append([]string{"restore", "sessions", "--json"}, args...)...)
	if r.code != code {
		b.t.Fatalf("restore %q: exit code %d\n%s%s", args, r.code, r.out, r.log)
	}
	if err := json.Unmarshal([]byte(r.out), &res); err != nil {
		b.t.Fatalf("%v: %s%s", err, r.out, r.log)
	}
	return res
}

func TestRestore(t *testing.T) {
	b := newArchived(t)
	ndjson, live := sessions(2000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	before := b.dumped()
	if res := b.sweep("--apply"); res.Deleted != 1000 {
		t.Fatalf("sweep: %+v", res)
	}
	b.wantLive(live)
	dry := b.restore(exitDone, "--since", "1h", "--expire-in", "7d")
	if dry.Restorable != 1000 || dry.Restored != 0 || dry.Exist != 0 || dry.Cost == nil || dry.Cost.Writes != 1000 {
		t.Errorf("dry run: %+v", dry)
	}
	b.wantLive(live)
	res := b.restore(exitDone, "--since", "1h", "--expire-in", "7d", "--spread", "24h", "--apply", "--reason", "a test")
	if res.Restored != 1000 || res.Verified != 1000 || !res.Complete {
		t.Errorf("restore: %+v", res)
	}
	after := b.dumped()
	if !maps.Equal(contents(t, before), contents(t, after)) {
		t.Errorf("%d entities before, %d after, or others", len(before), len(after))
	}
	for id := range live {
		if before[id] != after[id] {
			t.Errorf("%s was %s and is %s", id, before[id], after[id])
		}
	}
	if res := b.sweep("--apply"); res.Deleted != 0 {
		t.Errorf("the next sweep: %+v", res)
	}
	out := b.must(nil, "history", "--actions").out
	if !strings.Contains(out, "restore end") || !strings.Contains(out, "a test") {
		t.Errorf("history:\n%s", out)
	}
	text := b.must(nil, "restore", "sessions", "--since", "1h", "--no-expiry").out
	for _, want := range []string{"sessions: 1,000 entities in ", "1,000  exist already: they stay as they are",
		"none of them expires", "nothing was changed: restore with --apply --reason TEXT"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// Restores that are killed again and again end with everything, and with nothing twice.
func TestRestoreIsKilled(t *testing.T) {
	noRaces(t)
	t.Parallel()
	b := newArchived(t)
	n := nightly.Size(t, 40_000, 8_000)
	ndjson, _ := sessions(n, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	before := contents(t, b.dumped())
	b.sweep("--apply")
	args := []string{"restore", "sessions", "--since", "1h", "--expire-in", "7d", "--apply", "--reason", "a test",
		"--rate", "4000"}
	kills := 0
	for range 5 {
		cmd, _, _ := b.command(nil, append(args, "--log-level", "debug", "--log-format", "json")...)
		b.startAndWatchInserts(cmd, 1+rand.IntN(3))
		_ = cmd.Process.Kill() // one that is done already is told below
		_ = cmd.Wait()
		if !cmd.ProcessState.Exited() {
			kills++
		}
	}
	res := b.restore(exitDone, args[2:]...)
	if kills == 0 || !res.Complete || int(res.Restored+res.Exist) != n/2 || !maps.Equal(before, contents(t, b.dumped())) {
		t.Errorf("%d kills; %+v", kills, res)
	}
}

func TestRestoreUsage(t *testing.T) {
	b := newArchived(t)
	b.must(strings.NewReader(`{"id":"a","expires":"2026-01-01T00:00:00Z"}`+"\n"), "load")
	b.sweep("--apply")
	for _, c := range []struct{ args, want string }{
		{"sessions --expire-in 7d", "say what is to be restored"},
		{"sessions --since 1h", "say when it is to expire"},
		{"sessions --since 1h --expire-in 7d --no-expiry", "say when it is to expire"},
		{"sessions --since 1h --no-expiry --spread 1d", "--spread needs --expire-in"},
		{"sessions --since 1h --no-expiry --from tape", "unknown source"},
		{"sessions --since 1h --no-expiry --apply", "--reason is missing"},
		{"sessions --since soon --no-expiry", "--since:"},
		{"sessions --until 2h --since 1h --no-expiry", "--since is not before --until"},
		{"sessions --since 1h --expire-in 0s", "--expire-in"},
		{"sessions --since 1h --no-expiry --archive ftp://x", "--archive:"},
		{"sessions --since 1h --no-expiry --rate 0", "--rate:"},
		{"other --since 1h --no-expiry", "other"},
		{"sessions --id a --keep-expiry", "would be due at once"},
		{"sessions --id a --expire-in 7d --from pitr", ""},
	} {
		r := b.run(nil, append([]string{"restore"}, strings.Fields(c.args)...)...)
		if r.code != exitUsage || !strings.Contains(r.log, c.want) {
			t.Errorf("restore %s: exit code %d\n%s%s", c.args, r.code, r.out, r.log)
		}
	}
	res := b.restore(exitDone, "--sweep", "unknown", "--expire-in", "7d")
	if len(res.Warnings) != 1 || res.Restorable != 0 {
		t.Errorf("an unknown sweep: %+v", res)
	}
	b.must(nil, "pause", "--reason", "restoring")
	res = b.restore(exitDone, "--id", "a", "--expire-in", "7d", "--apply", "--reason", "a test")
	if res.Complete || res.Held == "" || res.Restored != 0 {
		t.Errorf("paused: %+v", res)
	}
	b.must(nil, "resume")
	b.damageArchive()
	r := b.run(nil, "restore", "sessions", "--since", "1h", "--expire-in", "7d", "--apply", "--reason", "a test")
	if r.code != exitFailed || !strings.Contains(r.log, "not everything could be restored") {
		t.Errorf("damaged: exit code %d\n%s%s", r.code, r.out, r.log)
	}
}

// startAndWatchInserts starts a restore that logs JSON at debug level, and returns once it has made so many inserts.
func (b *workdir) startAndWatchInserts(cmd *exec.Cmd, inserts int) {
	b.t.Helper()
	log := bufio.NewReader(b.start(cmd))
	for inserts > 0 {
		line, err := log.ReadString('\n')
		if strings.Contains(line, `"entities inserted"`) {
			inserts--
		}
		if err != nil {
			return // it is done: the caller finds out
		}
	}
}

// damageArchive cuts the last bytes off all objects, but not off their manifests.
func (b *workdir) damageArchive() {
	b.t.Helper()
	err := filepath.WalkDir(filepath.Join(b.dir, "archive"), func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(name, ".done.ndjson.zst") || !strings.HasSuffix(name, ".ndjson.zst") {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.Remove(name); err != nil {
			return err
		}
		return os.WriteFile(name, data[:len(data)-10], 0o600)
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// A restore that ends half-way, because the rest would be due at once, prints what it restored; one that did
// nothing is wrong usage.
func TestRestoreEndsHalfWay(t *testing.T) {
	for restored, code := range map[int64]int{0: exitUsage, 500: exitFailed} {
		var out bytes.Buffer
		s := &session{console: &console{stdout: &out, json: true}}
		res := restore.Result{Counts: restore.Counts{Restored: restored}}
		err := reportRestore(s, restore.Config{}, "", res, fmt.Errorf("%w: sessions/a", restore.ErrDue))
		if got, _ := exitOf(failed(err)); got != code {
			t.Errorf("%d restored: exit code %d, want %d", restored, got, code)
		}
		if printed := strings.Contains(out.String(), fmt.Sprintf(`"restored": %d`, restored)); printed != (restored > 0) {
			t.Errorf("%d restored: %s", restored, out.String())
		}
	}
}

// The next command goes on with one that was to give up another one only if that came to insert something.
func TestRestoreSaysHowToGoOn(t *testing.T) {
	for inserts, want := range map[bool]string{
		false: "not complete: run the command again to go on",
		true:  "not complete: run the command again, without --abandon, to go on",
	} {
		var out bytes.Buffer
		printRestoreEnd(&out, restoreResult{Result: restore.Result{Apply: true, Inserts: inserts}, abandons: true})
		if !strings.Contains(out.String(), want) {
			t.Errorf("it inserts: %v: %s", inserts, out.String())
		}
	}
}
