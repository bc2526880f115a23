package bench_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// liveGenerations is how many generations a target of many ranges has in addition to
// its nursery: the newest is written to, the others are sealed.
const liveGenerations = 5

// A manyRanges is a store of a target with many ranges. It keeps next to nothing: what
// was not written since is made up as it is read, so that the memory of the process is
// that of the sweep. One entity is due in every hundredth range of the newest generation.
type manyRanges struct {
	store.Store // what is not below is not called
	now         time.Time
	names       []string
	keys        []string     // of the cursor records, in order
	template    store.Fields // of a cursor record

	mu      sync.Mutex
	others  map[string]store.Record // records of other sorts than cursors
	written map[string]kept         // cursor records
	last    store.Fields            // of the cursor record that was written last
	gone    map[string]bool         // ranges whose entity was deleted
	first   atomic.Int64            // when the first one was, in Unix nanoseconds
}

func newManyRanges(ctx context.Context, ranges int) (*manyRanges, error) {
	m := &manyRanges{now: time.Now().UTC().Truncate(time.Microsecond), others: map[string]store.Record{}, written: map[string]kept{}, gone: map[string]bool{}}
	for i := range max(1, ranges/shards/(liveGenerations+1)) {
		m.names = append(m.names, fmt.Sprintf("tenant-%05d", i))
	}
	for number := range liveGenerations + 1 {
		for shard := range shards {
			r := shardquery.Range{Generation: number, Shard: shard}
			for _, ns := range m.names {
				id := cursor.ID{Target: "sessions", Namespace: ns, Generation: number, Shard: r.ShardName()}
				m.keys = append(m.keys, id.Key())
			}
		}
	}
	rec := plan.First(manyTarget().Rules(), m.now.Add(-liveGenerations*24*time.Hour))
	rec.Generations, rec.Checked = nil, m.now
	for i := range liveGenerations {
		g := generation.Generation{Number: i + 1, Shards: shards, Opened: m.opened(i + 1), Staleness: time.Minute, Slack: 10 * time.Minute}
		if i < liveGenerations-1 {
			g.Closed = m.opened(i + 2).Add(time.Minute)
		}
		rec.Generations = append(rec.Generations, g)
	}
	if _, err := generation.Save(ctx, m, rec); err != nil {
		return nil, err
	}
	// How a record is written is the cursor's business: one is written, and copied.
	k := cursor.Keeper{Store: m, Owner: "bench", Lease: 30 * time.Second, Now: time.Now, StoreNow: time.Now, Log: slog.New(slog.DiscardHandler)}
	id := cursor.ID{Target: "sessions", Namespace: "x", Generation: 1, Shard: "0000"}
	if _, _, err := k.Move(ctx, cursor.Cursor{ID: id, Scope: manyTarget().Rules().Scope}, func(*cursor.Cursor) {}); err != nil {
		return nil, err
	}
	m.template = maps.Clone(m.last)
	clear(m.written)
	return m, nil
}

func manyTarget() sweep.Target {
	t := target()
	t.Namespaces = []string{"*"}
	t.Policy = generation.Policy{Every: 24 * time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 2 * liveGenerations}
	return t
}

// opened returns when a generation was opened: one each day, the newest an hour ago.
func (m *manyRanges) opened(number int) time.Time {
	return m.now.Add(time.Duration(number-liveGenerations)*24*time.Hour - time.Hour)
}

// record makes a cursor record up: of a range that was read to its end, and if it is
// sealed has survivors for some hours more.
func (m *manyRanges) record(id cursor.ID, r shardquery.Range) store.Record {
	f := maps.Clone(m.template)
	f["namespace"], f["generation"], f["shard"] = id.Namespace, int64(id.Generation), id.Shard
	opened := m.opened(id.Generation)
	if id.Generation == expirykey.Nursery {
		opened = m.opened(1).Add(-23 * time.Hour)
	}
	done := m.now.Add(-time.Hour)
	f["opened"], f["swept"], f["rewind_done"] = store.FormatTime(opened), store.FormatTime(done), store.FormatTime(done)
	f["position"] = r.At(m.now.Add(-time.Minute)).Value.Text
	if id.Generation > 0 && id.Generation < liveGenerations {
		f["next_expires"] = store.FormatTime(m.now.Add(6 * time.Hour))
	}
	return store.Record{Sort: store.CursorRecord, Key: id.Key(), Target: id.Target, Revision: "1-made-up", Fields: f}
}

// Namespaces implements store.Namespacer.
func (m *manyRanges) Namespaces(context.Context) ([]string, error) { return m.names, nil }

