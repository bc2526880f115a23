package chore

import (
	"context"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// DiscoverShards looks for entries in shards past a generation's last one, in every
// namespace that any deployment sweeps, and reports whether it found an unknown shard. Each
// such shard gets a cursor record at once and is known from then on: so neither a crash nor
// completing the other ranges can lose it.
func DiscoverShards(ctx context.Context, c *site.Site, p *plan.Plan, number int) (added bool, err error) {
	v := c.Viewer.View()
	i := slices.IndexFunc(v.Record.Live(), func(g generation.Generation) bool { return g.Number == number })
	if i < 0 {
		return false, nil
	}
	g := v.Record.Live()[i]
	namespaces, err := c.Viewer.AllNamespaces(ctx, p)
	if err != nil {
		return false, err
	}
	var ids []cursor.ID
	for _, ns := range namespaces {
		known := p.ExtraShards(ns, g)
		found, err := shardquery.Beyond(ctx, c.Cfg.Store, c.Target.Target, ns, g, known, view.ProbePatience)
		if err != nil {
			return added, err
		}
		tellExtraShards(ctx, c, ns, g.Number, g.Shards, slices.Sorted(slices.Values(append(known, found...))))
		for _, shard := range found {
			r := shardquery.Range{Namespace: ns, Generation: g.Number, Shard: shard}
			cur := p.Cursor(r)
			if v.Cursors.Has(cur.ID) && (cur.Revision != "" || !c.Cfg.Apply) {
				continue // of a namespace that only other deployments sweep; the plan counts it
			}
			added = true // also if another process has just found it: this plan says nothing of it
			// Of a sealed generation the cursor says that a pass has met nothing: but here is something.
			cur.Rewind, cur.Stock, cur.Swept = cursor.Rewind{}, cursor.Stock{}, time.Time{}
			if !v.Cursors.Has(cur.ID) { // what this process remembers of it may be of a record that somebody has removed
				cur.Revision, cur.Lease, cur.Position = "", cursor.Lease{}, store.Position{}
			}
			if !c.Cfg.Apply {
				c.Viewer.AddDryRunRange(cur)
				continue
			}
			if _, _, err := c.Keeper.Move(ctx, cur, func(*cursor.Cursor) {}); err != nil {
				return added, err
			}
			ids = append(ids, cur.ID)
		}
	}
	if added && c.Cfg.Apply {
		return added, c.Viewer.ReadSome(ctx, ids, view.RecordPatience)
	}
	return added, nil
}

// tellExtraShards warns of shards past the last one of a generation, if there are any.
func tellExtraShards(ctx context.Context, c *site.Site, namespace string, number, shards int, found []int) {
	if len(found) > 0 {
		c.Log.WarnContext(ctx, "entities are stamped with shards past the last one: a writer uses another shard count",
			"generation", number, "shards", shards, "found", found, "namespace", namespace)
	}
}

// lookAround looks for shards past the last one of each generation, for an empty index
// of a target that holds entities, and for entities that lie in no range. It writes what
// it found to the target record. If a count fails, the next look tries again. The index of another kind or
// property says nothing of what the record is of: who sweeps that looks around.
func lookAround(ctx context.Context, c *site.Site, p *plan.Plan) error {
	v := c.Viewer.View()
	p = p.With(v)
	now, began := p.Now(), v.Record
	if c.Cfg.Apply && !isOurs(c, began) {
		c.Log.WarnContext(ctx, "the target record is of another kind or property by now: until this process is restarted"+
			" with that, it looks for no shards past the last one, and retires no generation", "kind", c.Target.Kind,
			"record_kind", began.Kind, "property", c.Target.Property, "record_property", began.Property)
		return nil
	}
	for known := p; c.Rules.Form.HasGenerations(); known = p {
		for _, g := range c.Viewer.View().Record.Live() {
			if _, err := DiscoverShards(ctx, c, p, g.Number); err != nil {
				return err
			}
		}
		if p = p.With(c.Viewer.View()); p.HasAll(known) { // otherwise a shard was taken as known although its record is lost
			break
		}
	}
	c.Viewer.WantCursors() // soon: other processes may have found shards, too
	emptyIndex, err := emptyIndex(ctx, c, p)
	if err != nil {
		return err
	}
	outside, counted := CountOutside(ctx, c, p)
	nursery := 0
	for r := range p.All() {
		if r.Generation == expirykey.Nursery && c.Rules.Form.HasGenerations() {
			nursery = max(nursery, r.Shard+1)
		}
	}
	noted := func(r generation.Record) generation.Record {
		r.NurseryShards = max(r.NurseryShards, nursery)
		r = r.WithNamespaces(c.Rules.Namespaces, now, now.Add(-3*c.Rules.Rewind))
		if r.EmptyIndex, r.Checked = emptyIndex, now.Truncate(time.Microsecond); counted {
			r.Outside = outside
		}
		return r
	}
	next := noted(c.Viewer.View().Record)
	warn(ctx, c, next)
	c.Tally.NoteOutside(next.Outside, next.EmptyIndex)
	if !c.Cfg.Apply {
		return nil
	}
	again := false
	err = saveFindings(ctx, c, func(was generation.Record, _ time.Time) (generation.Record, bool, error) {
		if again = !was.Created.Equal(began.Created) || hasMore(c, was, began); again || was.Checked.After(now) {
			return was, false, nil // a later look was faster, or the record has something that this one left out
		}
		next := noted(was)
		due := !now.Before(was.Checked.Add(plan.Jitter(c.Rules.Rewind, c.Rules.Target)))
		return next, due || next.EmptyIndex != was.EmptyIndex || next.Outside != was.Outside, nil
	})
	if err != nil || !again {
		return err
	}
	return lookAround(ctx, c, p.With(c.Viewer.View()))
}

// hasMore reports whether a record asks for more than a look has seen that began with another one: generations
// that the second probe has found since, namespaces of a deployment that joined, or another kind or property.
func hasMore(c *site.Site, r, before generation.Record) bool {
	adopted := slices.ContainsFunc(r.Generations, func(g generation.Generation) bool {
		same := func(b generation.Generation) bool { return b.Number == g.Number }
		return !g.Closed.IsZero() && !slices.ContainsFunc(before.Generations, same)
	})
	return adopted || hasJoined(r, before) || r.Checked.Before(before.Checked) || !isOurs(c, r)
}

// hasJoined reports whether a deployment has brought namespaces that a record did not list before.
func hasJoined(r, before generation.Record) bool {
	return slices.ContainsFunc(r.Namespaces, func(n generation.Swept) bool {
		return !slices.ContainsFunc(before.Namespaces, func(b generation.Swept) bool { return b.Name == n.Name })
	})
}

// isOurs reports whether the target record is of the kind and the property that this process sweeps.
func isOurs(c *site.Site, r generation.Record) bool {
	return r.Kind == c.Target.Kind && r.Property == c.Target.Property
}

// saveFindings saves what was found around the ranges. If the store does not take it, the
// sweep does not fail: the next look tries again.
func saveFindings(ctx context.Context, c *site.Site, change view.RecordChange) error {
	err := c.Viewer.ChangeRecord(ctx, change)
	if store.Transient(err) && ctx.Err() == nil {
		c.Log.Failed("save what was found around the ranges", "", err)
		return nil
	}
	return err
}

func warn(ctx context.Context, c *site.Site, r generation.Record) {
	switch {
	case r.EmptyIndex:
		message, outside := c.Rules.Form.EmptyIndex()
		c.Log.WarnContext(ctx, message, "kind", c.Target.Kind, "property", c.Target.Property, outside, r.Outside)
	case r.Outside > 0:
		c.Log.WarnContext(ctx, "entities carry the property but lie in no range: they will not be deleted",
			"kind", c.Target.Kind, "property", c.Target.Property, "outside", r.Outside)
	}
}

// emptyIndex reports whether the target holds entities, but not one entry in
// any range, due or not.
func emptyIndex(ctx context.Context, c *site.Site, p *plan.Plan) (bool, error) {
	counter, ok := c.Cfg.Store.(store.Counter)
	if !ok {
		return false, nil
	}
	namespaces := c.Viewer.View().Namespaces
	for _, ns := range namespaces {
		if any, err := anyEntry(ctx, c, p, ns); any || err != nil {
			return false, err
		}
	}
	held := false
	for _, ns := range namespaces {
		err := view.Patiently(ctx, func(ctx context.Context) (err error) {
			held, err = counter.Holds(ctx, c.Target.Target, ns)
			return err
		})
		if held || err != nil {
			return held, err
		}
	}
	tellEmptyKind(ctx, c)
	return false, nil
}

// tellEmptyKind warns that the kind holds nothing, unless ranges of it had work before: a
// kind may well be empty once everything has expired.
func tellEmptyKind(ctx context.Context, c *site.Site) {
	for _, cur := range c.Viewer.View().Cursors.All() {
		if cur.Kind == c.Target.Kind && cur.Property == c.Target.Property {
			return
		}
	}
	c.Log.WarnContext(ctx, "the kind holds no entity, and never had any to delete: check that it is spelt as the "+
		"writers spell it", "kind", c.Target.Kind, "property", c.Target.Property)
}

// emptyKindWithin bounds the look for any entity of a kind.
const emptyKindWithin = 3 * time.Second

// IsEmptyKind reports whether the kind holds no entity: everything has expired, or the kind
// is misspelt. It is only for people: what cannot be read counts as not empty.
func IsEmptyKind(ctx context.Context, c *site.Site) bool {
	counter, ok := c.Cfg.Store.(store.Counter)
	if !ok || c.Viewer.View() == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, emptyKindWithin)
	defer cancel()
	for _, ns := range c.Viewer.View().Namespaces {
		if held, err := counter.Holds(ctx, c.Target.Target, ns); held || err != nil {
			return false
		}
	}
	return true
}

