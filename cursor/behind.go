package cursor

import (
	"math"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A Behind is what a daemon has counted of a target behind the cursors: due, and left until the next
// read of its range from the start. A heartbeat carries it for people; no process decides by it. Its
// instants are in the store's time.
type Behind struct {
	N       int64
	More    bool      // there are more than N: counting stopped there
	Since   time.Time // when the oldest of them became due; zero without any
	GoneBy  time.Time // the first sweep after that deletes the last of them; zero if that is not known
	Counted time.Time // zero if nothing was counted yet
	// Late is more than zero if the breaker would trip at the next read from the start: for so many that
	// are late, where Limit may be.
	Late, Limit int64
}

// rounded returns the count with its instants as a record holds them, so that two can be compared.
func (b Behind) rounded() Behind {
	for _, at := range []*time.Time{&b.Since, &b.GoneBy, &b.Counted} {
		if !at.IsZero() {
			*at = at.UTC().Truncate(time.Microsecond)
		}
	}
	return b
}

func (b Behind) encode(f store.Fields) {
	if b.Counted.IsZero() {
		return
	}
	f["behind"], f["behind_at_least"] = b.N, b.More
	f["behind_since"], f["behind_gone_by"] = store.FormatTime(b.Since), store.FormatTime(b.GoneBy)
	f["behind_counted"] = store.FormatTime(b.Counted)
	f["would_trip_late"], f["would_trip_limit"] = b.Late, b.Limit
}

func readBehind(f *store.FieldReader) Behind {
	return Behind{N: number(f, "behind", math.MaxInt64), More: f.Bool("behind_at_least"), Since: f.Time("behind_since"),
		GoneBy: f.Time("behind_gone_by"), Counted: f.Time("behind_counted"),
		Late: number(f, "would_trip_late", math.MaxInt64), Limit: number(f, "would_trip_limit", math.MaxInt64)}
}