// Load implements store.Store. Cursor records are made up in the order of their keys.
func (m *manyRanges) Load(_ context.Context, q store.RecordQuery) (got store.Records, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	got.Now = time.Now().UTC()
	if q.Sort != store.CursorRecord {
		for _, key := range slices.Sorted(maps.Keys(m.others)) {
			if rec := m.others[key]; rec.Sort == q.Sort && (len(q.Keys) == 0 || slices.Contains(q.Keys, key)) {
				got.List = append(got.List, rec)
			}
		}
		return got, nil
	}
	for _, key := range q.Keys {
		if place, ok := slices.BinarySearch(m.keys, key); ok {
			got.List = append(got.List, m.at(place))
		}
	}
	if len(q.Keys) > 0 {
		return got, nil
	}
	from, found := slices.BinarySearch(m.keys, q.After)
	if found {
		from++
	}
	for place := from; place < len(m.keys) && (q.Before == "" || m.keys[place] < q.Before); place++ {
		if got.More = len(got.List) == q.Most(); got.More {
			break
		}
		got.List = append(got.List, m.at(place))
	}
	return got, nil
}

// at returns the cursor record in a place.
func (m *manyRanges) at(place int) store.Record {
	n := place / len(m.names)
	r := shardquery.Range{Namespace: m.names[place%len(m.names)], Generation: n / shards, Shard: n % shards}
	rec := m.record(cursor.ID{Target: "sessions", Namespace: r.Namespace, Generation: r.Generation, Shard: r.ShardName()}, r)
	if k, ok := m.written[m.keys[place]]; ok {
		k.fill(&rec)
	}
	return rec
}

// A kept is what was written of a cursor record, in little memory: that of the store must
// not be taken for that of the sweep.
type kept struct{ revision, fields string }

// identity are the fields that say which range a cursor record is of.
var identity = []string{"namespace", "generation", "shard", "kind", "property", "layout", "schema"}

// keep keeps all but the identity of the range, which its key says.
func keep(r store.Record) (kept, error) {
	fields := maps.Clone(r.Fields)
	for name, value := range fields {
		if value == "" || value == int64(0) || value == 0.0 || value == false {
			fields[name] = nil
		}
	}
	maps.DeleteFunc(fields, func(name string, value any) bool {
		return value == nil || slices.Contains(identity, name)
	})
	text, err := json.Marshal(fields)
	return kept{r.Revision, string(text)}, err
}

// fill fills a record in that was made up.
func (k kept) fill(rec *store.Record) {
	var fields map[string]any
	if err := json.Unmarshal([]byte(k.fields), &fields); err != nil {
		panic(err)
	}
	rec.Revision = k.revision
	for name, was := range rec.Fields {
		if slices.Contains(identity, name) {
			continue
		}
		is, there := fields[name]
		number, _ := is.(float64)
		switch was.(type) {
		case int64:
			rec.Fields[name] = int64(number)
		case float64:
			rec.Fields[name] = number
		case bool:
			rec.Fields[name] = there
		case string:
			rec.Fields[name], _ = is.(string)
		}
	}
}

// Save implements store.Store.
func (m *manyRanges) Save(_ context.Context, r store.Record, _ string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Sort != store.CursorRecord {
		if m.others[r.Key] = r; r.Fields == nil {
			delete(m.others, r.Key)
		}
		return nil
	}
	k, err := keep(r)
	m.written[r.Key], m.last = k, r.Fields
	return err
}

// Scan implements store.Store.
func (m *manyRanges) Scan(_ context.Context, q store.Query, page *store.Page) error {
	page.Entries, page.Next, page.More, page.SteppedOver = page.Entries[:0], nil, false, 0
	k, err := expirykey.Parse(q.Hi.Text)
	if err != nil || k.Generation != liveGenerations {
		return nil
	}
	var tenant int
	if _, err := fmt.Sscanf(q.Namespace, "tenant-%d", &tenant); err != nil || (tenant*shards+k.Shard)%100 != 7 {
		return nil
	}
	k.Expires = m.now.Add(-time.Second)
	v := store.TextValue(k.String())
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.Compare(q.Lo) >= 0 && v.Compare(q.Hi) <= 0 && v.Compare(q.After.Value) > 0 && !m.gone[q.Namespace+v.Text] {
		page.Entries = append(page.Entries, store.Entry{Key: "one", Value: v})
	}
	return nil
}

// Dispose implements store.Store.
func (m *manyRanges) Dispose(_ context.Context, b *store.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.first.CompareAndSwap(0, time.Now().UnixNano())
	for i := range b.Ops {
		m.gone[b.Query.Namespace+b.Ops[i].Entry.Value.Text] = true
		b.Ops[i].Outcome = store.Deleted
	}
	return nil
}

// Close implements io.Closer.
func (m *manyRanges) Close() error { return nil }

