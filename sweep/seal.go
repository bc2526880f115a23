package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
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
	c     *collector
	chore plan.Chore
	seal  cursor.Seal // the seal's present state, saved or not; zero before the pass was begun
	all   bool        // the pass is over all namespaces that the store lists
	names []string    // the namespaces that are left
	saved time.Time   // when the seal was saved last, on this process's clock
}

// end implements job. The next pass repeats what was not saved.
func (j *sealJob) end(out outcome) outcome { return out }

func (j *sealJob) step(t turn, todo todo) outcome {
	err := j.c.clock.check() // by a wrong clock a pass would seem to have begun too early
	over := false
	if err == nil {
		over, err = j.goOn(t, todo.plan)
	}
	switch {
	case t.ctx.Err() != nil:
		return outcome{state: stopped}
	case errors.Is(err, store.ErrConflict):
		return outcome{state: ended} // another process makes the pass, or the target has a new record
	case err != nil:
		return outcome{state: failed, err: fmt.Errorf("go over generation %08d: %w", j.chore.Generation, err)}
	case over:
		return outcome{state: ended}
	}
	return outcome{state: ready, nextLane: nextLane{slow: true}}
}

// goOn goes over namespaces until its turn is over. It reports whether the pass is over.
func (j *sealJob) goOn(t turn, p *plan.Plan) (over bool, err error) {
	c := j.c
	if j.seal.Began.IsZero() {
		if over, err = j.begin(t.ctx, p); over || err != nil {
			return over, err
		}
	}
	for len(j.names) > 0 {
		if err := j.visitNamespace(t.ctx, p, j.names[0]); err != nil {
			return false, err
		}
		j.cover(j.names[0])
		if j.names = j.names[1:]; len(j.names) == 0 {
			break
		}
		if err := j.saveIfDue(t.ctx); err != nil {
			return false, err
		}
		if t.over() {
			return false, nil
		}
	}
	if j.all {
		j.seal.Namespaces = []string{cursor.AllNamespaces}
	}
	j.seal.Done = c.clock.Now().Truncate(time.Microsecond)
	if err := j.save(t.ctx); err != nil {
		return false, err
	}
	c.viewer.takeSeal(j.seal)
	return true, nil
}

// begin begins a pass, or continues one. Over says that another process works on it, or has
// done it, or that it is not due.
func (j *sealJob) begin(ctx context.Context, p *plan.Plan) (over bool, err error) {
	c, number := j.c, j.chore.Generation
	stage := p.Stage(number)
	v := c.viewer.View()
	i := slices.IndexFunc(v.Record.Generations, func(g generation.Generation) bool { return g.Number == number })
	if !stage.IsSealed() || i < 0 {
		return true, nil
	}
	now := c.clock.Now()
	seal := v.Seals[number]
	if c.cfg.Apply {
		if seal, err = cursor.LoadSeal(ctx, recordReader{c.viewer, oneTry}, c.target.Name, number); err != nil {
			return false, err
		}
	}
	isOfThis := seal.Is(number, v.Record.Generations[i].Opened, c.target.Kind, c.target.Property)
	fits := isOfThis && !seal.Began.Before(stage.Since)
	var sofar cursor.Seal
	if fits {
		sofar = seal
	}
	left, err := j.uncovered(ctx, p, sofar)
	switch {
	case err != nil:
		return false, err
	case fits && len(left) == 0: // the ranges that the pass has met have records: read those before its seal counts
		if c.cfg.Apply {
			if err := c.viewer.readGeneration(ctx, number); err != nil {
				return false, err
			}
		}
		c.viewer.takeSeal(seal)
		return true, nil
	case fits && seal.Done.IsZero() && now.Sub(seal.Renewed).Abs() < sealStale:
		return true, nil
	case !fits:
		next := cursor.Seal{Target: c.target.Name, Generation: number, Opened: v.Record.Generations[i].Opened,
			Kind: c.target.Kind, Property: c.target.Property, Began: now.UTC().Truncate(time.Microsecond),
			Revision: seal.Revision}
		if next.First = next.Began; isOfThis && !seal.First.IsZero() {
			next.First = seal.First
		}
		seal = next
	}
	seal.Done = time.Time{}
	j.seal, j.names = seal, left
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
	names, err := j.c.viewer.listNamespaces(ctx)
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
	if j.c.cfg.Now().Sub(j.saved) < sealEvery {
		return nil
	}
	return j.save(ctx)
}

// save saves how far the pass has come.
func (j *sealJob) save(ctx context.Context) (err error) {
	c := j.c
	j.saved = c.cfg.Now()
	if !c.cfg.Apply {
		return nil
	}
	j.seal.Renewed = c.clock.Now().UTC().Truncate(time.Microsecond)
	j.seal, err = cursor.SaveSeal(ctx, c.keeper.Store, j.seal)
	return err
}

// visitNamespace gives a record to each range of a namespace that holds an entry and has none.
func (j *sealJob) visitNamespace(ctx context.Context, p *plan.Plan, ns string) error {
	c, number := j.c, j.chore.Generation
	var extra []int
	var ids []cursor.ID
	for from, ok := 0, true; ok; {
		shard, found, next, more, err := shardquery.NextShard(ctx, c.cfg.Store, c.target.Target, ns, number, from,
			probePatience)
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
				ids = append(ids, c.rules.ID(r))
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
	c.tellExtraShards(ctx, ns, number, p.ShardsOf(number), extra)
	for some := range slices.Chunk(ids, store.MaxRecords) {
		if err := c.viewer.readSome(ctx, some, recordPatience); err != nil {
			return err
		}
	}
	return nil
}

// recordRange gives a range a record, and reports whether it had none. It uses the view alone:
// only the scheduler may use the book's own cursors.
func (j *sealJob) recordRange(ctx context.Context, r shardquery.Range) (isNew bool, err error) {
	c, id := j.c, j.c.rules.ID(r)
	v := c.viewer.View()
	if _, known := v.Cursors.At(id); known {
		return false, nil
	}
	cur := cursor.Cursor{ID: id, Scope: c.rules.Scope, TargetRevision: store.RevisionCount(v.Record.Revision),
		Seen: v.CursorsSent}
	cur.Opened = j.seal.Opened
	if !c.cfg.Apply {
		c.viewer.addDryRunRange(cur)
		return false, nil
	}
	_, _, err = c.keeper.Move(ctx, cur, func(*cursor.Cursor) {}) // if it is not moved, somebody else has given it one
	return true, err
}

// newerSeals returns the seals that were read, but the known one wherever it is newer.
func newerSeals(known, read map[int]cursor.Seal) map[int]cursor.Seal {
	all := maps.Clone(read)
	for number, seal := range known {
		if is, ok := read[number]; ok && store.RevisionCount(seal.Revision) > store.RevisionCount(is.Revision) {
			all[number] = seal
		}
	}
	return all
}

// takeSeal puts the seal of a generation into the view, and dropSeal takes it out.
func (v *viewer) takeSeal(seal cursor.Seal) {
	v.changeSeals(func(all map[int]cursor.Seal) { all[seal.Generation] = seal })
}

func (v *viewer) dropSeal(number int) {
	v.changeSeals(func(all map[int]cursor.Seal) { delete(all, number) })
}

func (v *viewer) changeSeals(change func(map[int]cursor.Seal)) {
	v.publish(func(next *plan.View) {
		all := maps.Clone(next.Seals)
		if all == nil {
			all = map[int]cursor.Seal{}
		}
		change(all)
		next.Seals = all
	})
}
