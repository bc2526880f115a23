package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	dsdk "cloud.google.com/go/datastore"
	fsdk "cloud.google.com/go/firestore/apiv1"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/store"
)

const adoptTarget = `targets:
  - name: sessions
    kind: Session
    shards: 4
    lease: 5s
    pace: {max: unlimited}
    adopt: {from: {property: created, plus: 30d}, rate: unlimited, spread: 0s}
`

// adopts runs adopt with --json and returns its result.
func (b *workdir) adopts(args ...string) adopt.Result {
	b.t.Helper()
	r := b.run(nil, append([]string{"adopt", "--json"}, args...)...)
	var res adoptResult
	d := json.NewDecoder(strings.NewReader(r.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&res); err != nil || d.More() || r.code != exitDone {
		b.t.Fatalf("reaper adopt %q: exit code %d, %v\n%s%s", args, r.code, err, r.out, r.log)
	}
	return res.Result
}

// An old writer creates entities and replaces them whole, without keys, as it did before
// anybody thought of expiry.
type oldWriter interface {
	// put writes entities with these ids, which were created then.
	put(created time.Time, ids ...string)
	// all returns all entities by id: their keys, and everything else that they hold.
	all() (keys, rest map[string]string)
}

// oldDatastore is an old writer of Datastore mode.
type oldDatastore struct {
	t       *testing.T
	client  *dsdk.Client
	indexed bool // created is indexed in all entities, not only in half of them
}

func (o oldDatastore) put(created time.Time, ids ...string) {
	for page := range slices.Chunk(ids, 400) {
		var keys []*dsdk.Key
		var lists []dsdk.PropertyList
		for i, id := range page {
			keys = append(keys, dsdk.NameKey("Session", id, nil))
			lists = append(lists, dsdk.PropertyList{
				{Name: "created", Value: created, NoIndex: i%2 == 0 && !o.indexed}, {Name: "user", Value: "u7"}, {Name: "n", Value: int64(i)},
				{Name: "list", Value: []any{int64(1), "x", nil, 2.5}}, {Name: "blob", Value: []byte{0, 255}, NoIndex: true},
				{Name: "inner", Value: &dsdk.Entity{Properties: []dsdk.Property{{Name: "a", Value: 0.5}}}, NoIndex: true},
				{Name: "nothing", Value: nil},
			})
		}
		err := store.Retry(o.t.Context(), time.Minute, func() error { // an adopter's transaction may hold a lock
			_, err := o.client.PutMulti(o.t.Context(), keys, lists)
			if err != nil {
				return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
			}
			return nil
		})
		if err != nil {
			o.t.Error(err)
		}
	}
}

func (o oldDatastore) all() (keys, rest map[string]string) {
	var props []dsdk.PropertyList
	found, err := o.client.GetAll(o.t.Context(), dsdk.NewQuery("Session"), &props)
	if err != nil {
		o.t.Error(err)
	}
	keys, rest = map[string]string{}, map[string]string{}
	for i, k := range found {
		slices.SortFunc(props[i], func(a, b dsdk.Property) int { return strings.Compare(a.Name, b.Name) })
		text := ""
		for _, p := range props[i] {
			if inner, ok := p.Value.(*dsdk.Entity); ok {
				p.Value = fmt.Sprintf("%+v", inner.Properties)
			}
			if p.Name == "expiry_key" {
				keys[k.Name] = p.Value.(string)
			} else {
				text += fmt.Sprintf("%+v\n", p)
			}
		}
		rest[k.Name] = text
	}
	return keys, rest
}

// oldNative is an old writer of native mode.
type oldNative struct {
	t      *testing.T
	client *fsdk.Client
	root   string
}

func newOldNative(t *testing.T, e *emulator.Emulator, project string) oldNative {
	t.Helper()
	return oldNative{t, nodewriter.NativeClient(t, e.Host), "projects/" + project + "/databases/(default)"}
}

func (o oldNative) put(created time.Time, ids ...string) {
	for page := range slices.Chunk(ids, 400) {
		var writes []*pb.Write
		for i, id := range page {
			fields := map[string]*pb.Value{"n": {ValueType: &pb.Value_IntegerValue{IntegerValue: int64(i)}}}
			if i%20 == 0 { // the emulator's memory is small, and it indexes everything
				fields = everyType(created, o.root+"/documents/a/b")
			}
			fields["created"] = &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(created)}}
			writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: &pb.Document{
				Name: o.root + "/documents/Session/" + id, Fields: fields}}})
		}
		if _, err := o.client.BatchWrite(o.t.Context(), &pb.BatchWriteRequest{Database: o.root, Writes: writes}); err != nil {
			o.t.Error(err)
		}
	}
}

