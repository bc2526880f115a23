package schedule

import (
	"maps"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
)

// A planner makes the plans of one target, from the latest view of its records and from what
// was learned from steps since that was read.
type planner struct {
	c      *site.Site
	plan   *plan.Plan
	view   *plan.View // that the plan was made of; nil before the first
	dirty  bool       // something happened that the plan does not know
	memory memory
}

func newPlanner(c *site.Site) planner {
	return planner{c: c, memory: memory{
		Book:  plan.Book{Own: map[cursor.ID]cursor.Packed{}, Tried: map[plan.Chore]time.Time{}},
		ownAt: map[cursor.ID]time.Time{}, notBefore: map[plan.Chore]time.Time{}}}
}

// renew makes a new plan, and returns the one before; nil if it is the first.
func (p *planner) renew() (last *plan.Plan) {
	p.dirty = false
	if last = p.plan; last == nil {
		p.plan = plan.New(p.c.Rules, p.view, p.memory.Book, p.c.Clock.Now())
	} else {
		p.plan = last.Next(p.view, p.memory.changed, p.c.Clock.Now())
	}
	p.memory.changed = p.memory.changed[:0]
	return last
}

// wanted lists the ranges that need a read, and those that have an item.
func (p *planner) wanted(items map[shardquery.Range]*item) (list []shardquery.Range) {
	for r := range p.plan.All() {
		if items[r] != nil || p.plan.Range(r).Read {
			list = append(list, r)
		}
	}
	return list
}

// reached returns up to which instant nothing is left in a range of which an inventory was
// made; zero if none was.
func (p *planner) reached(r shardquery.Range, need plan.Need) time.Time {
	next := p.plan.Cursor(r).Stock.Next
	if !need.Inventory || need.FromStart() || next.IsZero() {
		return time.Time{}
	}
	return next.Add(-r.Resolution())
}

// rangeTodo returns what the plan says of a range now. As many ranges are in work as working says.
func (p *planner) rangeTodo(r shardquery.Range, working int) step.Todo {
	if !p.plan.Has(r) { // it waited while its generation retired
		return step.Todo{Cursor: p.plan.Cursor(r), Plan: p.plan}
	}
	return step.Todo{Need: p.plan.Range(r), Cursor: p.plan.Cursor(r), Plan: p.plan, Wanted: working}
}

// choreTodo returns what the plan says of a chore now. Chores that read ranges from their
// cursors on get a copy of the own cursors, because these continue to change.
func (p *planner) choreTodo(c plan.Chore, isClaimed bool) step.Todo {
	if c.Kind == plan.Audit && !isClaimed {
		return step.Todo{Cursor: p.plan.AuditCursor(c.Namespace), Spans: p.plan.AuditSpans(c.Namespace), Plan: p.plan}
	}
	v := step.ChoreView{View: p.view, Now: p.plan.Now()}
	if onlyCounts(c.Kind) {
		v.Book.Own = maps.Clone(p.memory.Own)
	}
	return step.Todo{Plan: p.plan, Chore: v}
}

// onlyCounts reports whether a chore is for a count that may take long. It takes no worker.
func onlyCounts(k plan.Kind) bool {
	return slices.Contains([]plan.Kind{plan.Look, chore.Estimate, chore.BehindKind}, k)
}

// choreAgain is how soon a chore that failed is tried again.
const choreAgain = 30 * time.Second

// A memory is what was learned from steps since the view was read.
type memory struct {
	plan.Book
	changed   []cursor.ID              // the own cursors that the plan does not know
	ownAt     map[cursor.ID]time.Time  // when each of them was written
	notBefore map[plan.Chore]time.Time // when a chore that failed is tried again
	rewound   time.Time                // when the latest read of a range from its start began that has ended
}

// noteOwn keeps a cursor as this process has written it, if it did.
func (m *memory) noteOwn(c cursor.Cursor, now time.Time) {
	if c.Revision != "" {
		m.Own[c.ID], m.ownAt[c.ID] = cursor.Pack(c), now
		m.changed = append(m.changed, c.ID)
		if c.Rewind.Done.After(m.rewound) {
			m.rewound = c.Rewind.Done
		}
	}
}

// forgetOwn forgets the own cursors that were written before those of a view were read.
func (m *memory) forgetOwn(old, v *plan.View) {
	if old != nil {
		if read, ok := v.Cursors.Since(old.Cursors); ok {
			for _, id := range read {
				m.forgetIfRead(v, id)
			}
			return
		}
	}
	for id := range m.ownAt {
		m.forgetIfRead(v, id)
	}
}

func (m *memory) forgetIfRead(v *plan.View, id cursor.ID) {
	at, own := m.ownAt[id]
	if own && v.CursorSent(id).After(at) { // even if the record is gone
		m.dropOwn(id)
		m.changed = append(m.changed, id)
	}
}

func (m *memory) dropOwn(id cursor.ID) {
	delete(m.Own, id)
	delete(m.ownAt, id)
}

// mayTry reports whether a chore may begin: it has not just failed.
func (m *memory) mayTry(c plan.Chore, now time.Time) bool { return !now.Before(m.notBefore[c]) }
