package guard

import (
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// queryTries is how often a contended batch is tried by query before it is tried by
	// lookup.
	queryTries = 2
	// If the checks by query of a range fail for contendedPages pages within patientWithQuery,
	// the range uses lookup for lookupFor: writers are busy in the same part of the index, and
	// each failed try costs more than lookups do.
	patientWithQuery = time.Minute
	lookupFor        = time.Hour
	contendedPages   = 3
)

// Guards choose how the deletes of one target are made conditional, batch by batch. The
// store checks in either way: a wrong choice costs only reads or time.
type Guards struct {
	store  store.Guarder // nil if the store has one way of its own
	target store.Target
	log    *journal.Journal
	now    func() time.Time

	mu     sync.Mutex
	logged store.Guarding         // as the log has it
	ranges map[string]*contention // by the keys of their cursors; other ranges had none recently
}

// A contention is how the checks by query of one range have failed recently.
type contention struct {
	tries    int         // of the present batch, all of them contended
	from, to store.Value // bounds of the last batch that changed to lookup; its parts use lookup, too
	pages    []time.Time // when the last such batches failed, one for each page
	until    time.Time   // all batches use lookup until then
}

// New returns guards that have seen no contention yet.
func New(s store.Store, t store.Target, log *journal.Journal, now func() time.Time) *Guards {
	guarder, _ := s.(store.Guarder)
	return &Guards{store: guarder, target: t, log: log, now: now, ranges: map[string]*contention{}}
}

// guarding returns how deletes are made conditional without contention.
func (g *Guards) guarding() store.Guarding {
	if g.store == nil {
		return store.Guarding{Guard: g.target.Guard, Most: store.MaxPage}
	}
	return g.store.Guard(g.target)
}

// Most returns how many entities a batch may have.
func (g *Guards) Most() int { return g.guarding().Most }

// Next returns the guard of the next batch of a range.
func (g *Guards) Next(key string, batch []store.Op) store.Guard {
	g.LogChanges()
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.ranges[key]; r != nil && (r.holds(batch[0].Entry.Value) || g.now().Before(r.until)) {
		return store.GuardLookup
	}
	return g.target.Guard
}

// holds reports whether a value belongs to the last batch that changed to lookup.
func (c *contention) holds(v store.Value) bool {
	return v.Compare(c.from) >= 0 && v.Compare(c.to) <= 0 && c.to.Type != store.Missing
}

// isQuery reports whether a batch with this guard is checked by query.
func (g *Guards) isQuery(guard store.Guard) bool {
	return guard != store.GuardLookup && g.guarding().Guard == store.GuardQuery
}

// Retries notes that a batch was contended, and reports whether to try the same batch
// once more. If not, its parts are tried by lookup.
func (g *Guards) Retries(key string, by store.Guard, batch []store.Op) bool {
	if batch[0].IsCarry() || !g.isQuery(by) { // carries use lookup anyway
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.ranges[key]
	if r == nil {
		r = new(contention)
		g.ranges[key] = r
	}
	if r.tries++; r.tries < queryTries {
		return true
	}
	r.tries, r.from, r.to = 0, batch[0].Entry.Value, batch[len(batch)-1].Entry.Value
	if now := g.now(); r.givesUp(now) {
		g.log.WarnFew("checks by query are contended: the range uses lookup", "range", key,
			"for_seconds", lookupFor.Seconds())
	}
	return false
}

// givesUp notes that a page changed to lookup, and reports whether all pages of the range
// do so from now on.
func (c *contention) givesUp(now time.Time) bool {
	c.pages = append(c.pages, now)
	if len(c.pages) < contendedPages {
		return false
	}
	c.pages = c.pages[len(c.pages)-contendedPages:]
	if now.Sub(c.pages[0]) > patientWithQuery {
		return false
	}
	c.pages, c.until = nil, now.Add(lookupFor)
	return true
}

// WentWell notes that a batch was not contended.
func (g *Guards) WentWell(key string, by store.Guard) {
	if !g.isQuery(by) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.ranges[key]
	if r == nil {
		return
	}
	r.tries = 0
	if n := len(r.pages); n == 0 || g.now().Sub(r.pages[n-1]) > patientWithQuery {
		delete(g.ranges, key) // its batches are checked by query again
	}
}

// Forget forgets a range that no longer exists.
func (g *Guards) Forget(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.ranges, key)
}

// LogChanges logs how deletes are made conditional and what that costs, once and whenever it
// changes.
func (g *Guards) LogChanges() {
	if g.store == nil {
		return
	}
	now := g.guarding()
	g.mu.Lock()
	was := g.logged
	g.logged = now
	g.mu.Unlock()
	switch {
	case now == was:
	case now.Guard == store.GuardQuery:
		g.log.Info("deletes are checked by query: one read for a page")
	default:
		attrs := []any{"why", now.Why, "entities_per_transaction", now.Most}
		if g.target.Type == store.Text && !g.target.SingleValued {
			attrs = append(attrs, "hint",
				"if "+g.target.Property+" always holds one plain text, never a list, blob or map, "+
					"single_valued: true saves the reads")
		}
		g.log.Info("deletes are checked by lookup: a read for each, at three times a delete's price", attrs...)
	}
}
