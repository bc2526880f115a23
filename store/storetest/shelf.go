package storetest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/reaper-ttl/reaper/store"
)

// A Shelf is a [store.Archive] in memory, for tests.
type Shelf struct {
	// Then is what Keep does afterwards, and its error is Keep's; it may be nil.
	Then func() error

	mu    sync.Mutex
	Kept  []store.Copy // all that it was given, in order
	Sizes []int        // how many bytes of Data each call gave it
}

// Keep implements [store.Archive].
func (s *Shelf) Keep(_ context.Context, list []store.Copy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := 0
	for _, c := range list {
		c.Data = bytes.Clone(c.Data)
		s.Kept = append(s.Kept, c)
		size += len(c.Data)
	}
	if s.Sizes = append(s.Sizes, size); s.Then != nil {
		return s.Then()
	}
	return nil
}

// Keys returns the keys of what was kept, in order; one that was kept twice twice.
func (s *Shelf) Keys() []string {
	out := []string{}
	for _, c := range s.Kept {
		out = append(out, c.Key)
	}
	return sorted(out)
}

// Newest returns the newest copy of each entity, by key.
func (s *Shelf) Newest() map[string]store.Copy {
	newest := map[string]store.Copy{}
	for _, c := range s.Kept {
		newest[c.Key] = c
	}
	return newest
}

// Insertions returns the newest copies, to be inserted as they are, in the order of their keys.
func (s *Shelf) Insertions() (list []store.Insertion) {
	newest := s.Newest()
	for _, key := range slices.Sorted(maps.Keys(newest)) {
		list = append(list, store.Insertion{Copy: newest[key], AsIs: true})
	}
	return list
}
