package page

import (
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/page/draw"
	"github.com/reaper-ttl/reaper/sweep"
)

// ownLease is for how long a range that this process works on is shown as held, from each look on.
const ownLease = time.Minute

// withOwn returns the ranges of a status as this process knows them: its own by its memory, a second old,
// the others by their records. Touched are those of which the memory says more than the record.
func (s *Server) withOwn(st inspect.TargetStatus) (
	merged inspect.TargetStatus, touched map[draw.RangeKey]bool,
) {
	touched = map[draw.RangeKey]bool{}
	if s.Own == nil {
		return st, touched
	}
	all := s.Own(st.Name)
	if all.Owner == "" {
		return st, touched
	}
	own := map[draw.RangeKey]sweep.OwnRange{}
	for _, o := range all.Ranges {
		r := o.Range
		own[draw.RangeKey{Namespace: r.Namespace, Generation: r.Generation, Shard: r.ShardName()}] = o
	}
	st.Ranges = slices.Clone(st.Ranges)
	until := s.Now().Add(ownLease)
	for i := range st.Ranges {
		r := &st.Ranges[i]
		at := draw.KeyOf(*r)
		o, known := own[at]
		switch {
		case o.InWork:
			r.Owner, r.LeaseUntil, r.ThrottledBy = all.Owner, &until, string(o.Held)
		case r.Owner == all.Owner: // it has come to rest since its record was read
			r.Owner, r.LeaseUntil, r.OldestDue = "", nil, nil
		default:
			continue
		}
		if touched[at] = true; known && !o.OldestDue.IsZero() {
			r.OldestDue = &o.OldestDue
		}
	}
	return st, touched
}

// liveCells returns the cells of the map with ranges of this process, by their ids.
func (s *Server) liveCells(target string) map[string]draw.LiveCell {
	st, touched := s.withOwn(s.looks.peek(target).Value.Status)
	if len(touched) == 0 {
		return nil
	}
	return draw.NewMap(st, s.Now(), "").Live(touched)
}
