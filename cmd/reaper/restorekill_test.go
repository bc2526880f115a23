package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/badproxy"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/store"
)

// killedTarget has a pace at which a sweep lasts long enough to be killed.
const killedTarget = `targets:
  - name: things
    kind: Thing
    shards: 4
    lease: 5s
    page: 50
    breaker: off
    pace: {max: 400}
    archive: {mode: full, to: "file://%s", roll: {after: 200ms}}
`

// A killing is a database whose sweeps and restores are killed, and what its application knows of it. The program
// reaches it by a proxy that cuts connections.
type killing struct {
	t      *testing.T
	b      *workdir
	node   *nodewriter.Types
	proxy  *badproxy.Proxy
	random *rand.Rand

	marks map[string]string // what was written last with each id, to be swept
	own   map[string]string // what the application has written again, to live
	gone  map[string]bool   // what it has deleted
	done  bool              // the restore: the same command would begin a new one
}

// Sweeps and restores are killed with SIGKILL in the middle, and their connections are cut. All that is gone is in the
// archive at each moment. What was archived and deleted comes back as it was; the application's own entities stay, and
// what it deletes behind a restore stays deleted.
func TestSweepsAndRestoresAreKilled(t *testing.T) {
	noRaces(t)
	t.Parallel() // emulators keep the locks of a killed process for a minute
	kills := nightly.Size(t, 12, 1)
	onBothEmulators(t, killedTarget, func(t *testing.T, b *workdir, o nodewriter.TypesOptions) {
		seed := uint64(time.Now().UnixNano())
		t.Log("seed:", seed)
		proxy, err := badproxy.New(o.Emulator.Host, seed)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(proxy.Close)
		for i, v := range b.env {
			b.env[i] = strings.Replace(v, o.Emulator.Host, proxy.Addr(), 1)
		}
		k := &killing{t: t, b: b, node: nodewriter.StartTypes(t, o), proxy: proxy,
			random: rand.New(rand.NewPCG(seed, 0)), marks: map[string]string{}, own: map[string]string{},
			gone: map[string]bool{}}
		began := time.Now()
		done := func(what string) { t.Log(time.Since(began).Round(100*time.Millisecond), what) }
		for i := range kills {
			k.fill(i, 1_300)
			k.b.killSweep(1+k.random.IntN(3), time.Duration(k.random.IntN(1500))*time.Millisecond, k.cutting(i%2 == 1))
			k.lost()
			done("a sweep was killed")
		}
		k.sweepAll()
		done("swept")
		k.renew(20)
		for i := 0; i <= kills && !k.done; i++ {
			k.killRestore(i)
			done("a restore was killed")
		}
		k.compare()
		done("compared")
	})
}

// cutting returns a function for killSweep that waits for a new object of the archive, and then cuts connections, if
// it is to.
func (k *killing) cutting(cut bool) (mayKill func() bool) {
	before := k.objects()
	return func() bool {
		if k.objects() == before {
			return false
		}
		if cut {
			time.Sleep(time.Duration(k.random.IntN(500)) * time.Millisecond)
			k.proxy.CutAfter(badproxy.Replies, k.random.IntN(2000))
		}
		return true
	}
}

// objects returns how many files the archive has.
func (k *killing) objects() (n int) {
	dir := filepath.Join(k.b.dir, "archive", "things")
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error { // it may not exist yet
		if err == nil && strings.HasSuffix(d.Name(), ".ndjson.zst") { // and no probe
			n++
		}
		return nil
	})
	return n
}

// fill writes entities that are due, and some again that are gone or were there before.
func (k *killing) fill(round, n int) {
	marks := map[string]string{}
	for i := range n {
		id := fmt.Sprintf("r%d-%d", round, i)
		marks[id] = "first of " + id
	}
	for id := range k.marks {
		if k.random.IntN(20) == 0 {
			marks[id] = fmt.Sprintf("again in %d of %s", round, id)
		}
	}
	k.node.Put(marks, true, 0)
	for id, mark := range marks {
		k.marks[id] = mark
	}
}

var markOf = regexp.MustCompile(`"mark":\{[^}]*"stringValue":"([^"]*)"`)

// archived returns all marks that the archive has of each id.
func (k *killing) archived() map[string][]string {
	k.t.Helper()
	bucket, err := archive.OpenBucket(k.t.Context(), "file://"+filepath.Join(k.b.dir, "archive"))
	if err != nil {
		k.t.Fatal(err)
	}
	all := map[string][]string{}
	for e, err := range archive.Objects(k.t.Context(), bucket, "things", time.Time{}, time.Time{}) {
		if err != nil {
			k.t.Fatal(err)
		}
		for l, err := range archive.Read(k.t.Context(), bucket, e.Name) {
			if err != nil {
				k.t.Fatal(err)
			}
			mark := markOf.FindSubmatch(l.Data)
			if mark == nil {
				k.t.Fatalf("%s has no mark: %s", l.Key, l.Data)
			}
			id := l.Key[strings.LastIndexByte(l.Key, '/')+1:]
			all[id] = append(all[id], string(mark[1]))
		}
	}
	return all
}

