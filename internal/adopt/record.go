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
