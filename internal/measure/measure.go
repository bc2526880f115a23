package measure

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A Target is a live target whose records were read. Nothing is counted yet.
type Target struct {
	Now        time.Time
	Namespaces int
	Ranges     int  // that sweeps read
	Unswept    bool // by its record nobody has swept it with --apply, or not with so short a retention
	Past       Past
	// Known is how many entities the breaker counted last; 0 if it has not.
	Known int64
	// Learnt are the lives of what was deleted in the last day; empty if the store does not tell them.
	Learnt []forecast.Life

	snapshot *sweep.Snapshot
}

// Past is what the history says of the last month.
type Past struct {
	Since      time.Time        `json:"since"` // the first run, or a month ago
	Runs       int              `json:"runs"`
	Jobs       int              `json:"jobs"` // runs of sweep, not of serve
	Working    float64          `json:"working_seconds"`
	Counts     metrics.Counts   `json:"counts"`
	Operations store.Operations `json:"operations"`
}

// Month is how much of the history is read.
const Month = 30 * 24 * time.Hour

// Read reads the records of a target.
func Read(ctx context.Context, cfg sweep.Config, t sweep.Target) (*Target, error) {
	s, err := sweep.TakeSnapshot(ctx, cfg, t)
	if err != nil {
		return nil, err
	}
	rec := s.View.Record
	unswept := rec.Revision == "" || rec.IsUnswept(t.Retention)
	m := &Target{Now: s.Now(), Unswept: unswept, snapshot: s, Namespaces: max(1, len(s.View.Namespaces))}
	for _, r := range s.Plan.Ranges() {
		if s.Plan.Range(r).Read {
			m.Ranges++
		}
	}
	list, err := history.Read(ctx, cfg.Store, t.Name, m.Now.Add(-Month))
	if err != nil {
		return nil, fmt.Errorf("read the history of %s: %w", t.Name, err)
	}
	m.Past = pastOf(list.Records, m.Now)
	b, err := s.Budget(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the budget of %s: %w", t.Name, err)
	}
	for _, a := range b.Alls {
		m.Known = max(m.Known, a.N)
	}
	m.Learnt = livesOf(b.Lives)
	return m, nil
}

// pastOf adds up the runs of the last month.
func pastOf(records []history.Record, now time.Time) (p Past) {
	for _, r := range records {
		if r.Kind != history.KindRun || r.Run.Task == "audit" {
			continue
		}
		if p.Runs++; p.Since.IsZero() || r.At.Before(p.Since) {
			p.Since = r.At
		}
		if r.Run.Task == "sweep" {
			p.Jobs++
		}
		p.Working += max(0, r.Run.Updated.Sub(r.At).Seconds())
		p.Counts = metrics.Add(p.Counts, r.Run.Counts())
		p.Operations.Reads += r.Run.Operations.Reads
		p.Operations.Writes += r.Run.Operations.Writes
		p.Operations.Deletes += r.Run.Operations.Deletes
	}
	if from := now.Add(-Month); !p.Since.IsZero() && p.Since.Before(from) {
		p.Since = from
	}
	return p
}

// enoughPast is how long a history must be to show a rate.
const enoughPast = time.Hour

// Rate returns how many entities were deleted each second; ok is false if the history is too short to say.
func (p Past) Rate(now time.Time) (perSecond float64, ok bool) {
	if p.Runs == 0 || now.Sub(p.Since) < enoughPast {
		return 0, false
	}
	return float64(p.Counts.Deleted) / now.Sub(p.Since).Seconds(), true
}

// livesOf adds up the lives of the last day.
func livesOf(hours []breaker.HourOfLives) (list []forecast.Life) {
	byBucket, all := map[int]int64{}, int64(0)
	for _, h := range hours {
		for _, c := range h.Counts {
			byBucket[c.Bucket] += c.N
			all += c.N
		}
	}
	for bucket, n := range byBucket {
		if n > 0 {
			list = append(list, forecast.Life{For: lifeOf(bucket), Share: float64(n) / float64(all)})
		}
	}
	slices.SortFunc(list, func(a, b forecast.Life) int { return int(min(1, max(-1, a.For-b.For))) })
	return list
}

