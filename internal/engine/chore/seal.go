package chore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// sealEvery is how often a pass over a generation saves how far it has come.
	sealEvery = 10 * time.Second
	// sealStale is how long ago a pass must have been saved last before another process
	// continues it.
	sealStale = time.Minute
)

// A sealJob is a pass over a sealed generation, namespace by namespace. Each range in which
// it meets an entry gets a cursor record, and is then read from its start. So a range
// without a record needs no read of its own. A namespace without a pass counts as unread.
type sealJob struct {
	c     *site.Site
	chore plan.Chore
	seal  cursor.Seal // the seal's present state, saved or not; zero before the pass was begun
	all   bool        // the pass is over all namespaces that the store lists
	names []string    // the namespaces that are left
	saved time.Time   // when the seal was saved last, on this process's clock
	joins bool        // another job began the pass
}

// End implements [step.Job]. The next pass repeats what was not saved.
func (j *sealJob) End(out step.Outcome) step.Outcome { return out }

// IsClaimed implements [step.Job].
func (j *sealJob) IsClaimed() bool { return false }

func (j *sealJob) Step(t step.Turn, todo step.Todo) step.Outcome {
	err := j.c.Clock.Check() // by a wrong clock a pass would seem to have begun too early
	over := false
	if err == nil {
		over, err = j.goOn(t, todo.Plan)
	}
	switch {
	case t.Ctx.Err() != nil:
		return step.Outcome{State: step.Stopped}
	case errors.Is(err, store.ErrConflict), errors.Is(err, generation.ErrMissing):
		return step.Outcome{State: step.Ended} // another process makes the pass, or the target has a new record, or none
	case err != nil:
		return step.Outcome{State: step.Failed, Err: fmt.Errorf("go over generation %08d: %w", j.chore.Generation, err)}
	case over:
		return step.Outcome{State: step.Ended}
	}
	return step.Outcome{State: step.Ready, NextLane: step.NextLane{Slow: true}}
}

// goOn goes over namespaces until its turn is over. It reports whether the pass is over.
func (j *sealJob) goOn(t step.Turn, p *plan.Plan) (over bool, err error) {
	c := j.c
	if j.seal.Began.IsZero() {
		if over, err = j.begin(t.Ctx, p); over || err != nil {
			return over, err
		}
	}
	for len(j.names) > 0 {
		if err := j.visitNamespace(t.Ctx, p, j.names[0]); err != nil {
			return false, err
		}
		j.cover(j.names[0])
		if j.names = j.names[1:]; len(j.names) == 0 {
			break
		}
		if err := j.saveIfDue(t.Ctx); err != nil {
			return false, err
		}
		if t.Over() {
			return false, nil
		}
	}
	if j.all {
		j.seal.Namespaces = []string{cursor.AllNamespaces}
	}
	j.seal.Done = c.Clock.Now().Truncate(time.Microsecond)
	if err := j.save(t.Ctx); err != nil {
		return false, err
	}
	return true, j.take(t.Ctx, j.joins)
}

// take lets the seal count in the view. The ranges that other jobs have met in its pass have records, which
// are read before: without them they would count as empty.
func (j *sealJob) take(ctx context.Context, byOthers bool) error {
	if byOthers && j.c.Cfg.Apply {
		if err := j.c.Viewer.ReadGeneration(ctx, j.chore.Generation); err != nil {
			return err
		}
	}
	j.c.Viewer.TakeSeal(j.seal)
	return nil
}

// begin begins a pass, or continues one. Over says that another process works on it, or has
// done it, or that it is not due.
func (j *sealJob) begin(ctx context.Context, p *plan.Plan) (over bool, err error) {
	c, number := j.c, j.chore.Generation
	stage := p.Stage(number)
	v := c.Viewer.View()
	i := slices.IndexFunc(v.Record.Generations, func(g generation.Generation) bool { return g.Number == number })
	if !stage.IsSealed() || i < 0 {
		return true, nil
	}
	now := c.Clock.Now()
	seal := v.Seals[number]
	if c.Cfg.Apply {
		if seal, err = c.Viewer.LoadSeal(ctx, number, view.OneTry); err != nil {
			return false, err
		}
	}
	isOfThis := seal.Is(number, v.Record.Generations[i].Opened, c.Target.Kind, c.Target.Property)
	fits := isOfThis && !seal.Began.Before(stage.Since)
	var sofar cursor.Seal
	if fits {
		sofar = seal
	}
	left, err := j.uncovered(ctx, p, sofar)
	switch {
	case err != nil:
		return false, err
	case fits && len(left) == 0:
		j.seal = seal
		return true, j.take(ctx, true)
	case fits && seal.Done.IsZero() && now.Sub(seal.Renewed).Abs() < sealStale:
		return true, nil
	case !fits:
		next := cursor.Seal{Target: c.Target.Name, Generation: number, Opened: v.Record.Generations[i].Opened,
			Kind: c.Target.Kind, Property: c.Target.Property, Began: now.UTC().Truncate(time.Microsecond),
			Revision: seal.Revision}
		if next.First = next.Began; isOfThis && !seal.First.IsZero() {
			next.First = seal.First
		}
		seal = next
	}
	seal.Done = time.Time{}
	j.seal, j.names, j.joins = seal, left, fits
	return false, j.save(ctx)
}

