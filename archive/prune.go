package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
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
	if abandoned != nil && errors.Is(err, ctx.Err()) {
		err = nil // that it was stopped is not what matters
	}
	if err = errors.Join(abandoned, err); err != nil {
		err = fmt.Errorf("prune the archive of target %s: %w", target, err)
	}
	return removed, err
}

// prune removes the objects of a target from any bucket. If ctx ends it stops between two objects, and fails with that
// if nothing else has failed.
func prune(ctx context.Context, b Bucket, target string, before time.Time) (removed int, err error) {
	var errs failures
	for from := ""; ; {
		n, unread := pruneFrom(ctx, b, target, from, before, &errs)
		removed += n
		if unread == "" || ctx.Err() != nil {
			return removed, cmp.Or(errs.join(), ctx.Err())
		}
		from = strings.TrimSuffix(unread, "/") + "0" // what comes after the directory, as 0 comes after the slash
	}
}

// pruneFrom removes the objects whose names are not before from, up to a directory that cannot be read.
func pruneFrom(
	ctx context.Context, b Bucket, target, from string, before time.Time, errs *failures,
) (removed int, unread string) {
	begun := "" // the object of which something was removed last: its manifest does not go alone
	for o, err := range b.List(ctx, target+"/", from) {
		if err != nil {
			if !errors.Is(err, ErrNotFound) && ctx.Err() == nil { // another process may have removed it
				errs.add(err)
			}
			return removed, o.Name
		}
		name, ok := parseName(o.Name)
		switch {
		case !ok:
			continue // not ours
		case !name.at.Before(before): // as are all that follow
			return removed, ""
		case ctx.Err() != nil && name.object != begun: // a day has tens of thousands of files
			return removed, ""
		}
		begun = name.object
		switch err := b.Remove(context.WithoutCancel(ctx), o.Name); {
		case err == nil:
			removed++
		case !errors.Is(err, ErrNotFound):
			errs.add(err)
		}
	}
	return removed, ""
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
