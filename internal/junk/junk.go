// Package junk fills an expiry property with everything that it may hold by
// accident, for tests: every type of value that a service has, instants and keys
// of every age, and texts that are nearly keys.
//
// The invariant is that of its entities only those of [DueKey] may go in a layout
// of keys, and only those of [DueInstant] in one of timestamps.
//
// Limits: it writes to emulators only. Keys are of the nursery's shard 3, so a
// target needs four shards at least to see them.
package junk

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	firestore "cloud.google.com/go/firestore/apiv1"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/option"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// What an entity's property holds.
type What string

const (
	DueKey         What = "due key" // expired less than a day ago
	DueInstant     What = "due instant"
	LiveKey        What = "live key" // lives an hour at least
	LiveInstant    What = "live instant"
	AncientKey     What = "ancient key" // of 1970 or before: expired, but nobody meant it
	AncientInstant What = "ancient instant"
	Never          What = "never"     // null, which is no junk
	Unindexed      What = "unindexed" // a due key or instant that no query sees
	Junk           What = "junk"      // of the right type or not, it is neither a key nor an instant
)

// Options say where to write.
type Options struct {
	Host     string // of the emulator
	Project  string
	Kind     string // or the path of a collection
	Property string
	Extra    map[string]int64 // fields that all have, such as a shard
	Now      time.Time
}

// A value is what both modes have: nil, bool, int64, float64, string, []byte,
// time.Time, place, []any, fields, or reference.
type (
	place     float64
	fields    map[string]any
	reference struct{}
)

type item struct {
	what  What
	value any
}

// items returns a value of each type, with what it is.
func items(now time.Time) map[string]item {
	now = now.UTC().Truncate(time.Microsecond)
	key := func(at time.Time) string { return "00000000.0003." + at.Format("20060102T150405.000Z") }
	past, future, epoch := now.Add(-time.Hour), now.Add(time.Hour+time.Millisecond), time.Unix(0, 0).UTC()
	first, last := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
	all := map[string]item{
		"instant": {DueInstant, past}, "instant of this moment": {DueInstant, now}, "instant to come": {LiveInstant, future},
		"instant of 9999": {LiveInstant, last}, "instant of 1970": {AncientInstant, epoch},
		"instant before 1970": {AncientInstant, epoch.Add(-time.Microsecond)},
		"instant of year 1":   {AncientInstant, first},

		"key": {DueKey, key(past)}, "key to come": {LiveKey, key(future)}, "key of 9999": {LiveKey, key(last)},
		"key of 1970":   {AncientKey, key(epoch)},
		"key of year 1": {AncientKey, key(first)},

		"null": {Never, nil}, "true": {Junk, true}, "false": {Junk, false},
		"integer 0": {Junk, int64(0)}, "integer of seconds": {Junk, past.Unix()},
		"integer of milliseconds": {Junk, past.UnixMilli()},
		"integer of microseconds": {Junk, past.UnixMicro()}, "integer of nanoseconds": {Junk, past.UnixNano()},
		"least integer": {Junk, int64(math.MinInt64)}, "greatest integer": {Junk, int64(math.MaxInt64)},
		"double of seconds": {Junk, float64(past.Unix())}, "double of microseconds": {Junk, float64(past.UnixMicro())},
		"fraction":   {Junk, 0.5},
		"minus zero": {Junk, math.Copysign(0, -1)}, "nan": {Junk, math.NaN()}, "infinity": {Junk, math.Inf(1)},
		"minus infinity": {Junk, math.Inf(-1)},
		"bytes of a key": {Junk, []byte(key(past))}, "no bytes": {Junk, []byte{}}, "place": {Junk, place(48.1)},
		"reference": {Junk, reference{}},
		"no list":   {Junk, []any{}}, "list of instants": {Junk, []any{past, past.Add(-time.Minute)}},
		"list of an instant": {Junk, []any{past}},
		"list of keys":       {Junk, []any{key(past), key(past.Add(-time.Minute))}},
		"list of a key":      {Junk, []any{key(past)}},
		"list of all":        {Junk, []any{nil, false, past.UnixMicro(), past, key(past), 0.5}},
		"map of an instant":  {Junk, fields{"expires": past, "seconds": past.Unix()}},
		"map of a key":       {Junk, fields{"expiry_key": key(past)}}, "no map": {Junk, fields{}},
	}
	for name, text := range map[string]string{
		"empty": "", "space": " ", "nul": "\x00", "date": past.Format(time.RFC3339Nano),
		"seconds":    "00000000.0003." + past.Format("20060102T150405Z"),
		"lower case": strings.ToLower(key(past)), "too long": key(past) + "x", "too short": key(past)[:33],
		"with a space": " " + key(past), "with a line": key(past) + "\n",
		"another zone": strings.TrimSuffix(key(past), "Z") + "+", "signed": "+" + key(past)[1:],
		"without leading zeros": "0.3." + past.Format("20060102T150405.000Z"),
		"30 February":           "00000000.0003.20260230T000000.000Z",
		"hour 24":               "00000000.0003.20260101T240000.000Z", "year 0": "00000000.0003.00000101T000000.000Z",
		"other digits": "00000000.0003.2026110１T0000.000Z", "much too long": key(past) + strings.Repeat("x", 1466),
		"word": "tomorrow", "last": "\U0010ffff",
	} {
		all["text: "+name] = item{Junk, text}
	}
	return all
}

