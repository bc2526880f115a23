package fsread_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/shardread"
	"github.com/reaper-ttl/reaper/shardread/fsread"
	"github.com/reaper-ttl/reaper/writers"
)

// fillStamped writes n events that expire: their expiry keys are in one of three generations,
// which have different numbers of shards. Some have numeric ids, some are in subcollections,
// several are at one instant, and others only microseconds apart.
func (w *world) fillStamped(t *testing.T, n int) (paths []string, docs map[string]map[string]any) {
	t.Helper()
	r := rand.New(rand.NewPCG(2, 2))
	docs = map[string]map[string]any{}
	for i := range n {
		at := start.Add(time.Duration(r.IntN(6+n/500))*time.Second + time.Duration(r.IntN(100))*time.Microsecond)
		path := fmt.Sprintf("events/%x-é%d", r.Uint32(), i)
		if i%5 == 0 {
			path = fmt.Sprintf("events/__id%d__", 1+r.Int64N(1<<60))
		}
		if i%3 == 0 {
			path = fmt.Sprintf("users/u%d/%s", r.IntN(5), path)
		}
		paths = append(paths, path)
		docs[path] = stamp(t, path, map[string]any{"shard": r.IntN(16), "kind": []string{"view", "login"}[r.IntN(2)], "created": at}, 1+i%3)
	}
	w.put(t, docs)
	return paths, docs
}

