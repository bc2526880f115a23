package inspect

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A TargetStatus is where a target stands, in the form that `reaper status
// --json` prints.
type TargetStatus struct {
	Name        string             `json:"name"`
	Layout      string             `json:"layout"`
	Paused      bool               `json:"paused"`
	Held        string             `json:"held"`       // why nothing may be deleted at present, as far as one can see
	OldestDue   *time.Time         `json:"oldest_due"` // when the oldest entity that is due became so; nil if none is
	LastSweep   *time.Time         `json:"last_sweep"` // the newest instant that any range was brought to
	SweptTo     *time.Time         `json:"swept_to"`   // what expired before is gone; nil if nobody has come yet
	Rate        float64            `json:"rate"`       // of the ranges that workers hold, in entities a second
	Unlimited   bool               `json:"unlimited"`  // a worker holds a range without a limit: Rate leaves it out
	Workers     []WorkerStatus     `json:"workers"`    // in the order of their names
	Generations []GenerationStatus `json:"generations"`
	Ranges      []RangeStatus      `json:"ranges"`
}

// A WorkerStatus is a process that works on a target.
type WorkerStatus struct {
	Owner   string    `json:"owner"`
	Ranges  int       `json:"ranges"`  // that it holds; the audit of a namespace counts as one
	Seen    time.Time `json:"seen"`    // when it last wrote its heartbeat, or the record of a range
	Version string    `json:"version"` // of the program
}

// A GenerationStatus is where a generation stands. The nursery is number 0.
type GenerationStatus struct {
	Number int        `json:"number"`
	State  string     `json:"state"` // filling, closing, closed, sealed or draining
	Shards int        `json:"shards"`
	Opened time.Time  `json:"opened"`
	Closed *time.Time `json:"closed"` // when it was marked so
	Sealed *time.Time `json:"sealed"` // when the last writer had committed
}

// A RangeStatus is where a range stands.
type RangeStatus struct {
	Namespace   string     `json:"namespace"`
	Generation  int        `json:"generation"`
	Shard       string     `json:"shard"`
	Position    string     `json:"position"`     // empty if the range was never swept
	Rate        *float64   `json:"rate"`         // that it may have now, in entities a second; nil if it is unlimited
	ThrottledBy string     `json:"throttled_by"` // what held it to that when its record was written last
	Owner       string     `json:"owner"`        // empty if nobody holds it
	LeaseUntil  *time.Time `json:"lease_until"`
	NextDue     *time.Time `json:"next_due"` // of a sealed range: when its first survivor is
	Deleted     int64      `json:"deleted"`
	Swept       *time.Time `json:"swept"`
	Refused     bool       `json:"refused"` // entities that the store refuses to delete or carry are there
}

// gateTimeout bounds the one question to the gate: a command must not wait for a
// gate that does not answer, and workers take that for a no, too.
const gateTimeout = 5 * time.Second

// Status reads where a target stands: its records, the first due entry of each
// range that does not rest, and the gate. It writes nothing.
func Status(ctx context.Context, cfg sweep.Config, t sweep.Target) (TargetStatus, error) {
	st := TargetStatus{Name: t.Name, Layout: t.Layout, Workers: []WorkerStatus{},
		Generations: []GenerationStatus{}, Ranges: []RangeStatus{}}
	s, err := sweep.TakeSnapshot(ctx, cfg, t)
	if err != nil {
		return st, err
	}
	if !s.New {
		st.describe(s)
	}
	sweptTo := s.Horizon()
	var oldest earliest
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(1, cfg.Workers))
	group.Go(func() error {
		st.Held = string(heldBy(ctx, s))
		return nil
	})
	for _, r := range s.Plan.Ranges() {
		if s.New || !s.Plan.Range(r).Read {
			continue // it is sealed, and nothing in it is due: sweeps leave it alone
		}
		group.Go(func() error {
			at, err := s.FirstDue(ctx, r, s.Plan.Cursor(r).Position)
			oldest.add(at)
			return err
		})
	}
	if err := group.Wait(); err != nil || s.New {
		return st, err
	}
	if !oldest.at.IsZero() {
		sweptTo = oldest.at.Add(-t.Retention) // it expired one retention before it became due
	}
	st.OldestDue, st.SweptTo = timePtr(oldest.at), &sweptTo
	if st.Held != "" {
		st.Rate, st.Unlimited = 0, false
	}
	return st, nil
}

// An earliest is the earliest of some instants.
type earliest struct {
	mu sync.Mutex
	at time.Time // zero before the first one
}

// add takes in an instant; it ignores the zero time.
func (e *earliest) add(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !at.IsZero() && (e.at.IsZero() || at.Before(e.at)) {
		e.at = at
	}
}

