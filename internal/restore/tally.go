package restore

import (
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// mostSamples is how many entities a result names of each sort, and mostProblems how many objects.
	mostSamples  = 3
	mostProblems = 20
)

// Counts are what a restore found and did. Those of a restore that goes on after a kill have what it did before.
type Counts struct {
	Objects     int64 `json:"objects"`      // with lines that are to be restored
	Lines       int64 `json:"lines"`        // of the selection
	NotDeleted  int64 `json:"not_deleted"`  // that were archived, and then not deleted: they are left out
	Superseded  int64 `json:"superseded"`   // of which there is a newer copy
	Restorable  int64 `json:"restorable"`   // entities: the newest copy of each
	Unconfirmed int64 `json:"unconfirmed"`  // of these, archived by a process that did not say whether it deleted them
	Expiring    int64 `json:"expiring"`     // of these, with an expiry afterwards
	Due         int64 `json:"due"`          // of these, would be due at once
	Exist       int64 `json:"exist"`        // already: they stay as they are
	Restored    int64 `json:"restored"`     // acknowledged
	Verified    int64 `json:"verified"`     // read back right afterwards
	Vanished    int64 `json:"vanished"`     // were gone by then: somebody has deleted them
	Stripped    int64 `json:"stripped"`     // restored without something that the store refuses
	Refused     int64 `json:"refused"`      // by the store
	NotFound    int64 `json:"not_found"`    // not as they were, by point-in-time recovery
	BadObjects  int64 `json:"bad_objects"`  // could not be read to their end
	GoneObjects int64 `json:"gone_objects"` // were removed, and may have had some of the selection
}

// A Sample is one entity.
type Sample struct {
	Namespace string `json:"namespace"`
	Key       string `json:"key"`
	Why       string `json:"why"`
}

// A Problem is an object that could not be read to its end.
type Problem struct {
	Object string `json:"object"`
	Why    string `json:"why"`
}

// A tally adds up what a run finds and does.
type tally struct {
	progress *Progress

	mu                          sync.Mutex
	counts                      Counts
	first, last                 time.Time // new expiries
	stripped, refused, notFound []Sample
	problems                    []Problem
	resumed                     bool
}

func newTally(p *Progress) *tally { return &tally{progress: p} }

func (t *tally) soFar() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}

// line counts a line of the selection.
func (t *tally) line(s archive.State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Lines++
	if s == archive.Kept {
		t.counts.NotDeleted++
	}
}

// chose counts what is to be restored. What expires up to the horizon would be due at once.
func (t *tally) chose(list []candidate, superseded int64, horizon time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Restorable, t.counts.Superseded = int64(len(list)), superseded
	for _, c := range list {
		if c.unconfirmed {
			t.counts.Unconfirmed++
		}
		if c.expires == 0 {
			continue
		}
		t.counts.Expiring++
		at := time.UnixMilli(c.expires).UTC()
		if !at.After(horizon) {
			t.counts.Due++
		}
		if t.first.IsZero() || at.Before(t.first) {
			t.first = at
		}
		if at.After(t.last) {
			t.last = at
		}
	}
}

func (t *tally) planned(objects int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Objects = objects
}

// resume takes in what earlier runs of the restore have done.
func (t *tally) resume(p place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resumed = true
	c := &t.counts
	c.Exist, c.Restored, c.Verified, c.Vanished = p.exist, p.restored, p.verified, p.vanished
	c.Stripped, c.Refused, c.NotFound = p.stripped, p.refused, p.notFound
	t.progress.Restored.Store(p.restored)
}

// hasResumed reports whether the counts have what earlier runs did.
func (t *tally) hasResumed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.resumed
}

func (t *tally) problem(object string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.BadObjects++
	if len(t.problems) < mostProblems {
		t.problems = append(t.problems, Problem{object, err.Error()})
	}
}

func (t *tally) removed(string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.GoneObjects++
}

// outcome counts what became of an entity that was to be inserted.
func (t *tally) outcome(one item, o store.Outcome, stripped string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch o {
	case store.Kept:
		t.counts.Exist++
	case store.Inserted:
		t.counts.Restored++
		t.progress.Restored.Add(1)
		if stripped != "" {
			t.counts.Stripped++
			t.stripped = sampled(t.stripped, one, stripped)
		}
	}
}

// read counts an inserted entity that was read back.
func (t *tally) read(exists bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if exists {
		t.counts.Verified++
	} else {
		t.counts.Vanished++
	}
}

func (t *tally) refuse(one item, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Refused++
	t.refused = sampled(t.refused, one, err.Error())
}

func (t *tally) lost(one item, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.NotFound++
	t.notFound = sampled(t.notFound, one, why)
}

func sampled(list []Sample, one item, why string) []Sample {
	if len(list) == mostSamples {
		return list
	}
	return append(list, Sample{one.namespace, one.Key, why})
}
