package dsread_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/shardread"
	"github.com/reaper-ttl/reaper/shardread/dsread"
	"github.com/reaper-ttl/reaper/writers"
)

// A stamped event expires, too: its expiry key is in one of three generations, which have
// different numbers of shards.
type stamped struct {
	Shard   int       `datastore:"shard"`
	Kind    string    `datastore:"kind"`
	Created time.Time `datastore:"created"`
	Expiry  string    `datastore:"expiry_key"`
}

// fillStamped writes n events with names, ids and parents, several at one instant, and others
// only microseconds apart.
func (w *world) fillStamped(t *testing.T, n int) (keys []*datastore.Key, events []stamped) {
	t.Helper()
	r := rand.New(rand.NewPCG(2, 2))
	for i := range n {
		at := start.Add(time.Duration(r.IntN(6+n/500))*time.Second + time.Duration(r.IntN(100))*time.Microsecond)
		key := datastore.NameKey("Event", fmt.Sprintf("%x-é%d", r.Uint32(), i), nil)
		if i%3 == 0 {
			key = datastore.IDKey("Event", 1+r.Int64N(1<<60), datastore.NameKey("User", fmt.Sprint("u", r.IntN(5)), nil))
		}
		e := stamped{Shard: r.IntN(16), Kind: []string{"view", "login"}[r.IntN(2)], Created: at}
		keys, events = append(keys, key), append(events, e.stamp(t, key, 1+i%3))
	}
	w.putStamped(t, keys, events)
	return keys, events
}

