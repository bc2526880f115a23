package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// Chores that no plan asks for.
const (
	estimate plan.Kind = "estimate" // what is due, for the progress bar
)

// probePatience bounds the tries at one query that looks for extra shards.
const probePatience = 20 * time.Second

// A choreJob is one chore. It is done in one step.
type choreJob struct {
	c     *collector
	chore plan.Chore
}

// end implements job: between two steps a chore holds nothing.
func (j *choreJob) end(out outcome) outcome { return out }

func (j *choreJob) step(t turn, todo todo) outcome {
	var err error
	if k := j.chore.Kind; k == plan.Life || k == plan.Probe || k == plan.Retire || k == plan.Forget || k == plan.Raise {
		err = j.c.clock.check() // a wrong clock could count a generation as sealed too early
	}
	if err == nil {
		err = j.do(t.ctx, todo)
	}
	switch {
	case err == nil:
	case t.ctx.Err() != nil:
		return outcome{state: stopped}
	case errors.Is(err, store.ErrConflict), errors.Is(err, generation.ErrMissing):
		j.c.viewer.wantRecord() // another process has changed or removed the record: see what is left to do
	default:
		return outcome{state: failed, err: fmt.Errorf("%s: %w", j.what(), err)}
	}
	return outcome{state: ended}
}

// what names the chore in errors.
func (j *choreJob) what() string {
	switch j.chore.Kind {
	case plan.Life:
		return "change the target record"
	case plan.Probe:
		return "probe for generations that are not listed"
	case plan.Raise:
		return "write the target record in the present schema"
	case plan.Look:
		return "look around"
	case plan.Retire:
		return fmt.Sprintf("retire generation %08d", j.chore.Generation)
	case plan.Forget:
		return "remove cursors of retired generations"
	case plan.Audit, plan.Seal, estimate, behindKind:
	}
	return string(j.chore.Kind)
}

func (j *choreJob) do(ctx context.Context, todo todo) error {
	c, rules := j.c, j.c.rules
	switch j.chore.Kind {
	case plan.Life:
		return c.live(ctx, todo.plan.Blocked())
	case plan.Probe:
		return c.probe(ctx, todo.plan)
	case plan.Raise:
		return c.raise(ctx)
	case plan.Look:
		return c.lookAround(ctx, todo.chore.plan(rules))
	case plan.Retire:
		return c.retire(ctx, j.chore.Generation)
	case plan.Forget:
		return c.forget(ctx, todo.chore.plan(rules))
	case estimate:
		c.estimate(ctx, todo.chore.plan(rules))
	case behindKind:
		c.countAllBehind(ctx, todo.chore.plan(rules))
	case plan.Audit, plan.Seal: // jobs of their own
	}
	return nil
}

// raise writes the target record in the present schema.
func (c *collector) raise(ctx context.Context) error {
	if !c.cfg.Apply {
		return nil
	}
	return c.viewer.changeRecord(ctx, func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
		next := is.Upgraded()
		return next, !next.EqualContent(is), nil
	})
}

// live writes the target record as configuration and time require.
func (c *collector) live(ctx context.Context, blocked []int) error {
	if !c.cfg.Apply {
		return nil
	}
	was := c.viewer.View().Record
	now := c.clock.Now()
	next, steps := plan.Desired(c.rules, was, blocked, now)
	if was.EqualContent(next) {
		return nil
	}
	if err := c.viewer.saveRecord(ctx, next, now); err != nil {
		return err
	}
	c.viewer.tell(ctx, was, next, steps)
	return nil
}

