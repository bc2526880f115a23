package restore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Result is what a run did or, without Apply, would do.
type Result struct {
	Target          string     `json:"target"`
	Apply           bool       `json:"apply"`
	Complete        bool       `json:"complete"`
	Continued       bool       `json:"continued"` // a restore that was killed or stopped
	From            Source     `json:"from"`
	Since           *time.Time `json:"since"` // nil if that side is open
	Until           *time.Time `json:"until"`
	DurationSeconds float64    `json:"duration_seconds"`
	Counts
	FirstExpiry *time.Time       `json:"first_expiry"` // nil if nothing will expire
	LastExpiry  *time.Time       `json:"last_expiry"`
	Problems    []Problem        `json:"problems"` // objects that could not be read to their end
	StrippedOf  []Sample         `json:"stripped_samples"`
	RefusedOf   []Sample         `json:"refused_samples"`
	NotFoundOf  []Sample         `json:"not_found_samples"`
	Operations  store.Operations `json:"operations"`
	Warnings    []string         `json:"warnings"`
	Held        string           `json:"held"`
	// Tripped tells that the run ended because the breaker holds the target.
	Tripped bool `json:"-"`
	// Inserts tells that the run came to insert something: from then on its order is that of the record.
	Inserts bool `json:"-"`
}

// A run is one call of Run.
type run struct {
	job      *job
	switches *switches.Switches
	tally    *tally
	story    *story
	pacer    *throttle.Pacer
	hold     *hold  // nil in a dry run
	found    record // of the last restore, as this run met it
	meter    *store.Meter
	started  time.Time // on this process's clock
	began    time.Time // when the restore began, in the store's time
	plan     plan
	inserts  bool            // it has asked the store to insert something
	lost     int64           // archived copies that an earlier plan of the same restore had more than this one
	absent   map[string]bool // keys, behind their namespaces, of what this run could not insert
}

// Run restores what a selection of an archive has, or says what that would do. It returns what it found and did
// also with an error.
func Run(ctx context.Context, cfg Config) (Result, error) {
	j, err := newJob(cfg)
	if err != nil {
		return Result{Target: cfg.Target.Name}, err
	}
	t := j.Target
	r := &run{job: j, tally: newTally(j.Progress), meter: new(store.Meter), started: j.now(),
		pacer: throttle.Open(j.now, j.Rate, throttle.State{}, store.MaxPage),
		switches: switches.New(switches.Config{Store: j.store, Target: t.Name, Shards: t.Shards, Lease: t.Lease,
			Gate: t.Gate, Now: j.now, Log: j.log, Work: "restore"})}
	r.story = &story{run: r}
	ctx = store.WithMeter(ctx, r.meter)
	complete := false
	if err = r.switches.Read(ctx); err == nil {
		if j.Sweep.Apply {
			complete, err = r.restore(ctx)
		} else {
			complete, err = r.preview(ctx)
		}
	}
	wasStopped := ctx.Err() != nil && errors.Is(err, ctx.Err())
	if (wasStopped || errors.Is(err, switches.ErrHeld)) && !errors.Is(err, errNotNoted) && !errors.Is(err, errUnsettled) {
		err = nil // a run that was stopped, or is held, has not failed
	}
	if complete {
		err = r.partial()
	}
	return r.result(complete), err
}

// preview makes the plan, and looks what exists already.
func (r *run) preview(ctx context.Context) (complete bool, err error) {
	if r.found, _, err = loadRecord(ctx, r.job.store, r.job.Target.Name); err != nil {
		return false, err
	}
	if err := r.makePlan(ctx, r.found.next(r.job, r.switches.StoreAtMost())); err != nil {
		return false, err
	}
	err = r.walk(ctx, place{depth: -1}.isAhead, r.counted(r.look))
	return err == nil, err
}

// restore makes the plan under the lease of the target's restore, and carries it out.
func (r *run) restore(ctx context.Context) (complete bool, failed error) {
	if why := r.switches.Held(); why != "" {
		r.switches.Note(why)
		return false, nil
	}
	if _, _, err := sweep.EnsureRecord(ctx, r.job.Sweep, r.job.Target); err != nil {
		return false, err
	}
	hold, err := claim(ctx, r.job)
	if err != nil {
		return false, err
	}
	r.hold, r.found = hold, hold.before
	rec := &hold.order
	defer func() {
		if err := hold.release(ctx, r.inserts || r.continued(), complete); err != nil {
			complete, failed = false, err
		}
	}()
	if err := r.makePlan(ctx, *rec); err != nil {
		return false, err
	}
	goesOn := r.continued()
	if goesOn && rec.plan != r.plan.fingerprint { // an object came back, can be read again, or can be no more
		r.job.log.WarnContext(ctx, "the archive has something else of the selection than before: the restore starts over",
			"target", r.job.Target.Name)
		rec.place, goesOn = place{}, false // what it came to says nothing of this plan
	}
	if n := r.tally.soFar(); len(r.plan.objects) > 0 {
		isWhole := n.BadObjects+n.GoneObjects == 0 // else its last line may be another one
		if !r.found.resumes(r.job) && isWhole {    // the span is settled once
			rec.until = r.plan.until(*rec)
			r.job.Pick.Until = rec.until
		}
		if err := hold.begin(ctx, r.plan.fingerprint, n.Lines); err != nil {
			return false, err
		}
	}
	from := place{depth: -1}
	if goesOn {
		from = rec.place
		if err := r.resume(ctx, from); err != nil {
			return false, err
		}
	}
	err = r.walk(ctx, from.isAhead, r.counted(r.insert))
	complete = err == nil
	r.story.end(ctx, complete)
	return complete, err
}

