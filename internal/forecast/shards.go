package forecast

import "math"

// PerRange is how many writes a second one contiguous range of an index takes, as the services'
// pages of best practices say: for a collection whose indexed values rise steadily, deletes
// included, and for the first minutes of a range that is new or cold.
const PerRange = 500

// RangesFor returns how many ranges entities need that are written, and later deleted, at a rate:
// each delete may fall into the range that others are written to.
func RangesFor(perSecond float64) int {
	return max(1, int(min(math.MaxInt32, math.Ceil(2*perSecond/PerRange))))
}

// Shards are what a workload asks of the shards.
type Shards struct {
	Set    int     `json:"set"`
	Needed int     `json:"needed"`           // with the deletes and carries that fall into the same ranges
	Least  int     `json:"least"`            // for the writes of the application alone
	Load   float64 `json:"writes_per_range"` // a second, deletes included
}

// MostShards is how many shards a target may have.
const MostShards = 9999

// ShardsOf returns how many shards a workload needs.
func (s Settings) ShardsOf(w Workload) Shards {
	rate := w.Writes * (1 + s.GenerationsOf(w).Carries/2)
	spread := float64(s.Namespaces)
	each := func(ranges float64) int { return max(1, int(min(math.MaxInt32, math.Ceil(ranges/spread)))) }
	return Shards{Set: s.Shards, Needed: each(float64(RangesFor(rate))), Least: each(w.Writes / PerRange),
		Load: 2 * rate / s.ranges()}
}

// A Row says what an index row of the expiry is made of, in bytes.
type Row struct {
	Kind, Property int // lengths of their names
	Namespace      int // of its name; 0 for the default one
	ID             int // of an id
	Value          int // of the expiry
	Composite      bool
}

// Rows returns how many index rows the expiry of an entity has, and how large each is, by the services'
// pages on storage size: an ascending and a descending one, or one of a composite index. An embedded
// store has one.
func (r Row) Rows(m Mode) (rows, bytes float64) {
	const name, row = 16, 32
	key := float64(name + r.Kind + 1 + r.ID)
	if r.Namespace > 0 {
		key += float64(r.Namespace + 1)
	}
	value := float64(r.Value)
	switch {
	case m == Embedded:
		return 1, float64(r.ID) + value
	case r.Composite && (m == Native || m == Cloud):
		return 1, key + name + value + row
	case r.Composite:
		return 1, key + value + row
	case m == Native || m == Cloud: // the larger ones; the parent of a collection at the top is the root
		return 2, key + name + float64(r.Property+1) + value + row
	}
	return 2, key + float64(r.Kind+1) + float64(r.Property+1) + value + row
}

// Storage is what a workload takes up, in the long run.
type Storage struct {
	Entities    float64  `json:"entities"`
	RowsEach    float64  `json:"index_rows_per_entity"`
	RowBytes    float64  `json:"bytes_per_index_row"`
	Rows        float64  `json:"index_rows"`
	IndexGiB    float64  `json:"index_gib"`
	EntitiesGiB *float64 `json:"entities_gib"` // nil if their size is not known
}

const gib = 1 << 30

// StorageOf returns what a workload takes up once writes and deletes are even, with the backlog.
func (s Settings) StorageOf(w Workload) Storage {
	n := w.Entities
	if n == 0 {
		n = s.Held(w) + w.Backlog
	}
	st := Storage{Entities: n}
	st.RowsEach, st.RowBytes = s.Layout.Row.Rows(s.Mode)
	st.Rows = n * st.RowsEach
	st.IndexGiB = st.Rows * st.RowBytes / gib
	if w.Size > 0 {
		size := n * w.Size / gib
		st.EntitiesGiB = &size
	}
	return st
}
