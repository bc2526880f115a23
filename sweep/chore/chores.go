package chore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/site"
	"github.com/reaper-ttl/reaper/sweep/step"
	"github.com/reaper-ttl/reaper/sweep/view"
)

// Chores that no plan asks for.
const (
	Estimate plan.Kind = "estimate" // what is due, for the progress bar
)

// A choreJob is one chore. It is done in one step.
type choreJob struct {
	c     *site.Site
	chore plan.Chore
}

// End implements job: between two steps a chore holds nothing.
func (j *choreJob) End(out step.Outcome) step.Outcome { return out }

// New returns the job of a chore. An audit is a job of its own.
func New(c *site.Site, is plan.Chore) step.Job {
	if is.Kind == plan.Seal {
		return &sealJob{c: c, chore: is}
	}
	return &choreJob{c: c, chore: is}
}

// IsClaimed implements [step.Job].
func (j *choreJob) IsClaimed() bool { return false }

func (j *choreJob) Step(t step.Turn, todo step.Todo) step.Outcome {
	var err error
	if k := j.chore.Kind; k == plan.Life || k == plan.Probe || k == plan.Retire || k == plan.Forget || k == plan.Raise {
		err = j.c.Clock.Check() // a wrong clock could count a generation as sealed too early
	}
	if err == nil {
		err = j.do(t.Ctx, todo)
	}
	switch {
	case err == nil:
	case t.Ctx.Err() != nil:
		return step.Outcome{State: step.Stopped}
	case errors.Is(err, store.ErrConflict), errors.Is(err, generation.ErrMissing):
		j.c.Viewer.WantRecord() // another process has changed or removed the record: see what is left to do
	default:
		return step.Outcome{State: step.Failed, Err: fmt.Errorf("%s: %w", j.what(), err)}
	}
	return step.Outcome{State: step.Ended}
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
	case plan.Audit, plan.Seal, Estimate, BehindKind:
	}
	return string(j.chore.Kind)
}

func (j *choreJob) do(ctx context.Context, todo step.Todo) error {
	c, rules := j.c, j.c.Rules
	switch j.chore.Kind {
	case plan.Life:
		return writeLife(c, ctx, todo.Plan.Blocked())
	case plan.Probe:
		return probeAgain(c, ctx, todo.Plan)
	case plan.Raise:
		return raiseSchema(c, ctx)
	case plan.Look:
		return lookAround(c, ctx, todo.Chore.Plan(rules))
	case plan.Retire:
		return retireGeneration(c, ctx, j.chore.Generation)
	case plan.Forget:
		return forgetCursors(c, ctx, todo.Chore.Plan(rules))
	case Estimate:
		estimateDue(c, ctx, todo.Chore.Plan(rules))
	case BehindKind:
		countAllBehind(c, ctx, todo.Chore.Plan(rules))
	case plan.Audit, plan.Seal: // jobs of their own
	}
	return nil
}

// raiseSchema writes the target record in the present schema.
func raiseSchema(c *site.Site, ctx context.Context) error {
	if !c.Cfg.Apply {
		return nil
	}
	return c.Viewer.ChangeRecord(ctx, func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
		next := is.Upgraded()
		return next, !next.EqualContent(is), nil
	})
}

// writeLife writes the target record as configuration and time require.
func writeLife(c *site.Site, ctx context.Context, blocked []int) error {
	if !c.Cfg.Apply {
		return nil
	}
	was := c.Viewer.View().Record
	now := c.Clock.Now()
	next, steps := plan.Desired(c.Rules, was, blocked, now)
	if was.EqualContent(next) {
		return nil
	}
	if err := c.Viewer.SaveRecord(ctx, next, now); err != nil {
		return err
	}
	c.Viewer.Tell(ctx, was, next, steps)
	return nil
}

