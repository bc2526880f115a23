package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A world is a model store with entities, and what is needed to sweep it. It
// lives in a synctest bubble: hours pass at once.
type world struct {
	t      *testing.T
	s      *modelstore.Store
	target sweep.Target
	owners atomic.Int64

	expires map[string]time.Time // of every entity put

	mu     sync.Mutex
	calls  map[string]int       // by method
	saves  []save               // of cursor records
	tokens map[string]int64     // the last one of each cursor record
	alive  map[string]time.Time // when each owner's heartbeat was written last, if it has a lease
	beats  int64                // heartbeats written
}

type save struct {
	at     time.Time
	key    string
	owner  string
	token  int64
	fields store.Fields
	claim  bool                 // it raises the token
	alive  map[string]time.Time // the world's at that time
}

// isClaim reports whether a write of a cursor record claims the range: it raises the token.
func (w *world) isClaim(c modelstore.Call) bool {
	if c.Method != "Save" || c.Record.Sort != store.CursorRecord || c.Record.Fields["owner"] == nil ||
		c.Record.Fields["owner"] == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.Record.Fields["token"].(int64) > w.tokens[c.Record.Key]
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, s: modelstore.New(time.Now), calls: map[string]int{}, expires: map[string]time.Time{},
		alive: map[string]time.Time{}, tokens: map[string]int64{}}
	w.target = sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
		Overlap: 10 * time.Second, Page: 50, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second,
		Pace: throttle.Limits{Unlimited: true},
	}
	w.s.After = w.trace
	return w
}

// ownerOf returns the owner that the key of a heartbeat names.
func ownerOf(key string) string {
	_, owner, _ := strings.Cut(key, "@")
	return owner
}

// trace records what was called.
func (w *world) trace(_ context.Context, c modelstore.Call) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[c.Method]++
	if c.Method == "Save" && c.Record.Sort == store.WorkerRecord {
		w.beats++
		delete(w.alive, ownerOf(c.Record.Key))
		if n, _ := c.Record.Fields["lease_ms"].(int64); n > 0 {
			w.alive[ownerOf(c.Record.Key)] = time.Now()
		}
	}
	if c.Method == "Save" && c.Record.Sort == store.CursorRecord && c.Record.Fields != nil {
		f := c.Record.Fields
		key, token := c.Record.Key, f["token"].(int64)
		w.saves = append(w.saves, save{time.Now(), key, f["owner"].(string), token, f, token > w.tokens[key],
			maps.Clone(w.alive)})
		w.tokens[key] = token
	}
	return nil
}

// beatsWritten returns how often a heartbeat was written.
func (w *world) beatsWritten() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.beats
}

// writes returns how much was written but for heartbeats.
func (w *world) writes() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int64(w.s.Writes()) - w.beats
}

func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls, w.saves = map[string]int{}, nil
}

// config returns what one process would sweep with.
func (w *world) config() sweep.Config {
	owner := w.owners.Add(1)
	return sweep.Config{Store: w.s, Targets: []sweep.Target{w.target}, Apply: true, Workers: 4, Grace: 8 * time.Second,
		Owner: fmt.Sprintf("process-%d", owner), Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug,
			ReplaceAttr: w.checkAttr}))}
}

// checkAttr refuses what no log may hold: JSON shows durations in nanoseconds.
func (w *world) checkAttr(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		w.t.Errorf("the log has the duration %v as %q: write seconds, and name them so", a.Value, a.Key)
	}
	return a
}

// begin gives the target its record, as load does, before anything is written: so what
// is stamped with generation 1 is not taken for what a former record has left.
func (w *world) begin() {
	w.t.Helper()
	if _, _, err := sweep.EnsureRecord(w.t.Context(), w.config(), w.target); err != nil {
		w.t.Fatal(err)
	}
}

// sweep sweeps once and returns the one target's result.
func (w *world) sweep() sweep.TargetResult {
	return sweep.Run(w.t.Context(), w.config()).Targets[0]
}

