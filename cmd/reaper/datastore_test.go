package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/sweep"
)

// newDatastore returns a working directory on a fresh project of the emulator.
func newDatastore(t *testing.T, targets string) (b *workdir, e *emulator.Emulator, project string) {
	e = emulator.Start(t, emulator.Datastore)
	project = e.Project(t)
	b = newWorkdir(t, targets)
	b.env = []string{"DATASTORE_EMULATOR_HOST=" + e.Host, "REAPER_STORE=datastore:" + project}
	return b, e, project
}

// everything reads all entities of the given kinds and namespaces, by key.
func everything(t *testing.T, e *emulator.Emulator, project string, kinds, namespaces []string) map[string]string {
	t.Helper()
	client := datastoreClient(t, e, project)
	all := map[string]string{}
	for _, ns := range namespaces {
		for _, kind := range kinds {
			var props []sdk.PropertyList
			keys, err := client.GetAll(t.Context(), sdk.NewQuery(kind).Namespace(ns), &props)
			if err != nil {
				t.Fatal(err)
			}
			for i, k := range keys {
				slices.SortFunc(props[i], func(a, b sdk.Property) int { return strings.Compare(a.Name, b.Name) })
				all[ns+"|"+datastore.FormatKey(k)] = fmt.Sprintf("%+v", props[i])
			}
		}
	}
	return all
}

var records = []string{"ReaperTarget", "ReaperCursor", "ReaperWorker", "ReaperSweep"}

// Another language's client writes, from nothing but the document, what this
// program then sweeps: three namespaces, names and numbers, ancestors.
func TestSweepsWhatNodeWrote(t *testing.T) {
	nightly.Races(t)
	t.Parallel()
	n := nightly.Size(t, 20_000, 2_000)
	b, e, project := newDatastore(t, `targets:
  - name: sessions
    kind: Session
    namespaces: ["", eu, us]
    pace: {max: unlimited}
    breaker: off
`)
	wrote := nodewriter.Run(t, nodewriter.Options{Host: e.Host, Project: project, Kind: "Session", Property: "expiry_key",
		Namespaces: []string{"", "eu", "us"}, Elsewhere: "asia", Generation: 1, Shards: 16, Entities: n, Now: time.Now()})
	kinds, namespaces := []string{"Session", "SessionArchive"}, []string{"", "eu", "us", "asia"}
	before := everything(t, e, project, kinds, namespaces)
	want := maps.Clone(before)
	expired := 0
	for _, w := range wrote {
		if w.Role == nodewriter.Expired {
			delete(want, w.Key.Namespace+"|"+datastore.FormatKey(w.Key))
			expired++
		}
	}
	if len(before) != len(wrote) || len(before)-len(want) != expired || expired < n/3 {
		t.Fatalf("%d written, %d there, %d expired, %d known", len(wrote), len(before), expired, len(before)-len(want))
	}

	dry := b.sweep()
	if dry.Expired != int64(expired) || dry.Deleted != 0 || dry.Ranges != 3*3*16 { // the nursery, generation 1 that is in use, and the next one
		t.Errorf("dry run: %+v", dry)
	}
	if after := everything(t, e, project, kinds, namespaces); !maps.Equal(after, before) {
		t.Error("the dry run changed entities")
	}
	if left := everything(t, e, project, records, []string{""}); len(left) != 0 {
		t.Errorf("the dry run wrote records: %v", left)
	}

	began := time.Now()
	res := b.sweep("--apply")
	t.Logf("deleted %d in %v", res.Deleted, time.Since(began))
	if res.Deleted != int64(expired) || !res.Complete || res.Malformed+res.Suspect+res.Outside+res.Conflicts != 0 || res.Stepped != nil {
		t.Errorf("sweep: %+v", res)
	}
	after := everything(t, e, project, kinds, namespaces)
	if !maps.Equal(after, want) {
		for k := range want {
			if after[k] != want[k] {
				t.Fatalf("%s was %s and is %s", k, want[k], after[k])
			}
		}
		t.Fatalf("%d entities left, want %d", len(after), len(want))
	}
	second := b.sweep("--apply")
	// On a slow machine the look around of the first one is cut short, and the second one's is noted; and
	// probes are dear, so that idle cursors are moved once.
	if second.Scanned != 0 || second.Operations.Writes > 1+int64(second.Ranges) || second.Operations.Deletes != 0 {
		t.Errorf("second sweep: %+v", second)
	}
}