// lifeOf returns the shortest life, in seconds, that falls into a bucket.
func lifeOf(bucket int) time.Duration {
	most := int(forecast.LongestLife / time.Second)
	seconds := sort.Search(most, func(s int) bool { return breaker.BucketOf(time.Duration(s)*time.Second) >= bucket })
	return time.Duration(max(1, seconds)) * time.Second
}

// Reads returns how many reads the COUNTs cost at most; without a count of all entities it is known only
// how many they cost at least, and ok is false.
func (m *Target) Reads() (reads int64, ok bool) {
	const perRead = 1000
	return 2*int64(m.Ranges) + 2*m.Known/perRead, m.Known > 0
}

// Counts are the results of COUNTs.
type Counts struct {
	Entities int64 `json:"entities"` // that carry the expiry property
	Due      int64 `json:"due"`      // from the cursors on
	Ranges   int   `json:"ranges"`   // in which something is due
}

// countAtOnce is how many queries run at the same time.
const countAtOnce = 16

// Count counts what there is, and what is due; ok is false if the store cannot count.
func (m *Target) Count(ctx context.Context) (c Counts, ok bool, err error) {
	s := m.snapshot
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(countAtOnce)
	due := make([]int64, len(s.Plan.Ranges()))
	for i, r := range s.Plan.Ranges() {
		if !s.Plan.Range(r).Read {
			continue
		}
		background.Go(group, func() error {
			at, err := s.FirstDue(within, r, s.Plan.Cursor(r).Position)
			if err != nil || at.IsZero() {
				return err
			}
			due[i], _, err = s.CountDue(within, r, at, 0)
			return err
		})
	}
	all, can := make([]int64, len(m.spans())), true
	for i, span := range m.spans() {
		n, ok, err := s.Count(ctx, span)
		if err != nil {
			_ = group.Wait() // its queries end with the first error, or by themselves
			return c, false, err
		}
		all[i], can = n, can && ok
	}
	if err := group.Wait(); err != nil || !can {
		return c, false, err
	}
	for _, n := range due {
		if c.Due += n; n > 0 {
			c.Ranges++
		}
	}
	for _, n := range all {
		c.Entities += n
	}
	return c, true, nil
}

// spans are those in which entities with an expiry are, for all namespaces: of expiry keys one, as they
// begin with a digit.
func (m *Target) spans() []store.Span {
	t := m.snapshot.Target
	if t.Type == store.Text {
		return []store.Span{store.Between("0", ":")}
	}
	var list []store.Span
	seen := map[string]bool{}
	for _, r := range m.snapshot.Plan.Ranges() {
		if name := r.ShardName(); !seen[name] {
			seen[name] = true
			list = append(list, store.Span{From: store.Point{Shard: r.Value, Value: r.At(shardquery.FirstInstant).Value},
				To: store.Point{Shard: r.Value, Value: r.At(shardquery.LastInstant).Value}})
		}
	}
	return list
}

// Workload returns what is known of the workload. Without lives of the last day one mean life stands for
// all: as many entities as there are were written within it. Known says where rate and lives come from.
func (m *Target) Workload(c Counts) (w forecast.Workload, known []string) {
	w = forecast.Workload{Backlog: float64(c.Due), Entities: float64(c.Entities), Swept: !m.Unswept}
	rate, ok := m.Past.Rate(m.Now)
	if !ok || rate == 0 {
		return w, []string{"rate and lives: not known, since the history shows no deletes over an hour"}
	}
	w.Writes = min(rate, forecast.MostWrites)
	known = append(known, fmt.Sprintf("rate: %d deletes since %s", m.Past.Counts.Deleted,
		m.Past.Since.UTC().Format(time.RFC3339)))
	if w.Lives = m.Learnt; len(w.Lives) > 0 {
		return w, append(known, "lives: of what was deleted in the last day")
	}
	mean := float64(c.Entities-c.Due) / rate
	if mean < 1 || mean > forecast.LongestLife.Seconds() {
		return w, append(known, "lives: not known")
	}
	w.Lives = []forecast.Life{{For: time.Duration(mean * float64(time.Second)).Round(time.Second), Share: 1}}
	return w, append(known, "lives: one mean, by entities and rate")
}
