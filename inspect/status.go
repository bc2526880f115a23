package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A TargetStatus is the state of a target, in the form that `reaper status --json`
// prints. What could not be read in time is null there, and named in Unread.
type TargetStatus struct {
	Name      string        `json:"name"`
	Layout    layout.Layout `json:"layout"`
	Verdict   Verdict       `json:"verdict"`
	Why       string        `json:"why"`              // the verdict, for people
	Paused    bool          `json:"paused"`           // also if the gate is closed, too
	Breaker   string        `json:"breaker"`          // what its breaker cannot do at present; empty if it is well, or off
	Held      string        `json:"held"`             // why nothing may be deleted at present, if that is known
	Reason    string        `json:"reason"`           // that was given for it
	OldestDue *time.Time    `json:"oldest_due"`       // when the oldest entity that is due became so, if one is
	LastSweep *time.Time    `json:"last_sweep"`       // the newest instant that any range was brought to
	SweptTo   *time.Time    `json:"swept_to"`         // what expired before is gone, but behind cursors; nil at first
	Backlog   *int64        `json:"backlog"`          // entities that are due, with Behind; nil if they were not counted
	AtLeast   bool          `json:"backlog_at_least"` // there are more than Backlog: counting stopped there
	Rate      float64       `json:"rate"`             // of the ranges that workers hold, in entities a second
	Unlimited bool          `json:"unlimited"`        // a worker holds a range without a limit: Rate leaves it out
	GoneAt    *time.Time    `json:"gone_at"`          // when the backlog is gone at that rate, if that is known
	BehindCount
	// WouldTrip is the event for which a daemon foresees that the breaker trips at the next read from the
	// start; nil if none does.
	WouldTrip   *WouldTrip         `json:"would_trip"`
	EmptyIndex  bool               `json:"empty_index"` // as sweeps found it last: no entity has an entry in any range
	EmptyKind   bool               `json:"empty_kind"`  // nothing is due, and the kind holds no entity
	PausedBy    string             `json:"paused_by"`
	PausedAt    *time.Time         `json:"paused_at"`
	PausedUntil *time.Time         `json:"paused_until"` // nil if the pause has no end
	Workers     []WorkerStatus     `json:"workers"`      // in the order of their names
	Generations []GenerationStatus `json:"generations"`
	Ranges      []RangeStatus      `json:"ranges"`
	Adoption    *adopt.State       `json:"adoption"` // nil if no entities are being adopted
	// SupersededBy is the target that replaces this one, because its adoption is finished.
	SupersededBy string   `json:"superseded_by"`
	Unread       []string `json:"unread"` // what could not be read in time, and why

	// LateOnes is true if the verdict is Behind for nothing but what lies behind the cursors.
	LateOnes bool `json:"-"`
	// Err is why the records could not be read in time. Nearly all other fields are empty then.
	Err error `json:"-"`
}

// MarshalJSON prints null for what is not known because the records could not be read.
func (st TargetStatus) MarshalJSON() ([]byte, error) {
	type plain TargetStatus
	if st.Err == nil {
		return json.Marshal(plain(st))
	}
	unknown := struct {
		plain
		Paused     *bool    `json:"paused"`
		Held       *string  `json:"held"`
		Rate       *float64 `json:"rate"`
		EmptyIndex *bool    `json:"empty_index"`
		EmptyKind  *bool    `json:"empty_kind"`
	}{plain: plain(st)}
	if st.Paused {
		unknown.Paused = &st.Paused
	}
	if st.Held != "" {
		unknown.Held = &st.Held
	}
	return json.Marshal(unknown)
}

// A WorkerStatus is a process that works on a target.
type WorkerStatus struct {
	Owner   string    `json:"owner"`
	Ranges  int       `json:"ranges"`  // how many it holds; the audit of a namespace counts as one
	Seen    time.Time `json:"seen"`    // when it last wrote its heartbeat, or the record of a range
	Version string    `json:"version"` // of the program
	Why     string    `json:"why"`     // which record it cannot read or write, so that it deletes nothing; empty if it can
}

// A GenerationStatus is the state of a generation. The nursery is number 0.
type GenerationStatus struct {
	Number int        `json:"number"`
	State  string     `json:"state"` // filling, closing, closed, sealed or draining
	Shards int        `json:"shards"`
	Opened time.Time  `json:"opened"`
	Closed *time.Time `json:"closed"` // when the record marked it closed
	Sealed *time.Time `json:"sealed"` // when the last writer must have committed
}