func TestKilledOftenDatastore(t *testing.T) {
	noRaces(t)
	t.Parallel() // the emulator keeps the locks of a killed process for a minute
	kills := nightly.Size(t, 10, 2)
	n := 1_200 * kills                                                                // the emulator reads all of them for each page
	b, _, _ := newDatastore(t, strings.ReplaceAll(slowTarget, "max: 400", "max: 10")) // a cursor is saved before it is killed
	ndjson, live := sessions(n, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	killOften(b, kills, 300, 1)
	before := b.status()
	moved := 0
	for _, r := range before.Ranges {
		if r.Position != "" && r.Generation == 1 {
			moved++
		}
	}
	b.must(nil, "pace", "--max", "unlimited") // in small pages the emulator would need minutes
	res := b.sweep("--apply")
	if moved == 0 || res.Scanned >= int64(n/2) || res.Error != "" || !res.Complete && res.Incomplete == 0 {
		t.Errorf("%d cursors had moved, last sweep: %+v", moved, res)
	}
	b.sweepToEnd()
	b.wantLive(live)
}

// A logLine is a debug line of a sweep, in JSON.
type logLine struct {
	Time     time.Time `json:"time"`
	Msg      string    `json:"message"`
	Range    string    `json:"range"`
	Owner    string    `json:"owner"`
	Token    int64     `json:"token"`
	Deleted  int64     `json:"deleted"`
	Position string    `json:"position"` // of a saved cursor
}

// Two processes that begin at the same time share the ranges. A trace of their commits with
// owner and token of the lease proves that no range is held by both.
func TestTwoProcessesShareTheRanges(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b, _, _ := newDatastore(t, `targets:
  - name: sessions
    kind: Session
    breaker: off
    page: 50
    pace: {max: 200}
`)
	n := nightly.Size(t, 10_000, 4_000)
	ndjson, live := sessions(n, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	b.env = append(b.env, "REAPER_LOG_LEVEL=debug", "REAPER_LOG_FORMAT=json")
	var deleted int64
	var traces [2][]logLine
	var group sync.WaitGroup
	var mu sync.Mutex
	for i := range traces {
		cmd, out, log := b.command(nil, "sweep", "--apply", "--json")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("process %d: %v\n%s", i, err, log)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			res := b.result(out.String())
			if !res.Complete {
				t.Errorf("process %d: %+v", i, res)
			}
			deleted += res.Targets[0].Deleted
			for text := range strings.Lines(log.String()) {
				var l logLine
				if err := json.Unmarshal([]byte(text), &l); err == nil && l.Msg == "page" {
					traces[i] = append(traces[i], l)
				}
			}
		})
	}
	group.Wait()
	b.wantLive(live)
	if deleted != int64(n/2) {
		t.Errorf("%d deleted by both, want each of the %d once", deleted, n/2)
	}
	type span struct {
		first, last time.Time
		owner       string
	}
	held := map[string]map[int64]span{} // by range and token
	for i, trace := range traces {
		ranges := map[string]bool{}
		for _, l := range trace {
			ranges[l.Range] = true
			if held[l.Range] == nil {
				held[l.Range] = map[int64]span{}
			}
			s, ok := held[l.Range][l.Token]
			if ok && s.owner != l.Owner {
				t.Errorf("range %s was held with token %d by %s and %s", l.Range, l.Token, s.owner, l.Owner)
			}
			if !ok {
				s = span{first: l.Time, owner: l.Owner}
			}
			s.last = l.Time
			held[l.Range][l.Token] = s
		}
		t.Logf("process %d swept %d ranges in %d pages", i, len(ranges), len(trace))
	}
	for name, tokens := range held {
		var spans []span
		for _, token := range slices.Sorted(maps.Keys(tokens)) {
			spans = append(spans, tokens[token])
		}
		for i := 1; i < len(spans); i++ {
			if spans[i].first.Before(spans[i-1].last) {
				t.Errorf("range %s: %s commits until %v, %s from %v", name, spans[i-1].owner, spans[i-1].last, spans[i].owner, spans[i].first)
			}
		}
	}
}

