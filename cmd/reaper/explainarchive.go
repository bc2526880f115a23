package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
)

const (
	// searchTimeout is for how long an archive is searched for an entity, from its newest objects on.
	searchTimeout = 20 * time.Second
	// searchSpare is how long before the caller's own deadline a search ends, so that what is known by then is told.
	searchSpare = time.Second
)

// addArchived adds to the explanation of an entity that does not exist what the target's archive has of it.
func addArchived(ctx context.Context, s *session, t config.Target, x *inspect.Explanation) error {
	if t.Archive.Mode == config.NoArchive || x.Found || x.Descendant != "" {
		return nil
	}
	bucket, err := archive.OpenBucket(ctx, t.Archive.To)
	if err == nil {
		err = searchArchive(ctx, bucket, t, x, s.now())
	}
	if err != nil {
		return fmt.Errorf("the archive: %w", err)
	}
	return nil
}

// searchArchive adds what a bucket has of an entity, as far as the time allows to search it.
func searchArchive(
	ctx context.Context, b archive.Bucket, t config.Target, x *inspect.Explanation, now time.Time,
) error {
	within, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	if deadline, ok := ctx.Deadline(); ok {
		within, cancel = context.WithDeadline(within, deadline.Add(-searchSpare))
		defer cancel()
	}
	found, unread, read, err := newestCopy(within, b, t, x, now)
	if err != nil && ctx.Err() == nil && within.Err() != nil {
		err = nil // as far as that went
	}
	if err != nil {
		return err
	}
	at := slices.IndexFunc(unread, func(err error) bool { // somebody else can read it
		return !errors.Is(err, archive.ErrDamaged) && !errors.Is(err, archive.ErrNotFound)
	})
	if read == 0 && at >= 0 {
		return unread[at]
	}
	x.Archived = &found
	x.Why = archivedText(found) + unreadText(unread)
	return nil
}

// newestCopy searches the archive of a target for an entity, day by day, from now back to where objects are no
// longer kept. The result of a search that was stopped says how far it went. Unread has the errors of objects that
// could not be read: the search continues without them, and says that it went as far as the first one. Read is how
// many objects could be.
func newestCopy(
	ctx context.Context, b archive.Bucket, t config.Target, x *inspect.Explanation, now time.Time,
) (found inspect.ArchivedCopy, unread []error, read int, err error) {
	found.Since = now
	searched := func(to time.Time) {
		if len(unread) == 0 {
			found.Since = to
		}
	}
	for at, oldest := now, now.Add(-t.Archive.Keep); at.After(oldest); at = at.Add(-24 * time.Hour) {
		until, since := at, at.Add(-24*time.Hour)
		if at.Equal(now) {
			until = time.Time{} // the clock of another process may be ahead
		}
		var day []archive.Entry
		for e, err := range archive.Objects(ctx, b, t.Name, since, until) {
			if errors.Is(err, archive.ErrNotFound) { // nothing has been archived there yet, or not under this name
				return found, append(unread, err), read, nil
			}
			if err != nil {
				return found, unread, read, err
			}
			day = append(day, e)
		}
		for _, e := range slices.Backward(day) {
			if e.Missing {
				continue
			}
			copied, err := searchObject(ctx, b, e, x)
			switch {
			case err == nil:
				read++
			case ctx.Err() == nil: // damaged, or not to be read: another one may have it
				unread = append(unread, err)
				err = nil
			}
			if copied.Object != "" {
				copied.Since = found.Since
				return copied, unread, read, err
			}
			if err != nil {
				return found, unread, read, err
			}
			searched(e.At)
		}
		searched(since)
	}
	return found, unread, read, nil
}

// searchObject looks for an entity in one object. One that is cut short may have it before that.
func searchObject(
	ctx context.Context, b archive.Bucket, e archive.Entry, x *inspect.Explanation,
) (found inspect.ArchivedCopy, err error) {
	r, err := archive.OpenObject(ctx, b, e.Name)
	if err != nil {
		return found, err
	}
	defer r.Close()
	for line, err := range r.Lines() {
		if err := cmp.Or(ctx.Err(), err); err != nil { // reading a file does not end with ctx
			if !errors.Is(err, archive.ErrDamaged) || errors.Is(err, archive.ErrChanged) {
				found = inspect.ArchivedCopy{} // what it says may be untrue, or its manifest says otherwise
			}
			return found, err
		}
		if line.Key == x.Key && line.Namespace == x.Namespace && line.State != archive.Kept {
			found.Object, found.State, found.At, found.By = e.Name, string(line.State), &line.At, r.Header().Owner
		}
	}
	return found, nil
}

// archivedText says for people what an archive has of an entity.
func archivedText(c inspect.ArchivedCopy) string {
	switch {
	case c.Object == "":
		return fmt.Sprintf("there is no such entity, and none was archived since %s: it was deleted by something else, "+
			"or before, or never written", c.Since.UTC().Format(time.RFC3339))
	case c.State == string(archive.Unconfirmed):
		return fmt.Sprintf("there is no such entity: %s archived it at %s in order to delete it, and was killed before it "+
			"said whether it did; object %s", c.By, c.At.UTC().Format(time.RFC3339), c.Object)
	}
	return fmt.Sprintf("it was deleted at %s by %s, as object %s of the archive says",
		c.At.UTC().Format(time.RFC3339), c.By, c.Object)
}

// unreadText says for people which objects of an archive could not be read.
func unreadText(unread []error) string {
	if len(unread) == 0 {
		return ""
	}
	return fmt.Sprintf("; not everything could be read there (%s, the newest: %v)",
		counted(int64(len(unread)), "error", "errors"), unread[0])
}
