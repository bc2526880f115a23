package adopt

import (
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A Sample is one entity of an outcome, for people.
type Sample struct {
	Namespace string     `json:"namespace"`
	Key       string     `json:"key"`
	Source    string     `json:"source"` // the value that the rule reads
	Rule      *time.Time `json:"rule"`   // when it expires by the rule
	Expires   *time.Time `json:"expires"`
	Why       string     `json:"why"`
}

// A Bar is a part of the histogram of what the unstamped entities get.
type Bar struct {
	Within   string `json:"within"` // due within so long from now; "now" is due at once, "" is all the rest
	Entities int64  `json:"entities"`
}

// bars are the parts of the histogram.
var bars = []struct {
	name string
	upTo time.Duration
}{
	{"now", 0}, {"1h", time.Hour}, {"1d", 24 * time.Hour}, {"7d", 7 * 24 * time.Hour}, {"30d", 30 * 24 * time.Hour},
	{"90d", 90 * 24 * time.Hour}, {"365d", 365 * 24 * time.Hour},
}

const (
	samplesEach = 3 // of each outcome
	// importedAtOnce entities or more, all created within one hour, look like an import. One alone says
	// nothing.
	importedAtOnce = 2
)

// A tally counts what a run meets. It is safe for concurrent use.
type tally struct {
	job *job
	now time.Time // for the histogram

	mu        sync.Mutex
	counts    map[Outcome]int64
	scanned   int64
	written   int64 // keys that were written or, to undo, removed
	wanted    int64 // that the order is about
	expired   int64 // unstamped entities that are due by the rule
	histogram []int64
	samples   map[Outcome][]Sample
	created   births // if the rule goes by them
}

// Births are when entities were created.
type births struct {
	n           int64
	first, last time.Time
}

func (b *births) add(at time.Time) {
	if b.n++; b.n == 1 || at.Before(b.first) {
		b.first = at
	}
	if b.n == 1 || at.After(b.last) {
		b.last = at
	}
}

func newTally(j *job, now time.Time) *tally {
	return &tally{job: j, now: now, counts: map[Outcome]int64{}, samples: map[Outcome][]Sample{},
		histogram: make([]int64, len(bars)+1)}
}

// add counts one entity.
func (t *tally) add(one item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.scanned++
	t.note(one)
	if t.job.cfg.Rule.CreateTime && one.row.Created.Type == store.Instant {
		t.created.add(one.row.Created.Time)
	}
	if one.outcome != Unstamped {
		return
	}
	retention := t.job.cfg.Target.Retention
	if !one.rule.Add(retention).After(t.now) {
		t.expired++
	}
	bar := len(bars)
	for i := len(bars) - 1; i >= 0 && !one.expires.Add(retention).After(t.now.Add(bars[i].upTo)); i-- {
		bar = i
	}
	t.histogram[bar]++
}

// note counts an outcome, and keeps the first samples of it.
func (t *tally) note(one item) {
	t.counts[one.outcome]++
	if len(t.samples[one.outcome]) >= samplesEach {
		return
	}
	s := Sample{Namespace: one.namespace, Key: one.row.Key, Source: t.job.cfg.Rule.source(one.row).String(), Why: one.why}
	if !one.rule.IsZero() {
		s.Rule = &one.rule
	}
	if !one.expires.IsZero() {
		s.Expires = &one.expires
	}
	t.samples[one.outcome] = append(t.samples[one.outcome], s)
}

// want counts entities that the order is about.
func (t *tally) want(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted += int64(n)
}

// wrote counts what became of an entity that was to be written. An empty outcome is success.
func (t *tally) wrote(one item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one.outcome == "" {
		t.written++
	} else {
		t.note(one)
	}
}

// bars returns the histogram.
func (t *tally) bars() []Bar {
	all := make([]Bar, 0, len(bars)+1)
	for i, b := range bars {
		all = append(all, Bar{b.name, t.histogram[i]})
	}
	return append(all, Bar{"", t.histogram[len(bars)]})
}