// discoverShards looks for entries in shards past a generation's last one, in every
// namespace that any deployment sweeps, and reports whether it found an unknown shard. Each
// such shard gets a cursor record at once and is known from then on: so neither a crash nor
// completing the other ranges can lose it.
func (c *collector) discoverShards(ctx context.Context, p *plan.Plan, number int) (added bool, err error) {
	v := c.viewer.View()
	i := slices.IndexFunc(v.Record.Live(), func(g generation.Generation) bool { return g.Number == number })
	if i < 0 {
		return false, nil
	}
	g := v.Record.Live()[i]
	namespaces, err := c.allNamespaces(ctx, p)
	if err != nil {
		return false, err
	}
	var ids []cursor.ID
	for _, ns := range namespaces {
		known := p.Shards(ns, g)
		found, err := shardquery.Beyond(ctx, c.cfg.Store, c.target.Target, ns, g, known, probePatience)
		if err != nil {
			return added, err
		}
		c.tellExtraShards(ctx, ns, g.Number, g.Shards, slices.Sorted(slices.Values(append(known, found...))))
		for _, shard := range found {
			r := shardquery.Range{Namespace: ns, Generation: g.Number, Shard: shard}
			cur := p.Cursor(r)
			if v.Cursors.Has(cur.ID) && (cur.Revision != "" || !c.cfg.Apply) {
				continue // of a namespace that only other deployments sweep; the plan counts it
			}
			added = true // also if another process has just found it: this plan says nothing of it
			// Of a sealed generation the cursor says that a pass has met nothing: but here is something.
			cur.Rewind, cur.Stock, cur.Swept = cursor.Rewind{}, cursor.Stock{}, time.Time{}
			if !c.cfg.Apply {
				c.viewer.addDryRunRange(cur)
				continue
			}
			if _, _, err := c.keeper.Move(ctx, cur, func(*cursor.Cursor) {}); err != nil {
				return added, err
			}
			ids = append(ids, cur.ID)
		}
	}
	if added && c.cfg.Apply {
		return added, c.viewer.readSome(ctx, ids, recordPatience)
	}
	return added, nil
}

// tellExtraShards warns of shards past the last one of a generation, if there are any.
func (c *collector) tellExtraShards(ctx context.Context, namespace string, number, shards int, found []int) {
	if len(found) > 0 {
		c.log.WarnContext(ctx, "entities are stamped with shards past the last one: a writer uses another shard count",
			"generation", number, "shards", shards, "found", found, "namespace", namespace)
	}
}

// lookAround looks for shards past the last one of each generation, for an empty index
// of a target that holds entities, and for entities that lie in no range. It writes what
// it found to the target record. If a count fails, the next look tries again.
func (c *collector) lookAround(ctx context.Context, p *plan.Plan) error {
	now, created := p.Now(), c.viewer.View().Record.Created
	for known := p; c.rules.Form.HasGenerations(); known = p {
		for _, g := range c.viewer.View().Record.Live() {
			if _, err := c.discoverShards(ctx, p, g.Number); err != nil {
				return err
			}
		}
		if p = p.With(c.viewer.View()); p.HasAll(known) { // else a shard was taken for known whose record is lost
			break
		}
	}
	c.viewer.wantCursors() // soon: other processes may have found shards, too
	emptyIndex, err := c.emptyIndex(ctx, p)
	if err != nil {
		return err
	}
	outside, counted := c.countOutside(ctx, p)
	nursery := 0
	for r := range p.All() {
		if r.Generation == expirykey.Nursery && c.rules.Form.HasGenerations() {
			nursery = max(nursery, r.Shard+1)
		}
	}
	noted := func(r generation.Record) generation.Record {
		r.NurseryShards = max(r.NurseryShards, nursery)
		r = r.WithNamespaces(c.rules.Namespaces, now, now.Add(-3*c.rules.Rewind))
		if r.EmptyIndex, r.Checked = emptyIndex, now.Truncate(time.Microsecond); counted {
			r.Outside = outside
		}
		return r
	}
	next := noted(c.viewer.View().Record)
	c.warn(ctx, next)
	c.tally.lookedAround(next.Outside, next.EmptyIndex)
	if !c.cfg.Apply {
		return nil
	}
	return c.saveFindings(ctx, func(was generation.Record, _ time.Time) (generation.Record, bool, error) {
		if !was.Created.Equal(created) || was.Checked.After(now) {
			return was, false, nil // a new record, or a later look: these findings are out of date
		}
		next := noted(was)
		due := !now.Before(was.Checked.Add(plan.Jitter(c.rules.Rewind, c.rules.Target)))
		return next, due || next.EmptyIndex != was.EmptyIndex || next.Outside != was.Outside, nil
	})
}