// layouts are the ways in which a world's entities may say when they expire.
var layouts = map[string]func(*sweep.Target){
	"generation": func(*sweep.Target) {},
	"timestamp": func(t *sweep.Target) {
		t.Layout, t.Generations, t.Shards = "timestamp", false, 0
		t.Property, t.Type = "expires", store.Instant
	},
	"sharded-timestamp": func(t *sweep.Target) {
		t.Layout, t.Generations, t.Shards = "sharded-timestamp", false, 0
		t.Property, t.Type, t.ShardProperty = "expires", store.Instant, "shard"
		t.ShardValues = []store.Value{store.IntegerValue(7), store.IntegerValue(-1), store.IntegerValue(12)}
	},
}

// putEvery writes n entities of generation 1, e-0 and so on. One expires now, and each of the others
// as much later than the one before it, or earlier.
func (w *world) putEvery(n int, later time.Duration) {
	now := time.Now()
	for i := range n {
		w.put(1, 4, fmt.Sprint("e-", i), now.Add(time.Duration(i)*later))
	}
}

// put writes one entity, stamped for a generation or, where the layout is
// another, with a timestamp.
func (w *world) put(number, shards int, name string, expires time.Time) string {
	if w.target.Type == store.Instant {
		e := store.Entity{Name: name, Expiry: store.InstantValue(expires)}
		if n := len(w.target.ShardValues); n > 0 {
			e.Shard = w.target.ShardValues[expirykey.ShardOfName(name, n)]
		}
		if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
			w.t.Fatal(err)
		}
		w.expires[name] = e.Expiry.Time
		return ""
	}
	key, err := generation.Stamper{Generation: number, Shards: shards}.Name(name, expires)
	if err != nil {
		w.t.Fatal(err)
	}
	w.raw(name, key.String())
	w.expires[name] = key.Expires
	return key.String()
}

// raw writes one entity with any text for an expiry.
func (w *world) raw(name, expiry string) {
	err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{{Name: name, Expiry: store.TextValue(expiry)}})
	if err != nil {
		w.t.Fatal(err)
	}
}

// touch lets each range have some work, so that it has a cursor by now.
func (w *world) touch() {
	w.t.Helper()
	now := time.Now()
	if w.target.Type == store.Text {
		for number := range 2 {
			for shard := range w.target.Shards {
				w.dueIn(number, shard, fmt.Sprintf("touched-%d-%d", number, shard), now)
			}
		}
	}
	for i := range max(1, 10*len(w.target.ShardValues)) { // in any shard
		if w.target.Type == store.Instant {
			w.put(0, 1, fmt.Sprint("touched-", i), now)
		}
	}
	if res := w.sweep(); res.Error != "" || !res.Complete {
		w.t.Fatalf("%+v", res)
	}
}

// fill writes n entities that expire evenly from half a period ago to half a
// period ahead, and returns the names of the live ones. One that expires right
// now would be either.
func (w *world) fill(n int, period time.Duration) (live []string) {
	now := time.Now()
	for i := range n {
		name := fmt.Sprintf("e-%05d", i)
		ahead := period*time.Duration(i)/time.Duration(n) - period/2 + time.Millisecond
		w.put(1, w.target.Shards, name, now.Add(ahead))
		if ahead > time.Hour/2 { // safe against the time that a test takes
			live = append(live, name)
		} else if ahead > 0 {
			w.s.Remove("Session", "", strconv.Quote(name))
			delete(w.expires, name)
		}
	}
	return live
}

// left returns the names of the entities that are there.
func (w *world) left() []string {
	var names []string
	for _, e := range w.s.Entities("Session", "") {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names
}

func (w *world) wantLeft(want ...string) {
	w.t.Helper()
	got := w.left()
	for _, name := range got {
		if !slices.Contains(want, name) {
			w.t.Errorf("%s is still there; %d are left, want %d", name, len(got), len(want))
			return
		}
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			w.t.Errorf("%s is gone; %d are left, want %d", name, len(got), len(want))
			return
		}
	}
}

