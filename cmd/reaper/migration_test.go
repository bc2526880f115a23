package main

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	dsdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
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
    shards: 4
    pace: {max: unlimited}
    adopt: {from: {property: %s}, rate: unlimited, spread: 0s}
`
)

// A migrant writes sessions that expire, by the old property, the new one or both.
type migrant interface {
	write(id string, expires time.Time, old, key bool)
	all() (keys, rest map[string]string)
}

func keyFor(id string, expires time.Time) string {
	k, err := expirykey.New(expirykey.Nursery, expirykey.ShardOfName(id, 4), expires)
	if err != nil {
		panic(err) // of instants of this test alone
	}
	return k.String()
}

// oldValue is what the old property of a path holds.
func oldValue(path, id string, expires time.Time) any {
	if path == "key" {
		return keyFor(id, expires)
	}
	return expires
}

type datastoreMigrant struct {
	oldDatastore

	path string
}

func (m datastoreMigrant) write(id string, expires time.Time, old, key bool) {
	ps := dsdk.PropertyList{{Name: "user", Value: "u7"}}
	if old {
		ps = append(ps, dsdk.Property{Name: "expires", Value: oldValue(m.path, id, expires)},
			dsdk.Property{Name: "shard", Value: string(rune('a' + len(id)%2))})
	}
	if key {
		ps = append(ps, dsdk.Property{Name: "expiry_key", Value: keyFor(id, expires)})
	}
	err := store.Retry(m.t.Context(), time.Minute, func() error {
		_, err := m.client.Put(m.t.Context(), dsdk.NameKey("Session", id, nil), &ps)
		if err != nil {
			return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
		}
		return nil
	})
	if err != nil {
		m.t.Error(err)
	}
}

type nativeMigrant struct {
	oldNative

	path string
}

// write updates the fields that it knows, and leaves others as they are: so an old writer leaves an
// old key behind.
func (m nativeMigrant) write(id string, expires time.Time, old, key bool) {
	text := func(s string) *pb.Value { return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}} }
	fields := map[string]*pb.Value{"user": text("u7")}
	if old {
		fields["expires"] = &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(expires)}}
		if s, ok := oldValue(m.path, id, expires).(string); ok {
			fields["expires"] = text(s)
		}
		fields["shard"] = text(string(rune('a' + len(id)%2)))
	}
	if key {
		fields["expiry_key"] = text(keyFor(id, expires))
	}
	mask := &pb.DocumentMask{}
	for name := range fields {
		mask.FieldPaths = append(mask.FieldPaths, name)
	}
	ctx := metadata.AppendToOutgoingContext(m.t.Context(), "authorization", "Bearer owner")
	_, err := m.client.BatchWrite(ctx, &pb.BatchWriteRequest{Database: m.root, Writes: []*pb.Write{{UpdateMask: mask,
		Operation: &pb.Write_Update{Update: &pb.Document{Name: m.root + "/documents/Session/" + id, Fields: fields}}}}})
	if err != nil {
		m.t.Error(err)
	}
}

// A target moves to expiry keys while writers create and extend: first old ones, then some that
// write both, then new ones. At no time is a live entity gone, and at the end no expired one
// is left.
func TestMigrationToKeys(t *testing.T) {
	noRaces(t)
	for path, layout := range map[string]string{
		"timestamp":         "timestamp\n    property: expires",
		"sharded-timestamp": "sharded-timestamp\n    property: expires\n    shard_values: [a, b]",
		"key":               "sharded\n    shards: 4\n    property: expires",
	} {
		targets := "targets:\n" + fmt.Sprintf(migrationOld, layout) + fmt.Sprintf(migrationNew, "expires")
		t.Run(path+" in datastore mode", func(t *testing.T) {
			t.Parallel()
			b, e, project := newDatastore(t, targets)
			migrate(t, b, datastoreMigrant{oldDatastore{t: t, client: datastoreClient(t, e, project)}, path})
		})
		t.Run(path+" in native mode", func(t *testing.T) {
			t.Parallel()
			b, e, project := newFirestore(t, targets)
			migrate(t, b, nativeMigrant{newOldNative(t, e, project), path})
		})
	}
}

// A life is what writers know of the entities that they write.
type life struct {
	mu      sync.Mutex
	expires map[string]time.Time
	n       int
	old     bool
	key     bool
}

// turn creates a session that expires soon and one that expires late, and extends one that was to
// expire soon.
func (l *life) turn(m migrant) {
	l.mu.Lock()
	l.n++
	n, old, key := l.n, l.old, l.key
	l.mu.Unlock()
	put := func(id string, ahead time.Duration) {
		expires := time.Now().Add(ahead)
		l.mu.Lock()
		if at, ok := l.expires[id]; ok && expires.Before(at) { // until the write is done, either may count
			l.expires[id] = expires
		}
		l.mu.Unlock()
		m.write(id, expires, old, key)
		l.mu.Lock()
		l.expires[id] = expires
		l.mu.Unlock()
	}
	put(fmt.Sprintf("soon-%d", n), 4*time.Second)
	put(fmt.Sprintf("late-%d", n), time.Hour)
	put(fmt.Sprintf("extended-%d", n/2), 30*time.Second*time.Duration(1+n%2*100))
}

// lost returns entities that are live by a margin, and not there.
func (l *life) lost(m migrant) (lost []string) {
	l.mu.Lock()
	expires := maps.Clone(l.expires)
	l.mu.Unlock()
	_, there := m.all()
	for id, at := range expires {
		if _, ok := there[id]; !ok && at.After(time.Now().Add(time.Second)) {
			lost = append(lost, id)
		}
	}
	return lost
}

func migrate(t *testing.T, b *workdir, m migrant) {
	l := &life{expires: map[string]time.Time{}, old: true}
	for range 60 {
		l.turn(m)
	}
	var wait sync.WaitGroup
	stop := make(chan struct{})
	wait.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				l.turn(m)
				time.Sleep(20 * time.Millisecond)
			}
		}
	})
	phase := func(old, key bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.old, l.key = old, key
	}
	sweep := func(args ...string) {
		b.run(nil, append([]string{"sweep", "--apply"}, args...)...) // stopped or not: what counts is what is left
		if lost := l.lost(m); len(lost) > 0 {
			t.Errorf("live and gone: %q", lost)
		}
	}
	sweep("--target", "sessions")
	b.adopts("sessions-keys", "--apply")
	sweep() // both, while old writers extend
	phase(true, true)
	b.adopts("dual", "sessions-keys", "--apply")
	b.adopts("sessions-keys", "--apply") // what old writers wrote behind the first round
	sweep()
	close(stop)
	wait.Wait()
	for id, at := range l.expires { // each entity is written once by a new writer
		if at.After(time.Now()) {
			m.write(id, at, true, true)
		}
	}
	sweep("--target", "sessions", "--from-start") // the others are gone by the old property
	b.adopts("sessions-keys", "--apply")
	if r := b.run(nil, "adopt", "finish", "sessions-keys", "--apply"); r.code != exitDone {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
	}
	b.write("reaper.yaml", "targets:\n"+strings.Split(fmt.Sprintf(migrationNew, "expires"), "    adopt:")[0])
	phase(false, true)
	for range 10 {
		l.turn(m)
	}
	time.Sleep(5 * time.Second) // the last that expire soon do
	began := time.Now()
	sweep("--from-start")
	_, there := m.all()
	for id := range there {
		if at := l.expires[id]; at.Before(began.Add(-time.Second)) {
			t.Errorf("%s expired at %v, and is still there", id, at)
		}
	}
}