// Native writes a document for each into a database in native mode, and returns
// what each is, by its id.
func Native(t testing.TB, o Options) map[string]What {
	t.Helper()
	client, err := firestore.NewClient(t.Context(), option.WithGRPCConn(dial(t, o.Host)), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	all := items(o.Now)
	all["vector"] = item{Junk, fields{"__type__": "__vector__", "value": []any{0.5, 1.5}}}
	// Of such a text the index has the beginning.
	all["text: cut in the index"] = item{Junk, all["key"].value.(string) + strings.Repeat("x", 2000)}
	database := "projects/" + o.Project + "/databases/(default)"
	out := map[string]What{}
	var writes []*pb.Write
	for name, it := range all {
		doc := &pb.Document{Name: database + "/documents/" + o.Kind + "/" + name,
			Fields: map[string]*pb.Value{o.Property: native(it.value, database)}}
		for name, n := range o.Extra {
			doc.Fields[name] = native(n, database)
		}
		out[name] = it.what
		writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: doc}})
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer owner")
	if _, err := client.Commit(ctx, &pb.CommitRequest{Database: database, Writes: writes}); err != nil {
		t.Fatalf("write junk: %v", err)
	}
	return out
}

func native(value any, database string) *pb.Value {
	switch v := value.(type) {
	case nil:
		return &pb.Value{ValueType: &pb.Value_NullValue{}}
	case bool:
		return &pb.Value{ValueType: &pb.Value_BooleanValue{BooleanValue: v}}
	case int64:
		return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: v}}
	case float64:
		return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: v}}
	case string:
		return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: v}}
	case []byte:
		return &pb.Value{ValueType: &pb.Value_BytesValue{BytesValue: v}}
	case time.Time:
		return &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(v)}}
	case place:
		return &pb.Value{ValueType: &pb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: float64(v)}}}
	case reference:
		return &pb.Value{ValueType: &pb.Value_ReferenceValue{ReferenceValue: database + "/documents/a/b"}}
	case []any:
		list := &pb.ArrayValue{}
		for _, e := range v {
			list.Values = append(list.Values, native(e, database))
		}
		return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: list}}
	case fields:
		m := map[string]*pb.Value{}
		for name, e := range v {
			m[name] = native(e, database)
		}
		return &pb.Value{ValueType: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: m}}}
	default:
		panic(fmt.Sprintf("junk: no native value of %T", value))
	}
}

// Datastore writes an entity for each into a database in Datastore mode, in the
// default namespace, and returns what each is, by the name in its key.
func Datastore(t testing.TB, o Options) map[string]What {
	t.Helper()
	client, err := datastore.NewClient(t.Context(), o.Project, option.WithGRPCConn(dial(t, o.Host)),
		option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	all := items(o.Now)
	all["unindexed key"] = item{Unindexed, all["key"].value}
	all["unindexed instant"] = item{Unindexed, all["instant"].value}
	out := map[string]What{}
	var keys []*datastore.Key
	var lists []datastore.PropertyList
	for name, it := range all {
		ps := datastore.PropertyList{{Name: o.Property, Value: property(it.value), NoIndex: it.what == Unindexed}}
		for name, n := range o.Extra {
			ps = append(ps, datastore.Property{Name: name, Value: n})
		}
		out[name] = it.what
		keys, lists = append(keys, datastore.NameKey(o.Kind, name, nil)), append(lists, ps)
	}
	if _, err := client.PutMulti(t.Context(), keys, lists); err != nil {
		t.Fatalf("write junk: %v", err)
	}
	return out
}

func property(value any) any {
	switch v := value.(type) {
	case place:
		return datastore.GeoPoint{Lat: float64(v)}
	case reference:
		return datastore.NameKey("A", "b", nil)
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = property(e)
		}
		return list
	case fields:
		inner := &datastore.Entity{}
		for name, e := range v {
			inner.Properties = append(inner.Properties, datastore.Property{Name: name, Value: property(e)})
		}
		return inner
	default:
		return v
	}
}

// dial returns a connection that the client closes.
func dial(t testing.TB, host string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
