package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// An Explanation is the state of one entity, in the form that `reaper explain --json`
// prints.
type Explanation struct {
	Target    string       `json:"target"`
	Namespace string       `json:"namespace"`
	Key       string       `json:"key"` // the entity's, in the store's canonical text
	Found     bool         `json:"found"`
	Expiry    string       `json:"expiry"`  // the property as it is stored; empty if it is missing
	Expires   *time.Time   `json:"expires"` // nil if it never expires, or the property is not a valid expiry
	Due       *time.Time   `json:"due"`     // expires plus retention
	State     string       `json:"state"`   // of its generation; empty without one, retired if it no longer exists
	Range     *RangeStatus `json:"range"`   // nil if it is in no range, or the range is not known
	// absent, never, early, due, mismatch, suspect, malformed, stray, outside or unindexed
	Verdict string `json:"verdict"`
	Why     string `json:"why"` // for people
	// Descendant is the key that was asked for, if that is something below the entity.
	Descendant string `json:"descendant,omitempty"`

	// Archived is what the target's archive has of an entity that does not exist; nil without an archive.
	Archived *ArchivedCopy `json:"archived,omitempty"`

	Held   string `json:"held"`   // if it is due: why nothing may be deleted at present, paused or gate
	Reason string `json:"reason"` // of the hold: what the operator or the gate says
}

// An ArchivedCopy is the newest copy of an entity in an archive, or what was found instead.
type ArchivedCopy struct {
	Object string     `json:"object"` // empty if none has it, as far as it was searched
	State  string     `json:"state"`  // deleted, kept or unconfirmed
	At     *time.Time `json:"at"`     // when it was kept, a moment before it was deleted
	By     string     `json:"by"`     // the process
	Since  time.Time  `json:"since"`  // the archive was searched from then on
}

// ErrUnknownEntity is wrapped by the error for an id that no entity can have.
var ErrUnknownEntity = errors.New("no entity can have this id")

// errNoKeys is why entities of a store cannot be named.
var errNoKeys = errors.New("this store cannot tell an entity's key")

// callTimeout bounds one call of the store, and patience all tries at it.
const (
	callTimeout = 10 * time.Second
	patience    = 20 * time.Second
)

// Explain tells why an entity is still there, or is not. It writes nothing.
func Explain(
	ctx context.Context, cfg sweep.Config, t sweep.Target, namespace string, id store.Entity,
) (Explanation, error) {
	x := Explanation{Target: t.Name, Namespace: namespace}
	keyer, ok := cfg.Store.(store.Keyer)
	if !ok {
		return x, errNoKeys
	}
	key, err := keyer.Key(t.Target, namespace, id)
	if err != nil {
		return x, fmt.Errorf("%w: %w", ErrUnknownEntity, err)
	}
	return explainKey(ctx, cfg, t, namespace, key)
}

// explainKey explains the entity with a key.
func explainKey(ctx context.Context, cfg sweep.Config, t sweep.Target, namespace, key string) (Explanation, error) {
	x := Explanation{Target: t.Name, Namespace: namespace, Key: key}
	s, err := sweep.TakeSnapshot(ctx, cfg, t)
	if err != nil {
		return x, err
	}
	e := explainer{s.InNamespace(namespace), cfg.Store}
	value, found, err := e.read(ctx, namespace, key)
	if err != nil {
		return x, fmt.Errorf("read %s: %w", key, err)
	}
	x.Found, x.Expiry = found, valueText(value)
	return x, e.explain(ctx, &x, value)
}

// An explainer explains entities of one namespace.
type explainer struct {
	*sweep.Snapshot
	store store.Store
}

// read returns the expiry that an entity has at present. It uses Settle with the verdict
// Keep: unlike a scan, that reads the entity itself, also if no index has it.
func (e explainer) read(ctx context.Context, namespace, key string) (value store.Value, found bool, err error) {
	q := store.Query{Target: e.Target.Target, Namespace: namespace}
	err = patiently(ctx, func(ctx context.Context) error {
		o, err := e.store.Settle(ctx, q, store.Entry{Key: key}, func(v store.Value) store.Verdict {
			value = v
			return store.Keep
		})
		found = o == store.Kept
		return err
	})
	return value, found, err
}

// patiently repeats a call that fails with a transient error.
func patiently(ctx context.Context, call func(context.Context) error) error {
	return store.Retry(ctx, patience, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return call(ctx)
	})
}

