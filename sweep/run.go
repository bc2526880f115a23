package sweep

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// Run sweeps every target once: it ends when every range is swept up to the instant
// at which Run began. When ctx is done it begins no new page, gives the pages in
// flight the grace, saves the cursors and releases the leases. Failures are in the
// result: a failing range or target stops no other.
func Run(ctx context.Context, cfg Config) Result {
	return once(ctx, cfg, func() oneTime { return new(oneSweep) })
}

// Audit makes a full round over the retired and sealed generations of each target, and
// does nothing else: strays that are due are deleted, the others are moved to the
// nursery.
func Audit(ctx context.Context, cfg Config) Result {
	return once(ctx, cfg, func() oneTime { return new(oneAudit) })
}

// A oneTime is an agenda that ends with a result.
type oneTime interface {
	agenda
	result(b *book) TargetResult
}

// A timed agenda notes when the work on its target has ended: other targets may take
// longer.
type timed struct {
	oneTime
	ended time.Time
}

func (t *timed) isOver(b *book) bool {
	over := t.oneTime.isOver(b)
	if over && b.active == 0 && t.ended.IsZero() {
		t.ended = b.c.cfg.Now()
	}
	return over
}

// once runs a new agenda for each target, all at the same time.
func once(ctx context.Context, cfg Config, newAgenda func() oneTime) Result {
	cfg = cfg.withDefaults()
	began := cfg.Now()
	res := Result{Apply: cfg.Apply, Complete: true, Started: began.UTC().Round(0)}
	agendas := make([]*timed, len(cfg.Targets))
	books := collect(ctx, &cfg, func(i int) agenda {
		agendas[i] = &timed{oneTime: newAgenda()}
		return agendas[i]
	})
	for i, b := range books {
		t := agendas[i].result(b)
		if ctx.Err() != nil && t.Error == "" {
			t.Complete = t.Complete && b.count.open && b.count.pending == 0
		}
		if t.Error == "" && t.Scanned == 0 {
			t.EmptyKind = b.c.isEmptyKind(ctx)
		}
		if b.c.foresees() && b.view != nil && t.Error == "" {
			t.WouldTrip = b.c.foresee(ctx)
		}
		t.Duration = agendas[i].ended.Sub(began).Seconds()
		res.Targets = append(res.Targets, t)
		res.Complete = res.Complete && t.Complete
	}
	finishHistories(ctx, books, func(i int) (history.End, string) {
		return endOf(ctx, res.Targets[i]), res.Targets[i].Error
	})
	for i, b := range books {
		b.c.publishEnd(b, res.Targets[i], agendas[i].ended)
	}
	res.Duration = cfg.Now().Sub(began).Seconds()
	return res
}

// finishHistories ends the runs of all targets at the same time.
func finishHistories(ctx context.Context, books []*book, why func(i int) (history.End, string)) {
	var all sync.WaitGroup
	for i, b := range books {
		all.Go(func() {
			end, err := why(i)
			if b.c.viewer.View() != nil || err != "" { // else it was stopped before it could read the records
				b.c.log.story.Finish(b.metered(ctx), end, err)
			}
		})
	}
	all.Wait()
}

// collect runs the scheduler over all targets until their agendas are over. No
// goroutine outlives it.
func collect(ctx context.Context, cfg *Config, newAgenda func(i int) agenda) []*book {
	work, cancel := background.Graceful(ctx, cfg.Grace, errStopped)
	defer cancel()
	s := newScheduler(ctx, work, cfg)
	upkeep, end := context.WithCancel(work)
	var all sync.WaitGroup
	for i := range cfg.Targets {
		t := cfg.Targets[i]
		if t.Watchdog == nil {
			t.Watchdog = &metrics.Watchdog{Patience: time.Hour}
		}
		b := newBook(newCollector(cfg, &t), newAgenda(i))
		s.add(b)
		all.Go(func() { b.open(ctx, upkeep, work, &all) })
	}
	s.run()
	end()
	all.Wait()
	return s.books
}