// heldBy returns why nothing may be deleted at present, by the target record and
// by what the gate says to one question.
func heldBy(ctx context.Context, s *sweep.Snapshot) throttle.Reason {
	if s.View.Record.Paused {
		return throttle.ReasonPaused
	}
	if s.Target.Gate == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	if s.Target.Gate(ctx) != nil {
		return throttle.ReasonGate
	}
	return ""
}

// describe fills in what the records say.
func (st *TargetStatus) describe(s *sweep.Snapshot) {
	st.Paused = s.View.Record.Paused
	st.Generations = generationsOf(s)
	st.Workers = workersOf(s)
	var last time.Time
	for _, r := range inOrder(s.Plan.Ranges()) {
		c := s.Plan.Cursor(r)
		one := rangeStatus(s, r, c)
		st.Ranges = append(st.Ranges, one)
		if c.Swept.After(last) {
			last = c.Swept
		}
		switch {
		case s.HeldUntil(c).IsZero():
		case one.Rate == nil:
			st.Unlimited = true
		default:
			st.Rate += *one.Rate
		}
	}
	st.LastSweep = timePtr(last)
	if total, ok := totalOf(s); ok && (st.Unlimited || st.Rate > total) {
		st.Rate, st.Unlimited = total, false
	}
}

// totalOf returns what the target may have over all workers; ok is false if that is
// unlimited.
func totalOf(s *sweep.Snapshot) (perSecond float64, ok bool) {
	if set := s.View.Record.PaceTotal; set.Set {
		return set.PerSecond, !set.Unlimited
	}
	total := s.Target.Total
	return total.PerSecond, !total.Unlimited && total.PerSecond > 0
}

// workersOf lists who has a heartbeat.
func workersOf(s *sweep.Snapshot) []WorkerStatus {
	byOwner := map[string]WorkerStatus{}
	for _, h := range s.Heartbeats() {
		byOwner[h.Owner] = WorkerStatus{Owner: h.Owner, Seen: h.Renewed, Version: h.Version}
	}
	for _, c := range s.View.Cursors.All() {
		if s.HeldUntil(c).IsZero() {
			continue
		}
		w := byOwner[c.Lease.Owner]
		w.Ranges++
		byOwner[w.Owner] = w
	}
	return append([]WorkerStatus{}, slices.SortedFunc(maps.Values(byOwner), func(a, b WorkerStatus) int {
		return strings.Compare(a.Owner, b.Owner)
	})...)
}

// inOrder sorts ranges by generation, the nursery last.
func inOrder(ranges []shardquery.Range) []shardquery.Range {
	list := slices.Clone(ranges)
	slices.SortStableFunc(list, func(a, b shardquery.Range) int {
		isNursery := func(r shardquery.Range) int {
			if r.Generation == expirykey.Nursery {
				return 1
			}
			return 0
		}
		return cmp.Or(isNursery(a)-isNursery(b), a.Generation-b.Generation)
	})
	return list
}

func rangeStatus(s *sweep.Snapshot, r shardquery.Range, c cursor.Cursor) RangeStatus {
	one := RangeStatus{Namespace: r.Namespace, Generation: r.Generation, Shard: r.ShardName(),
		Position: valueText(c.Position.Value), ThrottledBy: c.Throttled, Owner: c.Lease.Owner,
		LeaseUntil: timePtr(s.HeldUntil(c)), Deleted: c.Deleted, Swept: timePtr(c.Swept), Refused: c.Stock.Refused}
	if !c.Stock.Next.IsZero() {
		one.NextDue = timePtr(c.Stock.Next.Add(s.Target.Retention))
	}
	if rate, ok := s.Rate(r, c); ok {
		one.Rate = &rate
	}
	if s.View.Record.Paused {
		one.ThrottledBy = string(throttle.ReasonPaused)
	}
	return one
}

// valueText shows a value for people.
func valueText(v store.Value) string {
	if v.Type == store.Instant {
		return v.Time.UTC().Format(store.TimeLayout)
	}
	return v.Text
}

// generationsOf says how each generation stands, the nursery last.
func generationsOf(s *sweep.Snapshot) []GenerationStatus {
	list := []GenerationStatus{}
	if s.Target.Type == store.Instant {
		return list
	}
	for _, g := range s.View.Record.Live() {
		stage := s.Plan.Stage(g.Number)
		list = append(list, GenerationStatus{Number: g.Number, State: string(cmp.Or(stage.State, generation.Filling)),
			Shards: g.Shards, Opened: g.Opened, Closed: timePtr(g.Closed), Sealed: timePtr(stage.Sealed)})
	}
	return list
}

// timePtr returns a pointer to an instant; nil for the zero time.
func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
