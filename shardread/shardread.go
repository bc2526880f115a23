// Package shardread reads data that is spread over shards as if it were not: it
// merges sorted sources, one for each query that the shards need, into one
// sequence in order.
//
// An indexed timestamp that rises with time limits a Firestore collection or
// kind to 500 writes a second. Applications therefore add a second property
// (a shard) and an index over (shard, timestamp). Reading "the newest 100" then
// takes a query per shard and a merge of their answers. Package fsread does that
// for Firestore, dsread for Datastore; this one is the merge beneath them, which
// knows no SDK and takes sources of any kind.
//
// [Merge] has two invariants. Its sequence has the items of all sources exactly
// once, in the order of the compare function. It reads at most
// limit + sources × page items: a source never has more than a page of items that
// were read or asked for but not yet yielded. Usually it has far fewer, because a
// page is no larger than the source's likely part in what is still wanted.
//
// Limits: a merge needs memory for one page of each source. It is not a snapshot,
// since each page is read when it is needed.
package shardread

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
)

// A Source reads one sorted stream page by page: each call returns the next
// items, n at most, and whether there may be more behind them. It is not called
// again after it said no or failed, nor by two goroutines at once.
type Source[T any] func(ctx context.Context, n int) (items []T, more bool, err error)

// Options bound a merge. The zero value merges everything.
type Options struct {
	Limit    int // most items yielded; zero means all
	Page     int // most items of one source that are read but not yet yielded; zero means 300
	Parallel int // most calls of sources at the same time; zero means 32
}

const (
	defaultPage     = 300
	defaultParallel = 32
)

// Validate reports what is wrong with the options.
func (o Options) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{{"limit", o.Limit}, {"page", o.Page}, {"parallel", o.Parallel}} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %d; it must not be negative", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}

// Merge yields the items of all sources in the order of compare, those that
// compare as equal in the order of their sources. The first error is yielded
// once, with the zero item, and ends the sequence; items before it in order are
// yielded first. Pages are fetched in parallel, and ahead. All calls of sources
// have returned when the sequence ends, even if the caller leaves it early.
//
// The sequence can be ranged over once, because that reads the sources.
func Merge[T any](ctx context.Context, sources []Source[T], compare func(a, b T) int, o Options) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := o.Validate()
		if err == nil {
			var m *merge[T]
			m, ctx = newMerge(ctx, sources, compare, o)
			defer m.stop()
			err = m.run(ctx, func(item T) bool { return yield(item, nil) })
		}
		if err != nil {
			var none T
			yield(none, err)
		}
	}
}

// A merge belongs to the goroutine that ranges over it. Others only call
// sources, and send what they got.
type merge[T any] struct {
	compare func(a, b T) int
	limit   int
	page    int
	yielded int

	streams []*stream[T]
	ready   []*stream[T] // a heap of those that have items

	arrivals chan arrival[T] // holds one of each stream, so that no sender waits
	slots    chan struct{}
	cancel   context.CancelFunc
	calls    sync.WaitGroup
}

// A stream is what the merge knows of one source.
type stream[T any] struct {
	index  int
	source Source[T]
	unread []T // read, but not yet yielded
	last   T   // the last item read
	taken  int // how many were yielded
	read   int
	asked  int  // of the call under way; zero means none
	ended  bool // there is no more to ask for
	err    error
}

type arrival[T any] struct {
	from  *stream[T]
	items []T
	more  bool
	err   error
}

func newMerge[T any](
	ctx context.Context, sources []Source[T], compare func(a, b T) int, o Options,
) (*merge[T], context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	m := &merge[T]{
		compare:  compare,
		limit:    o.Limit,
		page:     cmp.Or(o.Page, defaultPage),
		arrivals: make(chan arrival[T], len(sources)),
		slots:    make(chan struct{}, cmp.Or(o.Parallel, defaultParallel)),
		cancel:   cancel,
	}
	for i, s := range sources {
		m.streams = append(m.streams, &stream[T]{index: i, source: s})
	}
	return m, ctx
}

func (m *merge[T]) stop() {
	m.cancel()
	m.calls.Wait()
}

func (m *merge[T]) run(ctx context.Context, yield func(T) bool) error {
	if err := m.start(ctx); err != nil {
		return err
	}
	for len(m.ready) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		s := m.ready[0]
		item := s.take()
		m.yielded++
		if m.yielded == m.limit {
			yield(item)
			return nil
		}
		m.ask(ctx, s) // first, so that it is under way while the caller works
		if !yield(item) {
			return nil
		}
		if err := m.await(ctx, s); err != nil {
			return err
		}
		if len(s.unread) == 0 {
			heap.Pop(m)
		} else {
			heap.Fix(m, 0)
		}
	}
	return nil
}

