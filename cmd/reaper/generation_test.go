package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
)

// quickTarget has generations that live for seconds.
const quickTarget = `targets:
  - name: sessions
    kind: Session
    shards: 2
    generations: {every: 1d, ramp: 0s, staleness: 1s, slack: 1s, keep: 1}
`

func (b *workdir) generations() []inspect.GenerationLife {
	b.t.Helper()
	var res generationsResult
	if err := json.Unmarshal([]byte(b.must(nil, "generation", "list", "--json").out), &res); err != nil {
		b.t.Fatal(err)
	}
	return res.Targets[0].Generations
}

// sweepUntil sweeps again and again until the generations are as wanted.
func (b *workdir) sweepUntil(want func([]inspect.GenerationLife) bool) (sum sweep.TargetResult) {
	b.t.Helper()
	deadline, bounded := b.t.Deadline()
	for ; !bounded || time.Until(deadline) > 30*time.Second; time.Sleep(300 * time.Millisecond) { // real processes, real time
		res := b.sweep("--apply")
		sum.Deleted += res.Deleted
		sum.Carried += res.Carried
		sum.Strays += res.Strays
		sum.Retired = append(sum.Retired, res.Retired...)
		if want(b.generations()) {
			return sum
		}
	}
	b.t.Fatalf("generations: %+v", b.generations())
	return sum
}

// TestGenerationLivesOnEachStore takes real processes through the life of a
// generation, in real time.
func TestGenerationLivesOnEachStore(t *testing.T) {
	noRaces(t)
	t.Parallel()
	stores := map[string]func(t *testing.T) *workdir{
		"embedded":  func(t *testing.T) *workdir { return newEmbedded(t, quickTarget) },
		"datastore": func(t *testing.T) *workdir { b, _, _ := newDatastore(t, quickTarget); return b },
		"firestore": func(t *testing.T) *workdir {
			b, _, _ := newFirestore(t, quickTarget)
			return b
		},
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			b := open(t)
			ndjson, live := sessions(200, time.Now())
			b.must(strings.NewReader(ndjson), "load")
			old := b.dumped()
			b.must(nil, "generation", "advance", "--shards", "3")
			states := func(want ...string) func([]inspect.GenerationLife) bool {
				return func(lives []inspect.GenerationLife) bool {
					var got []string
					for _, g := range lives {
						got = append(got, fmt.Sprintf("%d %s", g.Number, g.State))
					}
					return slices.Equal(got, append(want, "0 filling"))
				}
			}
			sum := b.sweepUntil(states("1 sealed", "2 filling"))
			b.wantLive(live)
			if sum.Deleted != 100 || sum.Carried != 0 {
				t.Errorf("until it was sealed: %+v", sum)
			}
			if lives := b.generations(); lives[1].Shards != 3 || *lives[0].Left != 100 || lives[0].Retires == nil || lives[0].Drains == nil {
				t.Errorf("%+v", lives)
			}
			// Nothing of the sealed generation is due: the sweep leaves it alone, once it
			// has been read from its start and the day's audit is done.
			b.sweep("--apply")
			b.sweep("--apply")
			if res := b.sweep("--apply"); res.Ranges != 3+2 || res.Scanned != 0 || res.Operations.Writes > int64(res.Ranges) {
				t.Errorf("idle: %+v", res)
			}
			r := b.must(nil, "explain", "s-1")
			if !strings.Contains(r.out, "00000001, sealed, shard") || !strings.Contains(r.out, "it is due in") {
				t.Errorf("explain: %s", r.out)
			}
			b.must(nil, "generation", "advance")
			sum = b.sweepUntil(states("2 sealed", "3 filling"))
			if sum.Carried != 100 || sum.Deleted != 0 || !slices.Equal(sum.Retired, []int{1}) {
				t.Errorf("until it retired: %+v", sum)
			}
			b.wantLive(live)
			for id, text := range b.dumped() {
				var was, is line
				if err := json.Unmarshal([]byte(old[id]), &was); err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal([]byte(text), &is); err != nil {
					t.Fatal(err)
				}
				k, err := expirykey.Parse(strings.Trim(string(is.Key), `"`))
				if err != nil || k.Generation != 3 || !reflect.DeepEqual(is.Expires, was.Expires) || string(is.Data) != string(was.Data) {
					t.Errorf("%s became %s, %v", old[id], text, err)
				}
			}
			for _, r := range b.status().Ranges {
				if r.Generation == 1 {
					t.Errorf("status lists a range of a retired generation: %+v", r)
				}
			}
			if r := b.must(nil, "generation", "list"); !strings.Contains(r.out, "00000003") || strings.Contains(r.out, "00000001") {
				t.Errorf("list: %s", r.out)
			}
		})
	}
}