func (o oldNative) all() (keys, rest map[string]string) {
	it := o.client.ListDocuments(o.t.Context(), &pb.ListDocumentsRequest{Parent: o.root + "/documents", CollectionId: "Session", PageSize: 300})
	keys, rest = map[string]string{}, map[string]string{}
	for doc, err := range it.All() {
		if err != nil {
			o.t.Error(err)
			break
		}
		id := doc.GetName()[strings.LastIndexByte(doc.GetName(), '/')+1:]
		if k, ok := doc.GetFields()["expiry_key"]; ok {
			keys[id] = k.GetStringValue()
			delete(doc.Fields, "expiry_key")
		}
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(&pb.Document{Fields: doc.Fields})
		if err != nil {
			o.t.Error(err)
		}
		rest[id] = string(text)
	}
	return keys, rest
}

// inBothModes runs a test on both emulators.
func inBothModes(t *testing.T, targets string, test func(t *testing.T, b *workdir, o oldWriter)) {
	t.Run("datastore", func(t *testing.T) {
		t.Parallel()
		b, e, project := newDatastore(t, targets)
		test(t, b, oldDatastore{t: t, client: datastoreClient(t, e, project)})
	})
	t.Run("native", func(t *testing.T) {
		t.Parallel()
		b, e, project := newFirestore(t, targets)
		test(t, b, newOldNative(t, e, project))
	})
}

// seed writes n entities and returns their ids, the first half of them created long enough ago to have expired.
func seed(o oldWriter, n int) (expired, live []string) {
	for i := range n {
		id := fmt.Sprintf("s-%06d", i*7919%1_000_000)
		if i%2 == 0 {
			expired = append(expired, id)
		} else {
			live = append(live, id)
		}
	}
	o.put(time.Now().Add(-40*24*time.Hour), expired...)
	o.put(time.Now().Add(-time.Hour), live...)
	return expired, live
}

// killAdopt begins an adoption and kills it once it has written so many keys.
func (b *workdir) killAdopt(keys int, args ...string) {
	b.t.Helper()
	cmd, _, _ := b.command(nil, append([]string{"adopt", "sessions", "--apply", "--log-level", "debug", "--log-format", "json"}, args...)...)
	lines := bufio.NewScanner(b.start(cmd))
	for written := 0; written < keys && lines.Scan(); {
		var line struct {
			Message  string `json:"message"`
			Entities int    `json:"entities"`
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "keys written" {
			written += line.Entities
		}
	}
	_ = cmd.Process.Kill() // one that is done already changes nothing
	_ = cmd.Wait()
}

// A rule by the time of creation, which both services keep.
func TestAdoptionByTheTimeOfCreation(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	inBothModes(t, adoptTarget, func(t *testing.T, b *workdir, o oldWriter) {
		began := time.Now()
		seed(o, 200)
		res := b.adopts("sessions", "--create-time", "--plus", "2d", "--apply")
		if res.Stamped != 200 || len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "looks like an import") {
			t.Errorf("%+v", res)
		}
		keys, _ := o.all()
		for id, text := range keys {
			k, err := expirykey.Parse(text)
			if err != nil || k.Expires.Sub(began.Add(48*time.Hour)).Abs() > 10*time.Minute {
				t.Errorf("%s has the key %s, %v", id, text, err)
			}
		}
	})
}

