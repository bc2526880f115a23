package firestore

import (
	"container/list"
	"sync"

	"github.com/reaper-ttl/reaper/store"
)

// scannedBytes bounds the whole documents that are held between their scan and their delete: some 20 pages of
// large ones.
const scannedBytes = 64 << 20

// scanned holds whole documents that scans have read, so that an archive gets them without another read. It
// knows of which targets they are wanted: of those whose last Dispose had an Archive. What does not fit goes,
// oldest first: a document that is not held is read again. The zero value is ready, and it is safe for
// concurrent use.
type scanned struct {
	mu     sync.Mutex
	wanted map[store.Target]bool
	copies map[string]*list.Element // by key
	byAge  list.List                // of store.Copy, whose Expiry is not set; the oldest first
	bytes  int
}

// want says whether whole documents of the target are wanted of scans.
func (s *scanned) want(t store.Target, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !is:
		delete(s.wanted, t)
	case s.wanted == nil:
		s.wanted, s.copies = map[store.Target]bool{t: true}, map[string]*list.Element{}
	default:
		s.wanted[t] = true
	}
}

func (s *scanned) isWanted(t store.Target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted[t]
}

// hold takes a copy, in the place of an older one of the same document.
func (s *scanned) hold(c store.Copy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(c.Key)
	c.Expiry = store.Value{} // that of the op counts: an entry may be of another target
	s.copies[c.Key] = s.byAge.PushBack(c)
	for s.bytes += weight(c); s.bytes > scannedBytes; {
		s.drop(s.byAge.Front().Value.(store.Copy).Key)
	}
}

// of returns the copies of the documents that these ops delete, by the ops' indexes, until they are CopyBytes, and how
// many bytes they are.
func (s *scanned) of(ops []*store.Op) (found map[int]store.Copy, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found = map[int]store.Copy{}
	for i := 0; i < len(ops) && bytes < store.CopyBytes; i++ {
		held, ok := s.copies[ops[i].Entry.Key]
		if !ok || ops[i].IsCarry() {
			continue
		}
		if c := held.Value.(store.Copy); c.Updated.Equal(ops[i].Entry.Written) {
			c.Expiry = ops[i].Entry.Value // of the same document, at the same time
			found[i], bytes = c, bytes+len(c.Data)
		}
	}
	return found, bytes
}

// settled lets go of the documents of ops that have an outcome.
func (s *scanned) settled(ops []store.Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range ops {
		if ops[i].Outcome != store.Unknown {
			s.drop(ops[i].Entry.Key)
		}
	}
}

func (s *scanned) drop(key string) {
	if held, ok := s.copies[key]; ok {
		s.bytes -= weight(s.byAge.Remove(held).(store.Copy))
		delete(s.copies, key)
	}
}

// weight is about how much memory a copy takes.
func weight(c store.Copy) int { return 2*len(c.Key) + len(c.Data) + 300 }
