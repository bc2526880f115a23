package junk_test

import (
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/junk"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
)

func TestMain(m *testing.M) { emulator.Main(m) }

var now = time.Date(2026, 11, 21, 0, 0, 0, 123_456_000, time.UTC)

// TestNative reads everything back and says by itself what it is.
func TestNative(t *testing.T) {
	e := emulator.Start(t, emulator.Native)
	project := e.Project(t)
	wrote := junk.Native(t, junk.Options{Host: e.Host, Project: project, Kind: "parents/p/items", Property: "expires", Extra: map[string]int64{"shard": 7}, Now: now})
	there := nodewriter.Snapshot(t, e.Host, project)
	types := map[string]bool{}
	for name, what := range wrote {
		var doc pb.Document
		if err := proto.Unmarshal([]byte(there["parents/p/items/"+name]), &doc); err != nil || doc.GetFields()["shard"].GetIntegerValue() != 7 {
			t.Fatalf("%s: %v, %v", name, &doc, err)
		}
		v := doc.GetFields()["expires"]
		types[fmt.Sprintf("%T", v.GetValueType())] = true
		var value any
		switch v := v.GetValueType().(type) {
		case *pb.Value_TimestampValue:
			value = v.TimestampValue.AsTime()
		case *pb.Value_StringValue:
			value = v.StringValue
		case *pb.Value_NullValue:
		default:
			value = v
		}
		if got := classify(value); got != what {
			t.Errorf("%s is called %s, and is %s: %v", name, what, got, value)
		}
	}
	if len(there) != len(wrote) || len(types) != 11 { // all that the service has
		t.Errorf("%d written, %d there, types: %v", len(wrote), len(there), types)
	}
}

// TestDatastore does the same in Datastore mode.
func TestDatastore(t *testing.T) {
	e := emulator.Start(t, emulator.Datastore)
	project := e.Project(t)
	wrote := junk.Datastore(t, junk.Options{Host: e.Host, Project: project, Kind: "Session", Property: "expires", Extra: map[string]int64{"shard": 7}, Now: now})
	conn, err := grpc.NewClient("passthrough:///"+e.Host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client, err := datastore.NewClient(t.Context(), project, option.WithGRPCConn(conn), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	types, unindexed := map[string]bool{}, 0
	for name, what := range wrote {
		var ps datastore.PropertyList
		if err := client.Get(t.Context(), datastore.NameKey("Session", name, nil), &ps); err != nil || len(ps) != 2 {
			t.Fatalf("%s: %v, %v", name, ps, err)
		}
		for _, p := range ps {
			if p.Name == "shard" {
				continue
			}
			types[fmt.Sprintf("%T", p.Value)] = true
			got := classify(p.Value)
			if p.NoIndex {
				unindexed++
				got = junk.Unindexed
			}
			if got != what {
				t.Errorf("%s is called %s, and is %s: %v", name, what, got, p.Value)
			}
		}
	}
	if n, err := client.Count(t.Context(), datastore.NewQuery("Session")); err != nil || n != len(wrote) || unindexed != 2 || len(types) != 11 {
		t.Errorf("%d written, %d there (%v), %d unindexed, types: %v", len(wrote), n, err, unindexed, types)
	}
}

func classify(value any) junk.What {
	byAge := func(at time.Time, due, live, ancient junk.What) junk.What {
		switch {
		case at.Year() <= 1970:
			return ancient
		case at.After(now.Add(time.Hour)):
			return live
		case !at.After(now) && at.After(now.Add(-24*time.Hour)):
			return due
		}
		return "something else"
	}
	switch v := value.(type) {
	case nil:
		return junk.Never
	case time.Time:
		return byAge(v, junk.DueInstant, junk.LiveInstant, junk.AncientInstant)
	case string:
		if k, err := expirykey.Parse(v); err == nil {
			return byAge(k.Expires, junk.DueKey, junk.LiveKey, junk.AncientKey)
		}
	}
	return junk.Junk
}
