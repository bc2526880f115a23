package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
)

// Another language's client writes, in every layout and below fifty parents, what
// this program then sweeps; the rest is as it was, byte for byte.
func TestSweepsWhatNodeWroteNatively(t *testing.T) {
	nightly.Races(t)
	n := nightly.Size(t, 20_000, 2_000)
	b, e, project := newFirestore(t, `targets:
- {name: generation, kind: gen, shards: 4, pace: {max: unlimited}, breaker: off}
- {name: sharded, kind: nursery, shards: 4, layout: sharded, pace: {max: unlimited}, breaker: off}
- {name: timestamp, kind: times, layout: timestamp, property: expires, pace: {max: unlimited}, breaker: off}
- {name: sharded-timestamp, kind: shards, layout: sharded-timestamp, property: expires, shard_values: [x, "y/y", ""], pace: {max: unlimited}, breaker: off}
- {name: group, kind: items, group: true, layout: timestamp, property: expires, pace: {max: unlimited}, breaker: off}
`)
	wrote := nodewriter.RunNative(t, nodewriter.NativeOptions{Host: e.Host, Project: project, Generation: 1, Shards: 4,
		ShardValues: []string{"x", "y/y", ""}, Documents: n, Now: time.Now(),
		Collections: map[string]string{"generation": "gen", "sharded": "nursery", "timestamp": "times", "sharded-timestamp": "shards", "group": "items"}})
	before := nodewriter.Snapshot(t, e.Host, project)
	want := maps.Clone(before)
	expired := map[string]int64{}
	for _, w := range wrote {
		if w.Role == nodewriter.Expired {
			delete(want, w.Path)
			expired[w.Layout]++
		}
	}
	if len(before) != len(wrote) || len(before)-len(want) != n/2 || len(expired) != 5 {
		t.Fatalf("%d written, %d there, %d expired: %v", len(wrote), len(before), len(before)-len(want), expired)
	}
	dry := b.result(b.must(nil, "sweep", "--json").out)
	for _, res := range dry.Targets {
		if res.Expired != expired[res.Name] || res.Deleted != 0 || res.Operations.Deletes+res.Operations.Writes != 0 {
			t.Errorf("dry run: %+v", res)
		}
	}
	if after := nodewriter.Snapshot(t, e.Host, project); !maps.Equal(after, before) {
		t.Error("the dry run changed something")
	}
	began := time.Now()
	applied := b.result(b.must(nil, "sweep", "--apply", "--json").out)
	t.Logf("deleted %d of %d in %v", n/2, len(before), time.Since(began))
	for _, res := range applied.Targets {
		if res.Deleted != expired[res.Name] || !res.Complete || res.Malformed+res.Suspect+res.Conflicts+res.Outside != 0 {
			t.Errorf("sweep: %+v", res)
		}
	}
	after := nodewriter.Snapshot(t, e.Host, project)
	maps.DeleteFunc(after, func(path, _ string) bool { return strings.HasPrefix(path, "Reaper") }) // the records
	for path, bytes := range want {
		if after[path] != bytes {
			t.Fatalf("%s was touched", path)
		}
	}
	if len(after) != len(want) {
		t.Errorf("%d left, want %d", len(after), len(want))
	}
	for _, res := range b.result(b.must(nil, "sweep", "--apply", "--json").out).Targets {
		if res.Scanned != 0 || res.Operations.Writes > int64(res.Ranges) || res.Operations.Deletes != 0 { // a slow probe saves its cursor
			t.Errorf("second sweep: %+v", res)
		}
	}
}

