package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dsdk "cloud.google.com/go/datastore"
	fsdk "cloud.google.com/go/firestore/apiv1"
	fpb "cloud.google.com/go/firestore/apiv1/firestorepb"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/firestore"
)

// A patient is a healthy setup on an emulator, in which one thing is then made wrong.
type patient struct {
	*workdir
	mode     emulator.Mode
	emulator string // host:port
	project  string
	file     string // the targets file, as it is now
	cloud    *fakeCloud
	db       interface { // the emulator's database, without any program in between
		store.Store
		store.Writer
	}
	client *dsdk.Client // Google's own; nil in native mode
	native *fsdk.Client // Google's own; nil in Datastore mode
}

const patientTarget = `targets:
  - name: sessions
    kind: Session
    shards: 4
    breaker: off
`

// newPatient returns a setup in which nothing is wrong.
func newPatient(t *testing.T, mode emulator.Mode, targets string, inCloud bool) *patient {
	t.Helper()
	e := emulator.Start(t, mode)
	p := &patient{mode: mode, emulator: e.Host, project: e.Project(t), file: targets}
	p.workdir = newWorkdir(t, targets)
	p.env = []string{p.variable() + "=" + e.Host, "REAPER_STORE=" + p.driver() + ":" + p.project}
	if inCloud {
		p.cloud = newFakeCloud(t, e, mode, p.project, p.dir)
		p.env = append(p.env[1:], p.cloud.environ()...)
	}
	if mode == emulator.Datastore {
		db, err := datastore.Open(t.Context(), datastore.Options{Project: p.project, Emulator: e.Host})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		p.db, p.client = db, datastoreClient(t, e, p.project)
	} else {
		db, err := firestore.Open(t.Context(), firestore.Options{Project: p.project, Emulator: e.Host})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		p.db, p.native = db, nodewriter.NativeClient(t, e.Host)
	}
	p.healthy()
	return p
}

// variable is that of the emulator of the mode.
func (p *patient) variable() string {
	if p.mode == emulator.Native {
		return "FIRESTORE_EMULATOR_HOST"
	}
	return "DATASTORE_EMULATOR_HOST"
}

func (p *patient) otherVariable() string {
	if p.mode == emulator.Native {
		return "DATASTORE_EMULATOR_HOST"
	}
	return "FIRESTORE_EMULATOR_HOST"
}

func (p *patient) driver() string {
	if p.mode == emulator.Native {
		return "firestore"
	}
	return "datastore"
}

func (p *patient) otherDriver() string {
	if p.mode == emulator.Native {
		return "datastore"
	}
	return "firestore"
}

// drop removes an entity or a record, by Google's own client.
func (p *patient) drop(kind, name string) {
	p.t.Helper()
	if p.client != nil {
		if err := p.client.Delete(p.t.Context(), dsdk.NameKey(kind, name, nil)); err != nil {
			p.t.Fatal(err)
		}
		return
	}
	root := "projects/" + p.project + "/databases/(default)"
	remove := &fpb.Write{Operation: &fpb.Write_Delete{Delete: root + "/documents/" + kind + "/" + name}}
	request := &fpb.CommitRequest{Database: root, Writes: []*fpb.Write{remove}}
	if _, err := p.native.Commit(p.t.Context(), request); err != nil {
		p.t.Fatal(err)
	}
}

// spoil gives a record a property that no record of ours has, by Google's own client: the store cannot decode it.
func (p *patient) spoil(kind, name string) {
	p.t.Helper()
	key, ps := dsdk.NameKey(kind, name, nil), dsdk.PropertyList{}
	if err := p.client.Get(p.t.Context(), key, &ps); err != nil {
		p.t.Fatal(err)
	}
	ps = append(ps, dsdk.Property{Name: "note", Value: time.Now(), NoIndex: true})
	if _, err := p.client.Put(p.t.Context(), key, &ps); err != nil {
		p.t.Fatal(err)
	}
}