// The command on the embedded store: what it prints, its exit codes, and its refusals.
func TestAdoptOnTheEmbeddedStore(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := newEmbedded(t, strings.ReplaceAll(adoptTarget, "spread: 0s", "spread: 24h"))
	var in strings.Builder
	for i := range 300 {
		age := time.Duration(i) * 60 * 24 * time.Hour / 300
		fmt.Fprintf(&in, `{"id":"s-%03d","data":{"created":%q,"n":%d}}`+"\n", i, time.Now().Add(-age).UTC().Format(time.RFC3339), i)
	}
	in.WriteString(`{"id":"number","data":{"created":1700000000}}` + "\n")
	b.must(strings.NewReader(in.String()), "load")
	before := b.dumped()
	r := b.must(nil, "adopt", "sessions")
	for _, want := range []string{"sessions by property created plus 30d: round 1, 100% of the entities", "301  read",
		"300  without a key, and the rule gives one", "1  with a value that the rule cannot read", "mistyped \"number\"",
		"expired already: 150, which will be due within 1d",
		"stamping costs 301 reads and 300 writes", "nothing was changed"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is missing:\n%s", want, r.out)
		}
	}
	if !maps.Equal(before, b.dumped()) {
		t.Error("the dry run changed something")
	}
	b.must(nil, "adopt", "sessions", "--apply", "--percent", "50")
	if r := b.run(nil, "adopt", "verify", "sessions"); r.code != exitFailed || !strings.Contains(r.out, "entities are left without a key") ||
		!strings.Contains(r.log, "about 301 reads, by round 1") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
	}
	if r := b.run(nil, "adopt", "finish", "sessions", "--apply"); r.code != exitFailed || strings.Contains(r.out, "is finished") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
	}
	for want, args := range map[string][]string{
		"the percentage is lower than before":        {"sessions", "--percent", "5"},
		"this target is adopted by another rule":     {"sessions", "--plus", "31d"},
		"hint: go on with that rule, or take its ke": {"undo", "sessions", "--plus", "31d"},
		"--from and --create-time are two rules":     {"sessions", "--from", "created", "--create-time"},
		"--create-time needs --plus":                 {"sessions", "--create-time"},
		"is the property that adoption writes":       {"sessions", "--from", "expiry_key"},
		"--percent: 101 is not between 0.01 and 100": {"sessions", "--percent", "101"},
		"--watch writes keys for as long as it runs": {"sessions", "--watch"},
		"--every needs --watch":                      {"sessions", "--every", "24h"},
		"--every: 1s is less than a minute":          {"sessions", "--watch", "--every", "1s"},
		"--accept: -1 is negative":                   {"finish", "sessions", "--accept", "-1"},
		`no target is named "nope"`:                  {"nope"},
		"--spread: \"1\" has no unit":                {"sessions", "--spread", "1"},
		"--spread: 366d is not between 0s and 365d":  {"sessions", "--spread", "366d"},
		`--from: "a.b" holds '.', which no property name may: a nested property cannot be used`: {"sessions", "--from", "a.b"},
		`--from: "__x__" begins and ends with two`:                                              {"sessions", "--from", "__x__"},
		"--plus: 0s after their creation all entiti":                                            {"sessions", "--create-time", "--plus", "0s"},
		"--watch cannot be combined with --json":                                                {"sessions", "--watch", "--apply", "--json"},
		"--rate: 0 is not a valid rate":                                                         {"sessions", "--rate", "0"},
	} {
		if r := b.run(nil, append([]string{"adopt"}, args...)...); r.code != exitUsage || !strings.Contains(r.log, want) {
			t.Errorf("adopt %q: exit code %d: %s%s", args, r.code, r.out, r.log)
		}
	}
	b.must(nil, "pause", "--reason", "a test")
	if res := b.adopts("sessions", "--apply"); res.Complete || res.Held != "paused a test" {
		t.Errorf("a paused target: %+v", res)
	}
	b.must(nil, "resume")
	b.adopts("sessions", "--apply")
	if text := b.must(nil, "status").out; !strings.Contains(text, "stamping by property created plus 30d, 100%: round 2, ") {
		t.Errorf("%s", text)
	}
	if st := b.status().Adoption; st == nil || st.Parts == 0 || st.PartsDone != st.Parts || st.Scanned != 301 {
		t.Errorf("%+v", st)
	}
	if r := b.must(nil, "adopt", "dual", "sessions"); !strings.Contains(r.out, "nothing was changed") {
		t.Errorf("%s", r.out)
	}
	if res := b.adopts("dual", "sessions", "--apply"); res.Phase != adopt.Dual || !res.Apply {
		t.Errorf("%+v", res)
	}
	// A writer's key is due, and its rule is not.
	b.must(strings.NewReader(`{"id":"s-000","expires":"2026-01-01T00:00:00Z","data":{"created":"2999-01-01T00:00:00Z"}}`+"\n"), "load")
	if res := b.sweep("--apply"); res.Mismatch != 1 || res.Deleted != 0 {
		t.Errorf("%+v", res)
	}
	if r := b.run(nil, "adopt", "undo", "sessions"); r.code != exitUsage || !strings.Contains(r.log, "is in the phase dual") {
		t.Errorf("exit code %d: %s", r.code, r.log)
	}
	b.must(strings.NewReader(before[`"s-000"`]), "load")
	b.adopts("sessions", "--apply")
	if res := b.adopts("finish", "sessions", "--apply"); res.Phase != adopt.Finished || !res.Apply {
		t.Errorf("%+v", res)
	}
	if r := b.run(nil, "adopt", "undo", "sessions"); r.code != exitUsage || !strings.Contains(r.log, "hint: reaper adopt undo takes keys back; --also-writers") {
		t.Errorf("exit code %d: %s", r.code, r.log)
	}
	if res := b.adopts("undo", "sessions", "--apply", "--also-writers"); res.Removed != 300 || !maps.Equal(before, b.dumped()) {
		t.Errorf("%+v", res)
	}
}