// explain fills in what the value of an entity's expiry means now.
func (e explainer) explain(ctx context.Context, x *Explanation, v store.Value) error {
	if !x.Found {
		x.Verdict, x.Why = "absent", "there is no such entity: it was deleted, or never written"
		return nil
	}
	j := e.Judge(v)
	if at, err := e.Target.Layout.Form().Expires(v); err == nil {
		due := dueAt(at, e.Target.Retention)
		x.Expires, x.Due = &at, &due
	}
	switch j {
	case sweep.Never:
		x.Verdict, x.Why = "never", fmt.Sprintf("it has no %s, or null: it never expires", e.Target.Property)
		return nil
	case sweep.Malformed:
		x.Verdict, x.Why = "malformed", malformedText(e.Target, v)
		return nil
	case sweep.Suspect, sweep.Early, sweep.Due:
	}
	if !e.isStray(x, v, j) {
		if err := e.explainPlace(ctx, x, v, j); err != nil {
			return err
		}
	}
	if x.Verdict == "due" {
		if err := e.explainMismatch(ctx, x, v); err != nil {
			return err
		}
	}
	if j == sweep.Due && x.Verdict != "outside" && x.Verdict != "unindexed" {
		e.explainHold(ctx, x)
	}
	return nil
}

// explainMismatch fills in that sweeps keep a due entity, because its key disagrees with the
// rule of its adoption.
func (e explainer) explainMismatch(ctx context.Context, x *Explanation, v store.Value) error {
	if e.Target.Compare == nil {
		return nil
	}
	return patiently(ctx, func(ctx context.Context) error {
		found, err := e.Target.Compare(ctx, x.Namespace, []store.Entry{{Key: x.Key, Value: v}})
		if err == nil && found.Kept[x.Key] {
			x.Verdict, x.Why = "mismatch", "it is due by its key, which disagrees with the rule of the target's adoption: "+
				"sweeps keep it until a writer gives it another key, or the adoption is finished. reaper adopt verify counts "+
				"such keys"
		}
		return err
	})
}

// explainHold adds that a due entity stays while its target is held.
func (e explainer) explainHold(ctx context.Context, x *Explanation) {
	ctx, cancel := context.WithTimeout(ctx, queriesWithin)
	defer cancel()
	var st TargetStatus
	h := heldBy(ctx, e.Snapshot)
	st.fillHold(e.Snapshot, h)
	x.Held, x.Reason = st.Held, st.Reason
	switch {
	case st.Held == "":
		return
	case st.Held == string(throttle.ReasonBreaker):
		x.Why = "nothing is deleted while the target's breaker is open: see reaper breaker show. After that: " + x.Why
	case st.Held == string(throttle.ReasonGate):
		x.Why = "nothing is deleted while the target's gate is closed. Once it opens: " + x.Why
	case st.Held == string(throttle.ReasonLimit):
		x.Why = "nothing is deleted while the target's limits are used up. After that: " + x.Why
	default:
		x.Why = fmt.Sprintf("nothing is deleted while the target is paused, %s. After that: %s", st.pauseText(), x.Why)
	}
}

// explainPlace fills in what follows from the range of an expiry, or from the fact that it
// lies in none.
func (e explainer) explainPlace(ctx context.Context, x *Explanation, v store.Value, j sweep.Judgement) error {
	r, outside, err := e.rangeOf(ctx, x, v)
	if err != nil {
		return err
	}
	c := e.Plan.Cursor(r)
	if outside == "" {
		status := rangeStatus(e.Snapshot, r, c)
		x.Range = &status
	}
	isDraining := x.State == string(generation.Draining)
	if outside == "" {
		indexed, err := e.isIndexed(ctx, r, v, x.Key)
		if err != nil {
			return err
		}
		if !indexed {
			x.Verdict, x.Why = "unindexed", fmt.Sprintf("its property %s is not indexed: no sweep ever sees it. "+
				"Index the property, and write the entity again", e.Target.Property)
			return nil
		}
	}
	switch {
	case j == sweep.Suspect:
		x.Verdict, x.Why = "suspect", suspectText(e.Target)
		if isDraining {
			x.Why += "; its generation is being drained, so it gets a key in the newest one"
		}
	case outside != "":
		x.Verdict, x.Why = "outside", outside
	case j == sweep.Early:
		x.Verdict, x.Why = "early", "it is due in "+wait(e.Now(), *x.Due)
		if isDraining {
			x.Why += "; its generation is being drained, so it gets a key in the newest one before that"
		}
	default:
		x.Verdict, x.Why = "due", e.whyStill(r, c, v)
	}
	return nil
}

