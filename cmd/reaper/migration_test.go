package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dsdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/firestore"
)

// migrationTargets are those of docs/migration.md: the old target, and the one that replaces it.
const (
	migrationOld = `  - name: sessions
    kind: Session
    layout: %s
    pace: {max: unlimited}
`
	migrationNew = `  - name: sessions-keys
    kind: Session
    shards: 3
    pace: {max: unlimited}
    adopt: {from: {property: expires}, rate: unlimited, spread: 0s}
`
)

// A migrant writes sessions that expire, in Go.
type migrant interface {
	// write puts a session with these properties, which are texts and instants.
	write(id string, properties map[string]any)
	all() (keys, rest map[string]string)
}

type datastoreMigrant struct{ oldDatastore }

// write replaces an entity whole.
func (m datastoreMigrant) write(id string, properties map[string]any) {
	var ps dsdk.PropertyList
	for name, v := range properties {
		ps = append(ps, dsdk.Property{Name: name, Value: v})
	}
	err := store.Retry(m.t.Context(), time.Minute, func() error {
		_, err := m.client.Put(m.t.Context(), dsdk.NameKey("Session", id, nil), &ps)
		if err != nil {
			return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
		}
		return nil
	})
	if err != nil && m.t.Context().Err() == nil {
		m.t.Error(err)
	}
}

type nativeMigrant struct{ oldNative }

// write updates the fields that it knows, and leaves others as they are: so an old writer leaves an
// old key behind.
func (m nativeMigrant) write(id string, properties map[string]any) {
	fields, mask := map[string]*pb.Value{}, &pb.DocumentMask{}
	for name, v := range properties {
		mask.FieldPaths = append(mask.FieldPaths, name)
		switch v := v.(type) {
		case string:
			fields[name] = &pb.Value{ValueType: &pb.Value_StringValue{StringValue: v}}
		case time.Time:
			fields[name] = &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(v)}}
		}
	}
	_, err := m.client.BatchWrite(m.t.Context(), &pb.BatchWriteRequest{Database: m.root, Writes: []*pb.Write{{UpdateMask: mask,
		Operation: &pb.Write_Update{Update: &pb.Document{Name: m.root + "/documents/Session/" + id, Fields: fields}}}}})
	if err != nil && m.t.Context().Err() == nil {
		m.t.Error(err)
	}
}

// A migrated is what a writer knows of a session.
type migrated struct{ created, expires time.Time }

// A life is a writer in Go, and what it knows of the sessions that it writes.
type life struct {
	m        migrant
	follower *generation.Follower

	mu       sync.Mutex // held during a turn
	stamps   nodewriter.Stamps
	sessions map[string]migrated
	late     map[string]bool // extended after they had expired, so that they may have been gone for a while
	n        int
}

// properties returns those of a session, under mu.
func (l *life) properties(id string, s migrated) map[string]any {
	ps := map[string]any{"user": "u7", "shard": string(rune('a' + len(id)%2)), "created": s.created}
	nursery := func(shards int) string {
		k, err := expirykey.New(expirykey.Nursery, expirykey.ShardOfName(id, shards), s.expires)
		if err != nil {
			panic(err) // of instants of this test alone
		}
		return k.String()
	}
	switch l.stamps.Old {
	case "timestamp":
		ps["expires"] = s.expires
	case "key":
		ps["expires"] = nursery(l.stamps.OldShards)
	}
	switch l.stamps.Key {
	case "nursery":
		ps["expiry_key"] = nursery(l.stamps.Shards)
	case "follow":
		k, err := l.follower.Name(id, s.expires)
		if err != nil {
			panic(err)
		}
		ps["expiry_key"] = k.String()
	}
	return ps
}

func (l *life) put(id string, ahead time.Duration) {
	now := time.Now()
	before, again := l.sessions[id]
	s := migrated{now, now.Add(ahead)}
	if again {
		s.created = before.created
	}
	l.m.write(id, l.properties(id, s))
	if again && time.Now().After(before.expires) {
		l.late[id] = true
	}
	l.sessions[id] = s
}

// turn creates a session that expires soon and one that expires late, and extends one that was to
// expire soon.
func (l *life) turn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	l.put(fmt.Sprintf("soon-%d", l.n), 4*time.Second)
	l.put(fmt.Sprintf("late-%d", l.n), time.Hour)
	l.put(fmt.Sprintf("extended-%d", l.n/2), 30*time.Second*time.Duration(1+l.n%2*100))
}

