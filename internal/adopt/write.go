package adopt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// An item is an entity that is to be written, and what was decided about it.
type item struct {
	row store.Row
	id  string
	judgement

	announced bool // its expiry, so that a repeated write does not announce it again
}

// page decides about the entities of a page, and writes to those that the order is about.
func (r *run) page(ctx context.Context, p *heldPart, namespace string, rows []store.Row) error {
	if r.applies() {
		if err := r.view.fresh(ctx); err != nil {
			return err
		}
	}
	var todo []item
	j := r.judging()
	for _, row := range rows {
		one, err := r.item(j, row)
		if err != nil {
			return err
		}
		r.tally.add(namespace, row, r.cfg.Rule, one.judgement, r.cfg.Target.Retention)
		switch {
		case r.wants(one):
			todo = append(todo, one)
		case one.outcome == Later:
			p.left++
		case one.outcome == Mismatch:
			p.mismatch++
		}
	}
	r.tally.want(len(todo))
	if !r.applies() {
		r.cfg.Progress.Scanned.Add(int64(len(rows)))
		return nil
	}
	r.cfg.Progress.Scanned.Add(int64(len(rows) - len(todo))) // the others once they were written to
	for try := 0; len(todo) > 0; try++ {
		if try == mostTries {
			for _, one := range todo {
				r.wrote(p, namespace, one, Contended, "others kept changing it")
			}
			return nil
		}
		if try > 0 { // the services ask for at most a write a second of one entity
			if err := p.pause(ctx, jitter(ctx, firstWait<<try)); err != nil {
				return err
			}
		}
		changed, err := r.write(ctx, p, namespace, todo)
		if err != nil {
			return err
		}
		if todo, err = r.again(p, namespace, changed); err != nil {
			return err
		}
	}
	return nil
}

// mostTries is how often an entity is written that others change at the same time.
const mostTries = 5

// judging returns the judge by the rounds as they are now: a process that goes on with a round after some
// time has the spread begin again, for all of them.
func (r *run) judging() judge {
	j := r.judge
	if now, exists := r.view.adoption(); exists && r.applies() && now.isReading(r.reading.record) {
		j.rounds = now.Rounds
	}
	return j
}

func (r *run) item(j judge, row store.Row) (item, error) {
	id, err := r.keyer.ID(row.Key)
	if err != nil {
		return item{}, fmt.Errorf("entity %s of target %s: %w", row.Key, r.cfg.Target.Name, err)
	}
	return item{row: row, id: id, judgement: j.judge(row, id)}, nil
}

// wants reports whether the order is about an entity.
func (r *run) wants(one item) bool {
	switch r.cfg.Order {
	case Stamp:
		return one.outcome == Unstamped
	case Undo:
		return !one.rule.IsZero() && !one.expires.IsZero() && one.row.Expiry.Type == store.Text &&
			r.judge.gave(one.id, one.rule, one.expires)
	}
	return false
}

// again decides about entities that changed while they were to be written.
func (r *run) again(p *heldPart, namespace string, changed []store.Row) (todo []item, err error) {
	j := r.judging()
	for _, row := range changed {
		one, err := r.item(j, row)
		if err != nil {
			return nil, err
		}
		if r.wants(one) {
			todo = append(todo, one)
		} else {
			r.wrote(p, namespace, one, Overtaken, "its writer changed it first")
		}
	}
	return todo, nil
}

// wrote counts what became of an entity.
func (r *run) wrote(p *heldPart, namespace string, one item, o Outcome, why string) {
	r.cfg.Progress.Scanned.Add(1)
	switch o {
	case "":
		p.stamped++
		r.cfg.Progress.Written.Add(1)
	case Contended, Refused:
		p.left++
	}
	r.tally.wrote(namespace, one.row, r.cfg.Rule, judgement{o, why, one.rule, one.expires}, r.cfg.Order == Undo)
	if r.cfg.Order == Undo && (o == Contended || o == Refused) {
		p.kept++
	}
}

// write writes to entities as the pace allows, and returns those that had changed.
func (r *run) write(ctx context.Context, p *heldPart, namespace string, todo []item) (changed []store.Row, err error) {
	for len(todo) > 0 {
		n, err := r.allowed(ctx, p, len(todo))
		if err != nil {
			return nil, err
		}
		rows, err := r.batch(ctx, p, namespace, todo[:n])
		if err != nil {
			return nil, err
		}
		changed, todo = append(changed, rows...), todo[n:]
	}
	return changed, nil
}

// allowed waits until there are tokens, and returns how many entities may be written, at
// most so many.
func (r *run) allowed(ctx context.Context, p *heldPart, most int) (int, error) {
	for {
		wait, err := r.share.wait(ctx)
		if err != nil {
			return 0, err
		}
		var n int
		if wait == 0 {
			n, wait, _ = r.pacer.Ready(min(most, store.MaxPage))
		}
		if wait == 0 {
			wait, _ = r.pacer.Take(n)
		}
		if pressed, ok := r.store.(store.Pressured); wait == 0 && ok && pressed.Pressed() {
			wait = firstWait
		}
		if wait == 0 {
			return n, nil
		}
		if err := p.pause(ctx, wait); err != nil {
			return 0, err
		}
	}
}

