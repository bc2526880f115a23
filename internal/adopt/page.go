package adopt

import (
	"context"
	"fmt"

	"github.com/reaper-ttl/reaper/store"
)

// A pager disposes of the entities of a page.
type pager struct {
	job     *job
	view    *targetView
	reading *reading
	tally   *tally
	writer  *writer
	judge   judge // its horizon is that of the begin, or of the pass over an index
}

// page decides about the entities of a page, and writes to those that the order is about.
func (g *pager) page(ctx context.Context, p *heldPart, namespace string, rows []store.Row) error {
	if g.job.applies() {
		if err := g.view.Fresh(ctx); err != nil {
			return err
		}
	}
	var todo []item
	j := g.judging()
	for _, row := range rows {
		one, err := g.item(j, namespace, row)
		if err != nil {
			return err
		}
		g.tally.add(one)
		switch {
		case g.wants(one):
			todo = append(todo, one)
		case one.outcome == Later:
			p.left++
		case one.outcome == Mismatch:
			p.mismatch++
		}
	}
	g.tally.want(len(todo))
	if !g.job.applies() {
		g.job.cfg.Progress.Scanned.Add(int64(len(rows)))
		return nil
	}
	g.job.cfg.Progress.Scanned.Add(int64(len(rows) - len(todo))) // the others once they were written to
	for try := 0; len(todo) > 0; try++ {
		if try == mostTries {
			for _, one := range todo {
				g.writer.wrote(p, one, Contended, "others kept changing it")
			}
			return nil
		}
		if try > 0 { // the services ask for at most a write a second of one entity
			if err := p.pause(ctx, jitter(ctx, firstWait<<try)); err != nil {
				return err
			}
		}
		changed, err := g.writer.write(ctx, p, todo)
		if err != nil {
			return err
		}
		if todo, err = g.again(p, namespace, changed); err != nil {
			return err
		}
	}
	return nil
}

// mostTries is how often an entity is written that others change at the same time.
const mostTries = 5

// judging returns the judge by the rounds as they are now: a process that goes on with a round after some
// time has the spread begin again, for all of them.
func (g *pager) judging() judge {
	j := g.judge
	if now, exists := g.view.adoption(); exists && g.job.applies() && now.isReading(g.reading.record) {
		j.rounds = now.Rounds
	}
	return j
}

func (g *pager) item(j judge, namespace string, row store.Row) (item, error) {
	id, err := g.job.keyer.ID(row.Key)
	if err != nil {
		return item{}, fmt.Errorf("entity %s of target %s: %w", row.Key, g.job.cfg.Target.Name, err)
	}
	return item{namespace: namespace, row: row, id: id, judgement: j.judge(row, id)}, nil
}

// wants reports whether the order is about an entity.
func (g *pager) wants(one item) bool {
	switch g.job.cfg.Order {
	case Stamp:
		return one.outcome == Unstamped
	case Undo:
		return !one.rule.IsZero() && !one.expires.IsZero() && one.row.Expiry.Type == store.Text &&
			g.judge.gave(one.id, one.rule, one.expires)
	}
	return false
}

// again decides about entities that changed while they were to be written.
func (g *pager) again(p *heldPart, namespace string, changed []store.Row) (todo []item, err error) {
	j := g.judging()
	for _, row := range changed {
		one, err := g.item(j, namespace, row)
		if err != nil {
			return nil, err
		}
		if g.wants(one) {
			todo = append(todo, one)
		} else {
			g.writer.wrote(p, one, Overtaken, "its writer changed it first")
		}
	}
	return todo, nil
}