func (e stamped) stamp(t *testing.T, key *datastore.Key, generation int) stamped {
	t.Helper()
	k, err := writers.Key(generation, writers.ShardOf(name(key), 8*generation), e.Created.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	e.Expiry = k.String()
	return e
}

func (w *world) putStamped(t *testing.T, keys []*datastore.Key, events []stamped) {
	t.Helper()
	for i := 0; i < len(keys); i += 500 {
		end := min(i+500, len(keys))
		if _, err := w.PutMulti(t.Context(), keys[i:end], events[i:end]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNodeReadsTheSamePages holds the reader of the Node package, on Google's own client, to
// this one.
func TestNodeReadsTheSamePages(t *testing.T) {
	w := newWorld(t, "")
	n := nightly.Size(t, 2_000, 250)
	w.fillStamped(t, n)
	from, until := start.Add(2*time.Second+30*time.Microsecond), start.Add(5*time.Second+50*time.Microsecond)
	user := datastore.NameKey("User", "u3", nil)
	for _, c := range []struct {
		name string
		q    dsread.Query
		o    nodewriter.ReadOptions
	}{
		{"oldest first", dsread.Query{}, nodewriter.ReadOptions{Limit: n / 4, Page: n / 4}},
		{"newest first, a query for each shard", dsread.Query{Newest: true}, nodewriter.ReadOptions{Limit: n / 3, Page: n / 8, PerQuery: 1}},
		{"newest first, three queries, small pages", dsread.Query{Newest: true, Limit: n / 10}, nodewriter.ReadOptions{Limit: n / 50, PerQuery: 6, Page: 20}},
		{"within a time", dsread.Query{From: from, Until: until}, nodewriter.ReadOptions{Limit: n / 40, PerQuery: 6}},
		{"newest within a time", dsread.Query{Newest: true, From: from, Until: until}, nodewriter.ReadOptions{Limit: n / 40, PerQuery: 6}},
		{"of one kind, below an ancestor", dsread.Query{Where: []dsread.Equal{{Property: "kind", Value: "login"}}, Ancestor: user},
			nodewriter.ReadOptions{Limit: 4, PerQuery: 4, Where: map[string]any{"kind": "login"}, Ancestor: []string{"User", "u3"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.q.Kind, c.q.Shard, c.q.Values, c.q.Time = "Event", "shard", shardread.Numbers(16), "created"
			want := keys(t, dsread.Run[stamped](t.Context(), w.Client, c.q))
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
				t.Errorf("Node's %d pages of %d are not the %d entities that Go reads:\n%.300v\n%.300v", len(got), o.Limit, len(want), got, want)
			}
		})
	}
}

func (w *world) reader(t *testing.T, o nodewriter.ReadOptions) nodewriter.ReadOptions {
	t.Helper()
	o.Emulator, o.Mode, o.Project = emulator.Start(t, emulator.Datastore), "datastore", w.project
	o.Kind, o.Shard, o.Time, o.Shards = "Event", "shard", "created", max(o.Shards, 16)
	return o
}

// TestNodeReadsWhileWritersWork pages through entities of three generations, while writers
// carry them to the last one, delete others, and create some in shards that are new. What is
// there all the time comes exactly once, in order.
func TestNodeReadsWhileWritersWork(t *testing.T) {
	w := newWorld(t, "")
	n := nightly.Size(t, 2_000, 250)
	all, events := w.fillStamped(t, n)
	inOrder := keys(t, dsread.Run[stamped](t.Context(), w.Client,
		dsread.Query{Kind: "Event", Shard: "shard", Values: shardread.Numbers(16), Time: "created"}))
	isStable := map[string]bool{}
	for i, key := range all {
		isStable[name(key)] = i%4 > 0
	}
	inOrder = slices.DeleteFunc(inOrder, func(s string) bool { return !isStable[s] })

	o := w.reader(t, nodewriter.ReadOptions{Shards: 24, Limit: n / 8, Page: n / 8, PerQuery: 6})
	r := rand.New(rand.NewPCG(3, 3))
	write := func() {
		for range 10 {
			i := r.IntN(n)
			if i%4 == 0 {
				if err := w.Delete(t.Context(), all[i]); err != nil {
					t.Error(err)
				}
				continue
			}
			e := stamped{Shard: 16 + r.IntN(8), Kind: "new", Created: events[i].Created}
			created := datastore.NameKey("Event", fmt.Sprintf("new-%x", r.Uint64()), nil)
			e, carried := e.stamp(t, created, 3), events[i].stamp(t, all[i], 3)
			if _, err := w.PutMulti(t.Context(), []*datastore.Key{created, all[i]}, []stamped{e, carried}); err != nil {
				t.Error(err)
			}
		}
	}
	nodewriter.CheckReadWhile(t, o, write, isStable, inOrder)
}

// Shard and time may lie within a property that holds an entity of its own, or in one whose name has a point.
func TestNestedProperties(t *testing.T) {
	w := newWorld(t, "")
	type meta struct {
		Shard   int       `datastore:"shard"`
		Created time.Time `datastore:"created"`
	}
	type inner struct {
		Meta meta `datastore:"meta"`
	}
	type flat struct {
		Meta meta `datastore:"meta,flatten"`
	}
	var want []string
	for i := range 12 {
		key := datastore.NameKey("Event", fmt.Sprintf("e-%02d", i), nil)
		m := meta{i % 16, start.Add(time.Duration(i) * time.Second)}
		var entity any = &inner{m}
		if i%3 == 0 {
			entity = &flat{m}
		}
		if _, err := w.Put(t.Context(), key, entity); err != nil {
			t.Fatal(err)
		}
		want = append(want, name(key))
	}
	q := dsread.Query{Kind: "Event", Shard: "meta.shard", Values: shardread.Numbers(16), Time: "meta.created"}
	got := keys(t, dsread.Run[datastore.PropertyList](t.Context(), w.Client, q))
	if !slices.Equal(got, want) {
		t.Errorf("Go reads %d of %d: %q", len(got), len(want), got)
	}
	o := w.reader(t, nodewriter.ReadOptions{Limit: 5})
	o.Shard, o.Time = q.Shard, q.Time
	if node := slices.Concat(nodewriter.ReadAll(t, o)...); !slices.Equal(node, want) {
		t.Errorf("Node reads %q", node)
	}
}