// A command that fails for one target does its work for the others, and reports on both.
func TestOneTargetOfSeveralFails(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, `targets:
  - {name: bad, kind: Bad, generations: {ramp: 1h}}
  - {name: good, kind: Good, shards: 2, generations: {ramp: 1h}}
`)
	b.must(strings.NewReader(`{"id":"a"}`), "load", "--target", "bad")
	b.must(strings.NewReader(`{"id":"a"}`), "load", "--target", "good")
	b.must(nil, "generation", "advance", "--target", "bad")
	for _, code := range []int{exitFailed, exitUsage} { // target good can advance once, target bad never
		r := b.run(nil, "generation", "advance")
		if r.code != code || strings.Contains(r.out, "good: generation 00000002 is open") != (code == exitFailed) || !strings.Contains(r.log, "target bad: writers are still moving") || !strings.Contains(r.log, "--force with --target bad") {
			t.Errorf("advance: exit code %d: %s%s", r.code, r.out, r.log)
		}
	}

	db, err := embedded.Open(filepath.Join(b.dir, "data"), embedded.Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	recs, err := db.Load(t.Context(), store.RecordQuery{Sort: store.TargetRecord, Target: "bad", Keys: []string{"bad"}})
	if err != nil || len(recs.List) != 1 {
		t.Fatalf("%d records, %v", len(recs.List), err)
	}
	newer := recs.List[0]
	prev := newer.Revision
	newer.Fields, newer.Revision = maps.Clone(newer.Fields), store.NewRevision(prev)
	newer.Fields["schema"] = int64(generation.Schema + 1)
	if err := errors.Join(db.Save(t.Context(), newer, prev), db.Close()); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"pause", "--reason", "a test"}, {"pace", "--max", "7"}, {"status"}, {"generation", "list"}, {"generation", "advance", "--force"}, {"resume"}} {
		r := b.run(nil, append(args, "--json")...)
		var res struct{ Targets []struct{ Name string } }
		if err := json.Unmarshal([]byte(r.out), &res); err != nil || len(res.Targets) != 1 || res.Targets[0].Name != "good" {
			t.Errorf("reaper %s: %v: %s", strings.Join(args, " "), err, r.out)
		}
		if r.code != exitFailed || !strings.Contains(r.log, "target bad: ") || strings.Contains(r.log, "target good: ") {
			t.Errorf("reaper %s: exit code %d: %s", strings.Join(args, " "), r.code, r.log)
		}
		if args[0] == "pause" {
			if r := b.run(nil, "status", "--json", "--target", "good"); !strings.Contains(r.out, `"paused": true`) {
				t.Errorf("pause: %s%s", r.out, r.log)
			}
		}
	}
}