// isStray fills in the state of the generation that an expiry key names, and
// reports whether that generation has retired.
func (e explainer) isStray(x *Explanation, v store.Value, j sweep.Judgement) bool {
	k, err := expirykey.Parse(v.Text)
	if !e.Target.Layout.Form().HasGenerations() || err != nil {
		return false
	}
	for _, g := range generationsOf(e.Snapshot) {
		if g.Number == k.Generation {
			x.State = g.State
		}
	}
	list := e.View.Record.Generations
	if x.State != "" || len(list) == 0 || k.Generation > list[len(list)-1].Number {
		return false
	}
	x.State, x.Verdict = "retired", "stray"
	x.Why = fmt.Sprintf("generation %08d has retired, and no sweep reads it again: "+
		"an old copy was put back, or a write came very late. The audit", k.Generation)
	if j == sweep.Due {
		x.Why += " deletes it"
	} else {
		x.Why += " moves it to the nursery"
	}
	switch c := e.Plan.AuditCursor(x.Namespace); {
	case !c.Rewind.Began.IsZero():
		x.Why += "; a round is under way"
	case c.Rewind.Done.IsZero():
		x.Why += " in the next sweep, or reaper audit --apply does at once"
	default:
		x.Why += "; the next round begins with the first sweep after " + instantText(plan.NextAudit(c)) +
			", or at once with reaper audit --apply"
	}
	return true
}

// rangeOf returns the range that an expiry lies in, or why it lies in none.
func (e explainer) rangeOf(
	ctx context.Context, x *Explanation, v store.Value,
) (r shardquery.Range, outside string, err error) {
	if !e.Target.Layout.Form().HasGenerations() {
		ranges := e.Plan.Ranges()
		if len(e.Target.ShardValues) == 0 {
			return ranges[0], "", nil
		}
		// The entity's own shard is in the index only.
		for _, r := range ranges {
			in, err := e.shows(ctx, r, v, x.Key)
			if in || err != nil {
				return r, "", err
			}
		}
		return r, fmt.Sprintf("no query for one of the target's shard_values finds it: it has none of them in %s, "+
			"or no index has it by %s and %s. No sweep reads it",
			e.Target.ShardProperty, e.Target.ShardProperty, e.Target.Property), nil
	}
	return e.rangeOfKey(x.Namespace, v)
}

// rangeOfKey returns the range that an expiry key lies in, or why it lies in none.
func (e explainer) rangeOfKey(namespace string, v store.Value) (r shardquery.Range, outside string, err error) {
	k, err := expirykey.Parse(v.Text)
	if err != nil {
		return r, "", err
	}
	r = shardquery.Range{Namespace: namespace, Generation: k.Generation, Shard: k.Shard}
	if e.Plan.Has(r) {
		return r, "", nil
	}
	for _, g := range e.View.Record.Live() {
		if g.Number == k.Generation {
			return r, fmt.Sprintf("generation %08d has %d shards, and this is shard %04d: "+
				"the next look past the last shard, once per rewind (%v), finds it and sweeps it",
				g.Number, g.Shards, k.Shard, durationText(e.Target.Rewind)), nil
		}
	}
	return r, fmt.Sprintf("no sweep reads generation %08d: stamp it again, "+
		"with a generation of the target record or with 0", k.Generation), nil
}

// mostAtOnce bounds how many entries with the same value are searched for one entity.
const mostAtOnce = 20 * store.MaxPage

// isIndexed reports whether the index shows an entity at its value. It also reports true if
// too many entities have that value to search all, or if this one has changed meanwhile and
// so has another place in the index.
func (e explainer) isIndexed(ctx context.Context, r shardquery.Range, v store.Value, key string) (bool, error) {
	in, all, err := e.search(ctx, r, v, key, mostAtOnce)
	switch {
	case errors.Is(err, store.ErrMissingIndex):
		return false, nil
	case err != nil || in || !all:
		return true, err
	}
	now, found, err := e.read(ctx, r.Namespace, key)
	return err == nil && (!found || now != v), err
}

// shows reports whether a range shows an entity at a value.
func (e explainer) shows(ctx context.Context, r shardquery.Range, v store.Value, key string) (bool, error) {
	in, _, err := e.search(ctx, r, v, key, math.MaxInt)
	return in, err
}