// datastoreClient returns Google's own client of an emulator in Datastore mode.
func datastoreClient(t *testing.T, e *emulator.Emulator, project string) *sdk.Client {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+e.Host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client, err := sdk.NewClient(t.Context(), project, option.WithGRPCConn(conn), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// An expiry property may hold anything: only expired entities are deleted.
func TestJunkInTheProperty(t *testing.T) {
	nightly.Races(t)
	b, e, project := newDatastore(t, oneTarget)
	client := datastoreClient(t, e, project)
	now := time.Now().UTC()
	key := func(at time.Time) string { return "00000001.0003." + at.Format("20060102T150405.000Z") }
	for name, v := range map[string]any{
		"expired": key(now.Add(-time.Hour)), "live": key(now.Add(time.Hour)), "suspect": key(time.Unix(0, 0).UTC()),
		"year 1": "00000000.0003.00010101T000000.000Z", "year 9999": "00000000.0003.99991231T235959.999Z",
		"garbage": "tomorrow", "garbage in range": key(now.Add(-time.Hour)) + "x", "empty": "", "integer": int64(17), "float": 1.5,
		"boolean": true, "null": nil, "timestamp": now.Add(-time.Hour), "blob": []byte("x"), "geo": sdk.GeoPoint{Lat: 1},
		"list of old keys": []any{key(time.Unix(0, 0).UTC()), key(time.Unix(1, 0).UTC())},
		"list":             []any{key(now.Add(-2 * time.Hour)), "x"}, "key": sdk.NameKey("Session", "x", nil), "generation 9": "00000009.0003.20250101T000000.000Z",
	} {
		if _, err := client.Put(t.Context(), sdk.NameKey("Session", name, nil), &sdk.PropertyList{{Name: "expiry_key", Value: v}}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	dry := b.sweep()
	res := b.sweep("--apply")
	// The target is new: generation 9 is found in use, and swept.
	if res.Deleted != 2 || dry.Expired != 2 || res.Suspect != 2 || res.Malformed != 3 || dry.Suspect != 2 || dry.Malformed != 3 || !res.Complete {
		t.Errorf("dry run: %+v\nsweep: %+v", dry, res)
	}
	// The blob sorts with text where the emulator files it; the list counts by its other element, too.
	if res.Outside < 8 || res.Outside != dry.Outside {
		t.Errorf("outside: %d, in the dry run %d", res.Outside, dry.Outside)
	}
	left := everything(t, e, project, []string{"Session"}, []string{""})
	if len(left) != 17 {
		t.Errorf("%d left, want all but two of 19: %v", len(left), slices.Sorted(maps.Keys(left)))
	}
	if dumped := b.dumped(); len(dumped) != 17 {
		t.Errorf("dump prints %d", len(dumped))
	}
}

func TestNamespacesOfAllRefusedClearlyByTheEmulator(t *testing.T) {
	b, _, _ := newDatastore(t, oneTarget+"    namespaces: [\"*\"]\n")
	r := b.run(nil, "sweep", "--apply")
	if r.code != exitFailed || !strings.Contains(r.log, "list namespaces") {
		t.Errorf("exit code %d: %s", r.code, r.log)
	}
}

func TestUnreachable(t *testing.T) {
	noRaces(t)
	t.Parallel() // it waits until its patience with an address where nobody answers ends
	b := newWorkdir(t, oneTarget)
	b.env = []string{"DATASTORE_EMULATOR_HOST=127.0.0.1:1", "REAPER_STORE=datastore:my-project"}
	began := time.Now()
	r := b.run(nil, "sweep", "--apply", "--json")
	if took := time.Since(began); took > 2*time.Minute { // its patience is shorter, the machine may be busy
		t.Errorf("it took %v", took)
	}
	if r.code != exitFailed || !strings.Contains(r.log, "127.0.0.1:1") || strings.Count(r.log, "check that the endpoint") != 1 ||
		!strings.Contains(r.log, "\nhint: check that the endpoint") {
		t.Errorf("exit code %d, advice not once on a line of its own: %s", r.code, r.log)
	}
	var res sweep.Result
	if err := json.Unmarshal([]byte(r.out), &res); err != nil || len(res.Targets) != 1 {
		t.Fatalf("%v: %s", err, r.out)
	}
	if one := res.Targets[0]; strings.Contains(one.Error, "check that") || !strings.HasPrefix(one.Hint, "check that the endpoint") {
		t.Errorf("the JSON says %q, and advises %q", one.Error, one.Hint)
	}
}

// A named database is another one.
func TestNamedDatabase(t *testing.T) {
	nightly.Races(t)
	b, _, project := newDatastore(t, oneTarget)
	ndjson, live := sessions(100, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	b.must(strings.NewReader(ndjson), "load", "--store", "datastore:"+project+"/second")
	b.must(nil, "sweep", "--apply", "--store", "datastore:"+project+"/second")
	b.wantLive(live, "--store", "datastore:"+project+"/second")
	if got := b.dumped("--store", "datastore:"+project+"/(default)"); len(got) != 100 {
		t.Errorf("%d left in the default database, want all 100", len(got))
	}
}
