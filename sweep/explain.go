package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// An Explanation says where one entity stands, in the form that `reaper explain
// --json` prints.
type Explanation struct {
	Target    string       `json:"target"`
	Namespace string       `json:"namespace"`
	Key       string       `json:"key"` // the entity's, in the store's canonical text
	Found     bool         `json:"found"`
	Expiry    string       `json:"expiry"`  // the property as it is stored; empty where there is none
	Expires   *time.Time   `json:"expires"` // nil where it never does, or is no expiry
	Due       *time.Time   `json:"due"`     // expires and retention
	State     string       `json:"state"`   // of its generation; empty where it has none, retired where that is no more
	Range     *RangeStatus `json:"range"`   // nil where it is in none, or that is not known
	Verdict   string       `json:"verdict"` // absent, never, early, due, suspect, malformed, stray or outside
	Why       string       `json:"why"`     // for people
}

// ErrUnknownEntity is wrapped by the error for an id that no entity can have.
var ErrUnknownEntity = errors.New("no entity can have this id")

// Explain tells why an entity is still there, or is not. It writes nothing.
func Explain(ctx context.Context, c Config, t Target, namespace string, id store.Entity) (Explanation, error) {
	x := Explanation{Target: t.Name, Namespace: namespace}
	keyer, ok := c.Store.(store.Keyer)
	if !ok {
		return x, errors.New("this store cannot tell an entity's key")
	}
	key, err := keyer.Key(t.Target, namespace, id)
	if err != nil {
		return x, fmt.Errorf("%w: %w", ErrUnknownEntity, err)
	}
	x.Key = key
	p, missing, err := inspect(ctx, c, t)
	if err != nil {
		return x, err
	}
	if missing {
		p.record = FirstRecord(t, p.clock.Now())
		p.governor.record = p.record
	}
	p.namespaces = []string{namespace}
	p.listRanges()
	p.takeBearings(p.clock.Now())

	var now store.Value
	err = patiently(ctx, func(ctx context.Context) error {
		o, err := c.Store.Settle(ctx, store.Query{Target: t.Target, Namespace: namespace}, store.Entry{Key: key}, func(v store.Value) store.Verdict {
			now = v
			return store.Keep
		})
		x.Found = o == store.Kept
		return err
	})
	if err != nil {
		return x, fmt.Errorf("read %s: %w", key, err)
	}
	horizon := p.clock.Now().Add(-t.Retention)
	return x, p.explain(ctx, &x, now, horizon)
}

// explain fills in what the value of an entity's expiry means at a horizon.
func (p *pass) explain(ctx context.Context, x *Explanation, v store.Value, horizon time.Time) error {
	x.Expiry = positionText(v)
	if !x.Found {
		x.Verdict, x.Why = "absent", "there is no such entity: it was deleted, or never written"
		return nil
	}
	j := p.decide(v, horizon)
	if at, err := shardquery.Expires(p.target.Type, v); err == nil {
		due := at.Add(p.target.Retention)
		x.Expires, x.Due = &at, &due
	}
	switch j {
	case never:
		x.Verdict, x.Why = "never", fmt.Sprintf("it has no %s, or null: it never expires", p.target.Property)
		return nil
	case malformed:
		x.Verdict, x.Why = "malformed", fmt.Sprintf("its %s is %s: it is kept until somebody corrects it", p.target.Property, describe(v, p.target.Type))
		return nil
	case suspect, early, due:
	}
	if p.stray(x, v, j) {
		return nil
	}
	r, where, err := p.rangeOf(ctx, x, v)
	if err != nil {
		return err
	}
	cur := p.cursor(r)
	if where == "" {
		status := p.rangeStatus(r, cur)
		x.Range = &status
	}
	switch {
	case j == suspect:
		x.Verdict, x.Why = "suspect", fmt.Sprintf("it expired longer than max_age (%v) before the horizon, which is implausible: it is kept until somebody corrects it, or raises max_age", p.target.MaxAge)
		if x.State == string(generation.Draining) {
			x.Why += "; its generation is being drained, so that it gets a key in the newest one"
		}
	case where != "":
		x.Verdict, x.Why = "outside", where
	case j == early:
		x.Verdict, x.Why = "early", fmt.Sprintf("it is due in %v", x.Due.Sub(p.clock.Now()).Round(time.Second))
		if x.State == string(generation.Draining) {
			x.Why += "; its generation is being drained, so that it gets a key in the newest one until then"
		}
	default:
		x.Verdict, x.Why = "due", p.whyStill(r, cur, v)
	}
	return nil
}

