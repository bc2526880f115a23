package orphans

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// mostSamples is how many orphans a result names.
const mostSamples = 3

// mostKinds is how many kinds a result tells apart; an application has few.
const mostKinds = 100

// ages are the bounds up to which a result counts how old orphans are; the last one has none.
var ages = []struct {
	name string
	most time.Duration
}{{"24h", day}, {"7d", 7 * day}, {"30d", 30 * day}, {"365d", 365 * day}, {"", 0}}

const day = 24 * time.Hour

// A Kind is how many entities of one kind were found below entities that do not exist.
type Kind struct {
	Kind    string `json:"kind"` // or the id of a collection; empty for the rest, if there are too many
	Orphans int64  `json:"orphans"`
	Owned   int64  `json:"owned"`
}

// Written is when orphans were last written.
type Written struct {
	Oldest    time.Time `json:"oldest"`
	Newest    time.Time `json:"newest"`
	Histogram []Bar     `json:"histogram"`
}

// A Bar is how many orphans are of an age.
type Bar struct {
	Within  string `json:"within"` // and not within the one before; empty for all the rest
	Orphans int64  `json:"orphans"`
}

// A Sample is one orphan.
type Sample struct {
	Namespace string     `json:"namespace"`
	Key       string     `json:"key"`
	Below     string     `json:"below"`   // the entity that does not exist
	Written   *time.Time `json:"written"` // nil if the store does not tell
}

// A tally adds up what all workers of a run find and do.
type tally struct {
	progress *Progress
	now      time.Time

	mu      sync.Mutex
	counts  Counts
	kinds   map[string]*Kind
	written Written
	bars    []int64
	samples []Sample
	nested  bool // an entity of the target lies below another one
}

// Counts are what a run found and did.
type Counts struct {
	Read     int64 `json:"read"`     // names
	Entities int64 `json:"entities"` // of the target that were among the names
	Missing  int64 `json:"missing"`  // entities of the target that do not exist, and have orphans
	Orphans  int64 `json:"orphans"`
	// Owned are below missing entities, and stay: they have an expiry of their own, or are below what has.
	Owned   int64 `json:"owned"`
	Deleted int64 `json:"deleted"` // orphans, as acknowledged
	Saved   int64 `json:"saved"`   // missing entities that came into being meanwhile
	Refused int64 `json:"refused"` // orphans that the store refuses to delete
}

func newTally(p *Progress, now time.Time) *tally {
	return &tally{progress: p, now: now, kinds: map[string]*Kind{}, bars: make([]int64, len(ages)), samples: []Sample{}}
}

// met counts a name. First says that it is the first orphan of a missing entity.
func (t *tally) met(namespace string, r store.Relative, is standing, missing string, first bool) {
	t.progress.Read.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Read++
	if r.Own {
		t.counts.Entities++
		t.nested = t.nested || r.Of != ""
	}
	switch {
	case is == owned:
		t.counts.Owned++
		t.kind(r.Kind).Owned++
		return
	case is != orphaned:
		return
	}
	t.progress.Orphans.Add(1)
	t.counts.Orphans++
	t.kind(r.Kind).Orphans++
	if first {
		t.counts.Missing++
	}
	sample := Sample{Namespace: namespace, Key: r.Key, Below: missing}
	if !r.Written.IsZero() {
		sample.Written = &r.Written
		t.age(r.Written)
	}
	if len(t.samples) < mostSamples && (first || len(t.samples) == 0) {
		t.samples = append(t.samples, sample)
	}
}

// age counts when an orphan was last written, under mu.
func (t *tally) age(at time.Time) {
	if t.written.Oldest.IsZero() || at.Before(t.written.Oldest) {
		t.written.Oldest = at.UTC()
	}
	if at.After(t.written.Newest) {
		t.written.Newest = at.UTC()
	}
	for i, a := range ages {
		if a.most == 0 || t.now.Sub(at) <= a.most {
			t.bars[i]++
			return
		}
	}
}

// kind returns the counts of a kind, under mu.
func (t *tally) kind(name string) *Kind {
	if t.kinds[name] == nil && len(t.kinds) >= mostKinds {
		name = ""
	}
	if t.kinds[name] == nil {
		t.kinds[name] = &Kind{Kind: name}
	}
	return t.kinds[name]
}

// claimed notes that an orphan has an owner by now, or is below what has one.
func (t *tally) claimed(r store.Relative) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Orphans--
	t.kind(r.Kind).Orphans--
	t.counts.Owned++
	t.kind(r.Kind).Owned++
}

func (t *tally) deleted(n int) {
	t.progress.Deleted.Add(int64(n))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Deleted += int64(n)
}

func (t *tally) refused() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Refused++
}

// rescued notes that a missing entity came into being.
func (t *tally) rescued() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Saved++
}

func (t *tally) soFar() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}

// into writes what was found into a result.
func (t *tally) into(res *Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	res.Counts, res.Samples = t.counts, slices.Clone(t.samples)
	for _, name := range slices.SortedFunc(maps.Keys(t.kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.kinds[b].Orphans, t.kinds[a].Orphans), strings.Compare(a, b))
	}) {
		res.Kinds = append(res.Kinds, *t.kinds[name])
	}
	if !t.written.Oldest.IsZero() {
		w := t.written
		for i, a := range ages {
			w.Histogram = append(w.Histogram, Bar{a.name, t.bars[i]})
		}
		res.Written = &w
	}
}
