package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// partsPerWorker is how many parts a round has for each worker: parts differ in size.
const partsPerWorker = 2

// A run is one call of Run.
type run struct {
	*job

	pacer  *throttle.Pacer
	share  *share
	tally  *tally
	meter  *store.Meter
	target *targetView
	judge  judge     // its horizon is that of the begin
	seen   sightings // of parts that others hold: one worker at a time claims

	mu     sync.Mutex
	record Record
	began  time.Time // on this process's clock
}

func newRun(cfg Config) (*run, error) {
	j, err := newJob(cfg)
	if err != nil {
		return nil, err
	}
	r := &run{job: j, target: &targetView{job: j}, meter: new(store.Meter), seen: sightings{}, began: j.now()}
	r.pacer = throttle.Open(j.now, cfg.Rate, throttle.State{}, store.MaxPage)
	r.share = newShare(r)
	return r, nil
}

// Run adopts, verifies or undoes one target. It returns what it did also with an error.
func Run(ctx context.Context, cfg Config) (Result, error) {
	r, err := newRun(cfg)
	if err != nil {
		return Result{Target: cfg.Target.Name}, err
	}
	ctx = store.WithMeter(ctx, r.meter)
	err = r.prepare(ctx)
	complete := false
	if err == nil {
		if complete, err = r.work(ctx); err == nil && complete && r.applies() && r.cfg.Order == Undo {
			err = r.end(ctx)
		}
	}
	return r.ended(ctx, complete, err)
}

// ended returns the result. A run that was stopped has not failed.
func (r *run) ended(ctx context.Context, complete bool, err error) (Result, error) {
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	return r.result(complete && err == nil), err
}

// end removes the records of an adoption that was undone, unless keys are left.
func (r *run) end(ctx context.Context) error {
	parts, _, err := loadParts(ctx, r.store, r.record)
	if err != nil {
		return err
	}
	kept := int64(0)
	for _, p := range parts {
		kept += p.kept
	}
	if kept > 0 {
		return store.WithHint(fmt.Errorf("undo target %s: keys that could not be removed are left: %d",
			r.cfg.Target.Name, kept), "run the command again; sweeps compare these keys with the rule meanwhile")
	}
	return forget(ctx, r.store, r.record)
}

// prepare reads the records, checks that the order fits them, and begins a round if it is time.
func (r *run) prepare(ctx context.Context) error {
	if r.applies() {
		if _, _, err := sweep.EnsureRecord(ctx, r.cfg.Sweep, r.cfg.Target); err != nil {
			return err
		}
	}
	rec, exists, err := r.load(ctx)
	if err != nil {
		return err
	}
	for {
		before := rec
		var changed bool
		if r.record, changed, err = r.plan(ctx, rec, exists); err != nil {
			return err
		}
		if err := r.probe(ctx); err != nil { // before the record is saved, by which others and undo go
			return err
		}
		if changed && r.applies() {
			var saveErr error
			r.record, saveErr = r.record.save(ctx, r.store)
			if saveErr != nil && !errors.Is(saveErr, store.ErrConflict) {
				return saveErr
			}
			if saveErr == nil {
				r.tellPlan(ctx, before)
			}
			if rec, exists, err = r.load(ctx); err != nil {
				return err
			}
			if saveErr != nil { // another process was first: join what it began
				continue
			}
		}
		if err := r.settle(ctx, before); err != nil {
			return err
		}
		r.begin()
		if changed && r.cfg.Order == Stamp {
			r.tally.now = r.record.Round().Began // splitting the keys may have taken long since
		}
		return nil
	}
}

// begin has the run go by its record.
func (r *run) begin() {
	now := r.target.storeNow()
	r.tally = newTally(now)
	r.judge = judge{target: r.cfg.Target.Name, rule: r.cfg.Rule, rounds: r.record.Rounds,
		maxAge: r.cfg.Target.MaxAge, horizon: now.Add(-r.cfg.Target.Retention)}
	r.cfg.Progress.Parts.Store(int64(len(r.record.Parts)))
}

// settle waits until other processes know of what this one is about to do. Sweeps must know of the
// adoption before its first key; undoing it must come after the last one.
func (r *run) settle(ctx context.Context, before Record) error {
	switch {
	case !r.applies():
	case r.cfg.Order == Undo:
		return r.settleStampers(ctx, before)
	case r.record.Round().Number == 1 && r.target.storeNow().Sub(r.record.Began) < savePatience+missingFor:
		return throttle.Sleep(ctx, missingFor) // the record may have been saved just now
	}
	return nil
}

