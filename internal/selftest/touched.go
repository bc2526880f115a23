package selftest

import (
	"slices"
	"sync"

	"github.com/reaper-ttl/reaper/store"
)

// A spot is where entities or records may be: a kind in a namespace, or a sort of a target.
type spot struct{ what, where string }

// Touched remembers where a check has written, so that cleaning up after it need not look
// everywhere.
type touched struct {
	mu       sync.Mutex
	entities []spot
	records  []spot
}

func (t *touched) entity(kind, namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := (spot{kind, namespace}); !slices.Contains(t.entities, s) {
		t.entities = append(t.entities, s)
	}
}

func (t *touched) record(r store.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := (spot{string(r.Sort), r.Target}); r.Target != journal && !slices.Contains(t.records, s) {
		t.records = append(t.records, s)
	}
}

// take returns what was touched, and forgets it.
func (t *touched) take() (entities, records []spot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	entities, records = t.entities, t.records
	t.entities, t.records = nil, nil
	return entities, records
}
