package chore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/store"
)

// A choreJob is one chore. It is done in one step.
type choreJob struct {
	c     *site.Site
	chore plan.Chore
}

// End implements [step.Job]: between two steps a chore holds nothing.
func (j *choreJob) End(out step.Outcome) step.Outcome { return out }

// New returns the job of a chore. An audit is a job of its own.
func New(c *site.Site, is plan.Chore) step.Job {
	if is.Kind == plan.Seal {
		return &sealJob{c: c, chore: is}
	}
	return &choreJob{c: c, chore: is}
}

// IsClaimed implements [step.Job].
func (j *choreJob) IsClaimed() bool { return false }

func (j *choreJob) Step(t step.Turn, todo step.Todo) step.Outcome {
	var err error
	if k := j.chore.Kind; k == plan.Life || k == plan.Probe || k == plan.Retire || k == plan.Forget || k == plan.Raise {
		err = j.c.Clock.Check() // a wrong clock could count a generation as sealed too early
	}
	if err == nil {
		err = j.do(t.Ctx, todo)
	}
	switch {
	case err == nil:
	case t.Ctx.Err() != nil:
		return step.Outcome{State: step.Stopped}
	case errors.Is(err, store.ErrConflict), errors.Is(err, generation.ErrMissing):
		j.c.Viewer.WantRecord() // another process has changed or removed the record: see what is left to do
	default:
		return step.Outcome{State: step.Failed, Err: fmt.Errorf("%s: %w", j.what(), err)}
	}
	return step.Outcome{State: step.Ended}
}

// what names the chore in errors.
func (j *choreJob) what() string {
	switch j.chore.Kind {
	case plan.Life:
		return "change the target record"
	case plan.Probe:
		return "probe for generations that are not listed"
	case plan.Raise:
		return "write the target record in the present schema"
	case plan.Look:
		return "look around"
	case plan.Retire:
		return fmt.Sprintf("retire generation %08d", j.chore.Generation)
	case plan.Forget:
		return "remove cursors of retired generations"
	case plan.Audit, plan.Seal, Estimate, BehindKind:
	}
	return string(j.chore.Kind)
}

func (j *choreJob) do(ctx context.Context, todo step.Todo) error {
	c, rules := j.c, j.c.Rules
	switch j.chore.Kind {
	case plan.Life:
		return writeLife(ctx, c, todo.Plan.Blocked())
	case plan.Probe:
		return probeAgain(ctx, c, todo.Chore.Plan(rules))
	case plan.Raise:
		return raiseSchema(ctx, c)
	case plan.Look:
		return lookAround(ctx, c, todo.Chore.Plan(rules))
	case plan.Retire:
		return retireGeneration(ctx, c, j.chore.Generation)
	case plan.Forget:
		return forgetCursors(ctx, c, todo.Chore.Plan(rules))
	case Estimate:
		estimateDue(ctx, c, todo.Chore.Plan(rules))
	case BehindKind:
		countAllBehind(ctx, c, todo.Chore.Plan(rules))
	case plan.Audit, plan.Seal: // jobs of their own
	}
	return nil
}

// raiseSchema writes the target record in the present schema.
func raiseSchema(ctx context.Context, c *site.Site) error {
	if !c.Cfg.Apply {
		return nil
	}
	return c.Viewer.ChangeRecord(ctx, func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
		next := is.Upgraded()
		return next, !next.EqualContent(is), nil
	})
}

// writeLife writes the target record as configuration and time require.
func writeLife(ctx context.Context, c *site.Site, blocked []int) error {
	if !c.Cfg.Apply {
		return nil
	}
	was := c.Viewer.View().Record
	now := c.Clock.Now()
	next, steps := plan.Desired(c.Rules, was, blocked, now)
	if was.EqualContent(next) {
		return nil
	}
	if err := c.Viewer.SaveRecord(ctx, next, now); err != nil {
		return err
	}
	c.Viewer.LogChanges(ctx, was, next, steps)
	return nil
}
