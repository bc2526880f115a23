// Package generation keeps track of a target's generations, and stamps entities with
// expiry keys for writers. The generations are in the target record, one small record
// per target that workers and writers share.
//
// The invariant is that the record changes only by compare-and-set, and that a
// program refuses a record which it does not fully understand: newer than
// itself, or edited into nonsense. The nursery always exists. [Record.Next] and
// [Record.State] define the life of the other generations, as pure functions of the
// record and the store's time; sweeps carry it out.
//
// docs/generations.md describes that life, and docs/records.md the record, for
// writers in other languages, too.
package generation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// Schema is the version of the target record that this program writes, and the newest that
// it reads. A record of an older schema keeps it until [Record.Upgraded] is saved.
const Schema = 2

// First is the number of the first generation, which opens at once.
const First = 1

// saveTimeout bounds one try to write a record, and savePatience when the last try
// begins. Together they bound how late a mark may take effect.
const (
	saveTimeout  = 5 * time.Second
	savePatience = 5 * time.Second
)

// ErrMissing is what Load returns for a target that has no record yet.
var ErrMissing = errors.New("no target record")

// ErrNewer is wrapped by the error for a record of a newer program.
var ErrNewer = store.WithHint(errors.New("the target record was written by a newer reaper"), "update this one")

// A Generation is one numbered span of a target's keys.
type Generation struct {
	Number int
	Shards int           // entities are spread over shards 0 to Shards-1
	Opened time.Time     // in the store's time
	Ramp   time.Duration // how long after that writers move here; 0 for the first
	Closed time.Time     // when it was marked closed; zero while writers may stamp it
	// Draining is when carrying out of it began; zero if it is not draining.
	Draining time.Time
	// The largest bounds for writers since it was opened; see [Policy].
	Staleness, Slack time.Duration
}

// A Record is the target record. It is a value: changes make a copy.
type Record struct {
	Target   string
	Created  time.Time // in the store's time; cursors of another incarnation are discarded
	Kind     string
	Property string
	// Layout and Retention are what the target was last swept with; see [Record.SweptAs].
	Layout    string    // empty if that is not known
	Retention Retention // likewise
	// Generations are the live ones after the nursery, oldest first.
	Generations []Generation
	// NurseryShards is the largest shard count that was configured, or found in use, in
	// the nursery. It is 0 for a target whose property is a timestamp: that has neither
	// nursery nor generations.
	NurseryShards int

	// Staleness and Slack are the present bounds for writers; see [Policy].
	Staleness, Slack time.Duration

	// What an operator has set; it wins over the configuration.
	Paused      bool
	PausedUntil time.Time // in the store's time; zero for a pause without an end. See [Record.IsPaused]
	PauseNote   Note      // of the last pause or resume
	PaceMax     Rate      // of each range
	PaceTotal   Rate      // of the target, over all workers
	PaceNote    Note      // of the last change of PaceMax or PaceTotal

	Ground // what the breaker says; see [Record.OnGround]

	Checked    time.Time // when the keys outside all ranges were last inspected
	Outside    int64     // how many entities were counted there
	EmptyIndex bool      // the target held entities, but no index entry in any range

	// Namespaces are those that any deployment sweeps, in order; see [Record.WithNamespaces].
	Namespaces []Swept

	// Probe is when the index is to be probed once more for generations that are in use
	// though they are not listed; see [Record.ProbeLater]. It is zero if it need not be.
	Probe time.Time

	Schema   int    // as in the store; 0 stands for the present one
	Revision string // as in the store; empty for a record not saved yet
}

// A Swept is a namespace that a deployment sweeps, or "*" for all that the store lists.
type Swept struct {
	Name string
	Seen time.Time // when a deployment has last said so, in the store's time
}

// A Retention is how long past its expiry an entity is kept. The zero Retention is one
// that is not known: programs before this field wrote none.
type Retention struct {
	Known  bool
	Length time.Duration
}

// String returns the retention as it is written in the record: empty if it is not known.
func (r Retention) String() string {
	if !r.Known {
		return ""
	}
	return r.Length.String()
}

