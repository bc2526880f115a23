// Package writers is what an application that writes entities needs, in six names:
// [NurseryKey], [Key], [Parse], [ShardOf], [InRollout] and [Follow]. The packages in its
// directories node, python and java have the same six names in those languages, and all
// four agree on every key: docs/writer-vectors.json holds them to it.
//
// The invariant is that [Follow] never waits for the database and never fails because of
// it: a [Follower] that knows no generation for certain stamps the nursery, where anyone
// may write. It knows a generation only from a copy of the target record that is no
// older than the record's own bound.
//
// An id is the name that the entity's key ends in, or the decimal digits of a numeric
// id. Native mode writes a numeric id as __id7__; that is taken for 7.
package writers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// newestSchema is the newest version of the target record that this package reads. The
// fields that writers need have the same meaning in all versions up to it.
const newestSchema = 2

// NurseryKey returns the expiry key of an entity in generation 0, which is always
// right. Shards is the number in the targets file; 16 if that has none.
func NurseryKey(id string, expires time.Time, shards int) (expirykey.Key, error) {
	return generation.Stamper{Shards: shards}.Name(idText(id), expires)
}

// Key returns the expiry key with these parts. The instant is rounded up to a
// millisecond, and must be in the years 1 to 9999.
func Key(generation, shard int, expires time.Time) (expirykey.Key, error) {
	return expirykey.New(generation, shard, expires)
}

// Parse decodes an expiry key; anything else is an error that wraps
// [expirykey.ErrMalformed].
func Parse(key string) (expirykey.Key, error) { return expirykey.Parse(key) }

// ShardOf returns the shard of an entity, of so many. It panics if shards is not
// positive.
func ShardOf(id string, shards int) int { return expirykey.ShardOfName(idText(id), shards) }

// InRollout reports whether an entity is among the first percent of all, as
// [expirykey.InRollout] does.
func InRollout(id, salt string, percent float64) bool {
	return expirykey.InRollout(idText(id), salt, percent)
}

var numericID = regexp.MustCompile(`^__id(-?[0-9]+)__$`)

// idText returns the text that an id is hashed by.
func idText(id string) string {
	if m := numericID.FindStringSubmatch(id); m != nil {
		return m[1]
	}
	return id
}

// A Read reads the target record and returns its fields, or nil if there is no record.
// Integers are int64 or int; generations is a list of maps, or of [store.Fields]. It runs in the background,
// one call at a time, and should end when ctx is done.
type Read func(ctx context.Context) (map[string]any, error)

// Options change how a [Follower] works. The zero Options are right for most.
type Options struct {
	Shards int              // of the nursery while nothing is known; zero means 16
	Now    func() time.Time // this process's clock, wall and monotonic; nil means time.Now
	Log    *slog.Logger     // for reads that fail; may be nil
}

// A Follower stamps entities by the generation that is current, and moves from one to
// the next gradually as all writers do. It is safe for concurrent use.
type Follower struct {
	follower generation.Follower
	cancel   context.CancelFunc
	ended    chan struct{}
}

// Follow reads the target record in the background, twice within the time that a copy
// is good for, until ctx is done or Close is called. It returns at once. It panics without
// a read, and for a number of shards that no key has: that is a mistake in the program.
func Follow(ctx context.Context, read Read, o Options) *Follower {
	if read == nil {
		panic("writers: Follow needs a function that reads the target record")
	}
	if o.Shards < 0 || o.Shards > expirykey.MaxShard+1 {
		panic(fmt.Sprintf("writers: Options.Shards is %d, not 0 to %d", o.Shards, expirykey.MaxShard+1))
	}
	f := newFollower(read, o)
	ctx, f.cancel = context.WithCancel(ctx)
	go func() {
		defer close(f.ended)
		f.follower.Run(ctx)
	}()
	return f
}

