package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// partsPerWorker is how many parts a round has for each worker: parts differ in size.
const partsPerWorker = 2

// A planner says by which record a run reads the keys, and in which parts.
type planner struct {
	job  *job
	view *targetView
}

func newPlanner(cfg Config) (*planner, error) {
	j, err := newJob(cfg)
	if err != nil {
		return nil, err
	}
	return &planner{j, newTargetView(j)}, nil
}

// prepare reads the records, checks that the order fits them, and begins a round if it is time. began is
// true also if a round would begin, without Apply.
func (p *planner) prepare(ctx context.Context) (next Record, began bool, err error) {
	if p.job.applies() {
		if _, _, err := sweep.EnsureRecord(ctx, p.job.cfg.Sweep, p.job.cfg.Target); err != nil {
			return next, false, err
		}
	}
	for {
		before, exists, err := p.load(ctx)
		if err != nil {
			return next, false, err
		}
		if next, began, err = p.plan(ctx, before, exists); err != nil {
			return next, false, err
		}
		if err := p.probe(ctx, next); err != nil { // before the record is saved, by which others and undo go
			return next, false, err
		}
		if began && p.job.applies() {
			next, err = next.save(ctx, p.job.store)
			if errors.Is(err, store.ErrConflict) {
				continue // another process was first: join what it began
			}
			if err != nil {
				return next, false, err
			}
			p.job.cfg.tellPlan(ctx, p.view.StoreNow(), before, next)
			if err := p.view.Read(ctx); err != nil {
				return next, false, err
			}
		}
		return next, began, p.settle(ctx, before, next)
	}
}

// load reads the target's record and that of the adoption, which the order must fit.
func (p *planner) load(ctx context.Context) (rec Record, exists bool, err error) {
	if err := p.view.Read(ctx); err != nil {
		return rec, false, err
	}
	rec, exists = p.view.adoption()
	return rec, exists, p.fits(rec, exists)
}

// fits refuses an order that does not fit the record.
func (p *planner) fits(rec Record, exists bool) error {
	cfg := &p.job.cfg
	name := cfg.Target.Name
	switch {
	case !exists && cfg.Order != Stamp:
		return fmt.Errorf("%w: target %s has no record of an adoption", ErrNotAdopted, name)
	case !exists:
		return nil
	case rec.Rule != cfg.Rule:
		return fmt.Errorf("%w: target %s goes by %q, not by %q", ErrOtherRule, name, rec.Rule, cfg.Rule)
	case rec.Kind != cfg.Target.Kind || rec.Property != cfg.Target.Property:
		return fmt.Errorf("%w: target %s was adopted as %s.%s, not as %s.%s", ErrOtherRule, name, rec.Kind, rec.Property,
			cfg.Target.Kind, cfg.Target.Property)
	case rec.Phase == Undoing && cfg.Order != Undo:
		return fmt.Errorf("%w: the adoption of target %s is being undone", ErrPhase, name)
	case rec.Phase == Finished && (cfg.Order == Stamp || cfg.Order == beginDual):
		return fmt.Errorf("%w: the adoption of target %s is finished", ErrPhase, name)
	case (rec.Phase == Dual || rec.Phase == Finished) && cfg.Order == Undo && !cfg.AlsoWriters:
		return fmt.Errorf("%w: the adoption of target %s is in the phase %s, and writers may have given keys by the "+
			"same rule", ErrPhase, name, rec.Phase)
	}
	return nil
}

// plan returns the adoption's record as the order needs it.
func (p *planner) plan(ctx context.Context, rec Record, exists bool) (next Record, changed bool, err error) {
	cfg := &p.job.cfg
	round := Round{Number: 1, Began: p.view.StoreNow().UTC().Truncate(time.Microsecond), Spread: cfg.Spread,
		Percent: cfg.Percent, Retention: cfg.Target.Retention}
	if !exists {
		rec = Record{Target: cfg.Target.Name, Kind: cfg.Target.Kind, Property: cfg.Target.Property,
			Rule: cfg.Rule, Phase: Stamping, Began: round.Began, Actor: cfg.Actor}
	} else {
		last := rec.Round()
		if !round.Began.After(rec.Reading) {
			round.Began = rec.Reading.Add(time.Microsecond)
		}
		if cfg.Order == Stamp && cfg.Percent < last.Percent {
			return rec, false, fmt.Errorf("%w: %v%% of target %s were adopted, and %v%% are asked for",
				ErrPercent, last.Percent, rec.Target, cfg.Percent)
		}
		unfinished, err := unfinished(ctx, p.job.store, rec)
		if err != nil || unfinished && p.job.resumes(rec) {
			late := err == nil && cfg.Order == Stamp && last.isLate(round.Began)
			if late { // the reading goes on, but what was to be due meanwhile must not be due at once
				if err := p.unheld(); err != nil {
					return rec, false, err
				}
				rec = rec.spreadFrom(round.Began)
			}
			return rec, late, err
		}
		round.Number = last.Number + 1
	}
	changed = cfg.Order == Stamp || p.job.applies() // others read by a copy of their own
	rec.Rounds = slices.Clone(rec.Rounds)
	switch {
	case cfg.Order == Stamp:
		rec.Rounds = recent(append(rec.Rounds, round), round.Began)
	case cfg.Order == Verify: // all entities count, also those that are adopted later
		rec.Rounds[len(rec.Rounds)-1].Percent = 100
	case changed:
		rec.Phase = Undoing // what the rounds gave is what it removes
	}
	if changed {
		rec.Reading = round.Began
	}
	rec.Parts, err = p.split(ctx)
	return rec, changed, err
}

