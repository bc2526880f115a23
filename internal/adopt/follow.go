package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// followEvery is how long a process waits that has found the end of the index.
	followEvery = 10 * time.Second
	// followLog is how often a follower that writes keys says so.
	followLog = 5 * time.Minute
)

// ErrRoundNeeded is wrapped by the error for an adoption whose last round is not done, or was
// of another share or spread.
var ErrRoundNeeded = errors.New("the round of the adoption is not done")

// Follow stamps what old writers create, until ctx is done: it reads the index of the rule's
// property again and again, from the last value on less an overlap, and looks at the
// entities that are new there. It fails with ErrCannotFollow if that index does not show what
// is new, with ErrRoundNeeded if not all entities have been read yet, and if another process
// begins a new round. Of several processes one follows; another takes over if it dies.
func Follow(ctx context.Context, cfg Config) (Result, error) {
	cfg.Order = Stamp
	r, err := newRun(cfg)
	if err != nil {
		return Result{Target: cfg.Target.Name}, err
	}
	ctx = store.WithMeter(ctx, r.meter)
	if err = r.prepareFollow(ctx); err == nil {
		f := &follower{job: r.job, view: r.view, reading: r.reading, share: r.share, pager: r.pager}
		if f.source, err = r.reading.findSource(ctx, r.view); err == nil {
			err = f.follow(ctx)
		}
	}
	return r.ended(ctx, true, err)
}

// IsNewRound reports whether a run ended because another process began a new round, or ended
// the adoption.
func IsNewRound(err error) bool { return errors.Is(err, errStop) }

// prepareFollow reads the records, and checks that all entities have been read.
func (r *run) prepareFollow(ctx context.Context) error {
	rec, exists, err := r.planner.load(ctx)
	if err != nil {
		return err
	}
	if !exists || !r.job.resumes(rec) {
		return fmt.Errorf("%w: target %s", ErrRoundNeeded, r.job.cfg.Target.Name)
	}
	if unfinished, err := unfinished(ctx, r.job.store, rec); err != nil || unfinished {
		return errors.Join(err, fmt.Errorf("%w: target %s", ErrRoundNeeded, r.job.cfg.Target.Name))
	}
	r.begin(rec)
	return nil
}

// A follower reads the end of an index.
type follower struct {
	job     *job
	view    *targetView
	reading *reading
	share   *share
	pager   *pager
	source  source

	// While it holds the index:
	part *heldPart
	last time.Time
	seen map[string]store.Value // by namespace and key: what the overlap shows again
}

// follow claims the index, and follows it.
func (f *follower) follow(ctx context.Context) error {
	parts := newRecordedParts(f.reading)
	for {
		p, err := f.claim(ctx, parts)
		if err == nil && p != nil {
			f.job.log.InfoContext(ctx, "following the index", "target", f.job.cfg.Target.Name,
				"property", f.job.cfg.Rule.Property, "from", p.after)
			err = p.use(ctx, f.share, f.followPart)
		}
		if err != nil && !errors.Is(err, errLost) {
			return err
		}
		if err := throttle.Sleep(ctx, min(followEvery, f.job.cfg.Target.Lease/4)); err != nil {
			return err
		}
	}
}

// claim claims the index. Without it, another process holds it.
func (f *follower) claim(ctx context.Context, parts *recordedParts) (*heldPart, error) {
	if err := f.stillFollows(ctx); err != nil {
		return nil, err
	}
	one, err := loadFollow(ctx, f.job.store, f.reading.record)
	if err != nil || one.owner != "" && one.owner != f.job.cfg.Sweep.Owner && !parts.isDead(one) {
		return nil, err
	}
	return parts.take(ctx, one)
}

// stillFollows fails if the adoption is in another round or phase by now.
func (f *follower) stillFollows(ctx context.Context) error {
	if err := f.view.Fresh(ctx); err != nil {
		return err
	}
	return f.reading.over(f.view.adoption())
}