// sweepMany sweeps a store of so many ranges once, or serves it for so long, and says
// how that went. A profile of the second half of that is written if BENCH_PROFILE names
// a file.
func sweepMany(ctx context.Context, j job) (o outcome, err error) {
	m, err := newManyRanges(ctx, j.Ranges)
	if err != nil {
		return o, err
	}
	c := configFor(m, manyTarget(), workers)
	c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	began := time.Now()
	if j.Serve == 0 {
		res := sweep.Run(ctx, c)
		if res.Failed() || !res.Complete {
			return o, fmt.Errorf("the sweep is not complete: %s", res.Targets[0].Error)
		}
		o.Deleted, o.Took = res.Targets[0].Deleted, time.Since(began)
	} else {
		c.Targets[0].Next = func(at time.Time) time.Time { return at.Add(time.Hour) }
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		d := sweep.NewDaemon(c, true)
		go func() {
			defer close(done)
			d.Run(ctx)
		}()
		for st := d.States()[0]; st.SweptTo.IsZero() || st.Working > 0; st = d.States()[0] {
			time.Sleep(100 * time.Millisecond)
		}
		o.Took = time.Since(began)
		o.PerSecond, err = atRest(j.Serve)
		o.Deleted = d.States()[0].Deleted
		cancel()
		<-done
	}
	o.First = time.Duration(m.first.Load() - began.UnixNano())
	return o, err
}

// atRest returns which part of a core the process uses for so long.
func atRest(forSo time.Duration) (part float64, err error) {
	runtime.GC()
	if file := os.Getenv("BENCH_PROFILE"); file != "" {
		heap, err := os.Create(file + ".heap")
		if err != nil {
			return 0, err
		}
		defer heap.Close()
		if err := pprof.WriteHeapProfile(heap); err != nil {
			return 0, err
		}
		cpu, err := os.Create(file + ".cpu")
		if err != nil {
			return 0, err
		}
		defer cpu.Close()
		if err := pprof.StartCPUProfile(cpu); err != nil {
			return 0, err
		}
		defer pprof.StopCPUProfile()
	}
	before := used()
	time.Sleep(forSo)
	return float64(used()-before) / float64(forSo), nil
}

// used returns how long the process has had a core so far.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ranges measures targets of ever more ranges, each in a process of its own.
func ranges(tb testing.TB, r *report) {
	r.section("Many ranges", fmt.Sprintf("A target of so many ranges: %d shards in each of many namespaces, of %d generations, four of them sealed, and of the nursery. "+
		"The store is made up as it is read and answers at once; one entity is due in every hundredth range of the newest generation. All records are read at once.", shards, liveGenerations))
	for _, n := range r.ranges {
		for _, serve := range []time.Duration{0, r.rest} {
			p := begin(tb, job{Ranges: n, Serve: serve})
			p.release()
			o := p.end()
			what := fmt.Sprintf("%d ranges, ", n)
			if serve == 0 {
				r.add(what+"sweep: first delete after / complete after / peak", fmt.Sprintf("%.1f s / %.1f s / %.0f MiB", o.First.Seconds(), o.Took.Seconds(), o.PeakKiB/1024), "10 s / - / 150 MiB at 100000")
				continue
			}
			r.add(what+"serve: first delete after / all at rest after / peak", fmt.Sprintf("%.1f s / %.1f s / %.0f MiB", o.First.Seconds(), o.Took.Seconds(), o.PeakKiB/1024), "10 s / - / 150 MiB at 100000")
			r.add(what+"serve: CPU per second at rest", fmt.Sprintf("%.1f ms", 1000*o.PerSecond), "the same for any number")
		}
	}
}

// BenchmarkPlan makes a first plan of 100,000 ranges, and plans that follow it.
func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		m, err := newManyRanges(b.Context(), n)
		if err != nil {
			b.Fatal(err)
		}
		rules := manyTarget().Rules()
		table, err := cursor.Reader{Store: m, Target: "sessions", Now: time.Now}.All(b.Context(), cursor.Table{})
		if err != nil {
			b.Fatal(err)
		}
		v := &plan.View{Cursors: table, Namespaces: m.names}
		if v.Record, _, err = generation.Load(b.Context(), m, "sessions"); err != nil {
			b.Fatal(err)
		}
		book := plan.Book{Own: map[cursor.ID]cursor.Packed{}, Tried: map[plan.Chore]time.Time{}}
		b.Run(fmt.Sprintf("first/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				plan.New(rules, v, book, m.now).Chores()
			}
		})
		b.Run(fmt.Sprintf("needs/%d", n), func(b *testing.B) {
			p := plan.New(rules, v, book, m.now)
			for b.Loop() {
				for r := range p.All() {
					p.Range(r)
				}
			}
		})
		b.Run(fmt.Sprintf("next/%d", n), func(b *testing.B) {
			p := plan.New(rules, v, book, m.now)
			p.Chores()
			id := cursor.ID{Target: "sessions", Namespace: m.names[0], Generation: 1, Shard: "0003"}
			c, _ := table.At(id)
			for b.Loop() {
				book.Own[id] = cursor.Pack(c)
				p = p.Next(v, []cursor.ID{id}, m.now)
				p.Chores()
			}
		})
	}
}

// said by a child of many ranges.
func childOfMany(j job) error {
	fmt.Println("ready")
	if _, err := fmt.Scanln(new(string)); err != nil && !strings.Contains(err.Error(), "newline") {
		return err
	}
	o, err := sweepMany(context.Background(), j)
	if err != nil {
		return err
	}
	_, _ = fmt.Sscan(field("/proc/self/status", "VmHWM"), &o.PeakKiB)
	return json.NewEncoder(os.Stdout).Encode(o)
}