// settleStampers waits until the workers of a round that was not finished have seen that it is
// being undone, and their last writes have ended: a key that is written behind undo would stay.
// A worker may hold no part at the moment, and write a second later.
func (r *run) settleStampers(ctx context.Context, before Record) error {
	const wait = readEvery + writeTimeout
	if before.Phase == Undoing { // another process has begun to undo, and may have died while it waited
		if r.target.storeNow().Sub(before.Reading) > savePatience+wait {
			return nil
		}
	} else if writes, err := r.mayWrite(ctx, before); err != nil || !writes {
		return err
	}
	r.log.InfoContext(ctx, "waiting for workers that may still write keys", "target", r.cfg.Target.Name,
		"wait", wait.String())
	return throttle.Sleep(ctx, wait)
}

// mayWrite reports whether a worker may still write keys for a record: of a part that is not
// done, or of what the index of the rule's property shows.
func (r *run) mayWrite(ctx context.Context, rec Record) (bool, error) {
	unfinished, err := r.unfinished(ctx, rec)
	if err != nil || unfinished {
		return unfinished, err
	}
	follower, err := loadFollow(ctx, r.store, rec)
	return follower.owner != "", err
}

// load reads the target's record and that of the adoption.
func (r *run) load(ctx context.Context) (rec Record, exists bool, err error) {
	if err := r.target.refresh(ctx); err != nil {
		return rec, false, err
	}
	rec, exists = r.target.adoption()
	return rec, exists, nil
}

// plan returns the adoption's record as the order needs it.
func (r *run) plan(ctx context.Context, rec Record, exists bool) (next Record, changed bool, err error) {
	if err := r.fits(rec, exists); err != nil {
		return rec, false, err
	}
	round := Round{Number: 1, Began: r.target.storeNow().UTC().Truncate(time.Microsecond), Spread: r.cfg.Spread,
		Percent: r.cfg.Percent, Retention: r.cfg.Target.Retention}
	if !exists {
		rec = Record{Target: r.cfg.Target.Name, Kind: r.cfg.Target.Kind, Property: r.cfg.Target.Property,
			Rule: r.cfg.Rule, Phase: Stamping, Began: round.Began, Actor: r.cfg.Actor}
	} else {
		last := rec.Round()
		if !round.Began.After(rec.Reading) {
			round.Began = rec.Reading.Add(time.Microsecond)
		}
		switch {
		case r.cfg.Order != Stamp:
			round.Spread, round.Percent = last.Spread, last.Percent
		case r.cfg.Percent < last.Percent:
			return rec, false, fmt.Errorf("%w: %v%% of target %s were adopted, and %v%% are asked for",
				ErrPercent, last.Percent, rec.Target, r.cfg.Percent)
		}
		unfinished, err := r.unfinished(ctx, rec)
		if err != nil || unfinished && r.resumes(rec) {
			late := err == nil && r.cfg.Order == Stamp && last.isLate(round.Began)
			if late { // the reading goes on, but what was to be due meanwhile must not be due at once
				rec = rec.spreadFrom(round.Began)
			}
			return rec, late, err
		}
		round.Number = last.Number + 1
	}
	if r.cfg.Order == Verify || r.cfg.Order == Undo && !r.applies() { // reads by a copy of its own
		next := rec
		if r.cfg.Order == Verify { // all entities count, also those that are adopted later
			next.Rounds = slices.Clone(rec.Rounds)
			next.Rounds[len(next.Rounds)-1].Percent = 100
		}
		next.Parts, err = r.split(ctx)
		return next, false, err
	}
	rec.Rounds = slices.Clone(rec.Rounds)
	if r.cfg.Order == Undo {
		rec.Phase = Undoing // what the rounds gave is what it removes
	} else {
		rec.Rounds = recent(append(rec.Rounds, round), round.Began)
	}
	rec.Reading = round.Began
	rec.Parts, err = r.split(ctx)
	return rec, true, err
}

// fits refuses an order that does not fit the record.
func (r *run) fits(rec Record, exists bool) error {
	name := r.cfg.Target.Name
	switch {
	case !exists && r.cfg.Order != Stamp:
		return fmt.Errorf("%w: target %s has no record of an adoption", ErrNotAdopted, name)
	case !exists:
		return nil
	case rec.Rule != r.cfg.Rule:
		return fmt.Errorf("%w: target %s goes by %q, not by %q", ErrOtherRule, name, rec.Rule, r.cfg.Rule)
	case rec.Kind != r.cfg.Target.Kind || rec.Property != r.cfg.Target.Property:
		return fmt.Errorf("%w: target %s was adopted as %s.%s, not as %s.%s", ErrOtherRule, name, rec.Kind, rec.Property,
			r.cfg.Target.Kind, r.cfg.Target.Property)
	case rec.Phase == Undoing && r.cfg.Order != Undo:
		return fmt.Errorf("%w: the adoption of target %s is being undone", ErrPhase, name)
	case rec.Phase == Finished && r.cfg.Order == Stamp:
		return fmt.Errorf("%w: the adoption of target %s is finished", ErrPhase, name)
	case (rec.Phase == Dual || rec.Phase == Finished) && r.cfg.Order == Undo && !r.cfg.AlsoWriters:
		return fmt.Errorf("%w: the adoption of target %s is in the phase %s, and writers may have given keys by the "+
			"same rule", ErrPhase, name, rec.Phase)
	}
	return nil
}