// everyType is every type of value that an expiry property may hold, and what a
// timestamp of it would be.
func everyType(now time.Time, reference string) map[string]*pb.Value {
	instant := func(at time.Time) *pb.Value {
		return &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(at)}}
	}
	integer := func(n int64) *pb.Value { return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}} }
	double := func(f float64) *pb.Value { return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: f}} }
	text := func(s string) *pb.Value { return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}} }
	array := func(v ...*pb.Value) *pb.Value {
		return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: v}}}
	}
	fields := func(f map[string]*pb.Value) *pb.Value {
		return &pb.Value{ValueType: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: f}}}
	}
	past := now.Add(-time.Hour)
	key := "00000000.0003." + past.UTC().Format("20060102T150405.000Z")
	return map[string]*pb.Value{
		"due": instant(past), "due now": instant(now.Add(-time.Microsecond)), "live": instant(now.Add(time.Hour)),
		"1970": instant(time.Unix(0, 0)), "year 1": instant(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)),
		"9999": instant(time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)),
		"null": {ValueType: &pb.Value_NullValue{}}, "true": {ValueType: &pb.Value_BooleanValue{BooleanValue: true}}, "false": {ValueType: &pb.Value_BooleanValue{}},
		"zero": integer(0), "seconds": integer(past.Unix()), "micros": integer(past.UnixMicro()), "least": integer(math.MinInt64),
		"double": double(float64(past.Unix())), "nan": double(math.NaN()), "infinity": double(math.Inf(-1)), "minus zero": double(math.Copysign(0, -1)),
		"text": text(past.Format(time.RFC3339)), "empty": text(""), "due key": text(key), "broken key": text(key + "x"), "long key": text(key + strings.Repeat("x", 1500)), "old key": text("00000000.0003.19700101T000000.000Z"),
		"bytes": {ValueType: &pb.Value_BytesValue{BytesValue: []byte(key)}}, "reference": {ValueType: &pb.Value_ReferenceValue{ReferenceValue: reference}},
		"place": {ValueType: &pb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: 1}}},
		"array": array(), "array of instants": array(instant(past), instant(past)), "array of keys": array(text(key)),
		"map": fields(map[string]*pb.Value{"expires": instant(past)}), "empty map": fields(nil),
		"vector": fields(map[string]*pb.Value{"__type__": text("__vector__"), "value": array(double(1))}),
	}
}

// A collection of everything that may stand in an expiry property, with and
// without shards, of timestamps and of keys: nothing goes but what has expired.
func TestJunkInANativeProperty(t *testing.T) {
	nightly.Races(t)
	b, e, project := newFirestore(t, `targets:
- {name: times, kind: times, layout: timestamp, property: expires}
- {name: group, kind: group, group: true, layout: timestamp, property: expires}
- {name: shards, kind: shards, layout: sharded-timestamp, property: expires, shard_values: [1, 2]}
- {name: keys, kind: keys, layout: sharded, property: expires}
`)
	client := nodewriter.NativeClient(t, e.Host)
	database := "projects/" + project + "/databases/(default)"
	now := time.Now()
	all := everyType(now, database+"/documents/a/b")
	var writes []*pb.Write
	put := func(path string, fields map[string]*pb.Value) {
		writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: &pb.Document{Name: database + "/documents/" + path, Fields: fields}}})
	}
	for i, name := range slices.Sorted(maps.Keys(all)) {
		for _, place := range []string{"times", "parents/p/group", "shards", "keys"} {
			put(place+"/"+name, map[string]*pb.Value{"expires": all[name], "shard": {ValueType: &pb.Value_IntegerValue{IntegerValue: int64(1 + i%2)}}})
		}
		// Shards that nobody configured, of every type.
		put(fmt.Sprintf("shards/shard of %d", i), map[string]*pb.Value{"expires": all["due"], "shard": all[name]})
	}
	put("shards/no shard", map[string]*pb.Value{"expires": all["due"]})
	for part := range slices.Chunk(writes, 400) {
		if _, err := client.Commit(t.Context(), &pb.CommitRequest{Database: database, Writes: part}); err != nil {
			t.Fatal(err)
		}
	}
	before := nodewriter.Snapshot(t, e.Host, project)
	dry := b.result(b.must(nil, "sweep", "--json").out)
	res := b.result(b.must(nil, "sweep", "--apply", "--json").out)
	after := nodewriter.Snapshot(t, e.Host, project)
	var gone []string
	for path, bytes := range before {
		switch was, ok := after[path]; {
		case !ok:
			gone = append(gone, path)
		case was != bytes:
			t.Errorf("%s was touched", path)
		}
	}
	slices.Sort(gone)
	want := []string{"keys/due key", "parents/p/group/due", "parents/p/group/due now", "shards/due", "shards/due now", "times/due", "times/due now"}
	if !slices.Equal(gone, want) {
		t.Errorf("gone:\n%q, want\n%q", gone, want)
	}
	for i, r := range res.Targets {
		// Everything else is counted but what is live, far off, or null.
		due, counted := int64(2), int64(len(all)-2-3) // live, 9999, null
		if r.Name == "keys" {
			due, counted = 1, int64(len(all)-1-1) // null
		}
		if r.Name == "shards" {
			// Every shard but null and none, of which one was 0.
			counted += int64(len(all) - 1)
		}
		if r.Deleted != due || r.Malformed+r.Suspect+r.Outside != counted || !r.Complete || dry.Targets[i].Expired != due || dry.Targets[i].Outside != r.Outside {
			t.Errorf("%s: %+v, want %d counted", r.Name, r, counted)
		}
	}
}
