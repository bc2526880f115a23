package cursor

import (
	"context"
	"hash/fnv"
	"iter"
	"maps"
	"time"
)

// askAgain is how soon a process looks again at a range of whose holder it knows too
// little: no read of the heartbeats is late enough.
const askAgain = time.Second

// A sighting is what a process knows of the heartbeats of its target, after a read of all
// of them. It is immutable.
type sighting struct {
	all  Heartbeats
	sent time.Time // when the read was sent, on this process's clock
	// first is when this process's first read was answered, and gone when a read first did
	// not show a heartbeat any more.
	first time.Time
	gone  map[string]time.Time
}

// next returns what is known after another read.
func (s *sighting) next(all Heartbeats, sent, answered time.Time) *sighting {
	if s == nil {
		return &sighting{all: all, sent: sent, first: answered}
	}
	if sent.Before(s.sent) {
		return s
	}
	gone := maps.Clone(s.gone)
	for key := range s.all {
		if _, there := all[key]; !there {
			if gone == nil {
				gone = map[string]time.Time{}
			}
			gone[key] = answered
		}
	}
	maps.DeleteFunc(gone, func(key string, at time.Time) bool {
		_, there := all[key]
		return there || answered.Sub(at) > mostLease // then it has been gone since the first read, for all it matters
	})
	return &sighting{all: all, sent: sent, first: s.first, gone: gone}
}

// goneSince returns since when a heartbeat is not there, as far as this process knows.
func (s *sighting) goneSince(key string) time.Time {
	if at, ok := s.gone[key]; ok {
		return at
	}
	return s.first
}

// Look reads all heartbeats of a target, from which the keeper knows who lives. It returns
// them, and the store's time after the first of them was read. One goroutine at a time
// calls it.
func (k *Keeper) Look(ctx context.Context, target string) (all Heartbeats, stored time.Time, err error) {
	last := k.seen.Load()
	var before Heartbeats
	if last != nil {
		before = last.all
	}
	sent := k.Now()
	all, stored, err = LoadHeartbeats(ctx, k.Store, target, before, k.Now)
	if err != nil {
		return nil, stored, err
	}
	k.seen.Store(last.next(all, sent, k.Now()))
	if k.Pulse != nil {
		k.Pulse.meet(sent)
	}
	return all, stored, nil
}

// Read returns when the last read of the heartbeats was sent; zero before the first.
func (k *Keeper) Read() time.Time {
	if s := k.seen.Load(); s != nil {
		return s.sent
	}
	return time.Time{}
}

// Wait returns how long the range must be left alone at least: zero if nobody holds it. A
// holder is believed gone when its heartbeat tells of a later epoch, or that it holds
// nothing; or when its heartbeat, or the lack of one, has stood still for one lease on this
// process's own clock. That is safe because the holder counts its lease from before it sent
// that heartbeat, and tells of an epoch's end only after it.
func (k *Keeper) Wait(c Cursor) time.Duration {
	l := c.Lease
	switch {
	case l.Owner == "" || !k.IsOfThisOpening(l.Owner):
		return 0
	case l.Owner == k.Owner: // a write of this process whose outcome was not known, or a claim that is lost
		if k.Pulse != nil && k.Pulse.holds(c.ID) {
			return askAgain
		}
		return 0
	case l.Epoch == 0: // of a version that renewed each lease in the record itself
		return max(0, max(k.Lease, min(l.Length, mostLease))-k.Now().Sub(c.Seen))
	}
	s := k.seen.Load()
	if s == nil || !s.sent.After(c.Seen) { // the holder may have begun since
		return askAgain
	}
	key := HeartbeatKey(c.Target, l.Owner)
	h, there := s.all[key]
	since, lease := h.Seen, max(k.Lease, h.Lease)
	switch {
	case !there: // somebody may have removed it in error: its process finds that out within a lease
		since = latest(s.goneSince(key), c.Seen)
	case h.Invalid != nil, h.Epoch < l.Epoch: // it makes no sense, but its process may be there
	case h.Epoch > l.Epoch, h.Lease == 0:
		return 0
	}
	if s.sent.Sub(since) >= lease {
		return 0
	}
	return max(askAgain, since.Add(lease).Sub(k.Now()))
}