// open reads the records of a target. Then it keeps the view, the heartbeat and the gate's
// answer fresh until upkeep is done. After that it removes the heartbeat, unless work
// is done, too.
func (b *book) open(ctx, upkeep, work context.Context, all *sync.WaitGroup) {
	err := background.Protect(func() error { return b.agenda.open(ctx, b) })
	if err == nil {
		b.c.log.story.Open(b.metered(ctx), b.c.viewer.View().Cursors)
	}
	b.opening <- err
	b.c.viewer.notify()
	if err != nil {
		return
	}
	if gate := b.c.pacing.gate; gate != nil {
		all.Go(func() { gate.run(upkeep) })
	}
	if budget := b.c.budget; budget != nil {
		all.Go(func() { budget.run(b.metered(upkeep), b.metered(work)) })
	}
	all.Go(func() { b.c.viewer.watch.run(b.metered(upkeep), b.metered(work), b.c.until.IsZero()) })
	if story := b.c.log.story; story != nil {
		all.Go(func() { story.Run(b.metered(upkeep)) })
	}
	b.c.viewer.run(b.metered(upkeep))
}

// openOnce reads the records, without further tries if that fails.
func openOnce(ctx context.Context, b *book) error {
	if err := b.c.open(ctx); err != nil {
		return err
	}
	b.c.until = b.c.clock.Now()
	if b.c.cfg.FromStart || !b.c.cfg.Apply { // a dry run says what lies behind the cursors
		b.c.rules.ReadSince = b.c.until.Truncate(time.Microsecond) // as records tell of a read that begins now
	}
	return nil
}

// publishEnd tells metrics and log how and when one sweep of a target ended.
func (c *collector) publishEnd(b *book, res TargetResult, ended time.Time) {
	c.log.end()
	took := time.Duration(res.Duration * float64(time.Second))
	c.cfg.Metrics.Swept(c.target.Name, res.Outcome(), took, ended)
	if b.view != nil {
		c.publish()
	}
	level, verb := slog.LevelInfo, "swept"
	switch {
	case res.Error != "":
		level, verb = slog.LevelError, "sweep failed"
	case !res.Complete:
		level, verb = slog.LevelWarn, "sweep stopped before its end"
	}
	c.log.LogAttrs(context.Background(), level, verb, slog.Bool("apply", c.cfg.Apply),
		slog.Int64("expired", res.Expired), slog.Int64("deleted", res.Deleted), slog.Int64("scanned", res.Scanned),
		slog.Int64("conflicts", res.Conflicts), slog.Int64("suspect", res.Suspect), slog.Int64("malformed", res.Malformed),
		slog.Int64("refused", res.Refused), slog.Int64("mismatch", res.Mismatch), slog.Int64("outside", res.Outside),
		slog.Int("ranges", res.Ranges),
		slog.Int("ranges_incomplete", res.Incomplete), slog.Time("horizon", res.Horizon),
		slog.Any("throttled_seconds", res.Throttled), slog.Float64("seconds", res.Duration),
		slog.String("held", res.Held), slog.String("error", res.Error))
}

// A oneAudit is the agenda of one round of the audit in every namespace.
type oneAudit struct {
	begun, over bool
	contended   time.Time // since when everything left waits for another client's transaction; zero if not so
}

func (o *oneAudit) open(ctx context.Context, b *book) error { return openOnce(ctx, b) }

func (o *oneAudit) failed(b *book, err error) {
	o.over = true
	b.failOpening(err)
}

func (o *oneAudit) chores() bool { return false }

func (o *oneAudit) isOver(*book) bool { return o.over }

func (o *oneAudit) next(*book, time.Time) time.Duration { return heartbeat }

func (o *oneAudit) look(s *scheduler, b *book, now time.Time) {
	if !o.begun {
		o.begun = true
		b.count.open = true
		for i, ns := range b.view.Namespaces {
			c := plan.Chore{Kind: plan.Audit, Namespace: ns}
			it := &item{job: &auditJob{c: b.c, r: shardquery.Range{Namespace: ns}, fromTop: true}, book: b,
				name: c.Name(), order: i, out: atRest, lane: lane{slow: true}}
			b.chores[c] = it
			b.active++
			s.makeReady(it, now)
		}
	}
	waits := b.active > 0
	for _, it := range b.chores {
		waits = waits && it.isContended()
	}
	switch {
	case !waits:
		o.contended = time.Time{}
	case o.contended.IsZero():
		o.contended = now
	}
	stuck := waits && now.Sub(o.contended) >= contendedFor
	if o.over = o.over || stuck || s.ctx.Err() != nil || b.active == 0 || b.isHeldForLong(now); o.over {
		if b.active > 0 {
			b.count.left = 1 // not all of it was read
		}
		b.stop(s, now)
	}
}

func (o *oneAudit) result(b *book) TargetResult { return resultOf(b) }

// failOpening notes that the records of the target could not be read.
func (b *book) failOpening(err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, errStopped) || errors.Is(err, context.DeadlineExceeded) &&
		b.count.failures.times > 0 {
		return
	}
	b.count.failures.add(err)
}
