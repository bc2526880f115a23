package spend

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/sweep/view"
)

// An entry says what may be reserved on ground that may be unswept.
type entry int

const (
	shut   entry = iota // nothing: the breaker is open
	partly              // what an approval covers: it is for a part of what is due
	open
)

// enterGround counts what is due on unswept ground, before anything is deleted there that was not
// approved.
func (j *Judge) enterGround(ctx context.Context) (entry, error) {
	rec := j.s.Viewer.View().Record
	switch {
	case rec.Trip.IsOpen():
		return shut, nil
	case j.isEntered(rec):
		return open, nil
	}
	read, part := j.s.read, rec.ApprovedPart()
	if part.ID != "" { // what others have reserved of it counts, too
		read = j.s.reread
	}
	b, err := read(ctx)
	if err != nil {
		return shut, err
	}
	now := j.s.now()
	if part.ID != "" && j.isInUse(b, part, now) {
		return partly, nil
	}
	var trip *breaker.Trip
	if err = j.findNamespaces(ctx); err == nil { // to settle it is to do so for all deployments
		trip, err = j.judgeGround(ctx, b, rec, now)
	}
	if err != nil {
		err = fmt.Errorf("what is due on unswept ground: %w", err)
		j.tellUncounted(ctx, err.Error())
		return shut, uncounted{err}
	}
	j.tellUncounted(ctx, "")
	if trip != nil {
		return shut, j.trip(ctx, *trip, rec.Approvals)
	}
	err = j.s.Viewer.ChangeRecord(ctx, func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
		if !j.holdsGround(is) {
			return is, false, nil // it is of what another process sweeps, and that was not counted
		}
		next := is.Settled(j.s.Rules.Retention)
		return next, !next.EqualContent(is), nil
	})
	j.noteEntered(err == nil)
	if err != nil {
		return shut, err
	}
	return open, nil
}

// judgeGround counts what is due on unswept ground, and returns a trip if it is too much. If parts of
// it were approved and have gone, what is left of them counts with them.
func (j *Judge) judgeGround(
	ctx context.Context, b breaker.Budget, rec generation.Record, now time.Time,
) (*breaker.Trip, error) {
	part, gone := rec.ApprovedPart(), b.GoneInParts(rec.Approvals)+j.unreported(rec.Approvals)
	if part.ID != "" {
		b = b.Ended(part, now)
	}
	due, err := patientCount(j.s.Rules.Floor, false, func(upTo int64) (breaker.Count, error) {
		return j.countDue(ctx, b, j.s.Rules.Horizon(now), upTo)
	})
	if err != nil || part.ID == "" || due.Due > j.s.Rules.Floor {
		return breaker.JudgeRest(j.s.Rules, now, due, 0, gone), err
	}
	rest, err := j.countDue(ctx, b, earlierOf(part.Through, j.s.Rules.Horizon(now)), 0)
	return breaker.JudgeRest(j.s.Rules, now, due, rest.Due, gone), err
}

// unreported returns how much of parts that were approved this process has deleted, and not reported.
func (j *Judge) unreported(approved []breaker.Approval) (n int64) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	for _, a := range approved {
		if mine := j.s.slices[breaker.Key{Approval: a.ID}]; mine != nil && a.IsOfGround() {
			n += mine.done
		}
	}
	return n
}

// isInUse reports whether an approval of a part of unswept ground is still to be used up, or what is
// reserved by it is not all reported: then it is not known what is left. It is over if nobody has
// wanted or reserved anything of it for a while: the entities may have been extended, or a process
// was killed.
func (j *Judge) isInUse(b breaker.Budget, part breaker.Approval, now time.Time) bool {
	k := breaker.Key{Approval: part.ID}
	t := b.At(k)
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	if !j.idle.IsZero() && j.s.Now().Sub(j.idle) > countAgain && now.Sub(t.At) > countAgain {
		return false
	}
	reserved := t.Granted - t.Done
	if mine := j.s.slices[k]; mine != nil {
		reserved -= mine.done
	}
	return reserved > 0 || !b.IsSpent(j.s.Rules, part, now)
}

// approvedOnly returns the wants that an approval covers.
func (j *Judge) approvedOnly(wants []breaker.Want) (list []breaker.Want) {
	others := false
	for _, w := range wants {
		if w.Key.Approval != "" {
			list = append(list, w)
		} else {
			others = others || w.N > 0
		}
	}
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	switch {
	case len(list) > 0:
		j.idle = time.Time{}
	case others && j.idle.IsZero():
		j.idle = j.s.Now()
	}
	return list
}

// isEntered reports whether what is due in what this process sweeps was counted. The record does not
// say while another process sweeps the target as something else, or with a longer retention.
func (j *Judge) isEntered(r generation.Record) bool {
	if !j.holdsGround(r) || r.Shortest.Known && j.s.Rules.Retention < r.Shortest.Length {
		j.s.mu.Lock()
		defer j.s.mu.Unlock()
		return j.entered
	}
	if r.IsUnswept(j.s.Rules.Retention) {
		return false
	}
	j.noteEntered(true)
	return true
}

func (j *Judge) noteEntered(entered bool) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	j.entered = j.entered || entered
}

// holdsGround reports whether the record is of a target that is swept as this process does.
func (j *Judge) holdsGround(r generation.Record) bool {
	is := generation.Record{Layout: j.s.Plan.Scope.Layout}
	return r.Kind == j.s.Plan.Scope.Kind && r.Property == j.s.Plan.Scope.Property && !view.IsLaidOut(r, is)
}
