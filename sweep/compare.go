package sweep

import (
	"context"

	"github.com/reaper-ttl/reaper/store"
)

// A Comparer says which due entries must be kept, because their entity has something else
// that says it is not due: see [Target].Compare. It returns their keys. Active is false if
// nothing is to be compared at present.
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
	for _, e := range t.scratch.page.Entries {
		if c.decide(e.Value, v.horizon) == due && !v.kept.has(e) {
			entries = append(entries, e)
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
	for _, e := range entries {
		if kept[e.Key] {
			v.kept.add(e, true)
		}
	}
	c.tally.counts.Mismatch.Add(int64(len(kept)))
	return nil
}