// search looks for an entity among the entries of a range at one value. It stops after most
// entries. All says that it has found the entity or seen all entries.
func (e explainer) search(
	ctx context.Context, r shardquery.Range, v store.Value, key string, most int,
) (in, all bool, err error) {
	q := store.Query{Target: e.Target.Target, Namespace: r.Namespace, Shard: r.Value,
		Lo: v, Hi: v, Limit: store.MaxPage}
	var page store.Page
	for seen := 0; seen < most; seen += len(page.Entries) {
		err := patiently(ctx, func(ctx context.Context) error { return e.store.Scan(ctx, q, &page) })
		if err != nil {
			return false, false, err
		}
		for _, entry := range page.Entries {
			if entry.Key == key {
				return true, true, nil
			}
			q.After = entry.Position()
		}
		if q.Next = page.Next; !page.More {
			return false, true, nil
		}
	}
	return false, false, nil
}

// whyStill says when a due entity is deleted, given the cursor of its range.
func (e explainer) whyStill(r shardquery.Range, c cursor.Cursor, v store.Value) string {
	need, held := e.Plan.Range(r), !e.HeldUntil(c).IsZero()
	ahead := v.Compare(c.Position.Value)
	isAhead := c.Position.IsZero() || ahead > 0 || ahead == 0 && c.Position.Key == ""
	switch {
	case need.Read && isAhead && held:
		return fmt.Sprintf("it is due, and %s is sweeping its range", c.Lease.Owner)
	case need.Read && isAhead:
		return "it is due, and the next sweep deletes it"
	case need.Read && ahead == 0: // only the store knows the order of its keys
		return "it is due, and its range's cursor is at the same instant: " +
			"the next sweep deletes it, or else the next read of the range from its start"
	}
	why := e.whyBehind(r, v)
	if held {
		why += fmt.Sprintf("; %s is sweeping its range", c.Lease.Owner)
	}
	return why
}

// whyBehind says when a due entity goes that lies behind its range's cursor, or in a
// range that rests because nothing due is known in it.
func (e explainer) whyBehind(r shardquery.Range, v store.Value) string {
	const late = "it is due, but was written behind its range's cursor"
	read, after := e.Plan.NextReading(r, v)
	by := "by the next sweep"
	if !after.IsZero() {
		by = "by the first sweep after " + instantText(after)
	}
	switch read {
	case plan.NowReading:
		return late + "; the read of the range from its start, which is under way, deletes it"
	case plan.MissedRead:
		return late + ", and the read of the range from its start that is under way has passed it: " +
			"the next one, " + by + ", deletes it"
	case plan.RefusedRead:
		return "it is due, but the store has refused to delete entities of its range, " +
			"and this may be one of them: the next read of the range from its start, " + by + ", tries it again"
	case plan.SealedRead:
		return late + "; its generation is sealed, and the next sweep reads the range from its start, which deletes it"
	case plan.AuditRead:
		return "it is due, but was written into a generation that was sealed already: " +
			"the daily audit deletes it, in a round that is begun " + by + ", or reaper audit --apply does at once"
	case plan.SealingRead:
		why := late + "; once its generation is sealed, the range is read from its start, which deletes it"
		if !after.IsZero() {
			why += ", as expected " + by
		}
		return why
	case plan.RewindRead:
	}
	return late + ", after it had expired: the next read of the range from its start, " + by + ", deletes it"
}

// dueAt returns when an entity that expires at an instant is due; at most the end of the
// year 9999, because JSON has no later instant.
func dueAt(expires time.Time, retention time.Duration) time.Time {
	due := expires.Add(retention)
	if due.After(shardquery.LastInstant) {
		return shardquery.LastInstant
	}
	return due
}

// wait shows how long it is until an instant, in whole days or years if that is long. It
// calculates in seconds, because a time.Duration cannot reach the year 9999.
func wait(now, until time.Time) string {
	const (
		day  = 24 * 60 * 60
		year = 31_556_952 // the mean of the calendar
	)
	switch seconds := until.Unix() - now.Unix(); {
	case seconds < 2*day:
		return durationText(max(0, until.Sub(now).Round(time.Second)))
	case seconds < 2*year:
		return fmt.Sprintf("%d days", seconds/day)
	default:
		return fmt.Sprintf("%d years", seconds/year)
	}
}

// durationText prints a duration as the targets file has it: 1825d, not 43800h0m0s.
func durationText(d time.Duration) string {
	const day = 24 * time.Hour
	days := ""
	if d >= day {
		days, d = fmt.Sprintf("%dd", d/day), d%day
	}
	rest := d.String()
	if strings.HasSuffix(rest, "m0s") {
		rest = strings.TrimSuffix(rest, "0s")
	}
	if strings.HasSuffix(rest, "h0m") {
		rest = strings.TrimSuffix(rest, "0m")
	}
	if d == 0 && days != "" {
		rest = ""
	}
	return days + rest
}

func instantText(t time.Time) string { return t.UTC().Format(time.RFC3339) }