// start gets the first page of every stream. Nothing can be yielded before all
// are there, so one that failed does not wait for one that is slow.
func (m *merge[T]) start(ctx context.Context) error {
	for _, s := range m.streams {
		m.ask(ctx, s)
	}
	for waiting := len(m.streams); waiting > 0; {
		s, err := m.receive(ctx)
		switch {
		case err != nil:
			return err
		case s.err != nil:
			return cmp.Or(ctx.Err(), s.err)
		case len(s.unread) > 0:
			m.ready = append(m.ready, s)
			waiting--
		case s.ended:
			waiting--
		default: // an empty page, but not the last one
			m.ask(ctx, s)
		}
	}
	heap.Init(m)
	return nil
}

// await returns when the stream has an item to yield, or none any more.
func (m *merge[T]) await(ctx context.Context, s *stream[T]) error {
	for len(s.unread) == 0 && !s.ended {
		m.ask(ctx, s)
		if _, err := m.receive(ctx); err != nil {
			return err
		}
	}
	if len(s.unread) == 0 && s.err != nil {
		return cmp.Or(ctx.Err(), s.err) // rather the caller's reason than what a source made of it
	}
	return nil
}

// receive waits for one page, of any stream.
func (m *merge[T]) receive(ctx context.Context) (*stream[T], error) {
	select {
	case a := <-m.arrivals:
		a.from.accept(a, m.compare)
		return a.from, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ask calls the source, on a goroutine of its own, when the stream runs low.
func (m *merge[T]) ask(ctx context.Context, s *stream[T]) {
	want := m.want(s)
	if s.asked > 0 || s.ended || len(s.unread) > want/2 {
		return
	}
	s.asked = want - len(s.unread)
	n := s.asked
	m.calls.Go(func() {
		a := arrival[T]{from: s}
		select {
		case m.slots <- struct{}{}:
			a.items, a.more, a.err = s.source(ctx, n)
			<-m.slots
		case <-ctx.Done():
			a.err = ctx.Err()
		}
		m.arrivals <- a
	})
}

// want returns how many items of the stream should be at hand: as many as it
// will likely have among those that are still wanted, judged by its part in
// what was yielded so far, and once the spread of such a number; a page at most.
func (m *merge[T]) want(s *stream[T]) int {
	if m.limit == 0 {
		return m.page
	}
	left := m.limit - m.yielded
	likely := float64(left) * float64(s.taken+1) / float64(m.yielded+len(m.streams))
	return min(m.page, left, int(math.Ceil(likely+math.Sqrt(likely))))
}

func (s *stream[T]) take() T {
	var none T
	item := s.unread[0]
	s.unread[0] = none // the page must not keep it alive
	s.unread = s.unread[1:]
	s.taken++
	return item
}

// accept adds a page to the stream. One that breaks the source's promise would
// break the order of everything, unseen.
func (s *stream[T]) accept(a arrival[T], compare func(a, b T) int) {
	asked := s.asked
	s.asked, s.ended, s.err = 0, !a.more, a.err
	if s.err == nil && len(a.items) > asked {
		s.err = fmt.Errorf("source %d returned %d items where at most %d were wanted", s.index, len(a.items), asked)
	}
	if s.err == nil {
		s.err = s.misplaced(a.items, compare)
	}
	if s.err != nil {
		s.ended = true
		return
	}
	if n := len(a.items); n > 0 {
		s.unread = append(s.unread, a.items...)
		s.read += n
		s.last = a.items[n-1]
	}
}

// misplaced reports the first item that belongs before the one before it.
func (s *stream[T]) misplaced(items []T, compare func(a, b T) int) error {
	last, read := s.last, s.read
	for _, item := range items {
		if read > 0 && compare(last, item) > 0 {
			return fmt.Errorf("source %d is not in order: its item %d belongs before item %d", s.index, read+1, read)
		}
		last = item
		read++
	}
	return nil
}

// Len, Less, Swap, Push and Pop make the streams that have items a heap.
func (m *merge[T]) Len() int { return len(m.ready) }

func (m *merge[T]) Less(i, j int) bool {
	a, b := m.ready[i], m.ready[j]
	return cmp.Or(m.compare(a.unread[0], b.unread[0]), cmp.Compare(a.index, b.index)) < 0
}

func (m *merge[T]) Swap(i, j int) { m.ready[i], m.ready[j] = m.ready[j], m.ready[i] }

func (m *merge[T]) Push(any) {} // streams only leave

func (m *merge[T]) Pop() any {
	last := len(m.ready) - 1
	s := m.ready[last]
	m.ready = m.ready[:last]
	return s
}