// uncovered lists the namespaces that a pass has yet to go over, in order. For a pass that
// begins, sofar is the zero Seal.
func (j *sealJob) uncovered(ctx context.Context, p *plan.Plan, sofar cursor.Seal) ([]string, error) {
	names := p.Swept()
	j.all = slices.Equal(names, []string{cursor.AllNamespaces})
	switch {
	case !j.all:
		return slices.DeleteFunc(names, func(ns string) bool { return sofar.Covers(ns, sofar.Began) }), nil
	case sofar.Covers(cursor.AllNamespaces, sofar.Began):
		return nil, nil
	}
	names, err := j.c.Viewer.ListNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	names = slices.Sorted(slices.Values(names))
	return slices.DeleteFunc(names, sofar.Passed), nil
}

// cover notes that a namespace was gone over.
func (j *sealJob) cover(ns string) {
	if j.all {
		j.seal = j.seal.Pass(ns)
	} else if i, found := slices.BinarySearch(j.seal.Namespaces, ns); !found {
		j.seal.Namespaces = slices.Insert(slices.Clone(j.seal.Namespaces), i, ns)
	}
}

// saveIfDue saves how far the pass has come, unless it did so recently.
func (j *sealJob) saveIfDue(ctx context.Context) error {
	if j.c.Cfg.Now().Sub(j.saved) < sealEvery {
		return nil
	}
	return j.save(ctx)
}

// save saves how far the pass has come.
func (j *sealJob) save(ctx context.Context) (err error) {
	c := j.c
	j.saved = c.Cfg.Now()
	if !c.Cfg.Apply {
		return nil
	}
	j.seal.Renewed = c.Clock.Now().UTC().Truncate(time.Microsecond)
	j.seal, err = cursor.SaveSeal(ctx, c.Keeper.Store, j.seal)
	return err
}

// visitNamespace gives a record to each range of a namespace that holds an entry and has none.
func (j *sealJob) visitNamespace(ctx context.Context, p *plan.Plan, ns string) error {
	c, number := j.c, j.chore.Generation
	var extra []int
	var ids []cursor.ID
	for from, ok := 0, true; ok; {
		shard, found, next, more, err := shardquery.NextShard(ctx, c.Cfg.Store, c.Target.Target, ns, number, from,
			view.ProbePatience)
		if err != nil {
			return err
		}
		if found {
			r := shardquery.Range{Namespace: ns, Generation: number, Shard: shard}
			isNew, err := j.recordRange(ctx, r)
			if err != nil {
				return err
			}
			if isNew {
				ids = append(ids, c.Rules.ID(r))
			}
			if shard >= p.ShardsOf(number) {
				extra = append(extra, shard)
			}
		}
		if err := j.saveIfDue(ctx); err != nil { // a namespace with thousands of shards may take long
			return err
		}
		from, ok = next, more
	}
	tellExtraShards(ctx, c, ns, number, p.ShardsOf(number), extra)
	for some := range slices.Chunk(ids, store.MaxRecords) {
		if err := c.Viewer.ReadSome(ctx, some, view.RecordPatience); err != nil {
			return err
		}
	}
	return nil
}

// recordRange gives a range a record, and reports whether it had none. It uses the view alone:
// only the scheduler may use the book's own cursors.
func (j *sealJob) recordRange(ctx context.Context, r shardquery.Range) (isNew bool, err error) {
	c, id := j.c, j.c.Rules.ID(r)
	v := c.Viewer.View()
	if _, known := v.Cursors.At(id); known {
		return false, nil
	}
	cur := cursor.Cursor{ID: id, Scope: c.Rules.Scope, TargetRevision: store.RevisionCount(v.Record.Revision),
		Seen: v.CursorsSent}
	cur.Opened = j.seal.Opened
	if !c.Cfg.Apply {
		c.Viewer.AddDryRunRange(cur)
		return false, nil
	}
	if j.seal.First.Before(j.seal.Began) { // this range was not empty then, so others without a record need not be
		j.seal.First = j.seal.Began
		if err := j.save(ctx); err != nil {
			return false, err
		}
	}
	_, _, err = c.Keeper.Move(ctx, cur, func(*cursor.Cursor) {}) // if it is not moved, somebody else has given it one
	return true, err
}