// followPart makes one pass over the end of the index after the other. Only a pass that was
// read to its end, and whose entities were stamped, moves the position.
func (f *follower) followPart(ctx context.Context, p *heldPart) error {
	last, err := time.Parse(store.TimeLayout, p.after)
	if err != nil {
		return fmt.Errorf("adoption record of %s: after: %w", f.job.cfg.Target.Name, err)
	}
	f.part, f.last, f.seen = p, last, map[string]store.Value{}
	said, written := f.job.now(), p.stamped
	for {
		stamped := p.stamped
		if err := f.stillFollows(ctx); err != nil {
			return err
		}
		switch err := f.read(ctx); {
		case errors.Is(err, switches.ErrHeld): // the next pass reads the same
		case err != nil:
			return err
		default:
			p.after = store.FormatTime(f.last)
		}
		if p.stamped > stamped { // status counts them
			if err := p.save(ctx, false); err != nil {
				return err
			}
		}
		if f.job.now().Sub(said) >= followLog && p.stamped > written {
			f.job.log.InfoContext(ctx, "stamped what was created without keys", "target", f.job.cfg.Target.Name,
				"keys", p.stamped-written, "followed_to", p.after)
			said, written = f.job.now(), p.stamped
		}
		if err := p.pause(ctx, followEvery); err != nil {
			return err
		}
	}
}

// read makes one pass over all namespaces.
func (f *follower) read(ctx context.Context) error {
	now := f.view.StoreNow()
	f.pager.judge.horizon = now.Add(-f.job.cfg.Target.Retention)
	from, to := f.last.Add(-f.source.back), now.Add(f.source.ahead)
	for key, v := range f.seen {
		if at, _ := f.source.instant(v); at.Before(from.Add(-time.Second)) {
			delete(f.seen, key)
		}
	}
	namespaces, err := f.job.namespaces(ctx)
	if err != nil {
		return err
	}
	last := f.last
	for _, ns := range namespaces {
		q := store.Query{Target: f.source.target, Namespace: ns, Lo: f.source.value(from, false),
			Hi: f.source.value(to, true), Limit: f.job.pageSize()}
		for more := true; more; {
			page, err := f.job.scan(ctx, q)
			if err != nil {
				return err
			}
			at, err := f.look(ctx, ns, page.Entries)
			if err != nil {
				return err
			}
			if at.After(last) {
				last = at
			}
			if more = page.More && (page.Next != nil || len(page.Entries) > 0); !more {
				break
			}
			if q.Next = page.Next; q.Next == nil {
				q.After = page.Entries[len(page.Entries)-1].Position()
			}
			if err := f.part.keep(ctx); err != nil {
				return err
			}
		}
	}
	f.last = last
	return nil
}

// look reads the entities of entries that are new, and stamps them. It returns the last
// instant among the entries.
func (f *follower) look(ctx context.Context, namespace string, entries []store.Entry) (last time.Time, err error) {
	var keys []string
	for _, e := range entries {
		at, ok := f.source.instant(e.Value)
		if !ok {
			continue // a full round counts it
		}
		if at.After(last) {
			last = at
		}
		if v, ok := f.seen[namespace+"\x00"+e.Key]; !ok || v.Compare(e.Value) != 0 {
			keys = append(keys, e.Key)
		}
	}
	if len(keys) == 0 {
		return last, nil
	}
	rows, err := f.job.look(ctx, namespace, keys)
	if err != nil {
		return last, err
	}
	if err := f.respread(ctx, rows); err != nil {
		return last, err
	}
	if err := f.pager.page(ctx, f.part, namespace, rows); err != nil {
		return last, err
	}
	f.part.scanned += int64(len(rows))
	for _, e := range entries {
		if _, ok := f.source.instant(e.Value); ok {
			f.seen[namespace+"\x00"+e.Key] = e.Value
		}
	}
	return last, nil
}

// respread begins the spread again if some of what was created has expired by now: nobody has followed the
// index for a while, or nothing could be written. All of it would be due at once.
func (f *follower) respread(ctx context.Context, rows []store.Row) error {
	for {
		now := f.view.StoreNow().UTC().Truncate(time.Microsecond)
		j := f.pager.judging()
		isDue := func(row store.Row) bool {
			one, err := f.pager.item(j, "", row)
			return err == nil && one.outcome == Unstamped && !one.expires.Add(f.job.cfg.Target.Retention).After(now)
		}
		if !j.round().isLate(now) || f.view.Held() != "" || !slices.ContainsFunc(rows, isDue) {
			return nil
		}
		rec, _ := f.view.adoption()
		_, err := rec.spreadFrom(now).save(ctx, f.job.store)
		if err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
		if err := f.view.Read(ctx); err != nil {
			return err
		}
		if err := f.stillFollows(ctx); err != nil {
			return err
		}
	}
}