// readRetention reads what Retention.String wrote.
func readRetention(f *store.FieldReader, name string) Retention {
	text := f.Text(name)
	if text == "" {
		return Retention{}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		f.Fail(name, "%q is not a length of time such as 720h0m0s", text)
		return Retention{}
	}
	return Retention{true, d}
}

// SweptAs returns the record of a target that is swept in a layout and with a retention
// from now on. The findings are not of another layout.
func (r Record) SweptAs(layout string, retention time.Duration) Record {
	if r.Layout != "" && r.Layout != layout {
		r = r.withoutFindings()
	}
	r.Layout, r.Retention = layout, Retention{true, retention}
	return r
}

// withoutFindings returns the record without what was found around the ranges: that says
// nothing of another kind, property or layout, and the next look is due at once.
func (r Record) withoutFindings() Record {
	r.Checked, r.Outside, r.EmptyIndex = time.Time{}, 0, false
	return r
}

// A Note says who changed a switch of the record, when and why. The zero Note is that of
// a switch that nobody has changed, or that a program without notes changed.
type Note struct {
	Actor  string
	At     time.Time // in the store's time
	Reason string    // may be empty
}

// readNote reads what Note.encode wrote.
func readNote(f *store.FieldReader, prefix string) Note {
	return Note{Actor: f.Text(prefix + "_by"), At: f.Time(prefix + "_at"), Reason: f.Text(prefix + "_reason")}
}

// encode writes the note into the fields of a record.
func (n Note) encode(fields store.Fields, prefix string) {
	fields[prefix+"_by"], fields[prefix+"_at"], fields[prefix+"_reason"] = n.Actor, store.FormatTime(n.At), n.Reason
}

// IsPaused reports whether the target is paused at an instant in the store's time. A
// pause whose end has passed stays in the record until the next change. A program that
// does not know PausedUntil still takes it for a pause; it then only deletes less.
func (r Record) IsPaused(now time.Time) bool {
	return r.Paused && (r.PausedUntil.IsZero() || now.Before(r.PausedUntil))
}

// A Rate is a limit that an operator has set, in entities per second.
type Rate struct {
	Set       bool
	Unlimited bool // PerSecond is ignored
	PerSecond float64
}

// unlimited is the text that stands for no limit.
const unlimited = "unlimited"

// String returns the rate as it is written in the record: empty if it is not set.
func (r Rate) String() string {
	switch {
	case !r.Set:
		return ""
	case r.Unlimited:
		return unlimited
	}
	return strconv.FormatFloat(r.PerSecond, 'f', -1, 64)
}

// readRate reads what Rate.String wrote.
func readRate(f *store.FieldReader, name string) Rate {
	switch text := f.Text(name); text {
	case "":
		return Rate{}
	case unlimited:
		return Rate{Set: true, Unlimited: true}
	default:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n > 0) || math.IsInf(n, 0) {
			f.Fail(name, "%q is neither a number of entities per second nor %q", text, unlimited)
			return Rate{}
		}
		return Rate{Set: true, PerSecond: n}
	}
}

// New returns the record of a target that has none. Shards is the configured
// number; layoutGenerations says whether the target uses generations in addition
// to the nursery. If so, the first of them opens at once.
func New(target, kind, property string, shards int, layoutGenerations bool, now time.Time) Record {
	now = now.UTC().Truncate(time.Microsecond) // the precision of records
	r := Record{Target: target, Created: now, Kind: kind, Property: property, NurseryShards: shards}
	if layoutGenerations {
		r = r.OpenFirst(shards, now)
	}
	return r
}

// OpenFirst returns the record with the first generation open. A record that
// has generations is returned as it is.
func (r Record) OpenFirst(shards int, now time.Time) Record {
	if len(r.Generations) == 0 {
		r.Generations = []Generation{{Number: First, Shards: shards, Opened: now.UTC().Truncate(time.Microsecond)}}
	}
	return r
}

// Bounds returns the present bounds for writers: the oldest copy of the record that
// they may act on, and the longest time that a write may take to commit.
func (r Record) Bounds() (staleness, slack time.Duration) {
	return cmp.Or(r.Staleness, DefaultStaleness), cmp.Or(r.Slack, DefaultSlack)
}

// Nursery returns the nursery with the largest shard count known.
func (r Record) Nursery() Generation {
	return Generation{Number: expirykey.Nursery, Shards: r.NurseryShards, Opened: r.Created}
}