// check makes sure, as late as it can, that a write is still allowed: by the phase, pause
// and gate as they were a few seconds ago at most, and by the lease. It waits while the
// target is held, for at most one lease.
func (r *run) check(ctx context.Context, p *heldPart) error {
	for since := r.now(); ; {
		if err := r.view.fresh(ctx); err != nil {
			return err
		}
		rec, exists := r.view.adoption()
		if exists && r.reading.isFollowedBy(rec) {
			return errLost // to a worker that has read the part to its end
		}
		if err := r.reading.over(rec, exists); err != nil {
			return err
		}
		why := r.view.held()
		r.view.note(why)
		if why == "" {
			return p.keep(ctx)
		}
		if r.now().Sub(since) > r.cfg.Target.Lease {
			return fmt.Errorf("target %s: %w for longer than one lease: %s", r.cfg.Target.Name, errHeld, why)
		}
		if err := p.pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// batch writes to entities that have tokens, and returns those that had changed. If the
// store refuses a batch for what may be the fault of one entity, it is halved until that
// one is found.
func (r *run) batch(ctx context.Context, p *heldPart, namespace string, items []item) (changed []store.Row, err error) {
	began, wait := r.now(), firstWait
	for queue := [][]item{items}; len(queue) > 0; {
		part := queue[0]
		queue = queue[1:]
		if err := r.ready(ctx, p, part); err != nil {
			return nil, err
		}
		ops, err := r.restamp(ctx, namespace, part)
		var left []item
		for i, op := range ops {
			switch op.Outcome {
			case store.RowRestamped:
				r.wrote(p, namespace, part[i], "", "")
			case store.RowGone:
				r.wrote(p, namespace, part[i], Gone, "it was deleted meanwhile")
			case store.RowChanged:
				changed = append(changed, op.Now)
			default:
				left = append(left, part[i])
			}
		}
		r.log.DebugContext(ctx, "keys written", "target", r.cfg.Target.Name, "part", p.part,
			"entities", len(part)-len(left), "left", len(left))
		if err == nil || len(left) == 0 {
			continue
		}
		contended := errors.Is(err, store.ErrContention)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case store.Transient(err) && r.now().Sub(began) < patience:
			r.pacer.PushBack(throttle.ReasonPushBack)
			if err := p.pause(ctx, jitter(ctx, wait)); err != nil {
				return nil, err
			}
			wait = min(2*wait, longestWait)
			if contended || store.TookTooLong(err) {
				queue = append(queue, halves(left)...)
			} else {
				queue = append(queue, left)
			}
		case contended:
			for _, one := range left {
				r.wrote(p, namespace, one, Contended, err.Error())
			}
		case !store.MayBeOfOneEntity(err):
			return nil, err
		case len(left) > 1:
			queue = append(queue, halves(left)...)
		default:
			r.wrote(p, namespace, left[0], Refused, err.Error())
			r.log.WarnContext(ctx, "the store refuses an entity's key; it is kept without one",
				"target", r.cfg.Target.Name, "key", left[0].row.Key, "error", err)
		}
	}
	return changed, nil
}

func halves(items []item) [][]item {
	if len(items) < 2 {
		return [][]item{items}
	}
	return [][]item{items[:len(items)/2], items[len(items)/2:]}
}

// ready makes sure that a batch may be written, and announces it.
func (r *run) ready(ctx context.Context, p *heldPart, items []item) error {
	if err := r.check(ctx, p); err != nil {
		return err
	}
	if err := r.announce(ctx, items); err != nil {
		return err
	}
	return r.check(ctx, p) // an announcement may take long
}

// announce announces the expiries of a batch that were not announced before.
func (r *run) announce(ctx context.Context, items []item) error {
	if r.cfg.Announce == nil || r.cfg.Order == Undo {
		return nil
	}
	var expiries []time.Time
	for _, one := range items {
		if !one.announced {
			expiries = append(expiries, one.expires)
		}
	}
	if len(expiries) == 0 {
		return nil
	}
	if err := store.Retry(ctx, savePatience, func() error { return r.cfg.Announce(ctx, expiries) }); err != nil {
		return fmt.Errorf("announce %d expiries in target %s: %w", len(expiries), r.cfg.Target.Name, err)
	}
	for i := range items {
		items[i].announced = true
	}
	return nil
}

// writeTimeout bounds a batch from before its keys are made, also if the process stands
// still in between: a key must be written within the slack of its generation.
const writeTimeout = 30 * time.Second

// restamp makes the new values of a batch, and writes them. It returns all ops with any error:
// those without an outcome are left.
func (r *run) restamp(ctx context.Context, namespace string, items []item) ([]store.RestampOp, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	b := &store.Restamping{Query: r.query(namespace), Ops: make([]store.RestampOp, len(items))}
	for i, one := range items {
		b.Ops[i].Row = one.row
		if r.cfg.Order == Undo {
			continue // no value: the expiry is removed
		}
		key, err := r.view.stamper(one.id).Name(one.id, one.expires)
		if err != nil {
			return b.Ops, fmt.Errorf("stamp %s: %w", one.row.Key, err)
		}
		b.Ops[i].To = store.TextValue(key.String())
	}
	err := r.adopter.Restamp(ctx, b)
	return b.Ops, err
}
