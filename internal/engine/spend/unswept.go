package spend

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/view"
)

// An admission says what may be reserved of a target that may be unswept.
type admission int

const (
	admitNothing  admission = iota // the breaker is open
	admitApproved                  // what an approval covers: it is for a part of what is due
	admitAll
)

// An unsweptCheck counts what is due in an unswept target before anything is deleted there without
// an approval. A target is unswept if it is new, or if what is swept of it has changed.
type unsweptCheck struct {
	rules   breaker.Rules
	scope   cursor.Scope // of the target
	viewer  *view.Viewer
	ledger  *ledger
	counter *counter
	tripper *tripper
	parts   *approvedParts

	mu      sync.Mutex
	checked bool // what is due in what this process sweeps was counted, or approved
}

// admit says what may be reserved, and counts what is due if that has to be known first.
func (u *unsweptCheck) admit(ctx context.Context) (admission, error) {
	rec := u.viewer.View().Record
	switch {
	case rec.Trip.IsOpen():
		return admitNothing, nil
	case u.isChecked(rec):
		return admitAll, nil
	}
	read, part := u.ledger.read, rec.ApprovedPart()
	if part.ID != "" { // what others have reserved of it counts, too
		read = u.ledger.reread
	}
	b, err := read(ctx)
	if err != nil {
		return admitNothing, err
	}
	now := u.counter.now()
	if part.ID != "" && u.parts.isInUse(b, part, now) {
		return admitApproved, nil
	}
	var trip *breaker.Trip
	if err = u.counter.bounds.extent.find(ctx); err == nil { // the result holds for all deployments
		trip, err = u.judge(ctx, b, rec, now)
	}
	if err != nil {
		err = fmt.Errorf("what is due on unswept ground: %w", err)
		u.ledger.noteUncounted(ctx, err.Error())
		return admitNothing, uncounted{err}
	}
	u.ledger.noteUncounted(ctx, "")
	if trip != nil {
		return admitNothing, u.tripper.trip(ctx, *trip, rec.Approvals)
	}
	if !isAsCounted(u.viewer.View().Record, rec) {
		return admitNothing, nil // the steps ask again
	}
	return u.settle(ctx, rec)
}

// isAsCounted reports whether a record is as it was before a count, which may have taken minutes: what an approval
// covers by then was left out of a part of it, and another process may have found that it is too much.
func isAsCounted(is, before generation.Record) bool {
	return !is.Trip.IsOpen() && is.Created.Equal(before.Created) && sameApprovals(is.Approvals, before.Approvals)
}

// settle notes that what is due was counted, and is not too much.
func (u *unsweptCheck) settle(ctx context.Context, rec generation.Record) (admitted admission, err error) {
	err = u.viewer.ChangeRecord(ctx, func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
		if admitted = admitAll; !isAsCounted(is, rec) {
			admitted = admitNothing
		}
		if admitted == admitNothing || !isSweptAs(is, u.scope) {
			return is, false, nil // or it is of what another process sweeps, and that was not counted
		}
		next := is.Settled(u.rules.Retention)
		return next, !next.EqualContent(is), nil
	})
	if err != nil || admitted == admitNothing {
		return admitNothing, err
	}
	u.noteChecked()
	return admitAll, nil
}

// judge counts what is due, and returns a trip if it is too much. If parts of it were approved and
// deleted, what is left of them counts with them.
func (u *unsweptCheck) judge(
	ctx context.Context, b breaker.Budget, rec generation.Record, now time.Time,
) (*breaker.Trip, error) {
	part, gone := rec.ApprovedPart(), b.GoneInParts(rec.Approvals)+u.parts.unreported(rec.Approvals)
	if part.ID != "" {
		b = b.Ended(part, now)
	}
	due, err := patientCount(u.rules.Floor, false, func(upTo int64) (breaker.Count, error) {
		return u.counter.countDue(ctx, b, u.rules.Horizon(now), upTo)
	})
	if err != nil || part.ID == "" || due.Due > u.rules.Floor {
		return breaker.JudgeRest(u.rules, now, due, 0, gone), err
	}
	rest, err := u.counter.countDue(ctx, b, earlierOf(part.Through, u.rules.Horizon(now)), 0)
	return breaker.JudgeRest(u.rules, now, due, rest.Due, gone), err
}

// isChecked reports whether what is due in what this process sweeps was counted. The record does not
// say while another process sweeps the target as something else, or with a longer retention.
func (u *unsweptCheck) isChecked(r generation.Record) bool {
	if !isSweptAs(r, u.scope) || r.Shortest.Known && u.rules.Retention < r.Shortest.Length {
		u.mu.Lock()
		defer u.mu.Unlock()
		return u.checked
	}
	if r.IsUnswept(u.rules.Retention) {
		return false
	}
	u.noteChecked()
	return true
}

func (u *unsweptCheck) noteChecked() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.checked = true
}

// isSweptAs reports whether the record is of a target that is swept as a scope says.
func isSweptAs(r generation.Record, scope cursor.Scope) bool {
	is := generation.Record{Layout: scope.Layout}
	return r.Kind == scope.Kind && r.Property == scope.Property && !view.IsLaidOut(r, is)
}

// ApprovedParts say whether an approval of a part of what is due in an unswept target is in use.
type approvedParts struct {
	rules     breaker.Rules
	allowance *allowance
	now       func() time.Time // this process's clock

	mu   sync.Mutex
	idle time.Time // since when nothing was wanted of a part; zero if it was
}

// unreported returns how much of approved parts this process has deleted, and not reported.
func (p *approvedParts) unreported(approved []breaker.Approval) (n int64) {
	for _, a := range approved {
		if a.IsUnsweptPart() {
			n += p.allowance.unreported(breaker.Key{Approval: a.ID})
		}
	}
	return n
}

// isInUse reports whether an approval is still to be used up, or what is reserved by it is not all
// reported: then it is not known what is left. It ends if nobody has wanted or reserved anything of
// it for a while: the entities may have been extended, or a process was killed.
func (p *approvedParts) isInUse(b breaker.Budget, part breaker.Approval, now time.Time) bool {
	k := breaker.Key{Approval: part.ID}
	t := b.At(k)
	p.mu.Lock()
	idle := p.idle
	p.mu.Unlock()
	if !idle.IsZero() && p.now().Sub(idle) > countAgain && now.Sub(t.At) > countAgain {
		return false
	}
	return t.Granted-t.Done-p.allowance.unreported(k) > 0 || !b.IsSpent(p.rules, part, now)
}

// only returns the wants that an approval covers.
func (p *approvedParts) only(wants []breaker.Want) (list []breaker.Want) {
	others := false
	for _, w := range wants {
		if w.Key.Approval != "" {
			list = append(list, w)
		} else {
			others = others || w.N > 0
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case len(list) > 0:
		p.idle = time.Time{}
	case others && p.idle.IsZero():
		p.idle = p.now()
	}
	return list
}