// IsHeld reports whether a live process holds the range: its heartbeat has moved since this
// process first saw it.
func (k *Keeper) IsHeld(c Cursor) bool {
	s := k.seen.Load()
	if s == nil || k.Wait(c) == 0 || !s.sent.After(c.Seen) {
		return false
	}
	h := s.all[HeartbeatKey(c.Target, c.Lease.Owner)]
	return h.Epoch == c.Lease.Epoch && h.Seen.After(h.First)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Parts returns how many processes divide the ranges of the target, this one included, and
// how many ranges all of them hold together: those whose heartbeats have moved lately and
// that hold something or look for it. Since is when the oldest of these heartbeats was seen.
func (k *Keeper) Parts() (processes, ranges int, since time.Time) {
	return k.partsWith(k.Pulse.Held())
}

// IsFull reports whether a process that holds so many ranges holds its part of those that are
// wanted, while other processes hold or want the others.
func (k *Keeper) IsFull(held, wanted int) bool {
	processes, ranges, _ := k.partsWith(held)
	return processes > 1 && held >= (max(ranges, wanted)+processes-1)/processes
}

// IsSought reports whether another process looks for ranges that it may take from others.
func (k *Keeper) IsSought() bool {
	for h := range k.others() {
		if h.Seeks {
			return true
		}
	}
	return false
}

// Turn returns how many of the other processes that divide the ranges come before this one at
// a range, by a hash of owner and range: those that know of each other need not compete.
func (k *Keeper) Turn(id ID) (before, processes int) {
	key := id.Key()
	own := turnOf(k.Owner, key)
	for h := range k.others() {
		if processes++; turnOf(h.Owner, key) < own {
			before++
		}
	}
	return before, processes + 1
}

// turnOf returns a hash by which the processes that divide the ranges get turns at a range,
// by its key.
func turnOf(owner, key string) uint64 {
	f := fnv.New64a()
	f.Write([]byte(owner))
	f.Write([]byte{0})
	f.Write([]byte(key))
	h := f.Sum64()
	h = (h ^ h>>33) * 0xff51afd7ed558ccd // FNV leaves the last digits of a shard in the lower bits
	return h ^ h>>33
}

// IsDoubtful reports whether a record that was read at an instant may well show a range as free
// that another process holds by now: since then one was faster to claim some range.
func (k *Keeper) IsDoubtful(read time.Time) bool {
	lost := k.lost.Load()
	return lost != nil && !read.After(*lost) && k.Now().Sub(*lost) < k.Lease
}

// partsWith returns the parts, for a process that holds so many ranges.
func (k *Keeper) partsWith(held int) (processes, ranges int, since time.Time) {
	processes, ranges = 1, held
	for h := range k.others() {
		processes++
		ranges += int(h.Claims)
		if since.IsZero() || h.Seen.Before(since) {
			since = h.Seen
		}
	}
	return processes, ranges, since
}

// others yields the heartbeats of the other processes that divide the ranges of the target.
func (k *Keeper) others() iter.Seq[Heartbeat] {
	return func(yield func(Heartbeat) bool) {
		s := k.seen.Load()
		if s == nil {
			return
		}
		for key, h := range s.all {
			takesPart := h.Invalid == nil && (h.Lease > 0 || h.Seeks) && s.sent.Sub(h.Seen) < max(k.Lease, h.Lease)
			if takesPart && k.IsOfThisOpening(h.Owner) && !isHeartbeatKey(key, h.Target, k.Owner) && !yield(h) {
				return
			}
		}
	}
}