// The history has each step of an adoption once, and who made it; rounds and dry runs are none.
func TestHistoryOfAnAdoption(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := newEmbedded(t, adoptTarget)
	b.must(strings.NewReader(`{"id":"a","data":{"created":"2026-11-01T00:00:00Z"}}`+"\n"), "load")
	for _, args := range [][]string{{"sessions"}, {"sessions", "--percent", "5", "--apply"}, {"sessions", "--apply"},
		{"sessions", "--apply"}, {"dual", "sessions"}, {"dual", "sessions", "--apply"}, {"dual", "sessions", "--apply"},
		{"verify", "sessions"}, {"finish", "sessions", "--apply"}, {"finish", "sessions", "--apply"},
		{"undo", "sessions", "--also-writers"}, {"undo", "sessions", "--also-writers", "--apply"}} {
		if args[len(args)-1] == "--apply" {
			args = append(args, "--actor", "ann")
		}
		b.must(nil, append([]string{"adopt"}, args...)...)
	}
	var res historyResult
	if err := json.Unmarshal([]byte(b.must(nil, "history", "--actions", "--json").out), &res); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range res.Targets[0].Records {
		if r.Actor == "ann" && strings.HasPrefix(r.Change.What, "adopt") {
			got = append(got, r.Change.What+": "+r.Change.After)
		}
	}
	slices.Sort(got) // records of one millisecond have no order
	by := " by property created plus 30d"
	if want := []string{"adopt dual: phase dual, 100%" + by, "adopt finish: phase finished, 100%" + by, "adopt undo: phase undo, 100%" + by,
		"adopt: phase stamp, 100%" + by, "adopt: phase stamp, 5%" + by}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
