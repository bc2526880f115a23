package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// Schema is the version of the records that this program writes, and the newest that it
// reads.
const Schema = 1

// ErrNewer is wrapped by the error for a record of a newer program.
var ErrNewer = store.WithHint(errors.New("the adoption record was written by a newer reaper"), "update this one")

// A Phase is how far an adoption has come.
type Phase string

// The phases, in their order.
const (
	Stamping Phase = "stamp"    // entities get keys; old writers go on
	Dual     Phase = "dual"     // as stamp, and writers write keys, too: sweeps compare them with the rule
	Undoing  Phase = "undo"     // the keys are removed again
	Finished Phase = "finished" // verified: the target is swept by its keys
)

// maxParts is the most parts of a round: their records are looked up in one call, with that of the
// target. Namespaces are split into at most maxSplit parts, so that the keys at which they are
// split fit into one record.
const (
	maxParts = store.MaxRecords - 1
	maxSplit = 128
)

// A record keeps its last maxRounds rounds, and those before them whose spread is not over: their
// keys are there still. Of rounds that begin each minute it keeps those of a day at most.
const (
	maxRounds  = 100
	mostRounds = 1500
)

// recent returns the rounds that a record keeps at an instant.
func recent(rounds []Round, now time.Time) []Round {
	for n := len(rounds); n > maxRounds && (n > mostRounds || rounds[0].Began.Add(rounds[0].Spread).Before(now)); n-- {
		rounds = rounds[1:]
	}
	return rounds
}

// A Record is the record of a target's adoption.
type Record struct {
	Target   string
	Kind     string
	Property string
	Rule     Rule
	Phase    Phase
	Rounds   []Round
	Parts    []Part // of the present reading of the keys
	// Reading is when that began, in the store's time: with the last round, or later to undo. No
	// two readings of a target begin at one instant.
	Reading  time.Time
	Began    time.Time
	Actor    string // the one who began it
	Revision string // as in the store; empty for a record not saved yet
}

// A Part is a span of a namespace's keys: after the Until of the part before it in the
// namespace, up to its own. An empty Until is behind all keys.
type Part struct {
	Namespace string
	Until     string
}

// Round returns the last round.
func (r Record) Round() Round { return r.Rounds[len(r.Rounds)-1] }

// spreadFrom returns the record with a round that goes on with the last one, and spreads what has expired
// from an instant on.
func (r Record) spreadFrom(now time.Time) Record {
	round := r.Round()
	round.Began = now
	r.Rounds = recent(append(slices.Clone(r.Rounds), round), now)
	return r
}

// isReading reports whether two records are of the same reading, and of phases in which
// workers do the same.
func (r Record) isReading(q Record) bool {
	stamps := func(p Phase) bool { return p == Stamping || p == Dual }
	return (r.Phase == q.Phase || stamps(r.Phase) && stamps(q.Phase)) && r.Reading.Equal(q.Reading)
}

// after returns the key that a part begins behind.
func (r Record) after(part int) string {
	if part == 0 || r.Parts[part-1].Namespace != r.Parts[part].Namespace {
		return ""
	}
	return r.Parts[part-1].Until
}

// Load reads the record of a target's adoption, and the store's time. exists is false if there
// is no record.
func Load(ctx context.Context, s store.Loader, target string) (r Record, now time.Time, exists bool, err error) {
	got, err := s.Load(ctx, store.RecordQuery{Sort: store.AdoptRecord, Target: target, Keys: []string{target}})
	if err != nil {
		return r, now, false, fmt.Errorf("load adoption record %s: %w", target, err)
	}
	if len(got.List) == 0 {
		return r, got.Now, false, nil
	}
	r, err = decode(got.List[0])
	return r, got.Now, true, err
}

// save writes the record if nobody else has changed it, and returns it with its new revision.
func (r Record) save(ctx context.Context, s store.Store) (Record, error) {
	next := r
	next.Revision = store.NewRevision(r.Revision)
	err := saveRecord(ctx, s, next.encode(), r.Revision)
	if err != nil {
		return r, fmt.Errorf("save adoption record %s: %w", r.Target, err)
	}
	return next, nil
}

const (
	savePatience = time.Minute
	saveTimeout  = 10 * time.Second
)

// saveRecord repeats a write until it is known to have happened or failed: after a lost
// reply, the same write again finds its own revision.
func saveRecord(ctx context.Context, s store.Store, r store.Record, prev string) error {
	return store.Retry(ctx, savePatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, saveTimeout)
		defer cancel()
		return s.Save(ctx, r, prev)
	})
}

