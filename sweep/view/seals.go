package view

import (
	"context"
	"maps"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// newerSeals returns the seals that were read, but the known one wherever it is newer.
func newerSeals(known, read map[int]cursor.Seal) map[int]cursor.Seal {
	all := maps.Clone(read)
	for number, seal := range known {
		if is, ok := read[number]; ok && store.RevisionCount(seal.Revision) > store.RevisionCount(is.Revision) {
			all[number] = seal
		}
	}
	return all
}

// TakeSeal puts the seal of a generation into the view, and dropSeal takes it out.
func (v *Viewer) TakeSeal(seal cursor.Seal) {
	v.changeSeals(func(all map[int]cursor.Seal) { all[seal.Generation] = seal })
}

func (v *Viewer) DropSeal(number int) {
	v.changeSeals(func(all map[int]cursor.Seal) { delete(all, number) })
}

func (v *Viewer) changeSeals(change func(map[int]cursor.Seal)) {
	v.publish(func(next *plan.View) {
		all := maps.Clone(next.Seals)
		if all == nil {
			all = map[int]cursor.Seal{}
		}
		change(all)
		next.Seals = all
	})
}

// LoadSeal reads the seal of a generation, now.
func (v *Viewer) LoadSeal(ctx context.Context, number int, patience time.Duration) (cursor.Seal, error) {
	return cursor.LoadSeal(ctx, recordReader{v, patience}, v.Target.Name, number)
}
