package step

import (
	"context"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/store"
)

// A Scratch is the memory that one worker uses for its steps: no page outlives the step
// that read it.
type Scratch struct {
	Page    store.Page
	Judged  []index.Judged // for each entry of the page, once they are collected
	Ops     []store.Op
	Entry   []int // for each op the index of its entry in the page
	batch   []store.Op
	picked  []int  // for each op of a batch its index in Ops
	Doubted []bool // for each op whether an earlier try may have disposed of it
	Delays  []time.Duration
	Ahead   ahead
	Longest time.Duration // the longest call of this step; NoCall if it made none that is measured
}

// NoCall is shorter than any call.
const NoCall time.Duration = -1

// FirstOpen returns the index of the first op that is not disposed of and does not
// wait aside, or the number of ops.
func (s *Scratch) FirstOpen() int {
	for i := range s.Ops {
		if IsOpen(&s.Ops[i]) {
			return i
		}
	}
	return len(s.Ops)
}

// IsOpen reports whether an op is neither disposed of nor waits aside.
func IsOpen(op *store.Op) bool { return op.Outcome == store.Unknown || op.Outcome == store.Changed }

// Pick returns the next ops without an outcome, at most n. If these are neighbours, it
// returns a part of Ops, otherwise copies: see PutBack.
func (s *Scratch) Pick(n int) []store.Op {
	s.picked = s.picked[:0]
	for i := range s.Ops {
		if len(s.picked) == n {
			break
		}
		if s.Ops[i].Outcome == store.Unknown {
			s.picked = append(s.picked, i)
		}
	}
	if len(s.picked) == 0 {
		return nil
	}
	first, last := s.picked[0], s.picked[len(s.picked)-1]
	if last-first+1 == len(s.picked) {
		return s.Ops[first : last+1]
	}
	s.batch = s.batch[:0]
	for _, i := range s.picked {
		s.batch = append(s.batch, s.Ops[i])
	}
	return s.batch
}

// Doubt notes that a try at the ops picked last may have disposed of them.
func (s *Scratch) Doubt() {
	if len(s.Doubted) != len(s.Ops) {
		s.Doubted = append(s.Doubted[:0], make([]bool, len(s.Ops))...)
	}
	for _, i := range s.picked {
		s.Doubted[i] = true
	}
}

// IsDoubted reports whether an earlier try may have disposed of an op of the page.
func (s *Scratch) IsDoubted(op *store.Op) bool {
	i := slices.IndexFunc(s.Ops, func(is store.Op) bool { return is.Entry.Key == op.Entry.Key })
	return i >= 0 && i < len(s.Doubted) && s.Doubted[i]
}

// ResolveDoubts turns Gone into Deleted for ops that an earlier try may have deleted.
func (s *Scratch) ResolveDoubts() {
	for i := range s.Doubted {
		if s.Doubted[i] && s.Ops[i].Outcome == store.Gone {
			s.Ops[i].Outcome = store.Deleted
		}
	}
}

// PutBack copies the outcomes back into Ops, if Pick returned copies.
func (s *Scratch) PutBack(batch []store.Op) {
	if len(batch) > 0 && &batch[0] != &s.Ops[s.picked[0]] {
		for n, i := range s.picked {
			s.Ops[i] = batch[n]
		}
	}
}

// An ahead reads the next page while the present one is written. It begins with the first
// write, so that the pace limits it, too. The page may be older than one that is read after
// the write, by the time that a page takes; the conditions of the writes handle that.
type ahead struct {
	Reader index.Reader
	Most   int
	page   store.Page
	more   bool
	err    error
	took   time.Duration
	Done   chan struct{} // nil until it has begun; then closed at its end
	cancel context.CancelFunc
}

// Begin begins to read, unless it has begun or there is no reader.
func (a *ahead) Begin(ctx context.Context, now func() time.Time) {
	if a.Reader == nil || a.Done != nil {
		return
	}
	ctx, a.cancel = context.WithCancel(ctx)
	a.Done = make(chan struct{})
	go func() {
		defer close(a.Done)
		began := now()
		a.err = background.Protect(func() (err error) {
			a.more, err = a.Reader.Next(ctx, &a.page, a.Most)
			return err
		})
		a.took = now().Sub(began)
	}()
}

// Take waits for the page that is read ahead, if there is one, and exchanges it for the
// caller's.
func (a *ahead) Take(page *store.Page) (more, read bool, took time.Duration, err error) {
	if a.Done == nil {
		return false, false, 0, nil
	}
	<-a.Done
	*page, a.page = a.page, *page
	a.cancel()
	a.Done, a.Reader = nil, nil
	return a.more, true, a.took, a.err
}

// Drop stops a read ahead and waits for its end. It reports whether there was one: then
// the reader has moved on, and the caller must seek it back.
func (a *ahead) Drop() (read bool) {
	if a.Done != nil {
		a.cancel()
		<-a.Done
		read = true
	}
	a.Done, a.Reader = nil, nil
	return read
}
