package archive

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Prune removes the objects of a target that were begun before an instant, and their manifests, from a bucket of files.
// It returns how many files that were. Objects elsewhere are removed by a lifecycle rule of their bucket: there Prune
// does nothing. The instant must not be ahead of the true time: what is removed here has no other copy.
func Prune(ctx context.Context, b Bucket, target string, before time.Time) (removed int, err error) {
	if _, ok := b.(*fileBucket); !ok {
		return 0, nil
	}
	for o, err := range b.List(ctx, target+"/", "") {
		if err != nil {
			return removed, fmt.Errorf("prune the archive: %w", err)
		}
		name, ok := parseName(o.Name)
		switch {
		case !ok:
			continue // not ours
		case !name.at.Before(before):
			return removed, nil
		}
		if err := b.Remove(ctx, o.Name); err != nil && !errors.Is(err, ErrNotFound) {
			return removed, fmt.Errorf("prune the archive: %w", err)
		}
		removed++
	}
	return removed, nil
}
