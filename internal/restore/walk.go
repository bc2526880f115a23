package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/store"
)

// An item is an entity that is to be restored.
type item struct {
	store.Copy

	namespace string
	kept      time.Time // when it was archived
	at        time.Time // when it will expire
	expires   bool      // it will

	doubtful bool   // an earlier insert may have happened
	lost     string // why point-in-time recovery does not have it as it was archived
}

// A chunk is items that follow each other, and the place behind them.
type chunk struct {
	items []item
	bytes int
	end   place
}

// isFull reports whether no more may be added: a chunk is about as large as one call of the store.
func (c *chunk) isFull() bool { return len(c.items) == store.MaxPage || c.bytes >= store.CopyBytes }

// walk reads those lines of the plan that it is to take, and gives them to use in chunks: what lies below something
// comes in a later chunk.
func (r *run) walk(
	ctx context.Context, takes func(depth int, o *object, line int) bool, use func(context.Context, *chunk) error,
) error {
	var c chunk
	flush := func() error {
		if len(c.items) == 0 {
			return nil
		}
		err := use(ctx, &c)
		c = chunk{}
		return err
	}
	for _, depth := range r.plan.depths {
		for i := range r.plan.objects {
			o := &r.plan.objects[i]
			wanted := slices.DeleteFunc(o.wanted(depth), func(line uint32) bool { return !takes(depth, o, int(line)) })
			if len(wanted) == 0 {
				continue
			}
			if err := r.hold.keep(ctx); err != nil {
				return err
			}
			if err := r.lines(ctx, o, depth, wanted, &c, flush); err != nil {
				return err
			}
		}
		if err := flush(); err != nil { // what lies deeper depends on what became of this
			return err
		}
	}
	return nil
}

// counted returns a use of chunks that shows how far it has come.
func (r *run) counted(use func(context.Context, *chunk) error) func(context.Context, *chunk) error {
	return func(ctx context.Context, c *chunk) error {
		err := use(ctx, c)
		r.job.Progress.EntitiesDone.Add(int64(len(c.items)))
		return err
	}
}

// noteAbsent notes what does not exist of that which earlier runs have dealt with: they could not restore it, or
// somebody has deleted it. Nothing may be inserted below.
func (r *run) noteAbsent(ctx context.Context, c *chunk) error {
	return byNamespace(c.items, func(namespace string, items []item) error {
		return r.fetch(ctx, namespace, keysOf(items), func(i int, now store.Copy) {
			if now.Data == nil {
				r.leave(items[i])
			}
		})
	})
}

// lines adds lines of one object to the chunk.
func (r *run) lines(
	ctx context.Context, o *object, depth int, wanted []uint32, c *chunk, flush func() error,
) error {
	in, err := archive.OpenObject(ctx, r.job.Bucket, o.Name)
	if err != nil {
		return fmt.Errorf("read the archive again: %w", err)
	}
	defer in.Close()
	for line, err := range in.Lines() {
		if err != nil {
			return fmt.Errorf("read the archive again: %w", err)
		}
		if line.Number != int(wanted[0]) {
			continue
		}
		at, expires := r.job.expiryFrom(r.began, line.Namespace, line.Copy)
		c.items = append(c.items, item{Copy: line.Copy, namespace: line.Namespace, kept: line.At, at: at, expires: expires})
		c.bytes += len(line.Data)
		c.end = place{depth: depth, at: o.At, object: o.Name, line: line.Number}
		if c.isFull() {
			if err := flush(); err != nil {
				return err
			}
		}
		if wanted = wanted[1:]; len(wanted) == 0 {
			return nil // whatever follows, and be it damaged, is not needed
		}
	}
	return fmt.Errorf("read the archive again: object %s: %w: line %d is missing by now", o.Name, archive.ErrDamaged,
		wanted[0])
}

// byNamespace gives the items of each namespace to use, in their order.
func byNamespace(items []item, use func(namespace string, items []item) error) error {
	for len(items) > 0 {
		ns := items[0].namespace
		var some, others []item
		for _, one := range items {
			if one.namespace == ns {
				some = append(some, one)
			} else {
				others = append(others, one)
			}
		}
		if err := use(ns, some); err != nil {
			return err
		}
		items = others
	}
	return nil
}

// fetch reads entities of one namespace as they are now, and gives each to use, with its place in the list. It holds
// about as much as one call reads.
func (r *run) fetch(ctx context.Context, namespace string, keys []string, use func(int, store.Copy)) error {
	return r.each(ctx, namespace, keys, r.fetchSome, use)
}

// A fetching reads as many of the first entities as one call does, and at least one.
type fetching func(ctx context.Context, namespace string, keys []string, at time.Time) ([]store.Copy, error)

func (r *run) each(
	ctx context.Context, namespace string, keys []string, fetch fetching, use func(int, store.Copy),
) error {
	for n := 0; n < len(keys); {
		some, err := fetch(ctx, namespace, keys[n:], time.Time{})
		if err != nil {
			return err
		}
		for i, c := range some {
			use(n+i, c)
		}
		n += len(some)
	}
	return nil
}