func (r Record) encode() store.Record {
	rounds := make([]store.Fields, 0, len(r.Rounds))
	for _, o := range r.Rounds {
		rounds = append(rounds, store.Fields{"number": int64(o.Number), "began": store.FormatTime(o.Began),
			"spread_ms": o.Spread.Milliseconds(), "percent": o.Percent, "retention_ms": o.Retention.Milliseconds()})
	}
	parts := make([]store.Fields, 0, len(r.Parts))
	for _, p := range r.Parts {
		parts = append(parts, store.Fields{"namespace": p.Namespace, "until": p.Until})
	}
	return store.Record{Sort: store.AdoptRecord, Key: r.Target, Target: r.Target, Revision: r.Revision,
		Fields: store.Fields{
			"schema": int64(Schema), "kind": r.Kind, "property": r.Property, "rule": r.Rule.String(),
			"rule_property": r.Rule.Property, "rule_create_time": r.Rule.CreateTime, "rule_plus_ms": r.Rule.Plus.Milliseconds(),
			"phase":  string(r.Phase),
			"rounds": rounds, "parts": parts, "reading": store.FormatTime(r.Reading),
			"began": store.FormatTime(r.Began), "actor": r.Actor,
		}}
}

func decode(rec store.Record) (Record, error) {
	what := fmt.Sprintf("adoption record %s %q", rec.Sort, rec.Key)
	f := rec.Fields.Reader(what)
	if err := f.Schema(Schema, what, ErrNewer); err != nil {
		return Record{}, err
	}
	r := Record{Target: rec.Target, Kind: f.Text("kind"), Property: f.Text("property"),
		Rule: Rule{Property: f.Text("rule_property"), CreateTime: f.Bool("rule_create_time"),
			Plus: time.Duration(f.Int("rule_plus_ms")) * time.Millisecond},
		Phase: Phase(f.Text("phase")), Reading: f.Time("reading"), Began: f.Time("began"),
		Actor: f.Text("actor"), Revision: rec.Revision}
	for i, one := range f.List("rounds") {
		o := one.Reader(fmt.Sprintf("%s: rounds[%d]", what, i))
		round := Round{Number: int(o.Int("number")), Began: o.Time("began"),
			Spread: time.Duration(o.Int("spread_ms")) * time.Millisecond, Percent: o.Float("percent"),
			Retention: time.Duration(o.Int("retention_ms")) * time.Millisecond}
		if round.Began.IsZero() || round.Spread < 0 || round.Number < 1 {
			o.Fail("number", "round %d, begun %v with a spread of %v, makes no sense", round.Number, round.Began, round.Spread)
		}
		if err := o.Err(); err != nil {
			return Record{}, err
		}
		r.Rounds = append(r.Rounds, round)
	}
	for i, one := range f.List("parts") {
		p := one.Reader(fmt.Sprintf("%s: parts[%d]", what, i))
		r.Parts = append(r.Parts, Part{p.Text("namespace"), p.Text("until")})
		if err := p.Err(); err != nil {
			return Record{}, err
		}
	}
	if len(r.Rounds) == 0 || len(r.Parts) == 0 {
		f.Fail("rounds", "it has %d rounds and %d parts, but needs one of each at least", len(r.Rounds), len(r.Parts))
	}
	if text := f.Text("rule"); text != r.Rule.String() || r.Rule.CreateTime == (r.Rule.Property != "") || r.Rule.Plus < 0 {
		f.Fail("rule", "%q is not what the fields after it say: %q", text, r.Rule)
	}
	switch r.Phase {
	case Stamping, Dual, Undoing, Finished:
	default:
		f.Fail("phase", "%q is not a phase", r.Phase)
	}
	return r, f.Err()
}

// A progress is the record of one part.
type progress struct {
	target   string
	part     int
	reading  time.Time // of the record; anything else is left from another reading
	after    string    // everything up to this key was read and disposed of
	done     bool
	kept     int64  // keys that undo could not remove
	owner    string // empty if nobody holds it
	token    int64  // rises with each claim
	scanned  int64  // in this round, by all who held the part
	stamped  int64
	left     int64 // without a key, though the rule gives one
	mismatch int64 // with a key that disagrees with the rule
	revision string
}

