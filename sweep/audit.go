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
	"github.com/reaper-ttl/reaper/throttle"
)

// auditEvery is how often a round over retired ground begins.
const auditEvery = 24 * time.Hour

// auditBeyond is how long an audit goes on once all ranges are swept: about as long as
// it is to the next sweep, which begins where this one ends.
const auditBeyond = 5 * time.Minute

// auditShard stands in the place of a shard in the cursor record of the audit,
// which there is one of for each namespace, in generation 0.
const auditShard = "audit"

// Audit makes a full round over the retired and sealed ground of each target, and
// does nothing else: strays that are due are deleted, the others are moved to the
// nursery.
func Audit(ctx context.Context, c Config) Result {
	return run(ctx, c, (*pass).runAudit)
}

func (p *pass) runAudit(ctx, work context.Context) error {
	p.listRanges() // to know what is sealed: none of them is swept
	p.takeBearings(p.clock.Now())
	for _, ns := range p.namespaces {
		if err := p.audit(ctx, work, ns, true); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	}
	return nil
}

// auditDue goes on with the audit in each namespace where it is under way or due.
func (p *pass) auditDue(ctx, work context.Context) error {
	if p.target.Type != store.Text || len(p.record.Generations) == 0 {
		return nil
	}
	for _, ns := range p.namespaces {
		c := p.auditCursor(ns)
		if c.Rewind.Began.IsZero() && p.clock.Now().Before(c.Rewind.Done.Add(jitter(auditEvery, c.Key()))) {
			continue
		}
		if err := p.audit(ctx, work, ns, false); err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) auditCursor(ns string) cursor.Cursor {
	return p.cursorAt(cursor.ID{Target: p.target.Name, Namespace: ns, Generation: expirykey.Nursery, Shard: auditShard}, p.record.Created)
}

// audit goes over the ground of one namespace: from where the last sweep left it
// or, anew, from the beginning to the end. Only one worker at a time does.
func (p *pass) audit(ctx, work context.Context, ns string, anew bool) error {
	ground := p.auditGround(ns)
	cur := p.auditCursor(ns)
	if len(ground) == 0 {
		return nil
	}
	if p.Apply { // who was killed at it gives nothing back
		var err error
		if cur, err = p.await(ctx, func() cursor.Cursor { return p.auditCursor(ns) }); err != nil {
			return err
		}
	}
	now := p.clock.Now()
	r := shardquery.Range{Namespace: ns}
	w := &worker{pass: p, r: r, ctx: ctx, work: work, horizon: now.Add(-p.target.Retention), first: cur, key: cur.Key(),
		ahead: new(ahead), chunk: p.target.Page, size: p.pageSize(r, cur), auditing: true, fromStart: true}
	if p.Apply {
		claim, err := p.keeper.Claim(ctx, cur)
		if errors.Is(err, cursor.ErrTaken) && !anew {
			return nil
		}
		if err != nil {
			return err
		}
		w.take(claim)
	}
	err := w.goOver(ground, anew, now)
	if w.claim != nil {
		err = errors.Join(err, w.release())
	}
	return err
}

// goOver reads the ground and disposes of what is on it.
func (w *worker) goOver(ground []stretch, anew bool, now time.Time) error {
	w.carry = w.mover(ground)
	defer w.carry.close()
	at, began := w.first.Position, w.first.Rewind.Began
	if anew || began.IsZero() {
		at, began = store.Position{}, now.Truncate(time.Microsecond)
	}
	w.update(func(c *cursor.Cursor) { c.Position, c.Rewind.Began = at, began })
	for _, s := range ground {
		if at.Value.Text >= s.to {
			continue
		}
		reader := &shardquery.Stretch{Store: w.Store, Target: w.target.Target, Namespace: w.r.Namespace, From: s.from, To: s.to,
			Plain: w.floor(w.horizon), Page: w.size, Now: w.Now, Refused: w.refused}
		if at.Value.Text > s.from {
			reader.After = at
		}
		more, err := w.next(reader)
		if err != nil {
			return err
		}
		err = w.walk(reader, more, w.moves(func(c *cursor.Cursor) *store.Position { return &c.Position }))
		if err != nil {
			return err
		}
	}
	if w.stuck { // the next sweep goes on before what could not be settled
		w.incomplete.Add(1)
		return nil
	}
	w.update(func(c *cursor.Cursor) { c.Position, c.Rewind = store.Position{}, cursor.Rewind{Done: began} })
	return nil
}

// mover returns what carries strays from the ground to the nursery.
func (w *worker) mover(ground []stretch) *carrier {
	return &carrier{w: w, pacers: map[into]*throttle.Pacer{},
		leaves: func(number int) bool {
			return slices.ContainsFunc(ground, func(s stretch) bool { return s.first <= number && number <= s.last })
		},
		to: func(r generation.Record, _ string) generation.Stamper {
			return generation.Stamper{Shards: max(1, r.NurseryShards)}
		},
		part: func(expirykey.Key) float64 { return nurseryPart },
	}
}

// A stretch is ground on which nothing should be: [from, to) in the order of keys.
type stretch struct {
	from, to    string
	first, last int // generations
}

// auditGround lists, in the order of keys, the generations that have retired and,
// of those that are sealed, what lies before the first survivor.
func (p *pass) auditGround(ns string) (list []stretch) {
	next := generation.First
	for _, g := range p.record.Generations {
		list = appendRetired(list, next, g.Number-1)
		next = g.Number + 1
		if p.grounds[g.Number].sealed.IsZero() {
			continue
		}
		for _, r := range p.rangesOf(ns, g.Number) {
			c := p.cursor(r)
			if c.Rewind.Done.Before(p.grounds[g.Number].sealed) || c.Stock.Suspects || c.Stock == (cursor.Stock{}) {
				continue // its own reads see to it, or nobody has said yet where the survivors begin
			}
			from, to := expirykey.Range(g.Number, r.Shard)
			if !c.Stock.Next.IsZero() {
				to = r.At(c.Stock.Next).Value.Text
			}
			list = append(list, stretch{from, to, g.Number, g.Number})
		}
	}
	return list
}

// rangesOf lists the ranges of a generation, in the order of keys, with those that were
// found past its last shard.
func (p *pass) rangesOf(ns string, number int) (list []shardquery.Range) {
	for _, r := range p.all {
		if r.Namespace == ns && r.Generation == number {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b shardquery.Range) int { return a.Shard - b.Shard })
	return list
}

func appendRetired(list []stretch, first, last int) []stretch {
	if first > last {
		return list
	}
	from, _ := expirykey.GenerationRange(first)
	_, to := expirykey.GenerationRange(last)
	return append(list, stretch{from, to, first, last})
}
