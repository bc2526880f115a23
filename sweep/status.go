package sweep

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A TargetStatus is where a target stands, in the form that `reaper status
// --json` prints.
type TargetStatus struct {
	Name        string             `json:"name"`
	Layout      string             `json:"layout"`
	Paused      bool               `json:"paused"`
	OldestDue   *time.Time         `json:"oldest_due"` // when the oldest entity that is due became so; nil where none is
	LastSweep   *time.Time         `json:"last_sweep"` // the horizon of the last sweep that came to its end in every range
	Generations []GenerationStatus `json:"generations"`
	Ranges      []RangeStatus      `json:"ranges"`
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
	Position    string     `json:"position"`     // empty where the range was never swept
	Rate        *float64   `json:"rate"`         // that it may have now, in entities a second; nil where it is unlimited
	ThrottledBy string     `json:"throttled_by"` // what held it to that when its record was written last
	Owner       string     `json:"owner"`        // empty where nobody holds it
	LeaseUntil  *time.Time `json:"lease_until"`
	NextDue     *time.Time `json:"next_due"` // of a sealed range: when its first survivor is
	Deleted     int64      `json:"deleted"`
	Swept       *time.Time `json:"swept"`
}

// Status reads where a target stands: its records, and the first due entry of
// each range. It writes nothing.
func Status(ctx context.Context, c Config, t Target) (TargetStatus, error) {
	st := TargetStatus{Name: t.Name, Layout: t.Layout, Generations: []GenerationStatus{}, Ranges: []RangeStatus{}}
	p, missing, err := inspect(ctx, c, t)
	if err != nil || missing {
		return st, err
	}
	if err := p.listNamespaces(ctx); err != nil {
		return st, err
	}
	p.listRanges()
	p.takeBearings(p.clock.Now())
	st.Generations, st.Paused = p.generations(), p.record.Paused
	slices.SortStableFunc(p.all, func(a, b shardquery.Range) int { return age(a) - age(b) })

	horizon := p.clock.Now().Add(-t.Retention)
	var mu sync.Mutex
	var oldest time.Time
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(1, c.Workers))
	complete, last := len(p.all) > 0, time.Time{}
	for _, r := range p.all {
		cur := p.cursor(r)
		st.Ranges = append(st.Ranges, p.rangeStatus(r, cur))
		switch {
		case !p.due(r.Generation, cur, horizon.Add(t.Retention)):
			continue // sealed, and nothing in it is due: sweeps leave it alone
		case cur.Swept.IsZero():
			complete = false
		case last.IsZero() || cur.Swept.Before(last):
			last = cur.Swept
		}
		group.Go(func() error {
			at, err := p.firstDue(ctx, r, cur.Position, horizon)
			mu.Lock()
			defer mu.Unlock()
			if !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
				oldest = at
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return st, err
	}
	st.OldestDue = known(oldest)
	if complete {
		st.LastSweep = known(last)
	}
	return st, nil
}

// inspect returns a pass that has read the records and is to look only. Missing says
// that nobody has swept or loaded the target yet.
func inspect(ctx context.Context, c Config, t Target) (p *pass, missing bool, err error) {
	c.Apply, c.Progress = false, new(Progress)
	p = newPass(c, t, nil)
	if err := p.loadTable(ctx); err != nil {
		return p, false, err
	}
	rec, _, err := generation.Load(ctx, c.Store, t.Name)
	missing = errors.Is(err, generation.ErrMissing)
	if err != nil && !missing {
		return p, false, err
	}
	p.record, p.governor.record = rec, rec
	return p, missing, p.suits(rec, missing)
}

func (p *pass) rangeStatus(r shardquery.Range, cur cursor.Cursor) RangeStatus {
	one := RangeStatus{Namespace: r.Namespace, Generation: r.Generation, Shard: r.ShardName(), Position: positionText(cur.Position.Value),
		Owner: cur.Lease.Owner, LeaseUntil: known(cur.Lease.Until), Deleted: cur.Deleted, Swept: known(cur.Swept)}
	if !cur.Stock.Next.IsZero() {
		one.NextDue = known(cur.Stock.Next.Add(p.target.Retention))
	}
	now := p.Now()
	if at := p.paceOf(r, cur, now).Rate(now); !math.IsInf(at, 1) {
		one.Rate = &at
	}
	if one.ThrottledBy = cur.Throttled; p.record.Paused {
		one.ThrottledBy = string(throttle.ReasonPaused)
	}
	return one
}

// firstDue returns when the first well-formed entry of a range, from its cursor
// on, became due; the zero time where none is.
func (p *pass) firstDue(ctx context.Context, r shardquery.Range, from store.Position, horizon time.Time) (time.Time, error) {
	at, err := p.firstOf(ctx, r, from, horizon, horizon, func(_ store.Entry, j judgement) bool { return j == due })
	if at.IsZero() || err != nil {
		return time.Time{}, err
	}
	return at.Add(p.target.Retention), nil
}

// firstOf returns when the first entry of a range expires that is wanted, by what
// it and its expiry are at a horizon; the zero time where there is none.
func (p *pass) firstOf(ctx context.Context, r shardquery.Range, from store.Position, until, horizon time.Time, want func(store.Entry, judgement) bool) (time.Time, error) {
	reader := &shardquery.Reader{Store: p.Store, Target: p.target.Target, Range: r, From: from, Until: until,
		Plain: p.floor(horizon), Page: 1, Now: p.Now}
	var page store.Page
	for {
		more, err := reader.Next(ctx, &page)
		if err != nil {
			return time.Time{}, err
		}
		for _, e := range page.Entries {
			if want(e, p.decide(e.Value, horizon)) {
				return r.Expires(e.Value)
			}
		}
		if !more {
			return time.Time{}, nil
		}
	}
}

// positionText shows a position for people.
func positionText(v store.Value) string {
	if v.Type == store.Instant {
		return v.Time.UTC().Format(store.TimeLayout)
	}
	return v.Text
}

// generations says how each of them stands, the nursery last.
func (p *pass) generations() []GenerationStatus {
	list := []GenerationStatus{}
	if p.target.Type == store.Instant {
		return list
	}
	for _, g := range p.record.Live() {
		at := p.grounds[g.Number]
		list = append(list, GenerationStatus{Number: g.Number, State: string(cmp.Or(at.state, generation.Filling)), Shards: g.Shards,
			Opened: g.Opened, Closed: known(g.Closed), Sealed: known(at.sealed)})
	}
	return list
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// countDue adds the number of entities that are due to the progress, where the
// store can count and somebody is looking.
func (p *pass) countDue(ctx context.Context) {
	counter, ok := p.Store.(store.Counter)
	if !ok || !p.Progress.Estimate {
		return
	}
	n, err := p.countSpans(ctx, counter, p.dueSpans())
	p.Progress.Due.Add(n)
	if err != nil {
		p.Log.DebugContext(ctx, "cannot tell how much there is to do", "error", err)
	}
}