// Live returns all generations that are swept: oldest first, and the nursery,
// which is never sealed, last.
func (r Record) Live() []Generation {
	live := append([]Generation{}, r.Generations...)
	if r.NurseryShards > 0 {
		live = append(live, r.Nursery())
	}
	return live
}

// Stamper returns the stamper of the newest generation, or of the nursery.
func (r Record) Stamper() Stamper {
	g := r.Nursery()
	if n := len(r.Generations); n > 0 {
		g = r.Generations[n-1]
	}
	return Stamper{Generation: g.Number, Shards: g.Shards}
}

// Load reads the record of a target and the store's time. It fails with
// [ErrMissing] if there is no record; the time is valid even then.
func Load(ctx context.Context, s store.Loader, target string) (Record, time.Time, error) {
	got, err := s.Load(ctx, store.RecordQuery{Sort: store.TargetRecord, Target: target, Keys: []string{target}})
	if err != nil {
		return Record{}, time.Time{}, fmt.Errorf("load target record %s: %w", target, err)
	}
	if len(got.List) == 0 {
		return Record{}, got.Now, fmt.Errorf("target %s: %w", target, ErrMissing)
	}
	r, err := decode(got.List[0])
	return r, got.Now, err
}

// Save writes the record if the store still has the revision that it was made
// from, and returns it with its new revision. It fails with store.ErrConflict
// if somebody else was first.
//
// The revisions of a new record count from the milliseconds of its creation on. No record
// is saved every millisecond, so they are higher than all those of a lost record, which
// workers may still hold and cursors may still name.
func Save(ctx context.Context, s store.Store, r Record) (Record, error) {
	return SaveWithin(ctx, s, r, savePatience)
}

// SaveWithin is Save for a change that opens, closes or marks no generation, and so may take
// effect late. While the store is busy, tries begin until patience is over.
func SaveWithin(ctx context.Context, s store.Store, r Record, patience time.Duration) (Record, error) {
	next := r
	next.Revision = store.NewRevision(r.Revision)
	if r.Revision == "" {
		next.Revision = store.NewRevision(strconv.FormatInt(r.Created.UnixMilli(), 10))
	}
	// After a lost reply, the same write again finds its own revision.
	err := store.Retry(ctx, patience, func() error {
		ctx, cancel := context.WithTimeout(ctx, saveTimeout)
		defer cancel()
		return s.Save(ctx, next.encode(), r.Revision)
	})
	if err != nil {
		return r, fmt.Errorf("save target record %s: %w", r.Target, err)
	}
	return next, nil
}

// EqualContent reports whether two records say the same of a target, whatever their
// revisions.
func (r Record) EqualContent(q Record) bool {
	return r.isSame(&q) || r.Target == q.Target && reflect.DeepEqual(r.encode().Fields, q.encode().Fields)
}

// isSame reports whether two records are equal to the bit, except for their revisions.
// Records that are not may still be equal once they are saved.
func (r *Record) isSame(q *Record) bool {
	return r.plain() == q.plain() && slices.Equal(r.Generations, q.Generations) &&
		slices.Equal(r.Namespaces, q.Namespaces) && slices.Equal(r.Approvals, q.Approvals)
}

// A plain is what a record says without its lists and its revision. It is compared at each look of
// each process, so without reflection; TestEqualContent holds that no field is missing.
type plain struct {
	texts      [4]string
	times      [4]time.Time
	lengths    [2]time.Duration
	retentions [2]Retention
	rates      [2]Rate
	notes      [3]Note
	numbers    [3]int64
	is         [3]bool
	trip       breaker.Trip
}

func (r *Record) plain() plain {
	return plain{
		texts:      [...]string{r.Target, r.Kind, r.Property, r.Layout},
		times:      [...]time.Time{r.Created, r.PausedUntil, r.Checked, r.Probe},
		lengths:    [...]time.Duration{r.Staleness, r.Slack},
		retentions: [...]Retention{r.Retention, r.Shortest},
		rates:      [...]Rate{r.PaceMax, r.PaceTotal},
		notes:      [...]Note{r.PauseNote, r.PaceNote, r.BreakerNote},
		numbers:    [...]int64{int64(r.NurseryShards), r.Outside, int64(cmp.Or(r.Schema, Schema))},
		is:         [...]bool{r.Paused, r.EmptyIndex, r.NewGround},
		trip:       r.Trip,
	}
}

