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
	now time.Time // for the histogram

	mu        sync.Mutex
	counts    map[Outcome]int64
	scanned   int64
	stamped   int64
	removed   int64
	wanted    int64 // that the order is about
	expired   int64 // unstamped entities that are due by the rule
	histogram []int64
	samples   map[Outcome][]Sample
	first     time.Time // of the times of creation that the rule goes by
	last      time.Time
	created   int64
}

func newTally(now time.Time) *tally {
	return &tally{now: now, counts: map[Outcome]int64{}, samples: map[Outcome][]Sample{},
		histogram: make([]int64, len(bars)+1)}
}

// add counts one entity.
func (t *tally) add(namespace string, row store.Row, rule Rule, d judgement, retention time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.scanned++
	t.note(namespace, row, rule, d)
	if rule.CreateTime && row.Created.Type == store.Instant {
		t.created++
		if at := row.Created.Time; t.created == 1 {
			t.first, t.last = at, at
		} else if at.Before(t.first) {
			t.first = at
		} else if at.After(t.last) {
			t.last = at
		}
	}
	if d.outcome != Unstamped {
		return
	}
	if !d.rule.Add(retention).After(t.now) {
		t.expired++
	}
	bar := len(bars)
	for i := len(bars) - 1; i >= 0 && !d.expires.Add(retention).After(t.now.Add(bars[i].upTo)); i-- {
		bar = i
	}
	t.histogram[bar]++
}

// note counts an outcome, and keeps the first samples of it.
func (t *tally) note(namespace string, row store.Row, rule Rule, d judgement) {
	t.counts[d.outcome]++
	if len(t.samples[d.outcome]) >= samplesEach {
		return
	}
	s := Sample{Namespace: namespace, Key: row.Key, Source: rule.source(row).String(), Why: d.why}
	if !d.rule.IsZero() {
		s.Rule = &d.rule
	}
	if !d.expires.IsZero() {
		s.Expires = &d.expires
	}
	t.samples[d.outcome] = append(t.samples[d.outcome], s)
}

// want counts entities that the order is about.
func (t *tally) want(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted += int64(n)
}

// wrote counts what became of an entity that was to be written. An empty outcome is success.
func (t *tally) wrote(namespace string, row store.Row, rule Rule, d judgement, undo bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case d.outcome != "":
		t.note(namespace, row, rule, d)
	case undo:
		t.removed++
	default:
		t.stamped++
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