// unheld fails if nothing may be written now. Spreads that begin while nothing is written would push those from the
// record whose keys are there: nobody could take these keys back.
func (p *planner) unheld() error {
	why := p.view.Held()
	if why == "" || !p.job.applies() {
		return nil
	}
	p.view.Note(why)
	return fmt.Errorf("target %s: %w: %s", p.job.cfg.Target.Name, switches.ErrHeld, why)
}

// split divides the keys of all namespaces into parts.
func (p *planner) split(ctx context.Context) (parts []Part, err error) {
	namespaces, err := p.job.namespaces(ctx)
	if err != nil {
		return nil, err
	}
	if len(namespaces) > maxParts { // a part that nobody reads would count as done
		return nil, fmt.Errorf("%w in so many namespaces: target %s has %d, and one adoption reads at most %d; "+
			"list some of them in the targets file, in several targets", ErrUnsupported, p.job.cfg.Target.Name,
			len(namespaces), maxParts)
	}
	most := min(partsPerWorker*p.job.cfg.Sweep.Workers, maxSplit)/max(1, len(namespaces)) - 1
	for _, ns := range namespaces {
		var keys []string
		if most > 0 {
			err = store.Retry(ctx, savePatience, func() (err error) {
				keys, err = p.job.adopter.Splits(ctx, p.job.cfg.Target.Target, ns, most)
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
func (p *planner) probe(ctx context.Context, rec Record) error {
	if p.job.cfg.Order != Stamp { // only stamps would add to what is there
		return nil
	}
	var foreign, has int
	var example string
	err := (&reading{p.job, rec}).peek(ctx, probedParts, probed, func(_ string, rows []store.Row) {
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
			p.job.cfg.Target.Property, foreign, foreign+has, example)
	}
	return nil
}

// settle waits until other processes know of what this one is about to do. Sweeps must know of the
// adoption before its first key; undoing it must come after the last one.
func (p *planner) settle(ctx context.Context, before, next Record) error {
	switch {
	case !p.job.applies():
	case p.job.cfg.Order == Undo:
		return p.settleStampers(ctx, before)
	case p.job.cfg.Order == Stamp && next.Round().Number == 1:
		return throttle.Sleep(ctx, missingFor) // the record may have been saved just now, however long that was planned
	}
	return nil
}

// settleStampers waits until the workers of a round that was not finished have seen that it is
// being undone, and their last writes have ended: a key that is written behind undo would stay.
// A worker may hold no part at the moment, and write a second later, as long as it goes by a record
// that it read before.
func (p *planner) settleStampers(ctx context.Context, before Record) error {
	if err := throttle.Sleep(ctx, switches.ReadEvery); err != nil {
		return err
	}
	if before.Phase != Undoing { // else another process has begun to undo, and may have died while it waited
		if writes, err := p.mayWrite(ctx, before); err != nil || !writes {
			return err
		}
	}
	p.job.log.InfoContext(ctx, "waiting for the last writes of keys to end", "target", p.job.cfg.Target.Name,
		"wait", writeTimeout.String())
	return throttle.Sleep(ctx, writeTimeout)
}

// mayWrite reports whether a worker may still write keys for a record. Of a part that was claimed more than once, in
// this round or another one, and of the index if it was ever followed, an earlier holder may be in a write.
func (p *planner) mayWrite(ctx context.Context, rec Record) (bool, error) {
	parts, _, err := loadParts(ctx, p.job.store, rec)
	if err != nil || slices.ContainsFunc(parts, func(one progress) bool { return !one.done || one.token > 1 }) {
		return true, err
	}
	_, follows, err := loadFollower(ctx, p.job.store, rec.Target)
	return follows, err
}

// NextRound returns when the next round of an adoption begins, if rounds begin so often, on
// this process's clock. It is now if there is no round yet, if the last one is not done, or if
// it was of another share or spread.
func NextRound(ctx context.Context, cfg Config, every time.Duration) (time.Time, error) {
	p, err := newPlanner(cfg)
	if err != nil {
		return time.Time{}, err
	}
	err = p.view.Read(ctx)
	now := p.job.now()
	rec, exists := p.view.adoption()
	if err != nil || !exists || !p.job.resumes(rec) {
		return now, err
	}
	if unfinished, err := unfinished(ctx, p.job.store, rec); err != nil || unfinished {
		return now, err
	}
	return now.Add(rec.Reading.Add(every).Sub(p.view.StoreNow())), nil
}
