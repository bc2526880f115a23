package visit

import (
	"context"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/dispose"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/site"
	"github.com/reaper-ttl/reaper/sweep/step"
)

// compare finds out which due entries of the page must be kept, and counts them. Within a
// visit they count like entities that the store refuses: they keep their generation from
// retiring.
func (v *visit) compare(t step.Turn) error {
	c := v.c
	v.decide.Compared = site.Comparison{Active: v.decide.Compared.Active} // also for what waits aside from earlier pages
	if c.Target.Compare == nil {
		return nil
	}
	var entries []store.Entry
	for _, e := range t.Scratch.Page.Entries {
		if v.decide.Decide(e.Value) == index.Due && !v.kept.has(e) {
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 && len(v.asides) == 0 && v.decide.Carry == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Ctx, dispose.WriteTimeout)
	defer cancel()
	compared, err := c.Target.Compare(ctx, v.r.Namespace, entries)
	if err != nil {
		return err
	}
	v.decide.Compared = compared
	for _, e := range entries {
		if compared.Kept[e.Key] {
			v.kept.add(e, true)
		}
	}
	c.Tally.Counts.Mismatch.Add(int64(len(compared.Kept)))
	return nil
}
