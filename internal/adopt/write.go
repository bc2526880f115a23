package adopt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A writer writes keys, or removes them.
type writer struct {
	job    *job
	view   *targetView
	tally  *tally
	permit *permit
}

// wrote counts what became of an entity.
func (w *writer) wrote(p *heldPart, one item, o Outcome, why string) {
	w.job.cfg.Progress.Scanned.Add(1)
	switch o {
	case "":
		p.stamped++
		w.job.cfg.Progress.Written.Add(1)
	case Contended, Refused:
		p.left++
		if w.job.cfg.Order == Undo {
			p.kept++
		}
	}
	one.outcome, one.why = o, why
	w.tally.wrote(one)
}

// write writes to entities as the pace allows, and returns those that had changed.
func (w *writer) write(ctx context.Context, p *heldPart, todo []item) (changed []store.Row, err error) {
	for len(todo) > 0 {
		n, err := w.permit.allowed(ctx, p, len(todo))
		if err != nil {
			return nil, err
		}
		rows, err := w.batch(ctx, p, todo[:n])
		if err != nil {
			return nil, err
		}
		changed, todo = append(changed, rows...), todo[n:]
	}
	return changed, nil
}

// batch writes to entities that have tokens, and returns those that had changed. If the
// store refuses a batch for what may be the fault of one entity, it is halved until that
// one is found.
func (w *writer) batch(ctx context.Context, p *heldPart, items []item) (changed []store.Row, err error) {
	began, wait := w.job.now(), firstWait
	for queue := [][]item{items}; len(queue) > 0; {
		part := queue[0]
		queue = queue[1:]
		if err := w.ready(ctx, p, part); err != nil {
			return nil, err
		}
		ops, err := w.restamp(ctx, part)
		var left []item
		for i, op := range ops {
			switch op.Outcome {
			case store.RowRestamped:
				w.wrote(p, part[i], "", "")
			case store.RowGone:
				w.wrote(p, part[i], Gone, "it was deleted meanwhile")
			case store.RowChanged:
				changed = append(changed, op.Now)
			default:
				left = append(left, part[i])
			}
		}
		w.job.log.DebugContext(ctx, "keys written", "target", w.job.cfg.Target.Name, "part", p.part,
			"entities", len(part)-len(left), "left", len(left))
		if err == nil || len(left) == 0 {
			continue
		}
		contended := errors.Is(err, store.ErrContention)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case store.Transient(err) && w.job.now().Sub(began) < patience:
			w.permit.share.pacer.PushBack(throttle.ReasonPushBack)
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
				w.wrote(p, one, Contended, err.Error())
			}
		case !store.MayBeOfOneEntity(err):
			return nil, err
		case len(left) > 1:
			queue = append(queue, halves(left)...)
		default:
			w.wrote(p, left[0], Refused, err.Error())
			w.job.log.WarnContext(ctx, "the store refuses an entity's key; it is kept without one",
				"target", w.job.cfg.Target.Name, "key", left[0].row.Key, "error", err)
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
func (w *writer) ready(ctx context.Context, p *heldPart, items []item) error {
	if err := w.permit.check(ctx, p); err != nil {
		return err
	}
	if err := w.announce(ctx, items); err != nil {
		return err
	}
	return w.permit.check(ctx, p) // an announcement may take long
}

// announce announces the expiries of a batch that were not announced before.
func (w *writer) announce(ctx context.Context, items []item) error {
	if w.job.cfg.Announce == nil || w.job.cfg.Order == Undo {
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
	if err := store.Retry(ctx, savePatience, func() error { return w.job.cfg.Announce(ctx, expiries) }); err != nil {
		return fmt.Errorf("announce %d expiries in target %s: %w", len(expiries), w.job.cfg.Target.Name, err)
	}
	for i := range items {
		items[i].announced = true
	}
	return nil
}

// writeTimeout bounds a batch from before its keys are made, also if the process stands
// still in between: a key must be written within the slack of its generation. With
// [switches.ReadEvery] it bounds it from the look that has shown no undo.
const writeTimeout = 30 * time.Second

// restamp makes the new values of a batch, and writes them. It returns all ops with any error:
// those without an outcome are left.
func (w *writer) restamp(ctx context.Context, items []item) ([]store.RestampOp, error) {
	ctx, cancel := context.WithTimeout(ctx, min(writeTimeout, switches.ReadEvery+writeTimeout-w.view.Age()))
	defer cancel()
	b := &store.Restamping{Query: w.job.query(items[0].namespace), Ops: make([]store.RestampOp, len(items))}
	for i, one := range items {
		b.Ops[i].Row = one.row
		if w.job.cfg.Order == Undo {
			continue // no value: the expiry is removed
		}
		key, err := w.view.StamperFor(one.id).Name(one.id, one.expires)
		if err != nil {
			return b.Ops, fmt.Errorf("stamp %s: %w", one.row.Key, err)
		}
		b.Ops[i].To = store.TextValue(key.String())
	}
	err := w.job.adopter.Restamp(ctx, b)
	return b.Ops, err
}