// triedFirst is how many ranges are queried for an entry before the whole namespace is:
// nearly always the first range has one.
const triedFirst = 4

// triedOf returns these ranges of a namespace: those that have a position, if there are any.
func triedOf(p *plan.Plan, ns string) (tried []shardquery.Range) {
	all := p.RangesIn(ns)
	for _, r := range slices.Backward(all) {
		if !p.Cursor(r).Position.IsZero() {
			if tried = append(tried, r); len(tried) == triedFirst {
				return tried
			}
		}
	}
	if len(tried) > 0 {
		return tried
	}
	return all[max(0, len(all)-triedFirst):]
}

// anyEntry reports whether the namespace has any entry of the right type, due or
// not. It first queries a few ranges from their cursors on, because nothing was deleted
// there yet, the newest ones first. Only then does it query everything from the start, over
// whatever was deleted: that may take long.
func anyEntry(ctx context.Context, c *site.Site, p *plan.Plan, ns string) (bool, error) {
	var queries []store.Query
	tried := triedOf(p, ns)
	var ids []cursor.ID
	for _, r := range tried {
		ids = append(ids, c.Rules.ID(r))
	}
	// Of a range in work only its record says how far it has come.
	if err := c.Viewer.ReadSome(ctx, ids, view.ProbePatience); err != nil {
		return false, err
	}
	for i, r := range tried {
		q := store.Query{Shard: r.Value, Lo: r.Lo(c.Index.Floor(c.Horizon())), After: p.Cursor(r).Position}
		if cur, ok := c.Viewer.View().Cursors.At(ids[i]); ok && q.After.Value.Compare(cur.Position.Value) < 0 {
			q.After = cur.Position
		}
		if hi, ok := r.UpTo(shardquery.LastInstant); ok && q.After.Value.Compare(q.Lo) >= 0 {
			q.Hi = hi
			queries = append(queries, q)
		}
	}
	if !c.Rules.Form.HasGenerations() {
		for _, r := range c.Rules.Form.Ranges(c.Target.ShardValues, []string{ns}) {
			hi, _ := r.UpTo(shardquery.LastInstant)
			queries = append(queries, store.Query{Shard: r.Value, Lo: r.Lo(shardquery.FirstInstant), Hi: hi})
		}
	} else {
		for _, g := range slices.Backward(c.Viewer.View().Record.Live()) {
			lo, hi := expirykey.GenerationRange(g.Number)
			queries = append(queries, store.Query{Lo: store.TextValue(lo), Hi: store.TextValue(hi)})
		}
	}
	for _, q := range queries {
		q.Target, q.Namespace = c.Target.Target, ns
		if _, any, err := shardquery.First(ctx, c.Cfg.Store, q, view.ProbePatience); any || err != nil {
			return any, err
		}
	}
	return false, nil
}

// mostOutside bounds the count of entities that lie in no range: nobody needs a larger number.
const mostOutside = 1_000_000

// CountOutside counts the entities that carry the property but lie in no range. The count
// is only for people: a process that cannot count continues without it.
func CountOutside(ctx context.Context, c *site.Site, p *plan.Plan) (sum int64, counted bool) {
	_, ok := c.Index.Counter()
	if !ok {
		return 0, false
	}
	var gaps []index.Span
	for _, ns := range c.Viewer.View().Namespaces {
		for _, gap := range layout.Gaps(p.RangesIn(ns), c.Index.Floor(c.Horizon())) {
			gaps = append(gaps, index.Span{Namespace: ns, Span: gap})
		}
	}
	sum, err := c.Index.Count(ctx, gaps, mostOutside)
	if err != nil && ctx.Err() == nil {
		c.Log.Failed("count what lies in no range", "", err)
	}
	return sum, err == nil
}