// stray fills in the state of the generation that an expiry key names, and
// reports whether that has retired.
func (p *pass) stray(x *Explanation, v store.Value, j judgement) bool {
	k, err := expirykey.Parse(v.Text)
	if p.target.Type != store.Text || err != nil {
		return false
	}
	n := len(p.record.Generations)
	for _, g := range p.generations() {
		if g.Number == k.Generation {
			x.State = g.State
		}
	}
	if x.State != "" || n == 0 || k.Generation > p.record.Generations[n-1].Number {
		return false
	}
	x.State, x.Verdict = "retired", "stray"
	x.Why = fmt.Sprintf("generation %08d has retired, and no sweep reads it again: an old copy was put back, or a write came very late. The audit", k.Generation)
	if j == due {
		x.Why += " deletes it"
	} else {
		x.Why += " moves it to the nursery"
	}
	switch c := p.auditCursor(x.Namespace); {
	case !c.Rewind.Began.IsZero():
		x.Why += "; a round is under way"
	case c.Rewind.Done.IsZero():
		x.Why += " in the next sweep, or reaper audit --apply does at once"
	default:
		x.Why += fmt.Sprintf("; the next round begins with the first sweep after %s, or at once with reaper audit --apply",
			c.Rewind.Done.Add(jitter(auditEvery, c.Key())).UTC().Format(time.RFC3339))
	}
	return true
}

// rangeOf returns the range that an expiry lies in, or why it lies in none.
func (p *pass) rangeOf(ctx context.Context, x *Explanation, v store.Value) (r shardquery.Range, why string, err error) {
	if p.target.Type == store.Instant {
		if len(p.target.ShardValues) == 0 {
			return p.all[0], "", nil
		}
		// The entity's own shard is in the index only.
		for _, r := range p.all {
			in, err := p.shows(ctx, r, v, x.Key)
			if in || err != nil {
				return r, "", err
			}
		}
		return r, fmt.Sprintf("it has none of the target's shard_values in %s: no sweep reads it", p.target.ShardProperty), nil
	}
	k, err := expirykey.Parse(v.Text)
	if err != nil {
		return r, "", err
	}
	r = shardquery.Range{Namespace: x.Namespace, Generation: k.Generation, Shard: k.Shard}
	if slices.Contains(p.all, r) {
		return r, "", nil
	}
	for _, g := range p.record.Live() {
		if g.Number == k.Generation {
			return r, fmt.Sprintf("generation %08d has %d shards, and this is shard %04d: the next look past the last shard, once per rewind (%v), finds it and sweeps it",
				g.Number, g.Shards, k.Shard, p.target.Rewind), nil
		}
	}
	return r, fmt.Sprintf("no sweep reads generation %08d: stamp it anew, with a generation of the target record or with 0", k.Generation), nil
}

// shows reports whether a range shows an entity at a value.
func (p *pass) shows(ctx context.Context, r shardquery.Range, v store.Value, key string) (bool, error) {
	q := store.Query{Target: p.target.Target, Namespace: r.Namespace, Shard: r.Value, Lo: v, Hi: v, Limit: store.MaxPage}
	var page store.Page
	for {
		err := patiently(ctx, func(ctx context.Context) error { return p.Store.Scan(ctx, q, &page) })
		if err != nil {
			return false, err
		}
		for _, e := range page.Entries {
			if e.Key == key {
				return true, nil
			}
			q.After = e.Position()
		}
		if q.Next = page.Next; !page.More {
			return false, nil
		}
	}
}

// whyStill says when a due entity goes, given where its range's cursor stands.
func (p *pass) whyStill(r shardquery.Range, cur cursor.Cursor, v store.Value) string {
	if cur.Lease.Owner != "" && p.keeper.Wait(cur) > 0 {
		return fmt.Sprintf("it is due, and %s is sweeping its range", cur.Lease.Owner)
	}
	switch ahead := v.Compare(cur.Position.Value); {
	case cur.Position.IsZero() || ahead > 0 || ahead == 0 && cur.Position.Key == "":
		return "it is due, and the next sweep deletes it"
	case ahead == 0: // only the store knows the order of its keys
		return "it is due at the very instant where its range's cursor stands: the next sweep deletes it, or else the next read of the range from its start"
	}
	if !cur.Rewind.Began.IsZero() {
		return "it is due, but was written behind its range's cursor; the read of the range from its start, which is under way, deletes it"
	}
	if at := p.grounds[r.Generation]; !at.sealed.IsZero() || at.state != "" && (at.state != generation.Filling || p.sealedSoon(r.Generation)) {
		switch {
		case at.sealed.IsZero():
			return "it is due, but was written behind its range's cursor; once its generation is sealed, the range is read from its start, which deletes it"
		case cur.Rewind.Done.Before(at.since):
			return "it is due, but was written behind its range's cursor; its generation is sealed, and the next sweep reads the range from its start, which deletes it"
		}
		return "it is due, but was written into a sealed generation behind its range's cursor: the daily audit deletes it, or reaper audit --apply does at once"
	}
	next := cur.Rewind.Done.Add(jitter(p.target.Rewind, cur.Key()))
	return fmt.Sprintf("it is due, but was written behind its range's cursor, after it had expired: the next read of the range from its start, by the first sweep after %s, deletes it",
		next.UTC().Format(time.RFC3339))
}

// describe says what a value is instead of an expiry.
func describe(v store.Value, want store.Type) string {
	switch {
	case v.Type == store.List:
		return "a list"
	case v.Type == store.Text && want == store.Text:
		return "no expiry key"
	case v.Type == store.Text:
		return "a text, not a timestamp"
	case v.Type == store.Instant:
		return "a timestamp, not an expiry key"
	}
	return "neither a text nor a timestamp"
}
