package adopt

import (
	"context"

	"github.com/reaper-ttl/reaper/store"
)

// SupersededBy returns which of some other targets replaces this one: its adoption is
// finished, and its rule read the property by which this target is swept. It is empty if
// there is no such target. Each name costs a read.
func SupersededBy(ctx context.Context, s store.Loader, t store.Target, others []string) (name string, err error) {
	for _, name := range others {
		rec, _, exists, err := Load(ctx, s, name)
		if err != nil {
			return "", err
		}
		if exists && rec.Phase == Finished && rec.Kind == t.Kind && rec.Property != t.Property &&
			rec.Rule.Property == t.Property {
			return name, nil
		}
	}
	return "", nil
}