// saveFindings saves what was found around the ranges. If the store does not take it, the
// sweep does not fail: the next look tries again.
func (c *collector) saveFindings(ctx context.Context, change recordChange) error {
	err := c.viewer.changeRecord(ctx, change)
	if store.Transient(err) && ctx.Err() == nil {
		c.log.failed("save what was found around the ranges", "", err)
		return nil
	}
	return err
}

func (c *collector) warn(ctx context.Context, r generation.Record) {
	switch {
	case r.EmptyIndex:
		message, outside := c.rules.Form.EmptyIndex()
		c.log.WarnContext(ctx, message, "kind", c.target.Kind, "property", c.target.Property, outside, r.Outside)
	case r.Outside > 0:
		c.log.WarnContext(ctx, "entities carry the property but lie in no range: they will not be deleted",
			"kind", c.target.Kind, "property", c.target.Property, "outside", r.Outside)
	}
}

// emptyIndex reports whether the target holds entities, but not one entry in
// any range, due or not.
func (c *collector) emptyIndex(ctx context.Context, p *plan.Plan) (bool, error) {
	counter, ok := c.cfg.Store.(store.Counter)
	if !ok {
		return false, nil
	}
	namespaces := c.viewer.View().Namespaces
	for _, ns := range namespaces {
		if any, err := c.anyEntry(ctx, p, ns); any || err != nil {
			return false, err
		}
	}
	held := false
	for _, ns := range namespaces {
		err := patiently(ctx, func(ctx context.Context) (err error) {
			held, err = counter.Holds(ctx, c.target.Target, ns)
			return err
		})
		if held || err != nil {
			return held, err
		}
	}
	c.tellEmptyKind(ctx)
	return false, nil
}

// tellEmptyKind warns that the kind holds nothing, unless ranges of it had work before: a
// kind may well be empty once everything has expired.
func (c *collector) tellEmptyKind(ctx context.Context) {
	for _, cur := range c.viewer.View().Cursors.All() {
		if cur.Kind == c.target.Kind && cur.Property == c.target.Property {
			return
		}
	}
	c.log.WarnContext(ctx, "the kind holds no entity, and never had any to delete: check that it is spelt as the "+
		"writers spell it", "kind", c.target.Kind, "property", c.target.Property)
}

// emptyKindWithin bounds the look for any entity of a kind.
const emptyKindWithin = 3 * time.Second

// isEmptyKind reports whether the kind holds no entity: everything has expired, or the kind
// is misspelt. It is only for people: what cannot be read counts as not empty.
func (c *collector) isEmptyKind(ctx context.Context) bool {
	counter, ok := c.cfg.Store.(store.Counter)
	if !ok || c.viewer.View() == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, emptyKindWithin)
	defer cancel()
	for _, ns := range c.viewer.View().Namespaces {
		if held, err := counter.Holds(ctx, c.target.Target, ns); held || err != nil {
			return false
		}
	}
	return true
}

// triedFirst is how many ranges are queried for an entry before the whole namespace is:
// nearly always the first range has one.
const triedFirst = 4

// anyEntry reports whether the namespace has any entry of the right type, due or
// not. It first queries a few ranges from their cursors on, because nothing was deleted
// there yet, the newest ones first. Only then does it query everything from the start, over
// whatever was deleted: that may take long.
func (c *collector) anyEntry(ctx context.Context, p *plan.Plan, ns string) (bool, error) {
	var queries []store.Query
	for _, r := range slices.Backward(p.RangesIn(ns)) {
		if len(queries) == triedFirst {
			break
		}
		q := store.Query{Shard: r.Value, Lo: r.Lo(c.floor(c.horizon())), After: p.Cursor(r).Position}
		if hi, ok := r.UpTo(shardquery.LastInstant); ok && q.After.Value.Compare(q.Lo) >= 0 {
			q.Hi = hi
			queries = append(queries, q)
		}
	}
	if !c.rules.Form.HasGenerations() {
		for _, r := range c.rules.Form.Ranges(c.target.ShardValues, []string{ns}) {
			hi, _ := r.UpTo(shardquery.LastInstant)
			queries = append(queries, store.Query{Shard: r.Value, Lo: r.Lo(shardquery.FirstInstant), Hi: hi})
		}
	} else {
		for _, g := range slices.Backward(c.viewer.View().Record.Live()) {
			lo, hi := expirykey.GenerationRange(g.Number)
			queries = append(queries, store.Query{Lo: store.TextValue(lo), Hi: store.TextValue(hi)})
		}
	}
	for _, q := range queries {
		q.Target, q.Namespace = c.target.Target, ns
		if _, any, err := shardquery.First(ctx, c.cfg.Store, q, probePatience); any || err != nil {
			return any, err
		}
	}
	return false, nil
}

