package embedded

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// setGroups is how many groups there are of entities' rows. Others set some of those that wait for an Archive: with
// so many groups, few of the rest are read again in vain.
const setGroups = 1 << 10

// Sets tell whether an entity's row was set since it was read. Rows are in groups, by hash, and each group counts the
// commits that may have set one of its rows. It counts a commit when that can be read, and the write lock is still
// held. So if the count under the lock is the one from before the read, no row of the group was set in between: what
// was read is what the row has, unless it was deleted, and then its index rows are gone, too.
type sets struct {
	counts [setGroups]atomic.Uint64
	groups []int // of the commit that goes on; guarded by the write lock
}

// groupOf returns the group of a row, by FNV-1a: the same in every process, so that tests can be repeated.
func groupOf(row []byte) int {
	h := uint32(2166136261)
	for _, b := range row {
		h = (h ^ uint32(b)) * 16777619
	}
	return int((h>>16 ^ h) % setGroups)
}

// count returns the count of a row's group.
func (s *sets) count(row []byte) uint64 { return s.counts[groupOf(row)].Load() }

// note finds the rows of entities that a batch sets. It comes before the commit, after which the engine may have taken
// the batch's bytes away.
func (s *sets) note(b *pebble.Batch) error {
	s.groups = s.groups[:0]
	for r := b.Reader(); ; {
		kind, key, _, ok, err := r.Next()
		if !ok || err != nil {
			return err
		}
		if kind != pebble.InternalKeyKindDelete && len(key) > 0 && key[0] == rowEntity {
			s.groups = append(s.groups, groupOf(key))
		}
	}
}

// add counts what was noted, whether or not the commit succeeded.
func (s *sets) add() {
	for _, group := range s.groups {
		s.counts[group].Add(1)
	}
}
