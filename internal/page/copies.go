package page

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// readEvery is how often the records of a target are read at most, while somebody looks.
	readEvery = 15 * time.Second
	// patience is how long a request waits for a copy that is too old or does not exist yet.
	// Then it shows what there is: the page loads even if the store does not answer.
	patience = 700 * time.Millisecond
	// forgetAfter is how long a copy is kept that nobody looks at: with many ranges it is large.
	forgetAfter = 2 * time.Minute
	// readsAtOnce bounds how many copies are read at the same time.
	readsAtOnce = 4
)

// A copied is what was read last, and what became of the reads since.
type copied[V any] struct {
	Value   V
	At      time.Time // when Value was read; zero if it never was
	Err     error     // of the newest read that has ended; nil if it succeeded
	Asked   time.Time // since when reads have been failing or not answered; zero if the last one succeeded
	Version int       // counts the reads that have ended
}

// Known reports whether there is anything to show.
func (c copied[V]) Known() bool { return !c.At.IsZero() }

// A reader starts reads in the background, for all kinds of copies.
type reader struct {
	ctx   context.Context
	now   func() time.Time
	turns chan struct{} // room for each read that may run
	ended atomic.Int64  // reads
	all   sync.WaitGroup
}

// copies are the copies of one kind, by their keys. All viewers share them.
type copies[V any] struct {
	*reader
	most    int // most keys; further ones are not read until others are forgotten
	mu      sync.Mutex
	entries map[string]*entry[V]
}

type entry[V any] struct {
	copied[V]
	done   chan struct{} // closed when the read that runs ends; nil if none does
	next   time.Time     // no read begins before
	looked time.Time     // when somebody last wanted it
}

func newCopies[V any](r *reader, most int) *copies[V] {
	return &copies[V]{reader: r, most: most, entries: map[string]*entry[V]{}}
}

// get returns the copy of a key. It starts a read if the last one is longer ago than every,
// and waits for it if what there is was read long before, as if nobody has looked for a while.
// Read gets the copy before.
func (c *copies[V]) get(
	ctx context.Context, key string, every time.Duration, read func(ctx context.Context, last V) (V, error),
) copied[V] {
	done := c.touch(key, every, read)
	if done != nil {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return c.peek(key)
}

// peek returns the copy of a key without a read.
func (c *copies[V]) peek(key string) copied[V] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil {
		return e.copied
	}
	return copied[V]{}
}

// touch starts a read if one is due. It returns what to wait for: nil if what there is will do.
func (c *copies[V]) touch(
	key string, every time.Duration, read func(context.Context, V) (V, error),
) (done <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	e := c.entries[key]
	if e == nil && len(c.entries) >= c.most {
		return nil
	}
	if e == nil {
		e = &entry[V]{}
		c.entries[key] = e
		time.AfterFunc(forgetAfter, func() { c.forget(key) })
	}
	e.looked = now
	isJump := e.next.Sub(now) > every // the clock was set back
	if e.done == nil && (isJump || !now.Before(e.next)) && c.ctx.Err() == nil {
		e.done, e.next = make(chan struct{}), now.Add(every)
		if e.Asked.IsZero() {
			e.Asked = now
		}
		c.all.Go(func() { c.read(e, every, read) })
	}
	if e.done == nil || e.Known() && e.Err == nil && now.Sub(e.At) < 2*every {
		return nil
	}
	return e.done
}

// read replaces the copy of an entry.
func (c *copies[V]) read(e *entry[V], every time.Duration, read func(context.Context, V) (V, error)) {
	var value V
	var err error
	select {
	case c.turns <- struct{}{}:
		c.mu.Lock()
		last := e.Value
		c.mu.Unlock()
		value, err = read(c.ctx, last)
		<-c.turns
	case <-c.ctx.Done():
		err = c.ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	e.Err = err
	e.Version++
	c.ended.Add(1)
	if err == nil {
		e.Value, e.At, e.Asked = value, now, time.Time{}
	}
	e.next = now.Add(every)
	close(e.done)
	e.done = nil
}

// forget removes an entry that nobody has looked at for long. If it is too early for that, forget calls itself
// again: each entry has one timer, until it is removed.
func (c *copies[V]) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	idle := c.now().Sub(e.looked)
	wait := forgetAfter - idle
	if e.done != nil {
		wait = forgetAfter // a second read must not begin while this one runs
	} else if idle < 0 || wait <= 0 { // less than 0: the clock was set back
		delete(c.entries, key)
		return
	}
	time.AfterFunc(wait, func() { c.forget(key) })
}