func (r Record) encode() store.Record {
	list := make([]store.Fields, 0, len(r.Generations))
	for _, g := range r.Generations {
		list = append(list, store.Fields{
			"number":       int64(g.Number),
			"shards":       int64(g.Shards),
			"opened":       store.FormatTime(g.Opened),
			"ramp_ms":      g.Ramp.Milliseconds(),
			"closed":       store.FormatTime(g.Closed),
			"draining":     store.FormatTime(g.Draining),
			"staleness_ms": g.Staleness.Milliseconds(),
			"slack_ms":     g.Slack.Milliseconds(),
		})
	}
	names := make([]store.Fields, 0, len(r.Namespaces))
	for _, n := range r.Namespaces {
		names = append(names, store.Fields{"name": n.Name, "seen": store.FormatTime(n.Seen)})
	}
	rec := store.Record{
		Sort: store.TargetRecord, Key: r.Target, Target: r.Target, Revision: r.Revision,
		Fields: store.Fields{
			"schema":         int64(cmp.Or(r.Schema, Schema)),
			"created":        store.FormatTime(r.Created),
			"kind":           r.Kind,
			"property":       r.Property,
			"layout":         r.Layout,
			"retention":      r.Retention.String(),
			"generations":    list,
			"nursery_shards": int64(r.NurseryShards),
			"staleness_ms":   r.Staleness.Milliseconds(),
			"slack_ms":       r.Slack.Milliseconds(),
			"paused":         r.Paused,
			"paused_until":   store.FormatTime(r.PausedUntil),
			"pace_max":       r.PaceMax.String(),
			"pace_total":     r.PaceTotal.String(),
			"checked":        store.FormatTime(r.Checked),
			"outside":        r.Outside,
			"empty_index":    r.EmptyIndex,
			"probe":          store.FormatTime(r.Probe),
			"namespaces":     names,
		},
	}
	r.Ground.encode(rec.Fields)
	r.PauseNote.encode(rec.Fields, "pause")
	r.PaceNote.encode(rec.Fields, "pace")
	return rec
}

// decode refuses a record that does not make sense, and names each field at fault. To
// guess a field's meaning could delete live entities.
func decode(rec store.Record) (Record, error) {
	what := "target record " + string(rec.Sort) + " " + strconv.Quote(rec.Key)
	f := rec.Fields.Reader(what)
	if err := f.Schema(Schema, "target record "+strconv.Quote(rec.Key), ErrNewer); err != nil {
		return Record{}, err
	}
	r := Record{
		Target:        rec.Key,
		Created:       f.Time("created"),
		Kind:          f.Text("kind"),
		Property:      f.Text("property"),
		Layout:        f.Text("layout"),
		Retention:     readRetention(f, "retention"),
		NurseryShards: int(f.Int("nursery_shards")),
		Staleness:     millis(f, "staleness_ms"),
		Slack:         millis(f, "slack_ms"),
		Paused:        f.Bool("paused"),
		PausedUntil:   f.Time("paused_until"),
		PauseNote:     readNote(f, "pause"),
		PaceMax:       readRate(f, "pace_max"),
		PaceTotal:     readRate(f, "pace_total"),
		PaceNote:      readNote(f, "pace"),
		Checked:       f.Time("checked"),
		Outside:       f.Int("outside"),
		EmptyIndex:    f.Bool("empty_index"),
		Probe:         f.Time("probe"),
		Schema:        int(f.Int("schema")),
		Revision:      rec.Revision,
	}
	if err := r.Ground.decode(f, rec); err != nil {
		return Record{}, err
	}
	for _, one := range f.List("namespaces") {
		n := one.Reader(what + ": namespaces")
		r.Namespaces = append(r.Namespaces, Swept{n.Text("name"), n.Time("seen")})
		if err := n.Err(); err != nil {
			return Record{}, err
		}
	}
	if r.Schema == Schema {
		r.Schema = 0
	}
	if r.Created.IsZero() {
		f.Fail("created", "is missing")
	}
	if r.NurseryShards != 0 || len(f.List("generations")) > 0 {
		checkShards(f, "nursery_shards", r.NurseryShards)
	}
	list := f.List("generations")
	for i, one := range list {
		g := one.Reader(what + ": generations[" + strconv.Itoa(i) + "]")
		gen := decodeGeneration(g, r.Generations, i == len(list)-1)
		if err := g.Err(); err != nil {
			return Record{}, err
		}
		r.Generations = append(r.Generations, gen)
	}
	if err := f.Err(); err != nil {
		return Record{}, err
	}
	return r, nil
}

