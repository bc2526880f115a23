package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// Prune removes the objects of a target that were begun before an instant, and their manifests, from a bucket of files,
// and what processes that were killed have left there of any target. It returns how many files of the target that were.
// What cannot be removed keeps nothing else. Objects elsewhere are removed by a lifecycle rule of their bucket: there
// Prune does nothing. The instant must not be ahead of the true time: what is removed here has no other copy.
func Prune(ctx context.Context, b Bucket, target string, before time.Time) (removed int, err error) {
	files, ok := b.(*fileBucket)
	if !ok {
		return 0, nil
	}
	abandoned := files.removeAbandoned()
	removed, err = prune(ctx, b, target, before)
	if err = errors.Join(abandoned, err); err != nil {
		err = fmt.Errorf("prune the archive of target %s: %w", target, err)
	}
	return removed, err
}

// prune removes the objects of a target from any bucket.
func prune(ctx context.Context, b Bucket, target string, before time.Time) (removed int, err error) {
	var errs failures
	for o, err := range b.List(ctx, target+"/", "") {
		if errors.Is(err, ErrNotFound) {
			break // nothing was ever kept there
		}
		if err != nil {
			errs.add(err)
			break
		}
		name, ok := parseName(o.Name)
		if !ok {
			continue // not ours
		}
		if !name.at.Before(before) {
			break // the others are younger
		}
		if err := ctx.Err(); err != nil { // a day has tens of thousands of files
			errs.add(err)
			break
		}
		switch err := b.Remove(ctx, o.Name); {
		case err == nil:
			removed++
		case !errors.Is(err, ErrNotFound): // another process may have removed it
			errs.add(err)
		}
	}
	return removed, errs.join()
}

// failures are those of many files. It has the first one alone, since all may have the same cause.
type failures struct {
	n     int
	first error
}

func (f *failures) add(err error) { f.n, f.first = f.n+1, cmp.Or(f.first, err) }

// join returns the failures as one error; nil if there are none.
func (f *failures) join() error {
	if f.n < 2 {
		return f.first
	}
	return fmt.Errorf("%d failures, the first: %w", f.n, f.first)
}
