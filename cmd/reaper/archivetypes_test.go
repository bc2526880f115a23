package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dpb "cloud.google.com/go/datastore/apiv1/datastorepb"
	fpb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
)

// thingTarget is a target of what the Node program types keeps, with an archive in the directory of the test, for %s.
const thingTarget = `targets:
  - name: things
    kind: Thing
    shards: 4
    breaker: off
    pace: {max: unlimited}
    archive: {mode: full, to: "file://%s"}
`

// onBothEmulators runs a test in each mode, with a targets file in which %s is the directory of the archive.
func onBothEmulators(t *testing.T, targets string, test func(t *testing.T, b *workdir, o nodewriter.TypesOptions)) {
	t.Helper()
	for mode, open := range map[string]func(*testing.T, string) (*workdir, *emulator.Emulator, string){
		"datastore": newDatastore, "native": newFirestore,
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b, e, project := open(t, "")
			text := fmt.Sprintf(targets, filepath.Join(b.dir, "archive"))
			text += map[string]string{"datastore": "    namespaces: [\"\", eu]\n",
				"native": "    group: true\n"}[mode] // some lie below others
			b.write("reaper.yaml", text)
			test(t, b, nodewriter.TypesOptions{Emulator: e, Mode: mode, Project: project, Target: "things", Shards: 4})
		})
	}
}

// Values of every type, which Google's client for Node has written, come back as they were from an archive, and from
// a typed dump into another project: for the client, and on the wire.
func TestEveryTypeComesBack(t *testing.T) {
	noRaces(t)
	t.Parallel()
	n := nightly.Size(t, 20_000, 220)
	onBothEmulators(t, thingTarget, func(t *testing.T, b *workdir, o nodewriter.TypesOptions) {
		began := time.Now()
		done := func(what string) { t.Log(time.Since(began).Round(100*time.Millisecond), what) }
		node := nodewriter.StartTypes(t, o)
		expired := node.Fill(n)
		if got := node.Read("first", ""); got != n {
			t.Fatalf("%d of %d entities are there", got, n)
		}
		before, typed := wire(t, o), b.must(nil, "dump", "--typed").out
		done("filled and dumped")
		if res := b.sweep("--apply"); int(res.Deleted) != expired || int(res.Archived) != expired {
			t.Fatalf("%d have expired: %+v", expired, res)
		}
		node.Read("swept", "")
		none(t, "swept", node.Swept("first", "swept"))
		done("swept")

		from := time.Now().Add(7*24*time.Hour - time.Minute)
		r := b.must(nil, "restore", "things", "--since", "1h", "--expire-in", "7d", "--apply", "--reason", "test",
			"--json")
		var res restoreResult
		if err := json.Unmarshal([]byte(r.out), &res); err != nil {
			t.Fatal(err)
		}
		if int(res.Restored) != expired || int(res.Verified) != expired || res.Stripped != 0 || !res.Complete {
			t.Errorf("%d have expired: %+v", expired, res)
		}
		node.Read("restored", "")
		none(t, "restored", node.Restored("first", "restored", from, from.Add(time.Hour)))
		sameOnWire(t, before, wire(t, o))
		sameTyped(t, typed, b.must(nil, "dump", "--typed").out)
		done("restored")

		other := o.Emulator.Project(t)
		c := *b
		c.env = slices.Clone(b.env)
		for i, v := range c.env {
			c.env[i] = strings.ReplaceAll(v, o.Project, other)
		}
		r = c.must(strings.NewReader(typed), "load", "--typed", "--json")
		if !strings.Contains(r.out, fmt.Sprintf(`"written": %d,`, n)) || !strings.Contains(r.out, `"stripped": []`) {
			t.Errorf("load: %s", r.out)
		}
		node.Read("loaded", other)
		none(t, "loaded", node.Loaded("first", "loaded"))
		done("loaded")
	})
}

func none(t *testing.T, what string, wrong nodewriter.Few) {
	t.Helper()
	if wrong.N > 0 {
		t.Fatalf("%s: %d are wrong: %s", what, wrong.N, strings.Join(wrong.Few, "\n"))
	}
}