// wantLive wants what was put and has not expired by now.
func (w *world) wantLive() {
	w.t.Helper()
	var live []string
	for name, at := range w.expires {
		if at.After(time.Now()) {
			live = append(live, name)
		}
	}
	w.wantLeft(live...)
}

// cursors reads the cursor records.
func (w *world) cursors() map[cursor.ID]cursor.Cursor {
	w.t.Helper()
	table, err := cursor.Reader{Store: w.s, Target: "sessions", Now: time.Now}.All(context.WithoutCancel(w.t.Context()), cursor.Table{})
	if err != nil {
		w.t.Fatal(err)
	}
	return maps.Collect(table.All())
}

// checkCursors holds L2: no due entity stands before a cursor.
func (w *world) checkCursors() {
	w.t.Helper()
	table := w.cursors()
	for _, e := range w.s.Entities("Session", "") {
		id, expires := cursor.ID{Target: "sessions", Shard: "0000"}, e.Expiry.Time
		if w.target.Type == store.Text {
			k, err := expirykey.Parse(e.Expiry.Text)
			if err != nil {
				continue
			}
			id.Generation, id.Shard, expires = k.Generation, fmt.Sprintf("%04d", k.Shard), k.Expires
		} else if w.target.ShardProperty != "" {
			id.Shard = e.Shard.Text
		}
		c, ok := table[id]
		if !ok || expires.After(time.Now()) {
			continue
		}
		p := c.Position
		if at := e.Expiry.Compare(p.Value); at < 0 || at == 0 && p.Key != "" && modelstore.Key(e) <= p.Key {
			w.t.Errorf("cursor %v stands at %v %s, past %v %s", c.ID, p.Value, p.Key, e.Expiry, modelstore.Key(e))
		}
	}
}

// checkLeases holds L3 over everything saved so far: a range changes hands only
// after a release, or when the holder's last write is one lease old.
func (w *world) checkLeases() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	last := map[string]save{}
	for _, s := range w.saves {
		p, ok := last[s.key]
		if ok && p.owner != "" && s.owner != p.owner && s.owner != "" && s.at.Sub(s.alive[p.owner]) < w.target.Lease {
			w.t.Errorf("%s went from %s to %s %v after the former's heartbeat", s.key, p.owner, s.owner,
				s.at.Sub(s.alive[p.owner]))
		}
		if ok && s.token < p.token {
			w.t.Errorf("%s: token went from %d to %d", s.key, p.token, s.token)
		}
		last[s.key] = s
	}
}

// A mortal store fails every call once it is dead, as for a killed process.
type mortal struct {
	store.Store
	left atomic.Int64 // calls until death
	kill context.CancelFunc
}

var errDead = errors.New("this process is dead")

func (m *mortal) step() error {
	if m.left.Add(-1) < 0 {
		m.kill()
		return errDead
	}
	return nil
}

func (m *mortal) Scan(ctx context.Context, q store.Query, p *store.Page) error {
	if err := m.step(); err != nil {
		return err
	}
	return m.Store.Scan(ctx, q, p)
}

func (m *mortal) Dispose(ctx context.Context, b *store.Batch) error {
	if err := m.step(); err != nil {
		return err
	}
	err := m.Store.Dispose(ctx, b)
	if m.left.Load() <= 0 { // it died before it heard
		return errDead
	}
	return err
}

func (m *mortal) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	if err := m.step(); err != nil {
		return store.Records{}, err
	}
	return m.Store.Load(ctx, q)
}

func (m *mortal) Save(ctx context.Context, r store.Record, prev string) error {
	if err := m.step(); err != nil {
		return err
	}
	return m.Store.Save(ctx, r, prev)
}

// shardOf returns the shard part of a query's range; nothing for a query over generations.
func shardOf(q store.Query) string {
	_, rest, _ := strings.Cut(q.Lo.Text, ".")
	shard, _, _ := strings.Cut(rest, ".")
	return shard
}