// lost fails if anything is gone that the archive does not have as it was.
func (k *killing) lost() (left int) {
	k.t.Helper()
	has, there := k.archived(), k.node.Marks() // the archive first: what is killed may still be at work in the emulator
	for id, mark := range k.marks {
		switch is, ok := there[id]; {
		case ok && is != mark:
			k.t.Fatalf("%s is %q, and was %q", id, is, mark)
		case !ok && !slices.Contains(has[id], mark):
			if has = k.archived(); !slices.Contains(has[id], mark) {
				k.t.Fatalf("%s is gone, and the archive has %q of it, not %q", id, has[id], mark)
			}
		}
	}
	k.t.Logf("%d of %d are left, the archive has %d", len(there), len(k.marks), len(has))
	return len(there)
}

// sweepAll sweeps until nothing is left, with a connection cut each time. A sweep may fail: locks of those that were
// killed can keep it from its records for longer than its lease.
func (k *killing) sweepAll() {
	k.t.Helper()
	k.b.must(nil, "pace", "--max", "unlimited")
	for range 20 {
		cut := time.AfterFunc(time.Duration(300+k.random.IntN(1000))*time.Millisecond, func() { k.proxy.Cut() })
		r := k.b.run(nil, "sweep", "--apply", "--from-start")
		cut.Stop()
		if r.code != exitDone && r.code != exitFailed {
			k.t.Fatalf("a sweep ended with exit code %d:\n%s", r.code, r.log)
		}
		if k.lost() == 0 {
			return
		}
	}
	k.t.Fatal("twenty sweeps did not delete everything")
}

// renew writes entities of the application's own, with ids of some that are not there.
func (k *killing) renew(n int) {
	there, marks := k.node.Marks(), map[string]string{}
	for id := range k.marks {
		if _, ok := there[id]; !ok && !k.gone[id] && len(marks) < n {
			marks[id] = fmt.Sprintf("own of %s, with %d there", id, len(there))
			k.own[id] = marks[id]
		}
	}
	k.node.Put(marks, false, 0)
}

// restoreArgs are a restore that lasts some seconds.
var restoreArgs = []string{"restore", "things", "--since", "1h", "--expire-in", "7d", "--apply", "--reason", "test",
	"--rate", "500"}

