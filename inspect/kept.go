package inspect

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A Kept is a reason why sweeps keep an entity that has an expiry.
type Kept string

// The reasons.
const (
	KeptMalformed Kept = "malformed" // in a range, and its property is not an expiry
	KeptSuspect   Kept = "suspect"   // it expired implausibly long ago
	KeptOutside   Kept = "outside"   // it carries the property, and lies in no range
	KeptRefused   Kept = "refused"   // due and behind the cursor: refused by the store, or written late
)

// KeptReasons lists the reasons.
func KeptReasons() []Kept { return []Kept{KeptMalformed, KeptSuspect, KeptOutside, KeptRefused} }

// A KeptList names entities of a target that sweeps keep, in the form that `reaper list
// --json` prints.
type KeptList struct {
	Name     string       `json:"name"`
	Kept     Kept         `json:"kept"`
	Entities []KeptEntity `json:"entities"`
	More     bool         `json:"more"`     // there may be more
	MoreWhy  string       `json:"more_why"` // why the list ends before them; empty without More
	Examined int64        `json:"examined"` // index entries and entities that were examined
	Reads    int64        `json:"reads"`    // billed for this list
}

// A KeptEntity is one entity that sweeps keep.
type KeptEntity struct {
	Namespace string `json:"namespace"`
	ID        string `json:"id"`    // the name, or the digits of the number
	Key       string `json:"key"`   // in the store's canonical text
	Value     string `json:"value"` // the property as it is stored
	Type      string `json:"type"`  // of the value: text, timestamp, number, boolean, list, map or other
	Range     string `json:"range"` // the name of its range, or "outside"
	Why       string `json:"why"`   // for people
}

// The bounds of one list. A query for index entries is one read in Datastore mode, and a
// read for each entry in native mode.
const (
	mostExamined = 100_000
	mostHidden   = 1_000  // entities that are read though their index entry looks well-formed
	mostDumped   = 10_000 // entities that are read one by one, if no query can find them
	// countWithin and dumpWithin bound the COUNTs of what lies outside all ranges, and how
	// long entities are read one by one.
	countWithin = 20 * time.Second
	dumpWithin  = 30 * time.Second
)

// ListKept names entities that sweeps keep for a reason. It writes nothing. It reads the
// index in pages, each query with a deadline, and reads each entity that it names. It stops
// at the limit, or once it has examined a hundred thousand entries.
func ListKept(ctx context.Context, cfg sweep.Config, t sweep.Target, kept Kept, limit int) (KeptList, error) {
	return listKept(ctx, cfg, t, kept, limit, false)
}

// OutsideExamples is ListKept of what lies outside all ranges, as far as queries of the
// index find it: it reads no entities one by one, which costs up to ten thousand reads.
func OutsideExamples(ctx context.Context, cfg sweep.Config, t sweep.Target, limit int) (KeptList, error) {
	return listKept(ctx, cfg, t, KeptOutside, limit, true)
}

func listKept(
	ctx context.Context, cfg sweep.Config, t sweep.Target, kept Kept, limit int, indexOnly bool,
) (KeptList, error) {
	var meter store.Meter
	ctx = store.WithMeter(ctx, &meter)
	list := KeptList{Name: t.Name, Kept: kept, Entities: []KeptEntity{}}
	keyer, ok := cfg.Store.(store.Keyer)
	if !ok {
		return list, errNoKeys
	}
	s, err := sweep.TakeSnapshot(ctx, cfg, t)
	if err != nil {
		return list, err
	}
	l := &lister{Snapshot: s, store: cfg.Store, keyer: keyer, kept: kept, limit: limit, now: cfg.Now,
		seen: map[[2]string]bool{}}
	parts := l.parts()
	if err := l.run(ctx, max(1, cfg.Workers), parts); err != nil {
		return list, err
	}
	if kept == KeptOutside && !indexOnly {
		rest := &part{}
		if err := l.readRest(ctx, rest, parts); err != nil {
			return list, err
		}
		parts = append(parts, rest)
	}
	for _, p := range parts {
		list.Entities = append(list.Entities, p.found...)
	}
	if l.stopped == "" && l.hidden > mostHidden {
		l.stopped = fmt.Sprintf("of the entities due behind the cursors only %d were read", mostHidden)
	}
	list.MoreWhy, list.Examined, list.Reads = l.stopped, l.examined, meter.Operations().Reads
	list.More = list.MoreWhy != ""
	return list, nil
}

// A lister looks for entities that are kept for one reason.
type lister struct {
	*sweep.Snapshot
	store store.Store
	keyer store.Keyer
	kept  Kept
	limit int
	now   func() time.Time

	mu       sync.Mutex
	taken    int // entities in the list
	examined int64
	hidden   int                // see mostHidden
	seen     map[[2]string]bool // the entities in the list, by namespace and key
	stopped  string             // why the list ends before everything was examined
}

