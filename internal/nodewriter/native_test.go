package nodewriter_test

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
)

// TestRunNative compares what Node says that it wrote with what is there, and its
// expiry keys with what Go would have written.
func TestRunNative(t *testing.T) {
	e := emulator.Start(t, emulator.Native)
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	o := nodewriter.NativeOptions{
		Host: e.Host, Project: e.Project(t), Generation: 1, Shards: 4, ShardValues: []string{"x", "y"}, ShardNumbers: []int64{-7, 1}, Documents: 2000, Now: now,
		Collections: map[string]string{"generation": "gen", "sharded": "nursery", "timestamp": "times", "sharded-timestamp": "shards", "group": "items"},
	}
	written := nodewriter.RunNative(t, o)
	there := nodewriter.Snapshot(t, e.Host, o.Project)

	roles, layouts, values := map[nodewriter.Role]int{}, map[string]int{}, map[string]int{}
	ids := map[string]map[nodewriter.Role]bool{} // what an id may hold, and who has such
	for _, d := range written {
		roles[d.Role]++
		var doc pb.Document
		if err := proto.Unmarshal([]byte(there[d.Path]), &doc); err != nil || doc.GetUpdateTime() == nil {
			t.Fatalf("%s (%s) is not there: %v", d.Path, d.Role, err)
		}
		fields, id := doc.GetFields(), d.Path[strings.LastIndexByte(d.Path, '/')+1:]
		due, stamped := expires(t, d.Path, fields)
		if want := d.Role != nodewriter.NoExpiry && d.Role != nodewriter.Parent; stamped != want {
			t.Errorf("%s (%s) has an expiry: %t", d.Path, d.Role, stamped)
		}
		if d.Role != nodewriter.Expired && d.Role != nodewriter.Live {
			continue
		}
		layouts[d.Layout]++
		if live := due.After(now.Add(time.Hour - time.Microsecond)); live != (d.Role == nodewriter.Live) || !live && due.After(now) {
			t.Errorf("%s (%s) expires at %v", d.Path, d.Role, due)
		}
		if d.Layout == "generation" || d.Layout == "sharded" {
			want, err := expirykey.New(map[string]int{"generation": o.Generation}[d.Layout], expirykey.ShardOfName(id, o.Shards), due)
			if err != nil || fields["expiry_key"].GetStringValue() != want.String() {
				t.Errorf("%s: %v, want %v (%v)", d.Path, fields["expiry_key"], want, err)
			}
		} else if due.Nanosecond()%1e6 != 0 {
			values["microseconds "+string(d.Role)]++
		}
		if d.Layout == "sharded-timestamp" {
			values[fmt.Sprintf("shard %v%d", fields["shard"].GetStringValue(), fields["shard"].GetIntegerValue())]++
		}
		ratio := fields["ratio"].GetDoubleValue()
		if math.IsNaN(ratio) || math.IsInf(ratio, 0) || ratio == 0 && math.Signbit(ratio) {
			values[fmt.Sprint("ratio ", ratio, " ", d.Role)]++
		}
		if fields["count"].GetIntegerValue() < 1<<60 || len(fields) < 12 {
			t.Errorf("%s holds %v", d.Path, fields)
		}
		for _, part := range []string{" ", "'", `"`, "%", "...", "é", "😀", "\n", "__id", strings.Repeat("x", 1400)} {
			if strings.Contains(strings.ReplaceAll(id, "e\u0301", "é"), part) {
				if ids[part] == nil {
					ids[part] = map[nodewriter.Role]bool{}
				}
				ids[part][d.Role] = true
			}
		}
	}
	if len(there) != len(written) || !maps.Equal(roles, map[nodewriter.Role]int{nodewriter.Expired: 1000, nodewriter.Live: 1000, nodewriter.Parent: 50,
		nodewriter.NoExpiry: 500, nodewriter.OtherCollection: 250, nodewriter.Elsewhere: 400}) {
		t.Errorf("%d documents there, roles: %v", len(there), roles)
	}
	for layout := range o.Collections {
		if layouts[layout] != 400 {
			t.Errorf("%d documents of layout %s", layouts[layout], layout)
		}
	}
	for value, n := range values {
		if n < 50 {
			t.Errorf("%d documents with %s", n, value)
		}
	}
	if len(values) != 4+2*3+2 { // shards, odd ratios and microseconds of both roles
		t.Errorf("shards, ratios and instants: %v", values)
	}
	for part, by := range ids {
		if len(by) != 2 {
			t.Errorf("ids with %.5q: %v", part, by)
		}
	}
	if len(ids) != 10 {
		t.Errorf("forms of ids: %v", ids)
	}
}

// expires reads the expiry of a document, in whichever field it is.
func expires(t *testing.T, path string, fields map[string]*pb.Value) (at time.Time, ok bool) {
	if v, isInstant := fields["expires"].GetValueType().(*pb.Value_TimestampValue); isInstant && fields["name"] == nil {
		return v.TimestampValue.AsTime(), true
	}
	if s := fields["expiry_key"].GetStringValue(); s != "" && s != "none" {
		k, err := expirykey.Parse(s)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return k.Expires, true
	}
	return time.Time{}, false
}