// fetchSome reads as many of the first entities as one call does, and at least one, as they were at an instant; the
// zero time is now. It keeps the lease.
func (r *run) fetchSome(ctx context.Context, namespace string, keys []string, at time.Time) ([]store.Copy, error) {
	list, err := r.fetchOnly(ctx, namespace, keys, at)
	if err != nil {
		return nil, err
	}
	return list, r.hold.keep(ctx)
}

func (r *run) fetchOnly(
	ctx context.Context, namespace string, keys []string, at time.Time,
) (list []store.Copy, err error) {
	keys = keys[:min(len(keys), store.MaxPage)]
	err = store.Retry(ctx, patience, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		list, err = r.job.archiver.Fetch(ctx, r.job.Target.Target, namespace, keys, at)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, fmt.Errorf("%w: it reads none of %d entities", store.ErrFailed, len(keys))
	}
	return list, nil
}

// look counts those items of a chunk that exist: what a dry run does instead of inserting.
func (r *run) look(ctx context.Context, c *chunk) error {
	return r.contents(ctx, r.withParents(c.items), func(namespace string, items []item) error {
		if err := r.checkOthers(items); err != nil {
			return err
		}
		return r.fetch(ctx, namespace, keysOf(items), func(i int, one store.Copy) {
			if one.Data != nil {
				r.tally.outcome(items[i], store.Kept, "")
			}
		})
	})
}

func keysOf(items []item) (keys []string) {
	for _, one := range items {
		keys = append(keys, one.Key)
	}
	return keys
}

// How far back point-in-time recovery reaches, and without it the versions that a database keeps.
const (
	recoverable = 7 * 24 * time.Hour
	versions    = time.Hour
)

// contents gives use the items of each namespace with their contents, in their order: those that the archive has
// or, if it is a journal of keys, those of the last whole minute before they were archived. These are as many at a
// time as one call reads: whole entities are held for no more of the chunk. An entity that was not yet as the
// journal says by then is left out, and noted.
func (r *run) contents(ctx context.Context, items []item, use func(namespace string, items []item) error) error {
	if r.job.From == FromArchive {
		return byNamespace(items, use)
	}
	return byNamespace(items, func(namespace string, items []item) error {
		for len(items) > 0 {
			at, n := r.minute(items[0]), 1
			for n < len(items) && r.minute(items[n]).Equal(at) {
				n++
			}
			copies, err := r.fetchSome(ctx, namespace, keysOf(items[:n]), at)
			if err != nil {
				return r.explainPast(at, err)
			}
			var some, lost []item
			for i, was := range copies {
				one := items[i] // a copy, which alone has the contents
				if why := differs(one.Copy, was); why != "" {
					one.lost = why + " at " + at.Format(time.RFC3339)
					lost = append(lost, one)
					continue
				}
				one.Data = was.Data
				some = append(some, one)
			}
			if err := r.lose(ctx, namespace, lost); err != nil {
				return err
			}
			if err := use(namespace, some); err != nil {
				return err
			}
			items = items[len(copies):]
		}
		return nil
	})
}

// lose notes items that cannot come back, unless they exist by now: nothing may be inserted below them.
func (r *run) lose(ctx context.Context, namespace string, lost []item) error {
	return r.fetch(ctx, namespace, keysOf(lost), func(i int, now store.Copy) {
		if now.Data != nil {
			r.tally.outcome(lost[i], store.Kept, "")
			return
		}
		r.tally.lost(lost[i], lost[i].lost)
		r.leave(lost[i])
	})
}

// minute returns as of when point-in-time recovery may know an item. The clock of the process that archived it, and
// then deleted it, may have been ahead.
func (r *run) minute(i item) time.Time {
	return i.kept.UTC().Add(-r.job.Target.MaxClockSkew).Truncate(time.Minute)
}

// explainPast returns the error of a read of the past with what explains it.
func (r *run) explainPast(at time.Time, err error) error {
	if !errors.Is(err, store.ErrInvalid) {
		return fmt.Errorf("read entities as they were at %s: %w", at.Format(time.RFC3339), err)
	}
	now := r.switches.StoreNow().UTC().Truncate(time.Minute)
	return fmt.Errorf("%w: %s; it reaches back to %s, and to %s if it is off: %w", ErrTooOld,
		at.Format(time.RFC3339), now.Add(-recoverable).Format(time.RFC3339), now.Add(-versions).Format(time.RFC3339), err)
}

// differs says why an earlier copy is not what was archived; empty if it is.
func differs(archived, was store.Copy) string {
	switch {
	case was.Data == nil:
		return "it did not exist yet"
	case !archived.Updated.IsZero() && !was.Updated.IsZero():
		if !archived.Updated.Equal(was.Updated) {
			return "it was not yet written the last time"
		}
	case archived.Expiry.Type == store.Missing: // of what lies below another one the journal has the key alone
	case archived.Expiry.Type != was.Expiry.Type || archived.Expiry.Compare(was.Expiry) != 0:
		return "it had another expiry"
	}
	return ""
}
