package sweep

import (
	"context"
	"math"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A Snapshot has what the records of one target say. Commands that only read use it to
// see ranges, generations and entities as a sweep does.
type Snapshot struct {
	Target Target
	View   *plan.View
	Plan   *plan.Plan
	// Missing says that the target has no record. Then View and Plan are made of the record
	// that a sweep would write. New says in addition that nobody seems to have swept or
	// loaded the target yet: no generation is in use, and there is no cursor record.
	Missing, New bool

	c     *site.Site
	beats cursor.Heartbeats
}

// ErrOldCopy is why [TakeSnapshot] refuses a target record that is older than a cursor record.
var ErrOldCopy = plan.ErrOldCopy

// TakeSnapshot reads the records of a target. It writes nothing.
func TakeSnapshot(ctx context.Context, cfg Config, t Target) (*Snapshot, error) {
	cfg.Apply = false
	cfg = cfg.withDefaults()
	c := newSite(&cfg, &t)
	s := &Snapshot{Target: t, View: &plan.View{}, c: c}
	if err := c.Viewer.LoadCursors(ctx, s.View); err != nil {
		return nil, err
	}
	var err error
	if s.View.Record, s.View.RecordSent, s.Missing, err = c.Viewer.ReadRecord(ctx); err != nil {
		return nil, err
	}
	if err := plan.CheckLineage(s.View.Record, s.Missing, t.Name, s.View.Cursors); err != nil {
		return nil, err
	}
	if s.Missing {
		if s.View.Record, err = c.Viewer.Begin(ctx, s.View); err != nil {
			return nil, err
		}
		s.New = s.View.Cursors.Len() == 0 && !s.View.Record.IsContinued()
	}
	if err := c.Viewer.LoadNamespaces(ctx, s.View); err != nil {
		return nil, err
	}
	err = view.Patiently(ctx, func(ctx context.Context) (err error) {
		s.beats, _, err = c.Keeper.Look(ctx, t.Name)
		return err
	})
	if err != nil { // not fatal: heartbeats only show which processes work
		c.Log.WarnContext(ctx, "cannot read the heartbeats: working processes are not known", "error", err)
	}
	c.Viewer.Use(s.View)
	c.Pacing.Follow(s.View)
	s.Plan = plan.New(c.Rules, s.View, plan.Book{}, c.Clock.Now())
	return s, nil
}

// InNamespace returns the snapshot as it is for one namespace alone.
func (s *Snapshot) InNamespace(namespace string) *Snapshot {
	one := *s
	view := *s.View
	view.Namespaces = []string{namespace}
	one.View = &view
	one.Plan = plan.New(s.c.Rules, &view, plan.Book{}, s.Plan.Now())
	return &one
}

// Now returns the store's time.
func (s *Snapshot) Now() time.Time { return s.c.Clock.Now() }

// Horizon returns the present horizon: what expires at or before it is due.
func (s *Snapshot) Horizon() time.Time { return s.c.Horizon() }

// FirstDue returns when the first well-formed entry of a range, from a position
// on, became due; the zero time if there is no such entry.
func (s *Snapshot) FirstDue(ctx context.Context, r shardquery.Range, from store.Position) (time.Time, error) {
	return s.c.FirstDue(ctx, r, from)
}

// Rate returns the rate that a claim of the range would begin with, in entities a
// second; ok is false if it is unlimited.
func (s *Snapshot) Rate(r shardquery.Range, c cursor.Cursor) (perSecond float64, ok bool) {
	rate := s.c.Pacing.PaceOf(r, c).Rate(s.c.Cfg.Now())
	return rate, !math.IsInf(rate, 1)
}

// HeldUntil returns when the lease of the range's holder runs out, in the store's time; the
// zero time if no process holds it. It goes by a single read: a worker must watch the
// heartbeat for longer before it takes the range over.
func (s *Snapshot) HeldUntil(c cursor.Cursor) time.Time {
	h, ok := s.beats[cursor.HeartbeatKey(c.Target, c.Lease.Owner)]
	until := h.Renewed.Add(h.Lease)
	holds := ok && h.Invalid == nil && h.Epoch == c.Lease.Epoch && s.c.Keeper.IsOfThisOpening(h.Owner)
	if !holds || !until.After(s.Now()) {
		return time.Time{}
	}
	return until
}

// Heartbeats returns the heartbeats of the processes that are alive. It goes by a single read:
// each was written less than a lease ago. A process that holds nothing writes less often; it
// counts as alive for twice that interval.
func (s *Snapshot) Heartbeats() (list []cursor.Heartbeat) {
	for _, h := range s.c.Keeper.Alive(s.beats) {
		within := h.Lease
		if within == 0 {
			within = 2 * cursor.IdleBeat
		}
		if h.Invalid == nil && s.Now().Sub(h.Renewed) < within {
			list = append(list, h)
		}
	}
	return list
}

// Count counts the index entries of a span in all namespaces; ok is false if the
// store cannot count.
func (s *Snapshot) Count(ctx context.Context, span store.Span) (n int64, ok bool, err error) {
	_, ok = s.c.Index.Counter()
	if !ok {
		return 0, false, nil
	}
	n, err = s.c.Index.Count(ctx, index.Everywhere(s.c.Viewer.View().Namespaces, span), 0)
	return n, true, err
}

// CountOutside counts the entities that carry the property and lie in no range; ok is false
// if they cannot be counted.
func (s *Snapshot) CountOutside(ctx context.Context) (n int64, ok bool) {
	return chore.CountOutside(ctx, s.c, s.Plan)
}

// CountDue counts the entries of a range that are due and became due at an instant or
// later. It stops at upTo; ok is false if the store cannot count.
func (s *Snapshot) CountDue(
	ctx context.Context, r shardquery.Range, since time.Time, upTo int64,
) (n int64, ok bool, err error) {
	return chore.CountExpired(ctx, s.c, r, since.Add(-s.Target.Retention), s.Horizon().Add(r.Resolution()), upTo)
}

// IsEmptyKind reports whether the target's kind holds no entity, as far as the store answers in time.
func (s *Snapshot) IsEmptyKind(ctx context.Context) bool { return chore.IsEmptyKind(ctx, s.c) }

// HeartbeatsRead reports whether the heartbeats could be read. If not, the snapshot has
// everything except the working processes.
func (s *Snapshot) HeartbeatsRead() bool { return s.beats != nil }

// A Judgement is what an expiry means at a horizon.
type Judgement = index.Judgement

// The judgements.
const (
	Never     = index.Never
	Early     = index.Early
	Due       = index.Due
	Suspect   = index.Suspect
	Malformed = index.Malformed
)

// Judge returns what the value of an expiry property means now.
func (s *Snapshot) Judge(v store.Value) Judgement { return s.c.Index.Decide(v, s.c.Horizon()) }

// EnsureRecord returns the target record that the configuration asks for. It writes the
// record if it is missing or differs, because writers must stamp by the record that sweeps
// use. It fails if a sweep would fail. Now is the store's time.
func EnsureRecord(ctx context.Context, cfg Config, t Target) (rec generation.Record, now time.Time, err error) {
	cfg.Apply = true
	cfg = cfg.withDefaults()
	c := newSite(&cfg, &t)
	view := &plan.View{}
	if err := c.Viewer.LoadCursors(ctx, view); err != nil {
		return rec, now, err
	}
	err = c.Viewer.EnsureRecord(ctx, view, true)
	c.Story.FinishChanges(ctx)
	return view.Record, c.Clock.Now(), err
}

// Budget reads the budget of the target's breaker and limits.
func (s *Snapshot) Budget(ctx context.Context) (breaker.Budget, error) {
	return spend.Load(ctx, s.c.Viewer.Store, s.Target.Name)
}

// CountBehind counts what is due in a range behind its cursor; in a range at rest, everything
// that is due. It stops at upTo.
func (s *Snapshot) CountBehind(ctx context.Context, r shardquery.Range, upTo int64) (int64, error) {
	n, _, err := chore.CountBehind(ctx, s.c, s.Plan, r, upTo)
	return n, err
}