// pause is longer the more sessions there are, so that on a slow machine there is not ever more to read.
func (l *life) pause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return 50*time.Millisecond + time.Duration(len(l.sessions))*time.Millisecond/2
}

// phase changes how it stamps, and stamps each live session so.
func (l *life) phase(s nodewriter.Stamps) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stamps = s
	for id, one := range l.sessions {
		if one.expires.After(time.Now()) {
			l.m.write(id, l.properties(id, one))
		}
	}
}

// lost returns sessions that are live and not there.
func (l *life) lost() (lost []string) {
	l.mu.Lock()
	sessions := maps.Clone(l.sessions)
	l.mu.Unlock()
	_, there := l.m.all()
	for id, s := range sessions {
		if _, ok := there[id]; !ok && s.expires.After(time.Now().Add(time.Second)) {
			lost = append(lost, id)
		}
	}
	return lost
}

// A migration is one path under load: a writer in Go and one in Node create and extend sessions until its
// end, and a reader in Node reads all of them again and again.
type migration struct {
	*workdir

	inGo   *life
	inNode *nodewriter.Migrant
}

// sweep sweeps, stopped or not: what counts is what is left.
func (m migration) sweep(args ...string) {
	m.t.Helper()
	m.run(nil, append([]string{"sweep", "--apply"}, args...)...)
	if lost := m.inGo.lost(); len(lost) > 0 {
		m.t.Errorf("live and gone: %q", lost)
	}
}

// inMigration runs a path on both emulators. At no time is a live session gone, no pass of the reader lacks
// one that was there before and after it, and at the end no expired one is left.
func inMigration(t *testing.T, name, targets string, stamps nodewriter.Stamps, path func(m migration)) {
	t.Run(name+" in datastore mode", func(t *testing.T) {
		t.Parallel()
		b, e, project := newDatastore(t, targets)
		db, err := datastore.Open(t.Context(), datastore.Options{Project: project, Emulator: e.Host})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		migrate(b, datastoreMigrant{oldDatastore{t: t, client: datastoreClient(t, e, project)}}, db,
			nodewriter.MigrantOptions{Emulator: e, Mode: "datastore", Project: project, Target: "sessions"}, stamps, path)
	})
	t.Run(name+" in native mode", func(t *testing.T) {
		t.Parallel()
		b, e, project := newFirestore(t, targets)
		db, err := firestore.Open(t.Context(), firestore.Options{Project: project, Emulator: e.Host})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		migrate(b, nativeMigrant{newOldNative(t, e, project)}, db,
			nodewriter.MigrantOptions{Emulator: e, Mode: "native", Project: project, Target: "sessions"}, stamps, path)
	})
}

func migrate(
	b *workdir, m migrant, db store.Loader, o nodewriter.MigrantOptions, stamps nodewriter.Stamps, path func(m migration),
) {
	t := b.t
	l := &life{m: m, stamps: stamps, sessions: map[string]migrated{}, late: map[string]bool{},
		follower: &generation.Follower{Store: db, Target: o.Target, Now: time.Now}}
	b.run(nil, "sweep", "--apply", "--target", o.Target) // it opens a generation, if the layout has any
	for range 60 {
		l.turn()
	}
	var wait sync.WaitGroup
	wait.Go(func() { l.follower.Run(t.Context()) })
	stopped := make(chan struct{})
	wait.Go(func() {
		for {
			select {
			case <-stopped:
				return
			case <-time.After(l.pause()):
				l.turn()
			}
		}
	})
	stop := sync.OnceFunc(func() { close(stopped) })
	t.Cleanup(func() { stop(); wait.Wait() })
	inNode := nodewriter.StartMigrant(t, o, stamps)
	inNode.AwaitPasses(1)
	path(migration{b, l, inNode})
	inNode.AwaitPasses(1)
	stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.check(b, inNode.Stop())
}