// wire returns all things as the service sends them, but for what holds their expiry and when they were written.
func wire(t *testing.T, o nodewriter.TypesOptions) map[string]proto.Message {
	t.Helper()
	all := map[string]proto.Message{}
	if o.Mode == "native" {
		client := nodewriter.NativeClient(t, o.Emulator.Host)
		stream, err := client.RunQuery(t.Context(), &fpb.RunQueryRequest{
			Parent: "projects/" + o.Project + "/databases/(default)/documents",
			QueryType: &fpb.RunQueryRequest_StructuredQuery{StructuredQuery: &fpb.StructuredQuery{
				From: []*fpb.StructuredQuery_CollectionSelector{{CollectionId: "Thing", AllDescendants: true}}}}})
		for err == nil {
			var reply *fpb.RunQueryResponse
			if reply, err = stream.Recv(); err == nil && reply.GetDocument() != nil {
				doc := reply.GetDocument()
				delete(doc.GetFields(), "expiry_key")
				doc.CreateTime, doc.UpdateTime = nil, nil
				all[doc.GetName()] = doc
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		return all
	}
	conn, err := grpc.NewClient("passthrough:///"+o.Emulator.Host,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, namespace := range []string{"", "eu"} {
		q := &dpb.Query{Kind: []*dpb.KindExpression{{Name: "Thing"}}}
		for more := true; more; {
			reply, err := dpb.NewDatastoreClient(conn).RunQuery(t.Context(), &dpb.RunQueryRequest{ProjectId: o.Project,
				PartitionId: &dpb.PartitionId{ProjectId: o.Project, NamespaceId: namespace},
				QueryType:   &dpb.RunQueryRequest_Query{Query: q}})
			if err != nil {
				t.Fatal(err)
			}
			batch := reply.GetBatch()
			for _, r := range batch.GetEntityResults() {
				e := r.GetEntity()
				delete(e.GetProperties(), "expiry_key")
				all[jsonOf(t, e.GetKey())] = e
			}
			q.StartCursor = batch.GetEndCursor()
			more = len(batch.GetEntityResults()) > 0 && batch.GetMoreResults() != dpb.QueryResultBatch_NO_MORE_RESULTS
		}
	}
	return all
}

// jsonOf returns a message as JSON without spaces, which tells apart 0 and -0 where proto.Equal does not.
func jsonOf(t *testing.T, m proto.Message) string {
	t.Helper()
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func sameOnWire(t *testing.T, before, after map[string]proto.Message) {
	t.Helper()
	for name, was := range before {
		is, ok := after[name]
		if !ok || !proto.Equal(was, is) || jsonOf(t, was) != jsonOf(t, is) {
			t.Fatalf("%s was\n%v\nand is\n%v", name, was, is)
		}
	}
	if len(before) != len(after) {
		t.Errorf("%d entities before, %d after", len(before), len(after))
	}
}

// sameTyped compares two typed dumps, but for the expiries and when entities were written.
func sameTyped(t *testing.T, before, after string) {
	t.Helper()
	was, is := typedOf(t, before), typedOf(t, after)
	for key, text := range was {
		if is[key] != text {
			t.Fatalf("%s was\n%s\nand is\n%s", key, text, is[key])
		}
	}
	if len(was) != len(is) || len(was) == 0 {
		t.Errorf("%d lines before, %d after", len(was), len(is))
	}
}

func typedOf(t *testing.T, dump string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for text := range strings.Lines(dump) {
		l, err := archive.ParseLine([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(l.Data, &fields); err != nil {
			t.Fatal(err)
		}
		var kept []string
		for _, part := range []string{"fields", "properties"} {
			var values map[string]json.RawMessage
			if fields[part] != nil {
				if err := json.Unmarshal(fields[part], &values); err != nil {
					t.Fatal(err)
				}
			}
			delete(values, "expiry_key")
			text, err := json.Marshal(values) // sorted by name
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, string(text))
		}
		all[l.Namespace+"|"+l.Key] = strings.Join(kept, " ")
	}
	return all
}

// everyJSON is data of every type that JSON has, and of every form that a number may have in it.
var everyJSON = []string{`{"n":null}`, `{}`, `{"":""}`, `{"a":[],"b":{},"c":[[],[{}]]}`,
	`{"n":9007199254740993,"m":-9223372036854775808}`,
	`{"n":-0,"m":-0.0,"e":1e300,"E":5E-324,"z":1.50}`, `{"s":"ü 😀 𝒳 \u0000 \u2028 \ud83d\ude00 <&> \"\\\/"}`,
	`{"b":true,"a":false,"0":null}`, `{ "spaces" : [ 1 , 2 ] }`, `{"long":"` + strings.Repeat("x", 100_000) + `"}`,
	`{"a!~/\"'":{"~":"!"}}`}

// Data of every type comes back as it was in an embedded store, too.
func TestEveryTypeComesBackEmbedded(t *testing.T) {
	noRaces(t)
	t.Parallel()
	n := nightly.Size(t, 20_000, 220)
	b := newEmbedded(t, "")
	b.write("reaper.yaml", fmt.Sprintf(archivedTarget, filepath.Join(b.dir, "archive")))
	ids := []string{`"a!%d"`, `"~%d"`, `1%d`, `"sé 😀 %d"`, `"t-%d"`, `"\"%d\"\\"`,
		`"a/%d/!"`, `"__id%d"`, `"9%d"`, `"\u0000%d"`}
	var text strings.Builder
	expired := 0
	for i := range n {
		at := time.Now().Add(-time.Minute)
		if i%3 == 2 {
			at = time.Now().Add(time.Hour)
		} else {
			expired++
		}
		data := everyJSON[i%len(everyJSON)]
		if len(data) > 10_000 && i > 1_000 {
			data = `{}`
		}
		id := fmt.Sprintf(ids[i%len(ids)], i)
		fmt.Fprintf(&text, `{"id":%s,"expires":%q,"data":%s}`+"\n", id, at.UTC().Format(time.RFC3339Nano), data)
	}
	b.must(strings.NewReader(text.String()), "load")
	before := contents(t, b.dumped())
	if res := b.sweep("--apply"); int(res.Deleted) != expired || int(res.Archived) != expired || len(before) != n {
		t.Fatalf("%d of %d have expired: %+v", expired, len(before), res)
	}
	res := b.restore(exitDone, "--since", "1h", "--expire-in", "7d", "--apply", "--reason", "test")
	if int(res.Restored) != expired || int(res.Verified) != expired {
		t.Errorf("%d have expired: %+v", expired, res)
	}
	after := contents(t, b.dumped())
	for id, was := range before {
		if is, ok := after[id]; !ok || is != was {
			t.Fatalf("%s was\n%.500s\nand is\n%.500s", id, was, is)
		}
	}
	if len(after) != n {
		t.Errorf("%d entities before, %d after", n, len(after))
	}
}