// unfinished reports whether a part of the last round was not read to its end.
func (r *run) unfinished(ctx context.Context, rec Record) (bool, error) {
	parts, _, err := loadParts(ctx, r.store, rec)
	return slices.ContainsFunc(parts, func(p progress) bool { return !p.done }), err
}

// split divides the keys of all namespaces into parts.
func (r *run) split(ctx context.Context) (parts []Part, err error) {
	namespaces, err := r.namespaces(ctx)
	if err != nil {
		return nil, err
	}
	if len(namespaces) > maxParts { // a part that nobody reads would count as done
		return nil, fmt.Errorf("%w in so many namespaces: target %s has %d, and one adoption reads at most %d; "+
			"list some of them in the targets file, in several targets", ErrUnsupported, r.cfg.Target.Name,
			len(namespaces), maxParts)
	}
	most := min(partsPerWorker*r.cfg.Sweep.Workers, maxSplit)/max(1, len(namespaces)) - 1
	for _, ns := range namespaces {
		var keys []string
		if most > 0 {
			err = store.Retry(ctx, savePatience, func() (err error) {
				keys, err = r.adopter.Splits(ctx, r.cfg.Target.Target, ns, most)
				return err
			})
			if err != nil {
				return nil, err
			}
		}
		for _, key := range append(keys, "") {
			parts = append(parts, Part{ns, key})
		}
	}
	return parts, nil
}

// probed is how many entities of each of some parts are read before anything is written.
const (
	probed      = 100
	probedParts = 8
)

// probe refuses a key property that holds something else in many entities.
func (r *run) probe(ctx context.Context) error {
	if r.cfg.Order != Stamp { // only stamps would add to what is there
		return nil
	}
	var foreign, has int
	var example string
	err := r.peek(ctx, probedParts, probed, func(_ string, rows []store.Row) {
		for _, row := range rows {
			switch _, stamped, ok := keyOf(row.Expiry); {
			case !ok:
				foreign++
				example = row.Key + " has " + row.Expiry.String()
			case stamped:
				has++
			}
		}
	})
	if err != nil {
		return err
	}
	if foreign > has {
		return fmt.Errorf("%w: %s is not an expiry key in %d of %d entities that were sampled (%s)", ErrForeign,
			r.cfg.Target.Property, foreign, foreign+has, example)
	}
	return nil
}

// peek reads the first rows of some parts, which are spread over all of them.
func (r *run) peek(ctx context.Context, parts, rows int, look func(namespace string, rows []store.Row)) error {
	var read store.Rows
	for i := 0; i < len(r.record.Parts); i += max(1, len(r.record.Parts)/parts) {
		q := r.partQuery(i, r.record.after(i))
		q.Limit = rows
		if err := store.Retry(ctx, savePatience, func() error { return r.adopter.Walk(ctx, q, &read) }); err != nil {
			return err
		}
		look(q.Namespace, read.List)
	}
	return nil
}

// partQuery returns the walk of a part from behind a key.
func (r *run) partQuery(part int, after string) store.WalkQuery {
	q := r.query(r.record.Parts[part].Namespace)
	q.After, q.Until = after, r.record.Parts[part].Until
	return q
}

// work has workers read the parts until all are done, and reports whether they are.
func (r *run) work(ctx context.Context) (complete bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group errgroup.Group
	var mu sync.Mutex
	var errs []error
	source := r.source()
	for range max(1, min(r.cfg.Sweep.Workers, len(r.record.Parts))) {
		background.Go(&group, func() error {
			for ctx.Err() == nil {
				p, ok, err := source.next(ctx)
				if err == nil && !ok {
					return nil
				}
				if err == nil {
					err = r.withPart(ctx, source, p, func() error { return r.part(ctx, source, p) })
				}
				if err == nil || errors.Is(err, errLost) {
					continue
				}
				mu.Lock()
				if !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
					errs = append(errs, err) // all parts may fail by the same
				}
				mu.Unlock()
				if errors.Is(err, errStop) || errors.Is(err, errHeld) {
					cancel(err) // it holds for all parts
				}
				return nil
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil { // a panic
		return false, err
	}
	stopped := context.Cause(ctx)
	if len(errs) == 0 && stopped == nil {
		return true, nil
	}
	errs = slices.DeleteFunc(errs, func(err error) bool {
		return errors.Is(err, errHeld) || ctx.Err() != nil && errors.Is(err, context.Canceled)
	})
	return false, errors.Join(errs...)
}