func TestGenerationAdvance(t *testing.T) {
	noRaces(t)
	b := newEmbedded(t, strings.ReplaceAll(quickTarget, "ramp: 0s", "ramp: 1h"))
	b.must(strings.NewReader(`{"id":"a"}`), "load")
	if r := b.must(nil, "generation", "advance", "--shards", "64"); !strings.Contains(r.out, "generation 00000002 is open, with 64 shards") || !strings.Contains(r.log, "the targets file's number of shards again") {
		t.Errorf("%s%s", r.out, r.log)
	}
	if r := b.run(nil, "generation", "advance"); r.code != exitUsage || !strings.Contains(r.log, "writers are still moving") || !strings.Contains(r.log, "--force") {
		t.Errorf("exit code %d: %s", r.code, r.log)
	}
	if r := b.must(nil, "generation", "advance", "--force", "--json"); !strings.Contains(r.out, `"generation": 3`) || !strings.Contains(r.log, "forced") {
		t.Errorf("%s%s", r.out, r.log)
	}
	if n := len(b.generations()); n != 4 {
		t.Errorf("%d generations, with the nursery", n)
	}
	if r := b.must(nil, "sweep"); !strings.Contains(r.log, "ramp") && !strings.Contains(r.out, "dry run") {
		t.Errorf("%s%s", r.out, r.log)
	}
	for _, wrong := range [][]string{
		{"generation", "advance", "--shards", "0"}, {"generation", "advance", "--shards", "10000"}, {"generation", "advance", "--target", "nobody"},
		{"generation", "advance", "now"}, {"generation", "back"}, {"generation"}, {"generation", "list", "--shards", "3"}, {"audit", "everything"},
	} {
		if r := b.run(nil, wrong...); r.code != exitUsage {
			t.Errorf("reaper %s: exit code %d: %s%s", strings.Join(wrong, " "), r.code, r.out, r.log)
		}
	}
	b.write("reaper.yaml", "targets:\n  - {name: sessions, kind: Session, layout: sharded}\n")
	if r := b.run(nil, "generation", "advance"); r.code != exitUsage || !strings.Contains(r.log, "layout sharded") {
		t.Errorf("exit code %d: %s", r.code, r.log)
	}
	for field, text := range map[string]string{"keep": "keep: 0", "ramp": "every: 1h, ramp: 2h", "staleness": "staleness: 0s"} {
		b.write("reaper.yaml", "targets:\n  - name: sessions\n    kind: Session\n    generations: {"+text+"}\n")
		if r := b.run(nil, "sweep"); r.code != exitUsage || !strings.Contains(r.log, field) || !strings.Contains(r.log, "reaper.yaml:4") {
			t.Errorf("%s: exit code %d: %s", text, r.code, r.log)
		}
	}
	// Changed bounds and shards apply from the next generation on, and the log says so.
	b.write("reaper.yaml", strings.ReplaceAll(strings.ReplaceAll(quickTarget, "staleness: 1s", "staleness: 3s"), "shards: 2", "shards: 5"))
	r := b.must(nil, "sweep", "--apply")
	for _, want := range []string{"configured shards are for the next generation", "configured ramp is for the next generation", "bounds for writers changed"} {
		if !strings.Contains(r.log, want) {
			t.Errorf("a changed targets file: %q is not in the log: %s", want, r.log)
		}
	}
}

func TestAuditCommand(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b, e, project := newDatastore(t, quickTarget)
	b.must(strings.NewReader(`{"id":"a"}`), "load")
	b.must(nil, "generation", "advance")
	b.sweepUntil(func(lives []inspect.GenerationLife) bool { return lives[0].Number == 2 })
	// Old copies are put back into the generation that has retired.
	due, err := expirykey.New(1, 0, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	early, err := expirykey.New(1, 1, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	db, err := datastore.Open(t.Context(), datastore.Options{Project: project, Emulator: e.Host})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	target := store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}
	err = db.Put(t.Context(), target, "", []store.Entity{
		{Name: "due", Expiry: store.TextValue(due.String())}, {Name: "early", Expiry: store.TextValue(early.String())},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := b.must(nil, "explain", "due"); !strings.Contains(r.out, "retired") || !strings.Contains(r.out, "reaper audit") {
		t.Errorf("explain: %s", r.out)
	}
	b.env = append(b.env, "REAPER_APPLY=true") // it is for sweeps
	if r := b.must(nil, "audit"); !strings.Contains(r.out, "1 strays are due (would be deleted), 1 more move to the nursery") {
		t.Errorf("dry: %s", r.out)
	}
	if r := b.must(nil, "audit", "--apply"); !strings.Contains(r.out, "1 strays are due (deleted), 1 more move to the nursery") {
		t.Errorf("%s", r.out)
	}
	left := b.dumped()
	if len(left) != 2 || left[`"a"`] == "" || !strings.Contains(left[`"early"`], "00000000.") {
		t.Errorf("left: %v", left)
	}
}