// DiscoverShards looks for entries in shards past a generation's last one, in every
// namespace that any deployment sweeps, and reports whether it found an unknown shard. Each
// such shard gets a cursor record at once and is known from then on: so neither a crash nor
// completing the other ranges can lose it.
func DiscoverShards(c *site.Site, ctx context.Context, p *plan.Plan, number int) (added bool, err error) {
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
		known := p.Shards(ns, g)
		found, err := shardquery.Beyond(ctx, c.Cfg.Store, c.Target.Target, ns, g, known, view.ProbePatience)
		if err != nil {
			return added, err
		}
		tellExtraShards(c, ctx, ns, g.Number, g.Shards, slices.Sorted(slices.Values(append(known, found...))))
		for _, shard := range found {
			r := shardquery.Range{Namespace: ns, Generation: g.Number, Shard: shard}
			cur := p.Cursor(r)
			if v.Cursors.Has(cur.ID) && (cur.Revision != "" || !c.Cfg.Apply) {
				continue // of a namespace that only other deployments sweep; the plan counts it
			}
			added = true // also if another process has just found it: this plan says nothing of it
			// Of a sealed generation the cursor says that a pass has met nothing: but here is something.
			cur.Rewind, cur.Stock, cur.Swept = cursor.Rewind{}, cursor.Stock{}, time.Time{}
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
func tellExtraShards(c *site.Site, ctx context.Context, namespace string, number, shards int, found []int) {
	if len(found) > 0 {
		c.Log.WarnContext(ctx, "entities are stamped with shards past the last one: a writer uses another shard count",
			"generation", number, "shards", shards, "found", found, "namespace", namespace)
	}
}

// lookAround looks for shards past the last one of each generation, for an empty index
// of a target that holds entities, and for entities that lie in no range. It writes what
// it found to the target record. If a count fails, the next look tries again.
func lookAround(c *site.Site, ctx context.Context, p *plan.Plan) error {
	now, created := p.Now(), c.Viewer.View().Record.Created
	for known := p; c.Rules.Form.HasGenerations(); known = p {
		for _, g := range c.Viewer.View().Record.Live() {
			if _, err := DiscoverShards(c, ctx, p, g.Number); err != nil {
				return err
			}
		}
		if p = p.With(c.Viewer.View()); p.HasAll(known) { // else a shard was taken for known whose record is lost
			break
		}
	}
	c.Viewer.WantCursors() // soon: other processes may have found shards, too
	emptyIndex, err := emptyIndex(c, ctx, p)
	if err != nil {
		return err
	}
	outside, counted := CountOutside(c, ctx, p)
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
	warn(c, ctx, next)
	c.Tally.NoteOutside(next.Outside, next.EmptyIndex)
	if !c.Cfg.Apply {
		return nil
	}
	return saveFindings(c, ctx, func(was generation.Record, _ time.Time) (generation.Record, bool, error) {
		if !was.Created.Equal(created) || was.Checked.After(now) {
			return was, false, nil // a new record, or a later look: these findings are out of date
		}
		next := noted(was)
		due := !now.Before(was.Checked.Add(plan.Jitter(c.Rules.Rewind, c.Rules.Target)))
		return next, due || next.EmptyIndex != was.EmptyIndex || next.Outside != was.Outside, nil
	})
}

// saveFindings saves what was found around the ranges. If the store does not take it, the
// sweep does not fail: the next look tries again.
func saveFindings(c *site.Site, ctx context.Context, change view.RecordChange) error {
	err := c.Viewer.ChangeRecord(ctx, change)
	if store.Transient(err) && ctx.Err() == nil {
		c.Log.Failed("save what was found around the ranges", "", err)
		return nil
	}
	return err
}

func warn(c *site.Site, ctx context.Context, r generation.Record) {
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
func emptyIndex(c *site.Site, ctx context.Context, p *plan.Plan) (bool, error) {
	counter, ok := c.Cfg.Store.(store.Counter)
	if !ok {
		return false, nil
	}
	namespaces := c.Viewer.View().Namespaces
	for _, ns := range namespaces {
		if any, err := anyEntry(c, ctx, p, ns); any || err != nil {
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
	tellEmptyKind(c, ctx)
	return false, nil
}

// tellEmptyKind warns that the kind holds nothing, unless ranges of it had work before: a
// kind may well be empty once everything has expired.
func tellEmptyKind(c *site.Site, ctx context.Context) {
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
func IsEmptyKind(c *site.Site, ctx context.Context) bool {
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

// anyEntry reports whether the namespace has any entry of the right type, due or
// not. It first queries a few ranges from their cursors on, because nothing was deleted
// there yet, the newest ones first. Only then does it query everything from the start, over
// whatever was deleted: that may take long.
func anyEntry(c *site.Site, ctx context.Context, p *plan.Plan, ns string) (bool, error) {
	var queries []store.Query
	for _, r := range slices.Backward(p.RangesIn(ns)) {
		if len(queries) == triedFirst {
			break
		}
		q := store.Query{Shard: r.Value, Lo: r.Lo(c.Index.Floor(c.Horizon())), After: p.Cursor(r).Position}
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
func CountOutside(c *site.Site, ctx context.Context, p *plan.Plan) (sum int64, counted bool) {
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

// readFrom returns where this sweep begins to read a range.
func readFrom(c *site.Site, p *plan.Plan, r shardquery.Range) store.Position {
	if c.Cfg.FromStart {
		return store.Position{}
	}
	return p.Cursor(r).Position
}

// dueSpans lists what is due and plausible in the ranges that need a read, from
// where it begins.
func dueSpans(c *site.Site, p *plan.Plan) (list []index.Span) {
	horizon := c.Horizon()
	for r := range p.All() {
		if !p.Range(r).Read {
			continue
		}
		from, to := readFrom(c, p, r).Value, r.At(horizon.Add(r.Resolution())).Value
		if lo := r.At(c.Index.Floor(horizon)).Value; from.Compare(lo) < 0 {
			from = lo
		}
		if from.Compare(to) < 0 {
			list = append(list, index.Span{Namespace: r.Namespace, Span: store.Span{From: store.Point{Shard: r.Value, Value: from},
				To: store.Point{Shard: r.Value, Value: to}}})
		}
	}
	return list
}

// estimateDue adds the number of entities that are due to the progress.
func estimateDue(c *site.Site, ctx context.Context, p *plan.Plan) {
	_, ok := c.Index.Counter()
	if !ok {
		return
	}
	n, err := c.Index.Count(ctx, dueSpans(c, p), 0)
	c.Cfg.Progress.Due.Add(n)
	if err != nil {
		c.Log.DebugContext(ctx, "cannot tell how much there is to do", "error", err)
	}
}

// retireGeneration retires a generation if it may. It reads the records again first. If they say
// that the generation may not retire yet, a later plan continues from them.
func retireGeneration(c *site.Site, ctx context.Context, number int) error {
	if !c.Cfg.Apply {
		return nil
	}
	// The seal first: the ranges that its pass has met have cursors by then, and a
	// namespace that a deployment adds later is not covered by it.
	seal, err := c.Viewer.LoadSeal(ctx, number, view.RecordPatience)
	if err != nil {
		return err
	}
	if err := c.Viewer.ReadGeneration(ctx, number); err != nil {
		return err
	}
	if seal.Revision != "" {
		c.Viewer.TakeSeal(seal)
	} else {
		c.Viewer.DropSeal(number)
	}
	v := c.Viewer.View()
	p := plan.New(c.Rules, v, plan.Book{}, c.Clock.Now())
	s := p.Stage(number)
	if !s.Final || p.Unread(number, s.Since) {
		return nil
	}
	if more, err := DiscoverShards(c, ctx, p, number); err != nil || more {
		return err
	}
	if d, ok := c.Cfg.Store.(store.Dropper); ok {
		from, to := expirykey.GenerationRange(number)
		err := d.Drop(ctx, c.Target.Target, from, to)
		if errors.Is(err, store.ErrConflict) {
			c.Log.WarnContext(ctx, "an entity turned up in a generation that was about to retire", "generation", number,
				"error", err)
			return unread(c, ctx, p, number)
		}
		if err != nil {
			return err
		}
	}
	malformed := leftIn(c, ctx, number)
	now := c.Clock.Now()
	next, err := v.Record.Retire(number, now, c.Target.Policy.Settle) // if it has changed since, this is tried again
	if err != nil {
		return err
	}
	if err := c.Viewer.SaveRecord(ctx, next, now); err != nil {
		return err
	}
	c.Tally.Retire(number)
	c.Log.InfoContext(ctx, "generation retired", "generation", number, "malformed_left", malformed)
	return nil
}

// unread marks the ranges of a generation as unread, so that they are read from their start
// again.
func unread(c *site.Site, ctx context.Context, p *plan.Plan, number int) error {
	if seal, ok := p.SealOf(number); ok { // the next pass finds what turned up in a range without a record
		if err := cursor.ForgetSeal(ctx, c.Keeper.Store, seal); err != nil {
			return err
		}
		c.Viewer.DropSeal(number)
	}
	for r := range p.All() {
		if _, known := c.Viewer.View().Cursors.At(p.ID(r)); r.Generation != number || !known {
			continue
		}
		_, _, err := c.Keeper.Move(ctx, p.Cursor(r), func(cur *cursor.Cursor) {
			cur.Rewind, cur.Stock = cursor.Rewind{},
				cursor.Stock{}
		})
		c.Viewer.WantCursor(p.ID(r)) // the view's copy is out of date
		if err != nil {
			return err
		}
	}
	return nil
}

// leftIn counts what is left in a generation, for people; -1 if it cannot be counted.
func leftIn(c *site.Site, ctx context.Context, number int) int64 {
	_, ok := c.Index.Counter()
	if !ok {
		return -1
	}
	from, to := expirykey.GenerationRange(number)
	n, err := c.Index.Count(ctx, index.Everywhere(c.Viewer.View().Namespaces, store.Between(from, to)), mostOutside)
	if err != nil {
		return -1
	}
	return n
}

// forgetCursors removes the cursors and seals of generations and namespaces that no longer exist.
func forgetCursors(c *site.Site, ctx context.Context, p *plan.Plan) error {
	if !c.Cfg.Apply {
		return nil
	}
	for number := range c.Viewer.View().Seals {
		if seal := c.Viewer.View().Seals[number]; p.IsForgotten(number) {
			if err := cursor.ForgetSeal(ctx, c.Keeper.Store, seal); err != nil {
				return err
			}
			c.Viewer.DropSeal(number)
		}
	}
	forgotten := p.Forgotten()
	gone := history.Change{What: history.Forgotten, Before: "cursors of namespaces that are gone"}
	defer func() { // all at once, because each change to the set of ranges rebuilds the plan
		for _, cur := range forgotten {
			c.Viewer.WantCursor(cur.ID)
		}
		if gone.Deleted > 0 {
			c.Story.Tell(history.KindGeneration, gone)
		}
	}()
	for _, cur := range forgotten {
		removed, err := c.Keeper.Forget(ctx, cur)
		if err != nil {
			return err
		}
		if removed && !p.IsForgotten(cur.Generation) { // otherwise the record of its retirement has the sum
			gone.Deleted += cur.Deleted
		}
	}
	return nil
}