// decodeGeneration reads one generation of a record after those before it; the
// newest is the last.
func decodeGeneration(g *store.FieldReader, before []Generation, newest bool) Generation {
	gen := Generation{
		Number: int(g.Int("number")), Shards: int(g.Int("shards")),
		Opened: g.Time("opened"), Ramp: millis(g, "ramp_ms"),
		Closed: g.Time("closed"), Draining: g.Time("draining"),
		Staleness: millis(g, "staleness_ms"), Slack: millis(g, "slack_ms"),
	}
	if gen.Number < First || gen.Number > expirykey.MaxGeneration {
		g.Fail("number", "%d is not between %d and %d", gen.Number, First, expirykey.MaxGeneration)
	}
	n := len(before)
	if n > 0 && gen.Number <= before[n-1].Number {
		g.Fail("number", "%d does not follow %d", gen.Number, before[n-1].Number)
	}
	checkShards(g, "shards", gen.Shards)
	if gen.Opened.IsZero() {
		g.Fail("opened", "is missing")
	}
	if !gen.Closed.IsZero() && gen.Closed.Before(gen.Opened) {
		g.Fail("closed", "%v is before it was opened, %v", gen.Closed, gen.Opened)
	}
	if n > 0 && gen.Opened.Before(before[n-1].Opened) {
		g.Fail("opened", "%v is before the generation before it was, %v", gen.Opened, before[n-1].Opened)
	}
	if !gen.Closed.IsZero() && newest {
		g.Fail("closed", "the newest generation cannot be closed: nobody could write anywhere but to the nursery")
	}
	if gen.Closed.IsZero() && !gen.Draining.IsZero() {
		g.Fail("draining", "it is not even closed")
	}
	return gen
}

// millis reads a length of time in milliseconds.
func millis(f *store.FieldReader, name string) time.Duration {
	n := f.Int(name)
	if n < 0 || n > int64(math.MaxInt64/time.Millisecond) {
		f.Fail(name, "%d is not a valid number of milliseconds", n)
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

func checkShards(f *store.FieldReader, name string, n int) {
	if n < 1 || n > expirykey.MaxShard+1 {
		f.Fail(name, "%d is not between 1 and %d", n, expirykey.MaxShard+1)
	}
}

// A Stamper gives entities their expiry keys: those of one generation, with its
// number of shards. It is a value, safe for concurrent use, and does no I/O.
//
// A writer stamps an entity again at every write. One that cannot know the
// current generation stamps the nursery: Stamper{Shards: n} with any n.
type Stamper struct {
	Generation int // 0 is the nursery
	Shards     int // 1 to expirykey.MaxShards
}

// Name returns the expiry key of an entity whose key ends in a name.
func (s Stamper) Name(name string, expires time.Time) (expirykey.Key, error) {
	if err := s.check(); err != nil {
		return expirykey.Key{}, err
	}
	return expirykey.New(s.Generation, expirykey.ShardOfName(name, s.Shards), expires)
}

// Number returns the expiry key of an entity whose key ends in a numeric id.
func (s Stamper) Number(id int64, expires time.Time) (expirykey.Key, error) {
	if err := s.check(); err != nil {
		return expirykey.Key{}, err
	}
	return expirykey.New(s.Generation, expirykey.ShardOfNumber(id, s.Shards), expires)
}

func (s Stamper) check() error {
	if s.Shards < 1 || s.Shards > expirykey.MaxShard+1 {
		return fmt.Errorf("stamp: %d shards is not between 1 and %d", s.Shards, expirykey.MaxShards)
	}
	return nil
}