// partKey returns the key of a part's record. The target's own record sorts before them.
func partKey(target string, part int) string { return fmt.Sprintf("%s.%05d", target, part) }

func (p progress) encode() store.Record {
	return store.Record{Sort: store.AdoptRecord, Key: partKey(p.target, p.part), Target: p.target, Revision: p.revision,
		Fields: store.Fields{
			"schema": int64(Schema), "part": int64(p.part), "reading": store.FormatTime(p.reading), "after": p.after,
			"done": p.done, "kept": p.kept, "owner": p.owner, "token": p.token, "scanned": p.scanned, "stamped": p.stamped,
			"unstamped": p.left, "mismatch": p.mismatch,
		}}
}

func decodeProgress(rec store.Record) (progress, error) {
	what := fmt.Sprintf("adoption record %s %q", rec.Sort, rec.Key)
	f := rec.Fields.Reader(what)
	if err := f.Schema(Schema, what, ErrNewer); err != nil {
		return progress{}, err
	}
	p := progress{target: rec.Target, part: int(f.Int("part")), reading: f.Time("reading"), after: f.Text("after"),
		done: f.Bool("done"), kept: f.Int("kept"), owner: f.Text("owner"), token: f.Int("token"), scanned: f.Int("scanned"),
		stamped: f.Int("stamped"), left: f.Int("unstamped"), mismatch: f.Int("mismatch"), revision: rec.Revision}
	if p.part < 0 || p.part > followPart || partKey(p.target, p.part) != rec.Key {
		f.Fail("part", "%d does not belong to this key", p.part)
	}
	return p, f.Err()
}

// loadParts reads the records of the parts of a record's reading, and with the same read
// the record as it is now; nil if it is gone. A part without a record, or with that of an
// earlier reading, has not been begun.
func loadParts(ctx context.Context, s store.Loader, r Record) (parts []progress, now *Record, err error) {
	parts = make([]progress, len(r.Parts))
	for i := range parts {
		parts[i] = progress{target: r.Target, part: i, reading: r.Reading, after: r.after(i)}
	}
	keys := make([]string, len(parts), len(parts)+1)
	for i := range keys {
		keys[i] = partKey(r.Target, i)
	}
	got, err := loadKeys(ctx, s, r.Target, append(keys, r.Target))
	if err != nil {
		return nil, nil, fmt.Errorf("load adoption records of %s: %w", r.Target, err)
	}
	for _, rec := range got.List {
		if rec.Key == r.Target {
			one, err := decode(rec)
			if err != nil {
				return nil, nil, err
			}
			now = &one
			continue
		}
		p, err := decodeProgress(rec)
		if err != nil {
			return nil, nil, err
		}
		if !p.reading.Equal(r.Reading) { // token and revision go on
			parts[p.part].token, parts[p.part].revision = p.token, p.revision
			continue
		}
		parts[p.part] = p
	}
	return parts, now, nil
}

// loadKeys reads records by their keys. It repeats a read that fails for a moment: a run of many
// hours must not end by that.
func loadKeys(ctx context.Context, s store.Loader, target string, keys []string) (got store.Records, err error) {
	err = store.Retry(ctx, savePatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, saveTimeout)
		defer cancel()
		got, err = s.Load(ctx, store.RecordQuery{Sort: store.AdoptRecord, Target: target, Keys: keys})
		return err
	})
	return got, err
}

// forget removes all records of a target's adoption: those of the parts first, so that a
// crash leaves a record by which it can be repeated. Another process may do the same.
func forget(ctx context.Context, s store.Store, r Record) error {
	keys := make([]string, followPart+1)
	for i := range keys {
		keys[i] = partKey(r.Target, i)
	}
	got, err := loadKeys(ctx, s, r.Target, keys)
	for _, rec := range append(got.List, r.encode()) {
		if err != nil {
			break
		}
		prev := rec.Revision
		rec.Fields, rec.Revision = nil, store.NewRevision(prev) // its own revision would look like a repeat
		if err = saveRecord(ctx, s, rec, prev); errors.Is(err, store.ErrConflict) {
			now, _, exists, loadErr := Load(ctx, s, r.Target)
			if err = errors.Join(err, loadErr); loadErr == nil && (!exists || now.Phase == Undoing) {
				err = nil // the other one removes what is left
			}
		}
	}
	if err != nil {
		return fmt.Errorf("remove adoption records of %s: %w", r.Target, err)
	}
	return nil
}
