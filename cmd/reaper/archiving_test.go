package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
)

// withArchive returns a workdir of an embedded store whose target has an archive in files.
func withArchive(t *testing.T, mode string) *workdir {
	b := newEmbedded(t, "")
	b.write("reaper.yaml", oneTarget+fmt.Sprintf("    shards: 4\n    page: 50\n    archive: {mode: %s, to: \"file://%s\"}\n", mode,
		filepath.Join(b.dir, "archive")))
	return b
}

// archived returns the states of all entities in the archive of a workdir, by key: the best that any object
// says of them.
func (b *workdir) archived() map[string]archive.State {
	b.t.Helper()
	bucket, err := archive.OpenBucket(b.t.Context(), "file://"+filepath.Join(b.dir, "archive"))
	if err != nil {
		b.t.Fatal(err)
	}
	all := map[string]archive.State{}
	if _, err := os.Stat(filepath.Join(b.dir, "archive")); errors.Is(err, fs.ErrNotExist) {
		return all // nothing was kept yet
	}
	for e, err := range archive.Objects(b.t.Context(), bucket, "sessions", time.Time{}, time.Time{}) {
		if err != nil {
			b.t.Fatal(err)
		}
		for l, err := range archive.Read(b.t.Context(), bucket, e.Name) {
			if err != nil {
				b.t.Fatal(err)
			}
			if was := all[l.Key]; was != archive.Deleted {
				all[l.Key] = l.State
			}
		}
	}
	return all
}

func lapsed(prefix string, n int) string {
	var text strings.Builder
	for i := range n {
		at := time.Now().Add(-time.Minute)
		if i%4 == 3 {
			at = time.Now().Add(time.Hour)
		}
		fmt.Fprintf(&text, `{"id":"%s-%d","expires":%q,"data":{"n":%d}}`+"\n", prefix, i, at.UTC().Format(time.RFC3339), i)
	}
	return text.String()
}

// A sweep archives what it deletes, and explain says of each when it went, and by whom.
func TestSweepArchives(t *testing.T) {
	for _, mode := range []string{"full", "keys"} {
		b := withArchive(t, mode)
		b.must(strings.NewReader(lapsed("s", 400)), "load")
		if r := b.must(nil, "sweep"); !strings.Contains(r.out, "the archive would get 300 of what would go") {
			t.Errorf("%s", r.out)
		}
		if _, err := os.Stat(filepath.Join(b.dir, "archive")); err == nil {
			t.Error("a dry run writes to the archive")
		}
		r := b.must(nil, "sweep", "--apply")
		if !strings.Contains(r.out, "the archive has 300 of what went") {
			t.Errorf("%s", r.out)
		}
		all := b.archived()
		for key, state := range all {
			if state != archive.Deleted {
				t.Errorf("%s is %s", key, state)
			}
		}
		if len(all) != 300 {
			t.Errorf("%d are in the archive", len(all))
		}
		if r := b.must(nil, "explain", "s-1"); !strings.Contains(r.out, "it was deleted at ") || !strings.Contains(r.out, " by ") {
			t.Errorf("%s", r.out)
		}
		if r := b.must(nil, "explain", "never"); !strings.Contains(r.out, "none was archived since") {
			t.Errorf("%s", r.out)
		}
	}
}

// If the archive cannot be written, nothing is deleted, and one error says so.
func TestArchiveCannotBeWritten(t *testing.T) {
	b := withArchive(t, "full")
	b.write("archive", "a file, and no directory")
	b.must(strings.NewReader(lapsed("s", 40)), "load")
	withoutOne := oneTarget + fmt.Sprintf("    archive: {mode: full, to: \"file://%s\"}\n  - {name: others, kind: Other}\n",
		filepath.Join(b.dir, "archive"))
	b.write("two.yaml", withoutOne)
	b.must(strings.NewReader(lapsed("o", 4)), "load", "--config", "two.yaml", "--target", "others")
	for _, args := range [][]string{{"sweep", "--apply", "--json"}, {"sweep", "--apply", "--json", "--max-duration", "1m"},
		{"audit", "--apply", "--json"}} {
		r := b.run(nil, append(args, "--config", "two.yaml")...)
		if r.code != exitFailed || strings.Count(r.log, "the archive cannot be written, so nothing is deleted") != 1 {
			t.Errorf("%v: exit code %d: %s", args, r.code, r.log)
		}
		res := b.result(r.out)
		if its := res.Targets[0]; its.Deleted != 0 || its.Complete || res.Complete ||
			!strings.Contains(its.Error, "its archive cannot be written") ||
			!strings.Contains(r.log, "reaper: target sessions: its archive cannot be written") {
			t.Errorf("%v: %+v\n%s", args, its, r.log)
		}
		if its := res.Targets[1]; len(args) == 3 && args[0] == "sweep" && (its.Deleted != 3 || its.Error != "" || !its.Complete) {
			t.Errorf("the other one: %+v", its)
		}
	}
	if left := b.dumped(); len(left) != 40 {
		t.Errorf("%d of 40 are left", len(left))
	}
	for _, to := range []string{"", "gs:///x", "/tmp/archive", "s3://bucket", "file://host/x", "gs://user@bucket"} {
		b.write("reaper.yaml", oneTarget+fmt.Sprintf("    archive: {mode: full, to: %q}\n", to))
		if r := b.run(nil, "sweep", "--apply"); r.code != exitUsage || !strings.Contains(r.log, "archive.") {
			t.Errorf("%q: exit code %d: %s", to, r.code, r.log)
		}
	}
}

