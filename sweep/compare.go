package sweep

import (
	"context"

	"github.com/reaper-ttl/reaper/store"
)

// A Comparer says which due entries must be kept, because their entity has something else
// that says it is not due: see [Target].Compare. It is also called with none, to learn whether
// anything is to be compared at present.
type Comparer func(ctx context.Context, namespace string, due []store.Entry) (Comparison, error)

// A Comparison is what a Comparer found out about some entries.
type Comparison struct {
	Active bool            // false if nothing is to be compared at present
	Kept   map[string]bool // the keys of those that must be kept
	// Premises are what the others were compared by, by their keys: they are deleted only while it is true.
	Premises map[string]store.Premise
}

// compare finds out which due entries of the page must be kept, and counts them. Within a
// visit they count like entities that the store refuses: they keep their generation from
// retiring.
func (v *visit) compare(t turn) error {
	c := v.c
	v.kept.compared = Comparison{Active: v.kept.compared.Active} // also for what waits aside from earlier pages
	if c.target.Compare == nil {
		return nil
	}
	var entries []store.Entry
	for _, e := range t.scratch.page.Entries {
		if c.decide(e.Value, v.horizon) == due && !v.kept.has(e) {
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 && len(v.asides) == 0 && v.carry == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(t.ctx, writeTimeout)
	defer cancel()
	compared, err := c.target.Compare(ctx, v.r.Namespace, entries)
	if err != nil {
		return err
	}
	v.kept.compared = compared
	for _, e := range entries {
		if compared.Kept[e.Key] {
			v.kept.add(e, true)
		}
	}
	c.tally.counts.Mismatch.Add(int64(len(compared.Kept)))
	return nil
}