// killRestore begins a restore, or goes on with it, and kills it behind the place at which the one before was
// killed. Meanwhile the application writes again what is not yet back, and deletes what is.
func (k *killing) killRestore(round int) {
	k.t.Helper()
	before := k.node.Marks()
	cmd, _, _ := k.b.command(nil, append(slices.Clone(restoreArgs), "--log-level", "debug", "--log-format", "json")...)
	log := bufio.NewReader(k.b.start(cmd))
	var settled atomic.Int64
	ended := make(chan string, 1)
	go func() {
		var text strings.Builder
		for line, err := log.ReadString('\n'); err == nil; line, err = log.ReadString('\n') {
			text.WriteString(line)
			var l struct {
				Message  string
				Of, Left int64
			}
			if json.Unmarshal([]byte(line), &l) == nil && l.Message == "entities inserted" {
				settled.Add(l.Of - l.Left)
			}
		}
		ended <- text.String()
	}()
	await := func(n int64) {
		for settled.Load() < n && len(ended) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	await(1 + k.random.Int64N(200))
	k.renew(10)
	if round%2 == 1 {
		k.proxy.CutAfter(badproxy.Both, k.random.IntN(5000))
	}
	await(store.MaxPage + 1) // the batch of the kill before, which is repeated, is done, and noted
	k.removeSome(before)
	await(store.MaxPage + 1 + k.random.Int64N(store.MaxPage))
	_ = cmd.Process.Kill() // it may be done
	text := <-ended
	_ = cmd.Wait()
	if cmd.ProcessState.Exited() {
		k.t.Logf("the restore was done before it was killed, with %d: exit code %d\n%s", settled.Load(),
			cmd.ProcessState.ExitCode(), text[max(0, len(text)-2000):])
		if k.done = cmd.ProcessState.ExitCode() == exitDone; !k.done {
			k.t.Error("it failed")
		}
	}
	k.t.Logf("%d were settled", settled.Load())
}

// removeSome deletes some of those that a restore had brought back before this one began.
func (k *killing) removeSome(before map[string]string) {
	var ids []string
	for id := range before {
		if k.own[id] == "" && len(ids) < 10 {
			ids = append(ids, id)
			k.gone[id] = true
		}
	}
	k.t.Logf("%d are deleted behind the restore", len(ids))
	if len(ids) > 0 {
		k.node.Remove(ids)
	}
}

// compare ends the restore, with a connection cut, unless it is done, and compares everything.
func (k *killing) compare() {
	k.t.Helper()
	if !k.done {
		cut := time.AfterFunc(time.Second, func() { k.proxy.Cut() })
		r := k.b.must(nil, append(slices.Clone(restoreArgs), "--json")...)
		cut.Stop()
		var res restoreResult
		if err := json.Unmarshal([]byte(r.out), &res); err != nil || !res.Complete {
			k.t.Errorf("%v: %s", err, r.out)
		}
	}
	there := k.node.Marks()
	for id, want := range k.marks {
		if k.own[id] != "" {
			want = k.own[id]
		}
		switch is, ok := there[id]; {
		case k.gone[id] && ok:
			k.t.Errorf("%s was deleted behind the restore, and is there: %q", id, is)
		case !k.gone[id] && is != want:
			k.t.Errorf("%s is %q, and must be %q", id, is, want)
		}
	}
	if len(there) != len(k.marks)-len(k.gone) {
		k.t.Errorf("%d are there: %d were written, %d deleted", len(there), len(k.marks), len(k.gone))
	}
	if res := k.b.sweep("--apply"); res.Deleted != 0 {
		k.t.Errorf("the next sweep deletes what was restored: %+v", res)
	}
	k.t.Logf("%d are back as they were, %d are the application's own, %d stay deleted", len(there)-len(k.own),
		len(k.own), len(k.gone))
}

// mostArchiving is how much memory a sweep with an archive may take.
const mostArchiving = 400 << 10 // KiB

// A sweep with an archive holds a bounded part of what it archives, however large entities are.
func TestMemoryOfArchiving(t *testing.T) {
	noRaces(t)
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("nothing here tells how much memory a process took")
	}
	t.Parallel()
	n := nightly.Size(t, 1_000, 60)
	const pad = 1_000_000
	t.Run("embedded", func(t *testing.T) {
		b := newEmbedded(t, "")
		b.write("reaper.yaml", fmt.Sprintf(thingTarget, filepath.Join(b.dir, "archive")))
		var text strings.Builder
		data := strings.Repeat("x", pad)
		for i := range n {
			fmt.Fprintf(&text, `{"id":"s-%d","expires":"2026-01-01T00:00:00Z","data":{"pad":%q}}`+"\n", i, data)
		}
		b.must(strings.NewReader(text.String()), "load")
		b.wantLittleMemory(n)
	})
	for _, service := range []struct {
		mode     emulator.Mode
		env, url string
		name     string
	}{
		{emulator.Datastore, "DATASTORE_EMULATOR_HOST", "datastore:", "datastore"},
		{emulator.Native, "FIRESTORE_EMULATOR_HOST", "firestore:", "native"},
	} {
		t.Run(service.name, func(t *testing.T) {
			e := emulator.StartOwn(t, service.mode) // which needs much memory itself
			b := newWorkdir(t, "")
			o := nodewriter.TypesOptions{Emulator: e, Mode: service.name, Project: e.Project(t), Target: "things", Shards: 4}
			b.env = []string{service.env + "=" + e.Host, "REAPER_STORE=" + service.url + o.Project}
			b.write("reaper.yaml", fmt.Sprintf(thingTarget, filepath.Join(b.dir, "archive")))
			node := nodewriter.StartTypes(t, o)
			marks := map[string]string{}
			for i := range n {
				if marks[fmt.Sprint("s-", i)] = "large"; len(marks) == 4 || i == n-1 { // a request has at most 10 MiB
					node.Put(marks, true, pad)
					clear(marks)
				}
			}
			b.wantLittleMemory(n)
		})
	}
}

// wantLittleMemory sweeps so many entities, and looks how much memory that takes.
func (b *workdir) wantLittleMemory(entities int) {
	b.t.Helper()
	cmd, out, log := b.command(nil, "sweep", "--apply", "--json")
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var most int64
	for len(ended) == 0 {
		most = max(most, peakOf(cmd))
		time.Sleep(10 * time.Millisecond)
	}
	if err := <-ended; err != nil {
		b.t.Fatalf("%v\n%s", err, log)
	}
	if res := b.result(out.String()).Targets[0]; int(res.Deleted) != entities || int(res.Archived) != entities {
		b.t.Errorf("of %d: %+v\n%s", entities, res, log)
	}
	b.t.Logf("%d entities took %d MiB", entities, most>>10)
	if most == 0 || most > mostArchiving {
		b.t.Errorf("a sweep took %d KiB of memory, want at most %d", most, mostArchiving)
	}
}

// peakOf returns how many KiB of memory a process had at most until now; 0 if it has ended.
func peakOf(cmd *exec.Cmd) (kib int64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	_, _ = fmt.Sscan(after, &kib)
	return kib
}
