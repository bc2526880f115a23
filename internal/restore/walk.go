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

	announced bool // its expiry, so that a repeated insert does not announce it again
	doubtful  bool // an earlier insert may have happened
}

// A chunk is items that follow each other, and the place behind them.
type chunk struct {
	items []item
	bytes int
	end   place
}

// isFull reports whether no more may be added: a chunk is about as large as one call of the store.
func (c *chunk) isFull() bool { return len(c.items) == store.MaxPage || c.bytes >= store.CopyBytes }

// walk reads what is to be restored, and gives it to use in chunks: what lies below something comes in a later
// chunk, or behind it in the same one.
func (r *run) walk(ctx context.Context, from place, use func(context.Context, *chunk) error) error {
	var c chunk
	flush := func() error {
		if len(c.items) == 0 {
			return nil
		}
		err := use(ctx, &c)
		r.job.Progress.EntitiesDone.Add(int64(len(c.items)))
		c = chunk{}
		return err
	}
	for _, depth := range r.plan.depths {
		for i := range r.plan.objects {
			o := &r.plan.objects[i]
			wanted := o.wanted(depth)
			for len(wanted) > 0 && from.isBehind(depth, *o, int(wanted[0])) {
				wanted = wanted[1:]
				r.job.Progress.EntitiesDone.Add(1)
			}
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
	}
	return flush()
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
		at, expires := r.job.Expiry.instant(r.began, r.job.Target.Name, line.Namespace, line.Copy)
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

// fetch reads entities of one namespace as they were at an instant; the zero time is now.
func (r *run) fetch(ctx context.Context, namespace string, keys []string, at time.Time) (list []store.Copy, err error) {
	for len(list) < len(keys) {
		var some []store.Copy
		n := min(len(keys)-len(list), store.MaxPage)
		err := store.Retry(ctx, patience, func() error {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			some, err = r.job.archiver.Fetch(ctx, r.job.Target.Target, namespace, keys[len(list):len(list)+n], at)
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(some) == 0 {
			return nil, fmt.Errorf("%w: it reads none of %d entities", store.ErrFailed, n)
		}
		list = append(list, some...)
		if err := r.hold.keep(ctx); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// look counts those items of a chunk that exist: what a dry run does instead of inserting.
func (r *run) look(ctx context.Context, c *chunk) error {
	items, err := r.contents(ctx, c.items)
	if err != nil {
		return err
	}
	return byNamespace(items, func(namespace string, items []item) error {
		list, err := r.fetch(ctx, namespace, keysOf(items), time.Time{})
		for i, one := range list {
			if one.Data != nil {
				r.tally.outcome(items[i], store.Kept, "")
			}
		}
		return err
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

// contents returns the items with their contents: those that the archive has or, if it is a journal of keys, those
// of the last whole minute before they were archived. An entity that was not yet as the journal says by then is
// left out, and noted.
func (r *run) contents(ctx context.Context, items []item) (list []item, err error) {
	if r.job.From == FromArchive {
		return items, nil
	}
	type moment struct {
		namespace string
		at        time.Time
	}
	var moments []moment
	by := map[moment][]int{}
	for i, one := range items {
		m := moment{one.namespace, one.kept.UTC().Truncate(time.Minute)}
		if _, known := by[m]; !known {
			moments = append(moments, m)
		}
		by[m] = append(by[m], i)
	}
	var keep []int
	for _, m := range moments {
		var keys []string
		for _, i := range by[m] {
			keys = append(keys, items[i].Key)
		}
		copies, err := r.fetch(ctx, m.namespace, keys, m.at)
		if errors.Is(err, store.ErrInvalid) {
			now := r.switches.StoreNow().UTC().Truncate(time.Minute)
			return nil, fmt.Errorf("%w: %s; it reaches back to %s, and to %s if it is off: %w", ErrTooOld,
				m.at.Format(time.RFC3339), now.Add(-recoverable).Format(time.RFC3339), now.Add(-versions).Format(time.RFC3339), err)
		}
		if err != nil {
			return nil, fmt.Errorf("read entities as they were at %s: %w", m.at.Format(time.RFC3339), err)
		}
		for n, i := range by[m] {
			if why := differs(items[i].Copy, copies[n]); why != "" {
				r.tally.lost(items[i], why+" at "+m.at.Format(time.RFC3339))
				continue
			}
			items[i].Data = copies[n].Data
			keep = append(keep, i)
		}
	}
	slices.Sort(keep) // parents first
	for _, i := range keep {
		list = append(list, items[i])
	}
	return list, nil
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
	case archived.Expiry.Type != was.Expiry.Type || archived.Expiry.Compare(was.Expiry) != 0:
		return "it had another expiry"
	}
	return ""
}