func newFollower(read Read, o Options) *Follower {
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // an application that sets no clock means the process's own
	}
	return &Follower{
		ended: make(chan struct{}),
		follower: generation.Follower{
			Store: loader{read, o.Now}, Target: "followed", Shards: o.Shards, Now: o.Now, Log: o.Log},
	}
}

// Key returns the expiry key of an entity that is written now. It does no I/O. It fails
// only if the instant does not fit a key.
func (f *Follower) Key(id string, expires time.Time) (expirykey.Key, error) {
	return f.follower.Name(idText(id), expires)
}

// Refresh reads the record now, for a program that wants to stamp a generation from
// its first write on.
func (f *Follower) Refresh(ctx context.Context) error { return f.follower.Refresh(ctx) }

// Close ends the reads, and waits for one that is under way. The Follower stamps the
// nursery once its copy is too old.
func (f *Follower) Close() {
	f.cancel()
	<-f.ended
}

// A loader makes a Read what a [generation.Follower] reads from.
type loader struct {
	read Read
	now  func() time.Time
}

// Load reads the record. The instant of the reply is this machine's: it serves only to
// tell how far a ramp is.
func (l loader) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	sent := l.now()
	fields, err := l.readSafely(ctx)
	if err != nil || fields == nil {
		return store.Records{Now: sent}, err
	}
	known, err := writerFields(fields)
	if err != nil {
		return store.Records{Now: sent}, err
	}
	return store.Records{Now: sent, List: []store.Record{
		{Sort: store.TargetRecord, Key: q.Target, Target: q.Target, Fields: known}}}, nil
}

// readSafely reads the record. A read that panics, of a record of another shape, say, ends no application.
func (l loader) readSafely(ctx context.Context) (fields map[string]any, err error) {
	defer func() {
		if p := recover(); p != nil {
			fields, err = nil, fmt.Errorf("read the target record: panic: %v", p)
		}
	}()
	return l.read(ctx)
}

// writerFields returns a record of the first schema with the fields that writers need,
// and without the others: those change without writers having to know.
func writerFields(fields map[string]any) (store.Fields, error) {
	switch schema := integer(fields["schema"]).(type) {
	case int64:
		if schema > newestSchema {
			return nil, fmt.Errorf("target record has schema %d, this program knows %d: %w",
				schema, newestSchema, generation.ErrNewer)
		}
		if schema < 1 {
			return nil, fmt.Errorf("target record: schema %d is not a version", schema)
		}
	default:
		return nil, fmt.Errorf("target record: schema is %v (%T), not an integer", schema, schema)
	}
	list, err := generations(fields["generations"])
	if err != nil {
		return nil, err
	}
	return store.Fields{
		"schema":         int64(1),
		"created":        store.FormatTime(time.Unix(0, 0)), // of no use to writers, but never absent
		"generations":    list,
		"nursery_shards": integer(fields["nursery_shards"]),
		"staleness_ms":   integer(fields["staleness_ms"]),
	}, nil
}

func generations(value any) ([]store.Fields, error) {
	var maps []map[string]any
	switch list := value.(type) {
	case nil:
	case []map[string]any:
		maps = list
	case []store.Fields:
		for _, g := range list {
			maps = append(maps, g)
		}
	case []any:
		for i, one := range list {
			g, ok := one.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("target record: generations[%d] is a %T, not a map", i, one)
			}
			maps = append(maps, g)
		}
	default:
		return nil, errors.New("target record: generations is not a list")
	}
	out := make([]store.Fields, 0, len(maps))
	for _, g := range maps {
		out = append(out, store.Fields{
			"number": integer(g["number"]), "shards": integer(g["shards"]), "ramp_ms": integer(g["ramp_ms"]),
			"opened": g["opened"], "closed": g["closed"],
		})
	}
	return out, nil
}

// integer returns an integer of any size as the records hold it.
func integer(value any) any {
	switch n := value.(type) {
	case int:
		return int64(n)
	case int32:
		return int64(n)
	}
	return value
}