// A RangeStatus is the state of a range.
type RangeStatus struct {
	Namespace   string     `json:"namespace"`
	Generation  int        `json:"generation"`
	Shard       string     `json:"shard"`
	Position    string     `json:"position"`     // empty if the range was never swept
	Rate        *float64   `json:"rate"`         // its present limit, in entities a second; nil if it is unlimited
	ThrottledBy string     `json:"throttled_by"` // what held it back when its record was written last
	Owner       string     `json:"owner"`        // empty if nobody holds it
	LeaseUntil  *time.Time `json:"lease_until"`
	OldestDue   *time.Time `json:"oldest_due"` // when the oldest due entity became due; nil if none is known
	NextDue     *time.Time `json:"next_due"`   // of a sealed range: when its first survivor is due
	Deleted     int64      `json:"deleted"`
	Swept       *time.Time `json:"swept"`
	Refused     bool       `json:"refused"` // it has entities that the store refuses to delete or carry
}

// Within bounds how long Status takes: a person waits for it. The records must be read
// by recordsWithin, and the queries and the gate must answer by queriesWithin.
const (
	Within        = 5 * time.Second
	recordsWithin = 3 * time.Second
	queriesWithin = 4 * time.Second
	// recordAlone is how long the records may take before the target record is also read
	// by itself: it says whether the target is paused.
	recordAlone = 2 * time.Second
)

// Status reads the state of a target: its records, the first due entry of each range that does
// not rest, how many entities are due, also behind the cursors, and the gate. It writes
// nothing. It answers within five seconds: what could not be read by then is named in Unread.
//
// It costs two queries for each range that does not rest: one from the cursor on, and one from
// the range's start, which steps over the tombstones of what was deleted there.
func Status(ctx context.Context, cfg sweep.Config, t sweep.Target) (TargetStatus, error) {
	return StatusWith(ctx, cfg, t, Look{})
}

// A Look is how closely a status looks.
type Look struct {
	// All also counts what is due in ranges at rest, and looks for keys of retired generations. Both
	// step over the tombstones of all that was deleted there.
	All bool
	// Last is what an earlier status has counted behind the cursors. For [BehindEvery] it is not
	// counted again.
	Last BehindCount
}

// StatusWith is Status with a closer look, or one that costs less.
func StatusWith(ctx context.Context, cfg sweep.Config, t sweep.Target, look Look) (TargetStatus, error) {
	whole, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	within, cancel := context.WithTimeout(whole, queriesWithin)
	defer cancel()
	st := TargetStatus{Name: t.Name, Layout: t.Layout, Unread: []string{}}
	s, err := st.readRecords(ctx, cfg, t)
	if err != nil || s == nil {
		return st, err
	}
	st.Workers, st.Generations, st.Ranges = []WorkerStatus{}, []GenerationStatus{}, []RangeStatus{}
	ranges := inOrder(s.Plan.Ranges())
	if !s.New {
		st.describe(s, ranges)
	}
	q := &queries{Snapshot: s, store: cfg.Store, due: map[shardquery.Range]time.Time{},
		unread: map[shardquery.Range]error{}, all: look.All}
	if err := q.run(ctx, within, max(1, cfg.Workers), ranges); err != nil {
		return st, err
	}
	st.fillHold(s, q.hold)
	if st.Adoption = q.adopt; q.noAdoption != nil {
		st.Unread = append(st.Unread, fmt.Sprintf("the adoption: %v", q.noAdoption))
	}
	st.fillMixed(q)
	known := st.fillDue(q, ranges)
	daemons, would := countedBy(s)
	if st.BehindCount = look.Last; !look.Last.isRecent(s.Now()) {
		b := &behindCounter{Snapshot: s, all: look.All}
		if err := b.run(whole, max(1, cfg.Workers), ranges, func() { st.count(whole, q) }); err != nil {
			return st, err
		}
		st.fillBehind(b, len(ranges), daemons)
	} else {
		st.count(whole, q)
	}
	if st.Behind == nil || *st.Behind > 0 { // else it is gone
		st.WouldTrip = would
	}
	ahead := st.OldestDue
	st.addBehind()
	st.EmptyIndex = s.View.Record.EmptyIndex
	st.EmptyKind = st.OldestDue == nil && len(q.unread) == 0 && s.IsEmptyKind(whole)
	st.judge(s, ahead, known)
	return st, nil
}