// mostOutside bounds the count of entities that lie in no range: nobody needs a larger number.
const mostOutside = 1_000_000

// countOutside counts the entities that carry the property but lie in no range. The count
// is only for people: a process that cannot count continues without it.
func (c *collector) countOutside(ctx context.Context, p *plan.Plan) (sum int64, counted bool) {
	counter, ok := c.cfg.Store.(store.Counter)
	if !ok {
		return 0, false
	}
	var gaps []placedSpan
	for _, ns := range c.viewer.View().Namespaces {
		for _, gap := range layout.Gaps(p.RangesIn(ns), c.floor(c.horizon())) {
			gaps = append(gaps, placedSpan{ns, gap})
		}
	}
	sum, err := countSpans(ctx, c, counter, gaps, mostOutside)
	if err != nil && ctx.Err() == nil {
		c.log.failed("count what lies in no range", "", err)
	}
	return sum, err == nil
}

const (
	// countTimeout bounds one COUNT, which the services end after 60 s.
	countTimeout = time.Minute
	// countersAtOnce is few, because others are sweeping.
	countersAtOnce = 4
)

// countSpans counts the entries in all the spans together, each once and up to a
// bound; 0 means no bound.
func countSpans(ctx context.Context, c *collector, counter store.Counter, spans []placedSpan, upTo int64) (int64,
	error) {
	counted := make([]int64, len(spans))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(countersAtOnce)
	for i, at := range spans {
		Go(group, func() (err error) {
			ctx, cancel := context.WithTimeout(ctx, countTimeout)
			defer cancel()
			counted[i], err = counter.Count(ctx, c.target.Target, at.namespace, at.span, upTo)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	var sum int64
	for _, n := range counted {
		sum += n
	}
	return sum, nil
}

// readFrom returns where this sweep begins to read a range.
func (c *collector) readFrom(p *plan.Plan, r shardquery.Range) store.Position {
	if c.cfg.FromStart {
		return store.Position{}
	}
	return p.Cursor(r).Position
}

// dueSpans lists what is due and plausible in the ranges that need a read, from
// where it begins.
func (c *collector) dueSpans(p *plan.Plan) (list []placedSpan) {
	horizon := c.horizon()
	for r := range p.All() {
		if !p.Range(r).Read {
			continue
		}
		from, to := c.readFrom(p, r).Value, r.At(horizon.Add(r.Resolution())).Value
		if lo := r.At(c.floor(horizon)).Value; from.Compare(lo) < 0 {
			from = lo
		}
		if from.Compare(to) < 0 {
			list = append(list, placedSpan{r.Namespace, store.Span{From: store.Point{Shard: r.Value, Value: from},
				To: store.Point{Shard: r.Value, Value: to}}})
		}
	}
	return list
}

// estimate adds the number of entities that are due to the progress.
func (c *collector) estimate(ctx context.Context, p *plan.Plan) {
	counter, ok := c.cfg.Store.(store.Counter)
	if !ok {
		return
	}
	n, err := countSpans(ctx, c, counter, c.dueSpans(p), 0)
	c.cfg.Progress.Due.Add(n)
	if err != nil {
		c.log.DebugContext(ctx, "cannot tell how much there is to do", "error", err)
	}
}

// retire retires a generation if it may. It reads the records again first. If they say
// that the generation may not retire yet, a later plan continues from them.
func (c *collector) retire(ctx context.Context, number int) error {
	if !c.cfg.Apply {
		return nil
	}
	// The seal first: the ranges that its pass has met have cursors by then, and a
	// namespace that a deployment adds later is not covered by it.
	seal, err := cursor.LoadSeal(ctx, recordReader{c.viewer, recordPatience}, c.target.Name, number)
	if err != nil {
		return err
	}
	if err := c.viewer.readGeneration(ctx, number); err != nil {
		return err
	}
	if seal.Revision != "" {
		c.viewer.takeSeal(seal)
	} else {
		c.viewer.dropSeal(number)
	}
	v := c.viewer.View()
	p := plan.New(c.rules, v, plan.Book{}, c.clock.Now())
	s := p.Stage(number)
	if !s.Final || p.Unread(number, s.Since) {
		return nil
	}
	if more, err := c.discoverShards(ctx, p, number); err != nil || more {
		return err
	}
	if d, ok := c.cfg.Store.(store.Dropper); ok {
		from, to := expirykey.GenerationRange(number)
		err := d.Drop(ctx, c.target.Target, from, to)
		if errors.Is(err, store.ErrConflict) {
			c.log.WarnContext(ctx, "an entity turned up in a generation that was about to retire", "generation", number,
				"error", err)
			return c.unread(ctx, p, number)
		}
		if err != nil {
			return err
		}
	}
	malformed := c.leftIn(ctx, number)
	now := c.clock.Now()
	next, err := v.Record.Retire(number, now, c.target.Policy.Settle) // if it has changed since, this is tried again
	if err != nil {
		return err
	}
	if err := c.viewer.saveRecord(ctx, next, now); err != nil {
		return err
	}
	c.tally.retire(number)
	c.log.InfoContext(ctx, "generation retired", "generation", number, "malformed_left", malformed)
	return nil
}

// unread marks the ranges of a generation as unread, so that they are read from their start
// again.
func (c *collector) unread(ctx context.Context, p *plan.Plan, number int) error {
	if seal, ok := p.SealOf(number); ok { // the next pass finds what turned up in a range without a record
		if err := cursor.ForgetSeal(ctx, c.keeper.Store, seal); err != nil {
			return err
		}
		c.viewer.dropSeal(number)
	}
	for r := range p.All() {
		if _, known := c.viewer.View().Cursors.At(p.ID(r)); r.Generation != number || !known {
			continue
		}
		_, _, err := c.keeper.Move(ctx, p.Cursor(r), func(cur *cursor.Cursor) {
			cur.Rewind, cur.Stock = cursor.Rewind{},
				cursor.Stock{}
		})
		c.viewer.wantCursor(p.ID(r)) // the view's copy is out of date
		if err != nil {
			return err
		}
	}
	return nil
}

// leftIn counts what is left in a generation, for people; -1 if it cannot be counted.
func (c *collector) leftIn(ctx context.Context, number int) int64 {
	counter, ok := c.cfg.Store.(store.Counter)
	if !ok {
		return -1
	}
	from, to := expirykey.GenerationRange(number)
	n, err := countSpans(ctx, c, counter, c.everywhere(store.Between(from, to)), mostOutside)
	if err != nil {
		return -1
	}
	return n
}

// forget removes the cursors and seals of generations and namespaces that no longer exist.
func (c *collector) forget(ctx context.Context, p *plan.Plan) error {
	if !c.cfg.Apply {
		return nil
	}
	for number := range c.viewer.View().Seals {
		if seal := c.viewer.View().Seals[number]; p.IsForgotten(number) {
			if err := cursor.ForgetSeal(ctx, c.keeper.Store, seal); err != nil {
				return err
			}
			c.viewer.dropSeal(number)
		}
	}
	forgotten := p.Forgotten()
	gone := history.Change{What: history.Forgotten, Before: "cursors of namespaces that are gone"}
	defer func() { // all at once, because each change to the set of ranges rebuilds the plan
		for _, cur := range forgotten {
			c.viewer.wantCursor(cur.ID)
		}
		if gone.Deleted > 0 {
			c.log.story.Tell(history.KindGeneration, gone)
		}
	}()
	for _, cur := range forgotten {
		removed, err := c.keeper.Forget(ctx, cur)
		if err != nil {
			return err
		}
		if removed && !p.IsForgotten(cur.Generation) { // otherwise the record of its retirement has the sum
			gone.Deleted += cur.Deleted
		}
	}
	return nil
}