// check makes sure, after writers have stopped, of what the reader found and of what is left.
func (l *life) check(b *workdir, found nodewriter.Found) {
	t := b.t
	t.Logf("%d turns in Go, %d in Node; it read %d pages in %d passes", l.n, found.Turns, found.Pages, found.Passes)
	between := slices.DeleteFunc(found.Between, func(id string) bool { return l.late[id] })
	if len(found.Gaps)+len(between)+len(found.Twice)+len(found.Lost) > 0 {
		t.Errorf("live and not in a pass: %q, between two: %q; twice in one: %q; lost: %q", found.Gaps, between, found.Twice, found.Lost)
	}
	expires := map[string]time.Time{}
	for id, s := range l.sessions {
		expires[id] = s.expires
	}
	for id, ms := range found.Expires {
		expires[id] = time.UnixMilli(ms)
	}
	last := time.Now()
	for _, at := range expires {
		if at.After(last) && time.Until(at) < time.Minute {
			last = at
		}
	}
	time.Sleep(time.Until(last.Add(time.Second))) // until the last that expire soon have expired
	b.run(nil, "audit", "--apply")                // a machine that stood still may have left a stray
	b.sweep("--apply", "--from-start")
	_, there := l.m.all()
	for id := range there {
		if at, ok := expires[id]; !ok || !at.After(last) {
			t.Errorf("%s expired at %v, and is still there", id, at)
		}
	}
	for id, at := range expires {
		if _, ok := there[id]; !ok && at.After(time.Now().Add(time.Second)) {
			t.Errorf("%s expires at %v, and is gone", id, at)
		}
	}
}

// A target moves to expiry keys while writers create and extend: first old ones, then some that
// write both, then new ones.
func TestMigrationToKeys(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	for _, old := range nightly.Some(t, time.Now().UnixNano(), []struct {
		name, layout string
		stamps       nodewriter.Stamps
	}{
		{"timestamp", "timestamp\n    property: expires", nodewriter.Stamps{Old: "timestamp"}},
		{"sharded-timestamp", "sharded-timestamp\n    property: expires\n    shard_values: [a, b]", nodewriter.Stamps{Old: "timestamp"}},
		{"another property, fewer shards", "sharded\n    shards: 4\n    property: expires", nodewriter.Stamps{Old: "key", OldShards: 4}},
	}) {
		targets := "targets:\n" + fmt.Sprintf(migrationOld, old.layout) + migrationNew
		inMigration(t, old.name, targets, old.stamps, func(m migration) {
			m.sweep("--target", "sessions")
			m.adopts("sessions-keys", "--apply")
			m.sweep() // both, while old writers extend
			both := old.stamps
			both.Key, both.Shards = "nursery", 3
			m.inGo.phase(both)
			m.adopts("dual", "sessions-keys", "--apply")
			m.adopts("sessions-keys", "--apply") // what old writers wrote behind the first round
			m.inNode.AwaitPasses(1)
			m.sweep()
			m.inNode.Phase(both)
			m.sweep("--target", "sessions", "--from-start") // what nobody stamps any more has expired
			m.adopts("sessions-keys", "--apply")
			if r := m.run(nil, "adopt", "finish", "sessions-keys", "--apply"); r.code != exitDone {
				m.t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
			}
			m.write("reaper.yaml", "targets:\n"+strings.Split(migrationNew, "    adopt:")[0])
			m.inGo.phase(nodewriter.Stamps{Key: "nursery", Shards: 3})
			m.inNode.Phase(nodewriter.Stamps{Key: "nursery", Shards: 3})
			m.inNode.AwaitPasses(1)
			m.sweep()
		})
	}
}

// A target gets other numbers of shards while writers create and extend.
func TestMigrationOfShards(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting for a generation to be sealed
	const sharded = "targets:\n  - name: sessions\n    kind: Session\n    layout: sharded\n    pace: {max: unlimited}\n    shards: "
	few, more := nodewriter.Stamps{Key: "nursery", Shards: 3}, nodewriter.Stamps{Key: "nursery", Shards: 5}
	inMigration(t, "sharded, more shards", sharded+"3\n", few, func(m migration) {
		m.sweep()
		m.write("reaper.yaml", sharded+"5\n")
		m.inGo.phase(more)
		m.sweep()
		m.inNode.Phase(more)
		m.inNode.AwaitPasses(1)
		m.sweep()
	})
	generations := strings.Replace(quickTarget, "slack: 1s", "slack: 5s", 1) + "    pace: {max: unlimited}\n"
	inMigration(t, "generation, more shards and then fewer", generations, nodewriter.Stamps{Key: "follow"}, func(m migration) {
		until := func(is func([]inspect.GenerationLife) bool) {
			m.sweepUntil(is)
			m.sweep()
			m.inNode.AwaitPasses(1)
		}
		m.must(nil, "generation", "advance", "--shards", "7")
		until(func(lives []inspect.GenerationLife) bool { return lives[0].State == "sealed" })
		m.must(nil, "generation", "advance", "--shards", "3")
		until(func(lives []inspect.GenerationLife) bool { return lives[0].Number == 2 })
	})
}
