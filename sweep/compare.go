package sweep

import (
	"context"

	"github.com/reaper-ttl/reaper/store"
)

// A Comparer says which due entries must be kept, because their entity has something else
// that says it is not due: see [Target].Compare. It returns their keys. Active is false if
// nothing is to be compared at present. It sets AsOf of the entries to the state that it compared: a writer
// may extend an entity after that, and leave its expiry as it is.
type Comparer func(
	ctx context.Context, namespace string, due []store.Entry,
) (kept map[string]bool, active bool, err error)

// compare finds out which due entries of the page must be kept, and counts them. Within a
// visit they count like entities that the store refuses: they keep their generation from
// retiring.
func (v *visit) compare(t turn) error {
	c := v.c
	v.kept.mismatched, v.kept.comparing = nil, false
	if c.target.Compare == nil {
		return nil
	}
	var entries []store.Entry
	var places []int // of the entries, in the page
	for i, e := range t.scratch.page.Entries {
		if c.decide(e.Value, v.horizon) == due && !v.kept.has(e) {
			entries, places = append(entries, e), append(places, i)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(t.ctx, writeTimeout)
	defer cancel()
	kept, active, err := c.target.Compare(ctx, v.r.Namespace, entries)
	if err != nil {
		return err
	}
	v.kept.mismatched, v.kept.comparing = kept, active
	for n, e := range entries {
		t.scratch.page.Entries[places[n]].AsOf = e.AsOf
		if kept[e.Key] {
			v.kept.add(e, true)
		}
	}
	c.tally.counts.Mismatch.Add(int64(len(kept)))
	return nil
}