// readRecords takes a snapshot. If that takes too long it returns nil, and fills in the
// pause by the target record alone.
func (st *TargetStatus) readRecords(ctx context.Context, cfg sweep.Config, t sweep.Target) (*sweep.Snapshot, error) {
	within, cancel := context.WithTimeout(ctx, recordsWithin)
	defer cancel()
	alone := make(chan generation.Record, 1)
	timer := time.AfterFunc(recordAlone, func() {
		var paused generation.Record
		var group errgroup.Group
		background.Go(&group, func() error {
			if rec, now, err := generation.Load(within, cfg.Store, t.Name); err == nil && rec.IsPaused(now) {
				paused = rec
			}
			return nil
		})
		_ = group.Wait() // the status is not known without this record, and says so
		alone <- paused
	})
	s, err := sweep.TakeSnapshot(within, cfg, t)
	late := err != nil && within.Err() != nil && ctx.Err() == nil
	if !timer.Stop() {
		cancel()
		if rec := <-alone; late {
			st.fillPause(rec)
		}
	}
	if errors.Is(err, sweep.ErrOldCopy) { // sweeps refuse it, too
		st.Err, st.Held = err, string(throttle.ReasonRecord)
		st.Verdict, st.Why, st.Reason = Held, st.heldText(), err.Error()+"; "+chapter
		return nil, nil
	}
	if !late {
		return s, err
	}
	st.Err = err
	st.Unread = append(st.Unread, fmt.Sprintf("the target's records: %v", err))
	if st.Verdict, st.Why = Unknown, fmt.Sprintf("the store has not answered within %v", recordsWithin); st.Paused {
		st.Verdict, st.Held = Paused, string(throttle.ReasonPaused)
		st.Why = "its other records could not be read"
	}
	return nil, nil
}

// Queries are what a status asks the store and the gate beyond the records.
type queries struct {
	*sweep.Snapshot
	store      store.Store
	hold       hold
	adopt      *adopt.State
	noAdoption error // why it is not known
	all        bool  // keys of retired generations are looked for
	mixed      string
	noMixed    error // why it is not known
	mu         sync.Mutex
	due        map[shardquery.Range]time.Time // when the first due entry of a range became so
	unread     map[shardquery.Range]error     // ranges that could not be read in time
}

// run asks the gate, and each range for its first due entry. It begins with the ranges
// that were swept the longest ago, because time may be too short for all. Within is the
// context that bounds these calls, a child of ctx.
func (q *queries) run(ctx, within context.Context, atOnce int, ranges []shardquery.Range) error {
	group, inGroup := errgroup.WithContext(within)
	group.SetLimit(atOnce)
	var gate errgroup.Group
	background.Go(&gate, func() error {
		q.hold = heldBy(within, q.Snapshot)
		return nil
	})
	background.Go(&gate, func() error {
		q.adopt, q.noAdoption = adopt.LoadState(within, q.store, q.Target.Name)
		return nil
	})
	background.Go(&gate, func() error {
		q.mixed, q.noMixed = mixed(within, q.Snapshot, q.store, q.all)
		return nil
	})
	longest := slices.Clone(ranges)
	slices.SortStableFunc(longest, func(a, b shardquery.Range) int {
		return q.Plan.Cursor(a).Swept.Compare(q.Plan.Cursor(b).Swept)
	})
	for _, r := range longest {
		if !q.Plan.Range(r).Read {
			continue // it is sealed, and nothing in it is due: sweeps leave it alone
		}
		background.Go(group, func() error {
			at, err := q.FirstDue(inGroup, r, q.Plan.Cursor(r).Position)
			q.mu.Lock()
			defer q.mu.Unlock()
			switch {
			case err != nil && within.Err() != nil && ctx.Err() == nil:
				q.unread[r] = err
			case err != nil:
				return err
			case !at.IsZero():
				q.due[r] = at
			}
			return nil
		})
	}
	err := group.Wait()
	return cmp.Or(gate.Wait(), err)
}

// fillDue fills in since when something is due, and how far the ranges are swept. It returns
// what the records say of ranges that could not be read in time.
func (st *TargetStatus) fillDue(q *queries, ranges []shardquery.Range) (known byRecords) {
	var oldest earliest
	for i, r := range ranges {
		at := q.due[r]
		oldest.add(at)
		if i < len(st.Ranges) {
			st.Ranges[i].OldestDue = timePtr(at)
		}
		if q.unread[r] != nil {
			known.add(q.Snapshot, r)
		}
	}
	st.OldestDue = timePtr(oldest.at)
	if n := len(q.unread); n > 0 {
		st.Unread = append(st.Unread, fmt.Sprintf("what is due in %d of %d ranges: %v", n, len(ranges), anyOf(q.unread)))
		known.all = len(ranges)
	}
	if q.New || known.lack > 0 {
		return known
	}
	oldest.add(known.since.at)
	sweptTo := q.Horizon()
	if !oldest.at.IsZero() {
		sweptTo = oldest.at.Add(-q.Target.Retention) // it expired one retention before it became due
	}
	st.SweptTo = &sweptTo
	return known
}

