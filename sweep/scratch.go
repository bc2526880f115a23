package sweep

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/store"
)

// A scratch is the memory that one worker uses for its steps: no page outlives the step
// that read it.
type scratch struct {
	page    store.Page
	judged  []judged // for each entry of the page, once they are collected
	ops     []store.Op
	entry   []int // for each op the place of its entry in the page
	batch   []store.Op
	picked  []int  // for each op of a batch its place in ops
	doubted []bool // for each op whether an earlier try may have disposed of it
	delays  []time.Duration
	ahead   ahead
	longest time.Duration // the longest call of this step; noCall if it made none that is measured
}

// noCall is less than any call takes.
const noCall time.Duration = -1

// firstOpen returns the place of the first op that is not disposed of and does not
// wait aside, or the number of ops.
func (s *scratch) firstOpen() int {
	for i := range s.ops {
		if isOpen(&s.ops[i]) {
			return i
		}
	}
	return len(s.ops)
}

func isOpen(op *store.Op) bool { return op.Outcome == store.Unknown || op.Outcome == store.Changed }

// pick lists the next ops without an outcome, at most n. If these are neighbours, it
// returns a part of ops, otherwise copies: see putBack.
func (s *scratch) pick(n int) []store.Op {
	s.picked = s.picked[:0]
	for i := range s.ops {
		if len(s.picked) == n {
			break
		}
		if s.ops[i].Outcome == store.Unknown {
			s.picked = append(s.picked, i)
		}
	}
	if len(s.picked) == 0 {
		return nil
	}
	first, last := s.picked[0], s.picked[len(s.picked)-1]
	if last-first+1 == len(s.picked) {
		return s.ops[first : last+1]
	}
	s.batch = s.batch[:0]
	for _, i := range s.picked {
		s.batch = append(s.batch, s.ops[i])
	}
	return s.batch
}

// doubt notes that a try at the ops picked last may have disposed of them.
func (s *scratch) doubt() {
	if len(s.doubted) != len(s.ops) {
		s.doubted = append(s.doubted[:0], make([]bool, len(s.ops))...)
	}
	for _, i := range s.picked {
		s.doubted[i] = true
	}
}

// resolveDoubts turns Gone into Deleted for ops that an earlier try may have deleted.
func (s *scratch) resolveDoubts() {
	for i := range s.doubted {
		if s.doubted[i] && s.ops[i].Outcome == store.Gone {
			s.ops[i].Outcome = store.Deleted
		}
	}
}

// putBack copies the outcomes back into ops, if pick has returned copies.
func (s *scratch) putBack(batch []store.Op) {
	if len(batch) > 0 && &batch[0] != &s.ops[s.picked[0]] {
		for n, i := range s.picked {
			s.ops[i] = batch[n]
		}
	}
}

// An ahead reads the next page while the present one is written. It begins with the first
// write, so that the pace holds it back, too. What it reads may be a page's time older
// than a read after the write would show; the conditions of the writes handle that.
type ahead struct {
	reader pageReader
	most   int
	page   store.Page
	more   bool
	err    error
	took   time.Duration
	done   chan struct{} // nil until it has begun; then closed at its end
	cancel context.CancelFunc
}

// begin begins to read, once. It does nothing if there is nothing to read.
func (a *ahead) begin(ctx context.Context, now func() time.Time) {
	if a.reader == nil || a.done != nil {
		return
	}
	ctx, a.cancel = context.WithCancel(ctx)
	a.done = make(chan struct{})
	go func() {
		defer close(a.done)
		began := now()
		a.err = background.Protect(func() (err error) {
			a.more, err = a.reader.Next(ctx, &a.page, a.most)
			return err
		})
		a.took = now().Sub(began)
	}()
}

// take waits for the page that was read ahead, if any was, and returns it in
// exchange for another one.
func (a *ahead) take(page *store.Page) (more, read bool, took time.Duration, err error) {
	if a.done == nil {
		return false, false, 0, nil
	}
	<-a.done
	*page, a.page = a.page, *page
	a.cancel()
	a.done, a.reader = nil, nil
	return a.more, true, a.took, a.err
}

// drop stops a read ahead and waits for its end. It reports whether there was one: then
// the reader has moved on, and the caller must seek it back.
func (a *ahead) drop() (read bool) {
	if a.done != nil {
		a.cancel()
		<-a.done
		read = true
	}
	a.done, a.reader = nil, nil
	return read
}