// A part is a piece of one namespace's index that is read page by page.
type part struct {
	namespace string
	name      string // of its range, or outside
	pages     pager
	// isWanted reports whether the entity of an index entry may belong to the list. The
	// entity is then read to decide.
	isWanted func(store.Entry) bool
	// isRefused says that the range's record marks it as one with refused entities.
	isRefused bool
	found     []KeptEntity
}

// outsideName is the range name of an entity that lies in no range.
const outsideName = "outside"

// A pager reads index entries page by page.
type pager interface {
	Next(ctx context.Context, page *store.Page, most int) (more bool, err error)
}

// run reads the parts, at most atOnce at a time, until all are read or the lister must stop.
func (l *lister) run(ctx context.Context, atOnce int, parts []*part) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, p := range parts {
		background.Go(group, func() error { return l.read(ctx, p) })
	}
	return group.Wait()
}

// read reads one part.
func (l *lister) read(ctx context.Context, p *part) error {
	var page store.Page
	for more := true; more; {
		if l.isOver() {
			return nil
		}
		err := shardquery.Patiently(ctx, patience, func() (err error) {
			more, err = p.pages.Next(ctx, &page, l.pageSize())
			return err
		})
		if err != nil {
			return err
		}
		l.examine(len(page.Entries))
		for _, e := range page.Entries {
			if !p.isWanted(e) {
				continue
			}
			if l.isOver() {
				return nil
			}
			if err := l.take(ctx, p, e.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

// pageSize returns how many entries a query asks for. Malformed entries are few among
// others, so there it is a full page; elsewhere nearly every entry belongs to the list.
func (l *lister) pageSize() int {
	const least = 20
	if l.kept == KeptMalformed {
		return store.MaxPage
	}
	return min(store.MaxPage, max(least, l.limit))
}

// isOver reports whether the lister must stop before it has examined everything.
func (l *lister) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stopped != "":
	case l.taken >= l.limit:
		l.stopAtLimit()
	case l.examined >= mostExamined:
		l.stopped = fmt.Sprintf("stopped after %d index entries", l.examined)
	}
	return l.stopped != ""
}

// stopAtLimit notes that the list has reached its limit. The caller holds mu.
func (l *lister) stopAtLimit() { l.stopped = fmt.Sprintf("the list ends at its limit of %d", l.limit) }

func (l *lister) examine(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.examined += int64(n)
}

// take reads an entity, and adds it to the list if it is kept for the reason.
func (l *lister) take(ctx context.Context, p *part, key string) error {
	id := [2]string{p.namespace, key}
	l.mu.Lock()
	seen := l.seen[id]
	l.mu.Unlock()
	if seen {
		return nil
	}
	e := explainer{l.Snapshot, l.store}
	v, found, err := e.read(ctx, p.namespace, key)
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	why := l.why(p, v)
	if !found || why == "" {
		return nil
	}
	return l.add(p, key, v, why)
}

// add adds an entity to what a part found.
func (l *lister) add(p *part, key string, v store.Value, why string) error {
	name, err := l.keyer.ID(key)
	if err != nil {
		return err
	}
	id := [2]string{p.namespace, key}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.seen[id]:
		return nil
	case l.taken >= l.limit: // another part was faster
		l.stopAtLimit()
		return nil
	}
	l.seen[id] = true
	l.taken++
	p.found = append(p.found, KeptEntity{Namespace: p.namespace, ID: name, Key: key, Value: valueText(v),
		Type: typeName(v), Range: p.name, Why: why})
	return nil
}

// why says why an entity with this value is kept; it is empty if that is not the lister's
// reason.
func (l *lister) why(p *part, v store.Value) string {
	j := l.Judge(v)
	switch {
	case j == sweep.Never:
		return ""
	case l.kept == KeptOutside:
		return l.whyOutside(p.namespace, v)
	case l.kept == KeptMalformed && j == sweep.Malformed:
		return malformedText(l.Target, v)
	case l.kept == KeptSuspect && j == sweep.Suspect:
		return suspectText(l.Target)
	case l.kept == KeptRefused && j == sweep.Due:
		return whyRefused(p)
	}
	return ""
}

func malformedText(t sweep.Target, v store.Value) string {
	return fmt.Sprintf("its %s is %s: it is kept until somebody corrects it", t.Property, t.Layout.Form().NotOne(v))
}

func suspectText(t sweep.Target) string {
	return fmt.Sprintf("it expired longer than max_age (%v) before the horizon, which is implausible: "+
		"it is kept until somebody corrects it, or raises max_age", durationText(t.MaxAge))
}

// typeName names the type of a value.
func typeName(v store.Value) string {
	switch v.Type {
	case store.Text:
		return "text"
	case store.Instant:
		return "timestamp"
	case store.List:
		return "list"
	case store.Missing, store.Other:
	}
	switch {
	case v.Text == "true" || v.Text == "false":
		return "boolean"
	case strings.HasPrefix(v.Text, "{"):
		return "map"
	case v.Text != "" && strings.ContainsRune("-0123456789", rune(v.Text[0])):
		return "number"
	}
	return "other"
}