// anyOf returns one of the errors, as an example.
func anyOf(errs map[shardquery.Range]error) error {
	for _, err := range errs {
		return err
	}
	return nil
}

// Counting stops at about backlogUpTo entities over all ranges, but not before rangeUpTo in
// any one: a COUNT costs a read for each thousand.
const (
	backlogUpTo = 1_000_000
	rangeUpTo   = 1_000
)

// count fills in the backlog, and a forecast of when it will be gone. A status is complete
// without them.
func (st *TargetStatus) count(ctx context.Context, q *queries) {
	if len(q.unread) > 0 {
		return
	}
	upTo := int64(max(rangeUpTo, backlogUpTo/max(1, len(q.due))))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(countAtOnce)
	var sum atomic.Int64
	var atLeast, cannot atomic.Bool
	for r, since := range q.due {
		background.Go(group, func() error {
			n, ok, err := q.CountDue(ctx, r, since, upTo)
			sum.Add(n)
			if !ok {
				cannot.Store(true)
			}
			if n >= upTo {
				atLeast.Store(true)
			}
			return err
		})
	}
	switch err := group.Wait(); {
	case err != nil:
		st.Unread = append(st.Unread, fmt.Sprintf("how many entities are due: %v", err))
		return
	case cannot.Load():
		return
	}
	n := sum.Load()
	st.Backlog, st.AtLeast = &n, atLeast.Load()
	if n > 0 && !st.AtLeast && !st.Unlimited {
		if left, ok := forecast.SecondsLeft(float64(n), st.Rate); ok {
			st.GoneAt = timePtr(q.Now().Add(time.Duration(left * float64(time.Second))))
		}
	}
}

// countAtOnce is how many COUNTs run at the same time.
const countAtOnce = 16

// An earliest is the earliest of some instants.
type earliest struct{ at time.Time } // zero before the first one

// add takes in an instant; it ignores the zero time.
func (e *earliest) add(at time.Time) {
	if !at.IsZero() && (e.at.IsZero() || at.Before(e.at)) {
		e.at = at
	}
}

// fillMixed fills in what shows that records and entities are not of one time. Nothing is held by that.
func (st *TargetStatus) fillMixed(q *queries) {
	switch {
	case q.noMixed != nil:
		st.Unread = append(st.Unread, fmt.Sprintf("whether records and entities are of one time: %v", q.noMixed))
	case q.mixed != "" && st.Reason != "":
		st.Reason += "; " + q.mixed
	case q.mixed != "":
		st.Reason = q.mixed
	}
}

// describe fills in what the records say.
func (st *TargetStatus) describe(s *sweep.Snapshot, ranges []shardquery.Range) {
	st.Generations = generationsOf(s)
	st.Workers = workersOf(s)
	if !s.HeartbeatsRead() {
		st.Workers = nil
		st.Unread = append(st.Unread, "the heartbeats: working processes are not known")
	}
	var last time.Time
	for _, r := range ranges {
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

// totalOf returns the limit of the target over all workers; ok is false if it has no limit.
func totalOf(s *sweep.Snapshot) (perSecond float64, ok bool) {
	if set := s.View.Record.PaceTotal; set.Set {
		return set.PerSecond, !set.Unlimited
	}
	total := s.Target.Total
	return total.PerSecond, !total.Unlimited && total.PerSecond > 0
}

// workersOf lists the processes with a heartbeat.
func workersOf(s *sweep.Snapshot) []WorkerStatus {
	byOwner := map[string]WorkerStatus{}
	for _, h := range s.Heartbeats() {
		byOwner[h.Owner] = WorkerStatus{Owner: h.Owner, Seen: h.Renewed, Version: h.Version, Why: h.Why}
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
		one.NextDue = timePtr(dueAt(c.Stock.Next, s.Target.Retention))
	}
	if rate, ok := s.Rate(r, c); ok {
		one.Rate = &rate
	}
	switch rec := s.View.Record; {
	case s.Target.IsTripped(rec):
		one.ThrottledBy = string(throttle.ReasonBreaker)
	case rec.IsPaused(s.Now()):
		one.ThrottledBy = string(throttle.ReasonPaused)
	}
	return one
}

// valueText returns a value in a form for people.
func valueText(v store.Value) string {
	return v.String()
}

// generationsOf returns the state of each live generation, the nursery last.
func generationsOf(s *sweep.Snapshot) []GenerationStatus {
	list := []GenerationStatus{}
	if !s.Target.Layout.Form().HasGenerations() {
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