// Killed at random in the middle, sweeps leave nothing that is gone and not in the archive. The opposite may be: what
// the embedded store has deleted and not yet written to its log stands again.
func TestArchivingIsKilled(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting for disks
	kills := nightly.Size(t, 50, 6)
	b := withArchive(t, "full")
	written := map[string]bool{}
	for n := range kills {
		prefix := fmt.Sprint("k", n)
		b.must(strings.NewReader(lapsed(prefix, 2000)), "load")
		for id := range b.dumped() {
			written[id] = true
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+rand.IntN(400))*time.Millisecond)
		cmd, _, _ := b.command(nil, "sweep", "--apply", "--from-start")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		cancel()
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		has := b.archived()
		left := b.dumped()
		for id := range written {
			if _, stands := left[id]; !stands && has[id] == "" {
				t.Fatalf("after kill %d: %s is gone, and the archive has no copy", n, id)
			}
		}
	}
	b.must(nil, "sweep", "--apply", "--from-start")
	if left := b.dumped(); len(left) != 500*kills {
		t.Errorf("%d are left of %d", len(left), 2000*kills)
	}
}

// What dump --typed prints, load --typed brings back, and leaves alone what exists.
func TestTypedDumpAndLoad(t *testing.T) {
	b, c := newEmbedded(t, oneTarget), newEmbedded(t, oneTarget)
	const data = `{"n":12345678901234567890,"f":1.50,"l":[1,null,"ü"]}`
	b.must(strings.NewReader(`{"id":"a","expires":"2030-01-01T00:00:00Z","data":`+data+"}\n"+`{"id":7,"data":{}}`), "load")
	text := b.must(nil, "dump", "--typed").out
	if r := c.must(strings.NewReader(text), "load", "--typed", "--json"); !strings.Contains(r.out, `"written": 2`) {
		t.Errorf("%s", r.out)
	}
	if r := c.must(strings.NewReader(text), "load", "--typed", "--json"); !strings.Contains(r.out, `"existed": 2`) {
		t.Errorf("%s", r.out)
	}
	if was, is := b.must(nil, "dump").out, c.must(nil, "dump").out; was != is || !strings.Contains(is, data) {
		t.Errorf("was\n%s\nis\n%s", was, is)
	}
	for _, line := range []string{`{"id":"a"}`, `{`, `{"key":"\"x\"","data":{"id":"x"},"namespace":"eu"}`, strings.Repeat("x", 100)} {
		if r := c.run(strings.NewReader(line), "load", "--typed"); r.code != exitUsage || !strings.Contains(r.log, "line 1: ") {
			t.Errorf("%s: exit code %d: %s", line, r.code, r.log)
		}
	}
	var lines strings.Builder // of which the store refuses one
	for i := range 5 {
		field := `"data"`
		if i == 3 {
			field = `"unknown"`
		}
		fmt.Fprintf(&lines, `{"key":"\"new-%d\"","data":{"id":"new-%d","property":"expiry_key",%s:{}}}`+"\n", i, i, field)
	}
	r := c.run(strings.NewReader(lines.String()), "load", "--typed")
	if r.code != exitFailed || !strings.Contains(r.log, "line 4: ") || !strings.Contains(r.log, "3 entities were written") {
		t.Errorf("exit code %d: %s", r.code, r.log)
	}
	if r := c.run(nil, "load", "--typed", "--skip-bad"); r.code != exitUsage {
		t.Errorf("exit code %d", r.code)
	}
}

// A bucket may be reachable again just as something is to be kept: that is then kept, or an error says that it is not.
func TestArchiveKeepsOrFailsWhileItOpens(t *testing.T) {
	bucket, err := archive.OpenBucket(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg := archive.Config{Bucket: bucket, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Header: archive.Header{Mode: archive.Keys, Target: "t", Owner: "o"}}
	w, err := archive.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(context.Background())
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it need not wait for an object
	for i := range 100_000 {
		a := &archiving{cfg: cfg, fault: errors.New("not yet"), tried: time.Now()}
		var group sync.WaitGroup
		group.Go(func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.writer, a.fault = w, nil
		})
		ended, err := a.Keep(ctx, "", "", []store.Copy{{Key: "k"}})
		group.Wait()
		if ended == nil && err == nil {
			t.Fatalf("try %d: nothing is kept, and there is no error", i)
		}
	}
}

// hangs is a bucket that does not answer, as a file system over a network, until it is released.
type hangs struct {
	archive.Bucket
	released chan struct{}
}

func (b hangs) Create(ctx context.Context, name string, text []byte) (string, error) {
	<-b.released
	return b.Bucket.Create(ctx, name, text)
}

// An archive that does not answer, whatever the context says, takes a part of the time that others need. The process
// ends nevertheless.
func TestArchiveHangs(t *testing.T) {
	bucket, err := archive.OpenBucket(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for duration, want := range map[time.Duration]time.Duration{0: 17 * time.Second, 10 * time.Second: 2500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if duration > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, duration)
				defer cancel()
			}
			b := hangs{bucket, make(chan struct{})}
			a := &archiving{cfg: archive.Config{Bucket: b, Now: time.Now, Log: slog.New(slog.DiscardHandler),
				Header: archive.Header{Mode: archive.Keys, Target: "t", Owner: "o"}}}
			a.work, a.end = context.WithCancel(ctx)
			began := time.Now()
			a.open(ctx)
			if took := time.Since(began); took != want || a.Failing() == nil || a.stopped {
				t.Errorf("after %v: %v", took, a.Failing())
			}
			began = time.Now()
			if a.close(); time.Since(began) > 15*time.Second {
				t.Errorf("it ended after %v", time.Since(began))
			}
			close(b.released)
			synctest.Wait()
		})
	}
}