func stamp(t *testing.T, path string, doc map[string]any, generation int) map[string]any {
	t.Helper()
	k, err := writers.Key(generation, writers.ShardOf(path, 8*generation), doc["created"].(time.Time).Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	doc["expiry_key"] = k.String()
	return doc
}

func (w *world) reader(t *testing.T, o nodewriter.ReadOptions) nodewriter.ReadOptions {
	t.Helper()
	o.Emulator, o.Mode, o.Project = emulator.Start(t, emulator.Native), "native", w.project
	o.Kind, o.Shard, o.Time, o.Shards = "events", "shard", "created", max(o.Shards, 16)
	return o
}

// TestNodeReadsTheSamePages holds the reader of the Node package, on Google's own client, to
// this one.
func TestNodeReadsTheSamePages(t *testing.T) {
	w := newWorld(t, firestore.DefaultDatabaseID)
	n := nightly.Size(t, 2_000, 250)
	w.fillStamped(t, n)
	from, until := start.Add(2*time.Second+30*time.Microsecond), start.Add(5*time.Second+50*time.Microsecond)
	one, group := w.Collection("events").Query, w.CollectionGroup("events").Query
	for _, c := range []struct {
		name string
		q    fsread.Query
		o    nodewriter.ReadOptions
	}{
		{"oldest first, of a group", fsread.Query{Base: group}, nodewriter.ReadOptions{Limit: n / 4, Page: n / 4, Group: true}},
		{"newest first, of a group, a query for each shard", fsread.Query{Base: group, Newest: true},
			nodewriter.ReadOptions{Limit: n / 3, Page: n / 8, PerQuery: 1, Group: true}},
		{"newest first, three queries, small pages", fsread.Query{Base: one, Newest: true, Limit: n / 10},
			nodewriter.ReadOptions{Limit: n / 50, PerQuery: 6, Page: 20}},
		{"within a time", fsread.Query{Base: one, From: from, Until: until}, nodewriter.ReadOptions{Limit: n / 40, PerQuery: 6}},
		{"newest within a time", fsread.Query{Base: one, Newest: true, From: from, Until: until}, nodewriter.ReadOptions{Limit: n / 40, PerQuery: 6}},
		{"of one kind", fsread.Query{Base: one.Where("kind", "==", "login")},
			nodewriter.ReadOptions{Limit: n / 20, PerQuery: 4, Where: map[string]any{"kind": "login"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.q.Shard, c.q.Values, c.q.Time = "shard", shardread.Numbers(16), "created"
			want := names(t, c.q.Run(t.Context()))
			o := w.reader(t, c.o)
			o.Newest = c.q.Newest
			if !c.q.From.IsZero() {
				o.From, o.Until = c.q.From.Format(time.RFC3339Nano), c.q.Until.Format(time.RFC3339Nano)
			}
			var got [][]string
			if c.q.Limit == 0 {
				got = nodewriter.ReadAll(t, o)
			} else {
				for page := nodewriter.Read(t, o); len(got) < c.q.Limit/o.Limit; {
					names, _ := page()
					got = append(got, names)
				}
			}
			if len(want) < 2*o.Limit || !slices.EqualFunc(got, slices.Collect(slices.Chunk(want, o.Limit)), slices.Equal) {
				t.Errorf("Node's %d pages of %d are not the %d documents that Go reads:\n%.300v\n%.300v", len(got), o.Limit, len(want), got, want)
			}
		})
	}
}

// TestNodeRefusesWhatWouldMissDocuments asks for reads whose answer would have gaps, or would
// be an error of the client that names nothing which the caller has passed.
func TestNodeRefusesWhatWouldMissDocuments(t *testing.T) {
	w := newWorld(t, firestore.DefaultDatabaseID)
	w.fillStamped(t, 30)
	token := func(path string) string {
		return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `[1, "oldest", "%d", %s]`, start.UnixMicro(), path))
	}
	for name, c := range map[string]struct {
		o    nodewriter.ReadOptions
		want string
	}{
		"an order of its own":           {nodewriter.ReadOptions{Order: "kind"}, "TypeError: fromFirestore: base has an order of its own"},
		"an order by name of a group":   {nodewriter.ReadOptions{Order: "__name__", Group: true}, "TypeError: fromFirestore: base has an order of its own"},
		"a token of another collection": {nodewriter.ReadOptions{After: token(`["users", "u1"]`)}, "RangeError: after: the page token is of another collection"},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Limit, c.o.Page = 3, 1
			if got := nodewriter.ReadError(t, w.reader(t, c.o)); !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	// A token of a document that has gone is fine.
	o := w.reader(t, nodewriter.ReadOptions{After: token(`["events", "gone"]`), Limit: 3})
	if names, _ := nodewriter.Read(t, o)(); len(names) != 3 {
		t.Errorf("after a document that has gone come %q", names)
	}
}

// TestNodeReadsWhileWritersWork pages through documents of three generations, while writers
// carry them to the last one, delete others, and create some in shards that are new. What is
// there all the time comes exactly once, in order.
func TestNodeReadsWhileWritersWork(t *testing.T) {
	w := newWorld(t, firestore.DefaultDatabaseID)
	n := nightly.Size(t, 2_000, 250)
	all, docs := w.fillStamped(t, n)
	inOrder := names(t, fsread.Query{Base: w.CollectionGroup("events").Query, Shard: "shard", Values: shardread.Numbers(16),
		Time: "created", Newest: true}.Run(t.Context()))
	isStable := map[string]bool{}
	for i, path := range all {
		isStable[path] = i%4 > 0
	}
	inOrder = slices.DeleteFunc(inOrder, func(s string) bool { return !isStable[s] })

	o := w.reader(t, nodewriter.ReadOptions{Group: true, Newest: true, Shards: 24, Limit: n / 8, Page: n / 8, PerQuery: 6})
	r := rand.New(rand.NewPCG(3, 3))
	write := func() {
		for range 10 {
			i := r.IntN(n)
			path := all[i]
			if i%4 == 0 {
				if _, err := w.Doc(path).Delete(t.Context()); err != nil {
					t.Error(err)
				}
				continue
			}
			created := fmt.Sprintf("events/new-%x", r.Uint64())
			e := map[string]any{"shard": 16 + r.IntN(8), "kind": "new", "created": docs[path]["created"]}
			w.put(t, map[string]map[string]any{created: stamp(t, created, e, 3), path: stamp(t, path, docs[path], 3)})
		}
	}
	nodewriter.CheckReadWhile(t, o, write, isStable, inOrder)
}