// dropNumber removes an entity whose id is a number.
func (p *patient) dropNumber(kind string, id int64) {
	p.t.Helper()
	if p.client == nil {
		p.drop(kind, fmt.Sprintf("__id%d__", id))
		return
	}
	if err := p.client.Delete(p.t.Context(), dsdk.IDKey(kind, id, nil)); err != nil {
		p.t.Fatal(err)
	}
}

// unindexed writes some orders, which the writer excludes from the index or not. Only Datastore mode knows that.
func (p *patient) unindexed(excluded bool) {
	p.t.Helper()
	for i := range 3 {
		expiry := dsdk.Property{Name: "expiry_key", Value: p.key(0, i, time.Hour).Text, NoIndex: excluded}
		key := dsdk.NameKey("Order", fmt.Sprintf("o-%d", i), nil)
		if _, err := p.client.Put(p.t.Context(), key, &dsdk.PropertyList{expiry}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// set gives a variable of all later processes a value; an empty one takes it away.
func (p *patient) set(name, value string) {
	p.env = slices.DeleteFunc(p.env, func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
	if value != "" {
		p.env = append(p.env, name+"="+value)
	}
}

// configure writes the targets file.
func (p *patient) configure(text string) {
	p.t.Helper()
	p.file = text
	p.write("reaper.yaml", text)
}

// replace changes the targets file in one place.
func (p *patient) replace(was, is string) {
	p.t.Helper()
	if strings.Count(p.file, was) != 1 {
		p.t.Fatalf("%q is not once in the targets file:\n%s", was, p.file)
	}
	p.configure(strings.Replace(p.file, was, is, 1))
}

// deploy has the changed targets file take effect: a process sweeps by it.
func (p *patient) deploy() {
	p.t.Helper()
	p.must(nil, "sweep", "--apply")
}

// key returns the expiry of an entity that expires some time from now.
func (p *patient) key(number, shard int, in time.Duration) store.Value {
	p.t.Helper()
	k, err := expirykey.New(number, shard, time.Now().Add(in))
	if err != nil {
		p.t.Fatal(err)
	}
	return store.TextValue(k.String())
}

// put writes entities with the property expiry_key.
func (p *patient) put(kind string, entities ...store.Entity) {
	p.t.Helper()
	p.putAs(store.Target{Name: "any", Kind: kind, Property: "expiry_key", Type: store.Text}, "", entities...)
}

// work writes a hundred sessions that expire at one instant.
func (p *patient) work(in time.Duration) {
	p.t.Helper()
	var all []store.Entity
	for i := range 100 {
		all = append(all, store.Entity{Name: fmt.Sprint("work", i), Expiry: p.key(1, 0, in)})
	}
	p.put("Session", all...)
}

func (p *patient) putAs(t store.Target, namespace string, entities ...store.Entity) {
	p.t.Helper()
	if err := p.db.Put(p.t.Context(), t, namespace, entities); err != nil {
		p.t.Fatal(err)
	}
}

// load returns a record as it is in the store.
func (p *patient) load(sort store.RecordSort, target, key string) store.Record {
	p.t.Helper()
	got, err := p.db.Load(p.t.Context(), store.RecordQuery{Sort: sort, Target: target, Keys: []string{key}})
	if err != nil {
		p.t.Fatal(err)
	}
	if len(got.List) == 0 {
		return store.Record{Sort: sort, Key: key, Target: target, Fields: store.Fields{}}
	}
	return got.List[0]
}

// edit changes a record as nobody should: without any check. If there is no record it begins an empty one.
func (p *patient) edit(sort store.RecordSort, target, key string, change func(store.Fields)) {
	p.t.Helper()
	r := p.load(sort, target, key)
	was := r.Revision
	r.Fields, r.Revision = maps.Clone(r.Fields), store.NewRevision(was)
	change(r.Fields)
	if err := p.db.Save(p.t.Context(), r, was); err != nil {
		p.t.Fatal(err)
	}
}

// record changes the target record of sessions as the program does.
func (p *patient) record(change func(*generation.Record)) {
	p.t.Helper()
	rec, _, err := generation.Load(p.t.Context(), p.db, "sessions")
	if err != nil {
		p.t.Fatal(err)
	}
	change(&rec)
	if _, err := generation.Save(p.t.Context(), p.db, rec); err != nil {
		p.t.Fatal(err)
	}
}

// cursors returns the records of the ranges of sessions in the first generation that have a position.
func (p *patient) cursors() (list []store.Record) {
	p.t.Helper()
	got, err := p.db.Load(p.t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, r := range got.List {
		if r.Fields["generation"] == int64(1) && r.Fields["position"] != "" {
			list = append(list, r)
		}
	}
	if len(list) == 0 {
		p.t.Fatalf("no cursor of generation 1 has a position: %+v", got.List)
	}
	return list
}

// behind writes an entity that is due into a range that is swept already, and returns the key of its cursor.
func (p *patient) behind(name string) (cursorKey string) {
	p.t.Helper()
	c := p.cursors()[0]
	p.put("Session", store.Entity{Name: name, Expiry: p.key(1, shardOf(p.t, c), -time.Hour)})
	return c.Key
}

func shardOf(t *testing.T, c store.Record) (shard int) {
	t.Helper()
	if _, err := fmt.Sscanf(c.Fields["shard"].(string), "%d", &shard); err != nil {
		t.Fatal(err)
	}
	return shard
}

// due writes sessions that are due, in front of all cursors.
func (p *patient) due(n int) {
	p.t.Helper()
	var list []store.Entity
	for i := range n {
		list = append(list, store.Entity{Name: fmt.Sprintf("due-%d", i), Expiry: p.key(1, i%4, -time.Second)})
	}
	p.put("Session", list...)
}

// lives writes into the budget of sessions how long lived what was deleted in the last day, and in the last two hours.
func (p *patient) lives(before, after time.Duration) {
	p.t.Helper()
	b, err := spend.Load(p.t.Context(), p.db, "sessions")
	if err != nil {
		p.t.Fatal(err)
	}
	b.Lives, b.Began = nil, time.Now().Add(-48*time.Hour)
	for h := 20; h >= 0; h-- {
		life := before
		if h < 2 {
			life = after
		}
		b = b.TakeLives(time.Now().Add(-time.Duration(h)*time.Hour), map[int]int64{breaker.BucketOf(life): 1000})
	}
	was := b.Revision
	b.Revision = store.NewRevision(was)
	if err := p.db.Save(p.t.Context(), b.Encode(), was); err != nil {
		p.t.Fatal(err)
	}
}

// oldRecord writes the record of the target old, which nobody has used for two months.
func (p *patient) oldRecord(kind string) {
	p.t.Helper()
	rec := generation.New("old", kind, "expiry_key", 4, true, time.Now().Add(-60*day))
	if _, err := generation.Save(p.t.Context(), p.db, rec); err != nil {
		p.t.Fatal(err)
	}
}

// beat writes the heartbeat of another process of a target.
func (p *patient) beat(target, owner, version, why string, ago, lease time.Duration) {
	p.t.Helper()
	at := store.FormatTime(time.Now().Add(-ago))
	p.edit(store.WorkerRecord, target, cursor.HeartbeatKey(target, owner), func(f store.Fields) {
		maps.Copy(f, store.Fields{"schema": int64(2), "owner": owner, "process": "p", "epoch": int64(1), "count": int64(3),
			"lease_ms": lease.Milliseconds(), "read": at, "begun": at, "renewed": at, "claims": int64(2),
			"version": version, "why": why})
	})
}

// long is a lease that outlasts any test, however slow the machine is.
const long = time.Hour

// bury removes a heartbeat, as its process does at its end.
func (p *patient) bury(target, owner string) {
	p.t.Helper()
	p.drop(string(store.WorkerRecord), cursor.HeartbeatKey(target, owner))
}

// ran writes what a run of sessions has left in the history.
func (p *patient) ran(task string, ago time.Duration, end history.End, counts metrics.Counts) {
	p.t.Helper()
	by := history.Origin{Actor: "ann", Host: "host", Owner: "host/1"}
	r := history.NewRun("sessions", task, by, time.Now().Add(-ago))
	r.Run.Updated = r.At.Add(time.Hour)
	if task == "sweep" {
		r.Run.Updated = r.At.Add(time.Minute)
	}
	r.Run.Ended, r.Run.End, r.Run.Sums = r.Run.Updated, end, []history.Sum{{Account: "all", Counts: counts}}
	if end == history.Failed {
		r.Run.Error, r.Run.Failures = "the disk is full", 1
	}
	if _, err := history.Save(p.t.Context(), p.db, r.KeptFor(90*24*time.Hour)); err != nil {
		p.t.Fatal(err)
	}
}

// forgetRuns removes all runs from the history of sessions.
func (p *patient) forgetRuns() {
	p.t.Helper()
	list, err := history.Read(p.t.Context(), p.db, "sessions", time.Time{})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, r := range list.Records {
		if r.Kind == history.KindRun {
			p.drop(string(store.SweepRecord), r.Key)
		}
	}
}

// backdate makes all sweeps of sessions that were some time longer ago: their positions and instants.
func (p *patient) backdate(by time.Duration) {
	p.t.Helper()
	for _, c := range p.cursors() {
		p.edit(store.CursorRecord, "sessions", c.Key, func(f store.Fields) {
			for _, name := range []string{"swept", "released", "rate_used", "rewind_done"} {
				if at, err := time.Parse(store.TimeLayout, f[name].(string)); err == nil {
					f[name] = store.FormatTime(at.Add(-by))
				}
			}
			k, err := expirykey.Parse(f["position"].(string))
			if err != nil {
				p.t.Fatal(err)
			}
			back, err := expirykey.New(k.Generation, k.Shard, k.Expires.Add(-by))
			if err != nil {
				p.t.Fatal(err)
			}
			f["position"], f["position_key"] = back.String(), ""
		})
	}
}

// noise are findings that a busy machine shows by itself: its sweeps, for example, may end without having removed
// their heartbeats.
var noise = []string{"store-slow", "sweeps-late", "worker-dead"}

// tooSlow is why a check was given up for lack of time.
var tooSlow = regexp.MustCompile(`within|too long|in time|not known|deadline`)

// examine runs the doctor, and returns what it has found, as id@target. On a busy machine checks are given up; then
// it is run again. What is sought is no noise.
func (p *patient) examine(sought string) (r doctor.Report, ids []string) {
	p.t.Helper()
	for range 5 {
		r = decodeReport(p.t, p.run(nil, "doctor", "--json", "--wait", "5m"))
		if !slices.ContainsFunc(r.Unchecked, func(u doctor.Unchecked) bool { return tooSlow.MatchString(u.Why) }) {
			break
		}
	}
	for _, f := range r.Findings {
		if f.ID == sought || !slices.Contains(noise, f.ID) {
			ids = append(ids, f.ID+"@"+f.Target)
		}
	}
	return r, ids
}

// obey runs a command of reaper that the finding advises, word for word, with more arguments if it leaves a choice.
func (p *patient) obey(f doctor.Finding, command string, more ...string) reply {
	p.t.Helper()
	p.heed(f, command)
	return p.must(nil, append(strings.Fields(command)[1:], more...)...)
}

// heed makes sure that the finding advises what the test does next.
func (p *patient) heed(f doctor.Finding, words string) {
	p.t.Helper()
	if !strings.Contains(f.Mend, words) {
		p.t.Errorf("%s does not advise %q: %s", f.ID, words, f.Mend)
	}
}

// gcloud runs the command of the Google Cloud CLI that the finding advises.
func (p *patient) gcloud(f doctor.Finding) {
	p.t.Helper()
	_, command, found := strings.Cut(f.Mend, "gcloud ")
	if !found {
		p.t.Errorf("%s does not advise a command: %s", f.ID, f.Mend)
	}
	p.cloud.gcloud("gcloud " + command)
}

// advised returns what a pattern finds in the advice.
func (p *patient) advised(f doctor.Finding, pattern string) string {
	p.t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(f.Mend)
	if m == nil {
		p.t.Fatalf("%s does not advise %q: %s", f.ID, pattern, f.Mend)
	}
	return m[1]
}
