package sweep_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A pagesSeen store notes which pages it was given to fill.
type pagesSeen struct {
	*modelstore.Store
	mu    sync.Mutex
	pages map[*store.Page]bool
}

func (s *pagesSeen) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	s.mu.Lock()
	if q.Limit > 1 && q.Limit != 101 { // not a look for a single entry, nor a count of what is behind a cursor
		s.pages[page] = true
	}
	s.mu.Unlock()
	return s.Store.Scan(ctx, q, page)
}

// However many workers there may be, memory goes by how many are at work: two pages
// for each range here.
func TestIdleWorkersHoldNoPages(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.begin()
		w.fill(2000, 2*time.Hour)
		c := w.config()
		s := &pagesSeen{Store: w.s, pages: map[*store.Page]bool{}}
		c.Store, c.Workers = s, 10_000
		c.Targets[0].Next = func(at time.Time) time.Time { return at.Truncate(time.Second).Add(time.Second) }
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		sweep.NewDaemon(c, true).Run(ctx)
		if most := 2 * 2 * w.target.Shards; len(s.pages) > most {
			t.Errorf("filled %d different pages, want at most %d", len(s.pages), most)
		}
	})
}