// resume takes in what earlier runs have done up to a place.
func (r *run) resume(ctx context.Context, to place) error {
	r.tally.resume(to)
	r.job.Progress.EntitiesDone.Add(r.plan.behind(to))
	if to.refused+to.notFound == 0 {
		return nil
	}
	deepest := r.plan.depths[len(r.plan.depths)-1]
	return r.walk(ctx, func(depth int, o *object, line int) bool {
		return depth < deepest && !to.isAhead(depth, o, line)
	}, r.noteAbsent)
}

// continued reports whether the run goes on with a restore that had come to some place.
func (r *run) continued() bool {
	return r.hold != nil && r.found.resumes(r.job) && r.found.object != ""
}

// makePlan plans the restore of a record.
func (r *run) makePlan(ctx context.Context, rec record) (err error) {
	r.began, r.job.Pick.Since, r.job.Pick.Until = rec.began, rec.since, rec.until
	if !rec.since.Before(rec.until) {
		return fmt.Errorf("target %s: %w: %s to %s", r.job.Target.Name, ErrSpan, rec.since.Format(time.RFC3339),
			rec.until.Format(time.RFC3339))
	}
	p := &planner{job: r.job, tally: r.tally, keep: r.hold.keep, began: r.began, now: r.switches.StoreAtMost(),
		roots: map[string][]string{}}
	if r.plan, err = p.plan(ctx); err != nil {
		return err
	}
	n := r.tally.soFar()
	r.lost = max(0, rec.lines-n.Lines)
	ends := r.found.order == r.job.Order && (r.job.Abandon || n.Lines > 0 && n.BadObjects+n.GoneObjects == 0)
	if len(r.plan.objects) == 0 && r.found.isUnfinished() && !ends { // that one stays as it was
		return fmt.Errorf("target %s: %w: that of %s since %s (%s); damaged or missing objects %d", r.job.Target.Name,
			ErrNothing, r.found.actor, r.found.began.Format(time.RFC3339), r.found.order, n.BadObjects+n.GoneObjects)
	}
	return nil
}

// partial returns an error if something of the selection could not be restored.
func (r *run) partial() error {
	n := r.tally.soFar()
	if n.BadObjects+n.Refused+n.NotFound+r.lost == 0 {
		return nil
	}
	return fmt.Errorf("target %s: %w: damaged or missing objects %d, entities refused by the store %d, not found by "+
		"point-in-time recovery %d, copies that an earlier run found in the archive and this one did not %d",
		r.job.Target.Name, ErrPartial, n.BadObjects, n.Refused, n.NotFound, r.lost)
}

// result returns what the run found and did so far.
func (r *run) result(complete bool) Result {
	j, t := r.job, r.tally
	res := Result{Target: j.Target.Name, Apply: j.Sweep.Apply, Complete: complete, Continued: t.hasResumed(),
		Inserts: r.inserts, From: j.From, Since: timeOf(j.Pick.Since), Until: timeOf(j.Pick.Until),
		DurationSeconds: j.now().Sub(r.started).Seconds(), Operations: r.meter.Operations(), Warnings: []string{}}
	t.mu.Lock()
	defer t.mu.Unlock()
	res.Counts, res.FirstExpiry, res.LastExpiry = t.counts, timeOf(t.first), timeOf(t.last)
	res.Problems = append([]Problem{}, t.problems...)
	res.StrippedOf, res.RefusedOf = append([]Sample{}, t.stripped...), append([]Sample{}, t.refused...)
	res.NotFoundOf = append([]Sample{}, t.notFound...)
	if !complete && res.Apply {
		if res.Held = r.switches.Noted(); res.Held != "" {
			res.Tripped = r.switches.Tripped()
		}
	}
	if why := r.switches.Held(); !res.Apply && why != "" {
		res.Warnings = append(res.Warnings, "the target is held, and nothing can be restored meanwhile: "+why)
	}
	if text := r.unfinished(); text != "" {
		res.Warnings = append(res.Warnings, text)
	}
	if n := t.counts.GoneObjects; n > 0 {
		res.Warnings = append(res.Warnings, fmt.Sprintf("objects that were removed from the archive may have had some of "+
			"it: %d", n))
	}
	if complete && t.counts.Lines == 0 {
		res.Warnings = append(res.Warnings, "the archive has nothing of this selection: check the sweep's id, the times "+
			"and the ids")
	}
	return res
}

// unfinished says that there is a restore which was not finished, and what becomes of it; empty otherwise.
func (r *run) unfinished() string {
	was := r.found
	if !was.isUnfinished() {
		return ""
	}
	began, span := was.began.Format(time.RFC3339), "until "+was.until.Format(time.RFC3339)
	if !was.since.IsZero() {
		span = "from " + was.since.Format(time.RFC3339) + " " + span
	}
	if was.resumes(r.job) {
		return fmt.Sprintf("this goes on with the restore that began at %s and was not finished: what was archived %s, "+
			"and nothing later", began, span)
	}
	return fmt.Sprintf("the restore that began at %s (%s) was not finished, and is given up by another one, which needs "+
		"--abandon: to have the rest of it, restore what was archived %s", began, was.order, span)
}

func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
