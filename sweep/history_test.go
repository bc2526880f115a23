package sweep_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

const keepHistory = 90 * 24 * time.Hour

// roomy is a breaker that holds nothing of what these tests delete.
var roomy = breaker.Rules{On: true, Floor: 10_000, Fraction: 0.25, Window: time.Hour, Learn: 14 * 24 * time.Hour}

// withHistory is a world whose processes write history.
func withHistory(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	in(t, func(t *testing.T, w *world) {
		w.target.History = sweep.History{Keep: keepHistory, Actor: "job@example.com", Host: "host", Settings: []string{"page: 50"}}
		test(t, w)
	})
}

// history reads what is in the history, of some kinds or of all.
func (w *world) history(kinds ...history.Kind) (list []history.Record) {
	w.t.Helper()
	all, err := history.Read(context.WithoutCancel(w.t.Context()), w.s, "sessions", time.Time{})
	if err != nil || all.Malformed+all.Newer > 0 {
		w.t.Fatalf("%+v, %v", all, err)
	}
	for _, r := range all.Records {
		for _, k := range kinds {
			if r.Kind == k {
				list = append(list, r)
			}
		}
	}
	return list
}

func (w *world) runs() []history.Record { return w.history(history.KindRun) }

func deletedIn(runs []history.Record) (n int64) {
	for _, r := range runs {
		n += r.Run.Counts().Deleted
	}
	return n
}

// historyWrites counts the writes of history from now on.
func (w *world) historyWrites() *atomic.Int64 {
	n := new(atomic.Int64)
	w.s.Before = func(_ context.Context, c modelstore.Call) error {
		if c.Method == "Save" && c.Record.Sort == store.SweepRecord {
			n.Add(1)
		}
		return nil
	}
	return n
}

// Each sweep has one record, with what it did and who it was. One that finds nothing costs
// one write, and a short one with work no more.
func TestSweepHasARecord(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Breaker = roomy
		w.sweep()
		w.fill(400, 2*time.Hour)
		writes := w.historyWrites()
		began := time.Now()
		w.s.After = func(_ context.Context, c modelstore.Call) error { // it takes a while
			if c.Method == "Scan" {
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		}
		res := w.sweep()
		w.s.After = nil
		if n := writes.Swap(0); n < 1 || n > 2 {
			t.Errorf("%d writes for a short sweep", n)
		}
		w.sweep()
		if n := writes.Load(); n != 1 {
			t.Errorf("%d writes for a sweep that found nothing", n)
		}
		runs := w.runs()
		if len(runs) != 3 || runs[0].Run.End != history.Idle || runs[2].Run.End != history.Idle {
			t.Fatalf("%+v", runs)
		}
		r := runs[1]
		if r.Run.End != history.Done || r.Run.Task != "sweep" || r.Run.Counts() != res.Counts || r.By.Actor != "job@example.com" ||
			r.By.Owner != "process-2" || r.By.Config == "" || r.Run.IsAtLeast() || r.Run.Operations.Deletes != res.Deleted {
			t.Errorf("%+v of %+v", r, res)
		}
		timed, within := int64(0), time.Duration(0)
		for _, d := range r.Run.Delays {
			timed, within = timed+d.N, d.Within
		}
		if timed != res.Deleted || within < time.Hour || len(runs[0].Run.Delays)+len(runs[2].Run.Delays) > 0 {
			t.Errorf("the delays of %d deletes: %+v", res.Deleted, r.Run.Delays)
		}
		if !r.At.Equal(began) || !r.Run.Ended.After(began) || len(r.Run.Held) > 0 {
			t.Errorf("it began at %v: %+v", began, r)
		}
	})
}

// A round of the audit is a run of its own.
func TestAuditHasARecord(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.sweep()
		sweep.Audit(t.Context(), w.config())
		if runs := w.runs(); len(runs) != 2 || runs[1].Run.Task != "audit" || runs[1].Run.Ended.IsZero() {
			t.Errorf("%+v", runs)
		}
	})
}

// A store that takes no history is not asked more often than twice a minute.
func TestHistoryIsTriedSeldom(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.begin()
		var tries atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Record.Sort == store.SweepRecord {
				tries.Add(1)
				return fmt.Errorf("not today: %w", store.ErrUnavailable)
			}
			return nil
		}
		s := w.serve(w.config())
		for i := range 60 {
			w.dueIn(1, i%4, fmt.Sprint("due-", i), time.Now())
			time.Sleep(10 * time.Second)
		}
		s.stop()
		if n := tries.Load(); n > 3*60+20 || n < 10 { // three calls in ten seconds: the state, the run, and its end
			t.Errorf("%d tries in ten minutes", n)
		}
	})
}

// The record says why a sweep ended, and what held it.
func TestHistoryTellsWhyASweepEnded(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.begin()
		w.fill(400, 2*time.Hour)
		last := func() history.Record {
			runs := w.runs()
			return runs[len(runs)-1]
		}
		order := control.Order{Actor: "ann", Reason: "a test"}
		if _, _, err := control.Pause(t.Context(), w.config(), w.target, order, 0); err != nil {
			t.Fatal(err)
		}
		w.sweep()
		if r := last().Run; r.End != history.Paused || len(r.Held) != 1 || r.Held[0] != "paused" || r.Counts().Deleted != 0 {
			t.Errorf("paused: %+v", r)
		}
		if _, _, err := control.Resume(t.Context(), w.config(), w.target, control.Order{Actor: "bob"}); err != nil {
			t.Fatal(err)
		}
		w.target.Pace = throttle.Limits{Start: 1, Max: 1}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		res := sweep.Run(ctx, w.config()).Targets[0]
		if r := last().Run; r.End != history.Deadline || r.Counts().Deleted != res.Deleted || res.Deleted == 0 || len(r.Held) == 0 {
			t.Errorf("out of time: %+v", r)
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			time.Sleep(5 * time.Second)
			stop()
		}()
		sweep.Run(ctx, w.config())
		if r := last().Run; r.End != history.Signal {
			t.Errorf("stopped: %+v", r)
		}
		w.target.Pace, w.target.Limits.PerHour = throttle.Limits{Unlimited: true}, 10
		w.sweep()
		if r := last().Run; r.End != history.Limit || r.Error != "" {
			t.Errorf("at its limit: %+v", r)
		}
		w.target.Limits.PerHour = 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Scan" {
				return fmt.Errorf("no: %w", store.ErrDenied)
			}
			return nil
		}
		w.sweep()
		if r := last().Run; r.End != history.Failed || !strings.Contains(r.Error, "no: ") || r.Failures == 0 {
			t.Errorf("failed: %+v", r)
		}
	})
}

// Operators' changes are in the history with their actor, what was before, and their reason;
// so are those of generations. A change that makes no difference is not.
func TestActionsAreInTheHistory(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Policy = generation.Policy{Every: time.Hour, Ramp: 0, Staleness: time.Minute, Slack: time.Minute, Keep: 8}
		w.sweep()
		order := control.Order{Actor: "ann", Reason: "a restore is under way"}
		for range 2 {
			if _, _, err := control.SetPace(t.Context(), w.config(), w.target, order, control.Pace{
				Max: generation.Rate{Set: true, PerSecond: 7}}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if _, err := control.Advance(t.Context(), w.config(), w.target, 2, true); err != nil {
			t.Fatal(err)
		}
		actions := w.history(history.KindAction)
		if len(actions) != 2 || actions[0].By.Actor != "ann" || actions[0].Change != (history.Change{What: "pace",
			Before: "not paused", After: "not paused, max 7", Reason: "a restore is under way"}) {
			t.Errorf("%+v", actions)
		}
		if c := actions[1].Change; c.What != "advance" || c.Generation != 2 || c.Before != "4 shards" || c.After != "2 shards" || actions[1].By.Actor != "job@example.com" {
			t.Errorf("%+v", c)
		}
		w.dueIn(1, 0, "due", time.Now())
		for range 30 {
			time.Sleep(5 * time.Minute)
			w.sweep()
		}
		said := map[string]bool{}
		var retired int64
		for _, r := range w.history(history.KindGeneration) {
			said[fmt.Sprint(r.Change.What, r.Change.Generation)] = true
			if r.Change.What == "retired" && r.Change.Generation == 1 {
				retired = r.Change.Deleted
			}
		}
		for _, want := range []string{"opened1", "opened2", "sealed1", "retired1", "opened3"} {
			if !said[want] {
				t.Errorf("%s is missing: %v", want, said)
			}
		}
		if retired != 1 {
			t.Errorf("the ranges of generation 1 had deleted %d", retired)
		}
	})
}

// A process with other settings, or of another version, is told of once.
func TestChangesOfConfigurationAndVersion(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.sweep()
		w.target.History.Settings = []string{"page: 100"}
		for range 3 {
			c := w.config()
			c.Version = "2"
			sweep.Run(t.Context(), c)
		}
		list := w.history(history.KindConfig, history.KindVersion)
		if len(list) != 2 || list[0].Change.After+list[1].Change.After != "2page: 100" && list[0].Change.After+list[1].Change.After != "page: 1002" {
			t.Errorf("%+v", list)
		}
	})
}

// A daemon with nothing to do writes no history for as long as it runs.
func TestIdleDaemonWritesNoHistory(t *testing.T) {
	nightly.Races(t)
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.sweep()
		writes := w.historyWrites()
		s := w.serve(w.config())
		time.Sleep(3 * time.Hour)
		if n := writes.Load(); n > 0 {
			t.Errorf("%d writes", n)
		}
		w.put(0, 4, "due", time.Now())
		time.Sleep(3 * time.Hour)
		if n := writes.Swap(0); n < 2 || n > 4 {
			t.Errorf("%d writes for one entity", n)
		}
		s.stop()
		if n := writes.Load(); n > 0 {
			t.Errorf("%d writes at the end of a daemon whose last hour was idle", n)
		}
		runs := w.runs()
		if r := runs[len(runs)-1].Run; len(runs) != 2 || r.End != history.Idle || r.Counts().Deleted != 1 || r.Task != "serve" {
			t.Errorf("%+v", runs)
		}
	})
}

// A dry run writes no history, and neither does a process that keeps none.
func TestNoHistoryWithoutApply(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.begin()
		w.fill(100, 2*time.Hour)
		writes := w.historyWrites()
		c := w.config()
		c.Apply = false
		sweep.Run(t.Context(), c)
		w.target.History.Keep = 0
		w.sweep()
		if n := writes.Load(); n > 0 {
			t.Errorf("%d writes", n)
		}
	})
}

// While history cannot be written nothing is deleted beyond what is under way, a sweep fails, and
// the status says why. The log says so once, the metrics count it, and once the store takes it
// again nothing is missing.
func TestHistoryThatCannotBeWritten(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.target.Pace = throttle.Limits{Start: 2, Max: 2}
		w.begin()
		w.fill(400, 2*time.Hour)
		var refuses atomic.Bool
		refuses.Store(true)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Record.Sort == store.SweepRecord && refuses.Load() {
				return fmt.Errorf("not today: %w", store.ErrDenied)
			}
			return nil
		}
		var mu sync.Mutex
		var log bytes.Buffer
		c := w.config()
		c.Log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, nil))
		res := sweep.Run(t.Context(), c).Targets[0]
		if res.Held != string(throttle.ReasonRecord) || !strings.Contains(res.Error, "write the history") && !strings.Contains(res.Error, "not today") ||
			res.Complete || res.Deleted > 40 || !strings.Contains(res.Reason, "the target's history cannot be written: ") {
			t.Errorf("%+v", res)
		}
		log.Reset()
		c.Owner = "daemon"
		s := w.serve(c)
		time.Sleep(10 * time.Minute)
		if n := s.counter("reaper_deleted_entities_total"); n > 40 {
			t.Errorf("%v were deleted though nobody could write who did it", n)
		}
		st, err := inspect.Status(t.Context(), w.config(), w.target)
		if err != nil || st.Verdict != inspect.Held || st.Held != "record" ||
			!strings.Contains(st.Reason, "history cannot be written") || !strings.Contains(st.Reason, "not today") {
			t.Errorf("%+v, %v", st, err)
		}
		mu.Lock()
		if n := strings.Count(log.String(), "failing; trying again"); n != 1 || strings.Count(log.String(), "write the history") > 8 {
			t.Errorf("%d lines:\n%s", n, &log)
		}
		mu.Unlock()
		if n := s.counter("reaper_store_errors_total", "op", "record", "code", "denied"); n == 0 {
			t.Error("no failure was counted")
		}
		refuses.Store(false)
		time.Sleep(10 * time.Minute)
		s.stop()
		runs := w.runs()
		if len(runs) != 1 || runs[0].Run.Missed == 0 || float64(deletedIn(runs)) != s.counter("reaper_deleted_entities_total") ||
			deletedIn(runs)+res.Deleted != 200 {
			t.Errorf("%d + %d deleted, %+v\n%s", deletedIn(runs), res.Deleted, runs, &log)
		}
	})
}

type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

// Expired records go by themselves while the target is swept, and the daemon that does so
// touches no other record.
func TestExpiredHistoryIsCollected(t *testing.T) {
	nightly.Races(t)
	withHistory(t, func(t *testing.T, w *world) {
		w.target.History.Keep = 24 * time.Hour
		w.target.Breaker = roomy
		const sweeps = 400
		for i := range sweeps {
			w.dueIn(0, i%4, fmt.Sprint("due-", i), time.Now())
			w.sweep()
			time.Sleep(time.Hour)
		}
		// 24 are younger than a day. Of the others each sweep finds a sixteenth.
		if n := len(w.runs()); n < 24 || n > 24+4*history.Buckets {
			t.Errorf("%d of %d records are left", n, sweeps)
		}
		if got := w.compared(); got.Verdict != inspect.Agrees || got.Deleted != sweeps || got.Expired < sweeps/2 || got.Lost != 0 ||
			got.Budget.Verdict != inspect.Agrees || got.Budget.Deleted != sweeps {
			t.Errorf("after most records have expired: %+v", got)
		}
		for _, r := range w.runs() {
			if r.At.After(time.Now().Add(-23*time.Hour)) != (r.Expires.After(time.Now())) && time.Since(r.At) < 23*time.Hour {
				t.Errorf("%+v", r)
			}
		}
		w.target.Next = everyMinute
		time.Sleep(48 * time.Hour)
		s := w.serve(w.config())
		time.Sleep(time.Hour)
		s.stop()
		if n := len(w.runs()); n > 0 {
			t.Errorf("%d are left after a daemon", n)
		}
		if got := w.compared(); got.Verdict != inspect.Agrees || got.Deleted != sweeps || got.Expired != sweeps ||
			got.Budget.Verdict != inspect.Agrees || got.Budget.Deleted != sweeps {
			t.Errorf("after all records have expired: %+v", got)
		}
		if w.targetRecord().Target == "" || len(w.cursors()) == 0 {
			t.Error("other records are gone")
		}
	})
}

// An accountant is the store of one process. It notes when that process deleted how much,
// and fails every call once the process is dead.
type accountant struct {
	*modelstore.Store
	dead atomic.Bool

	mu      sync.Mutex
	deletes []deletion
}

type deletion struct {
	at time.Time
	n  int64
}

func (a *accountant) check() error {
	if a.dead.Load() {
		return errDead
	}
	return nil
}

func (a *accountant) Scan(ctx context.Context, q store.Query, p *store.Page) error {
	return errors.Join(a.check(), a.Store.Scan(ctx, q, p))
}

func (a *accountant) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	got, err := a.Store.Load(ctx, q)
	return got, errors.Join(a.check(), err)
}

func (a *accountant) Save(ctx context.Context, r store.Record, prev string) error {
	if err := a.check(); err != nil {
		return err
	}
	return a.Store.Save(ctx, r, prev)
}

func (a *accountant) Dispose(ctx context.Context, b *store.Batch) error {
	if err := a.check(); err != nil {
		return err
	}
	err := a.Store.Dispose(ctx, b)
	d := deletion{at: time.Now()}
	for _, op := range b.Ops {
		if op.Outcome == store.Deleted {
			d.n++
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deletes = append(a.deletes, d)
	return err
}

// since returns how much was deleted from an instant on.
func (a *accountant) since(at time.Time) (n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.deletes {
		if !d.at.Before(at) {
			n += d.n
		}
	}
	return n
}

// A process is killed, and so is the one that finds it dead: the one that removes the
// heartbeat has marked the run as lost before.
func TestRunsAreLostBeforeTheirHeartbeatGoes(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.target.Pace = throttle.Limits{Start: 5, Max: 5}
		w.begin()
		for i := range 4000 {
			w.dueIn(1, i%4, fmt.Sprint("due-", i), time.Now())
		}
		start := func() (*accountant, *service, string) {
			a, c := &accountant{Store: w.s}, w.config()
			c.Store = a
			return a, w.serve(c), c.Owner
		}
		first, service, owner := start()
		time.Sleep(70 * time.Second)
		first.dead.Store(true)
		service.stop()
		end := func() history.End {
			for _, r := range w.runs() {
				if r.By.Owner == owner {
					return r.Run.End
				}
			}
			return "without a record"
		}
		if got := end(); got != history.Open {
			t.Fatalf("the run of the killed process is %q", got)
		}
		var removed, refused atomic.Int64
		var refuses atomic.Bool
		refuses.Store(true)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			switch {
			case c.Method == "Save" && c.Record.Sort == store.WorkerRecord && c.Record.Fields == nil && ownerOf(c.Record.Key) == owner:
				removed.Add(1)
				if got := end(); got != history.Lost {
					t.Errorf("the heartbeat goes, and the run is %q", got)
				}
			case refuses.Load() && c.Method == "Load" && strings.HasSuffix(c.Records.Before, "~"):
				refused.Add(1)
				return fmt.Errorf("not yet: %w", store.ErrUnavailable)
			}
			return nil
		}
		second, service, _ := start()
		for refused.Load() == 0 { // it cannot mark the run, and is killed, too
			time.Sleep(time.Second)
		}
		second.dead.Store(true)
		service.stop()
		refuses.Store(false)
		_, service, _ = start()
		time.Sleep(2 * time.Minute)
		service.stop()
		if n := removed.Load(); n != 1 {
			t.Errorf("the heartbeat was removed %d times", n)
		}
	})
}

// saveInterval is how old the numbers of a run may be that a killed process leaves.
const saveInterval = 32 * time.Second

// reportInterval is how old the last report to the budget may be of a process that is killed: who has used only a part
// of a slice reports it after ten idle minutes.
const reportInterval = 11 * time.Minute

// A week of three daemons: without kills the history has exactly what was deleted; with kills
// it is short by what the killed ones deleted in their last save interval at most, and each of
// them is marked.
func TestAWeekOfHistory(t *testing.T) {
	nightly.Races(t)
	for _, kills := range nightly.Some(t, time.Now().UnixNano(), []bool{false, true}) {
		t.Run(fmt.Sprintf("kills=%v", kills), func(t *testing.T) {
			days := nightly.Size(t, 7, 1)
			withHistory(t, func(t *testing.T, w *world) { w.week(days, kills) })
		})
	}
}

func (w *world) week(days int, kills bool) {
	const processes = 3
	w.target.Next = everyMinute
	w.target.Pace = throttle.Limits{Start: 5, Max: 5}
	w.target.Breaker = roomy
	w.begin()
	writes := w.historyWrites()
	var all []*accountant
	running := make([]*service, processes)
	stores := make([]*accountant, processes)
	start := func(i int) {
		stores[i] = &accountant{Store: w.s}
		all = append(all, stores[i])
		c := w.config()
		c.Store = stores[i]
		running[i] = w.serve(c)
	}
	for i := range processes {
		start(i)
	}
	killed, short, unreported := 0, int64(0), int64(0)
	for hour := range days * 24 {
		for i := range 900 {
			w.dueIn(0, i%4, fmt.Sprintf("due-%d-%d", hour, i), time.Now().Add(time.Duration(i%3)*10*time.Minute))
		}
		time.Sleep(20*time.Minute + 20*time.Second + time.Duration(hour%5)*4*time.Second) // in the middle of the work
		if kills && hour%2 == 1 {
			i := killed % processes
			stores[i].dead.Store(true)
			short += stores[i].since(time.Now().Add(-saveInterval))
			unreported += stores[i].since(time.Now().Add(-reportInterval))
			running[i].stop()
			killed++
			time.Sleep(30 * time.Second)
			start(i)
		}
		time.Sleep(39 * time.Minute)
	}
	time.Sleep(2 * time.Hour)
	for _, s := range running {
		s.stop()
	}
	var deleted int64
	for _, a := range all {
		deleted += a.since(time.Time{})
	}
	runs := w.runs()
	sum := deletedIn(runs)
	lost := 0
	for _, r := range runs {
		if r.Run.Ended.IsZero() {
			w.t.Errorf("%s goes on: %+v", r.Key, r.Run)
		}
		if r.Run.End == history.Lost {
			lost++
		}
	}
	cost := float64(writes.Load()) / float64(deleted)
	w.t.Logf("%d days, %d kills: %d deleted, the history has %d in %d records, at most %d may be missing, %d are marked lost; "+
		"%d writes, %.2f %% of the deletes", days, killed, deleted, sum, len(runs), short, lost, writes.Load(), 100*cost)
	if sum > deleted || sum < deleted-short || !kills && sum != deleted {
		w.t.Errorf("%d were deleted, and the history has %d", deleted, sum)
	}
	if want := int64(days * 24 * 900); deleted != want {
		w.t.Errorf("%d of %d were deleted", deleted, want)
	}
	if (lost > 0) != kills || lost > killed {
		w.t.Errorf("%d killed, %d marked lost", killed, lost)
	}
	if kills && (sum == deleted || short == 0) {
		w.t.Error("no process was killed in the middle of its work")
	}
	got, err := inspect.ReadHistory(context.WithoutCancel(w.t.Context()), w.config(), w.target, inspect.HistoryQuery{Limit: 1, Check: true})
	switch {
	case err != nil:
		w.t.Error(err)
	case !kills && got.Check.Verdict != inspect.Agrees, kills && got.Check.Verdict != inspect.AtLeast && got.Check.Verdict != inspect.Agrees:
		w.t.Errorf("%+v", got.Check)
	}
	w.t.Logf("%d were reported to the budget, at most %d may be missing", got.Check.Budget.Reported, unreported)
	if b := got.Check.Budget; b.Reported > deleted || b.Reported < deleted-unreported || b.Without != 0 || b.Deleted != sum ||
		!kills && (b.Verdict != inspect.Agrees || b.Reported != deleted) ||
		kills && (b.Verdict != inspect.AtLeast && b.Verdict != inspect.Agrees || b.Reported == deleted) {
		w.t.Errorf("%d were deleted, and at most %d not reported: %+v", deleted, unreported, b)
	}
	if most := int64(len(runs)) * 125; writes.Load() > most {
		w.t.Errorf("%d writes for %d runs, more than two a minute", writes.Load(), len(runs))
	}
	if beats := w.beatsWritten(); beats == 0 {
		w.t.Error("no heartbeats")
	}
}

// A store that hangs on every call for the history keeps no heartbeat of a dead process, and
// no sweep from ending.
func TestHistoryThatHangs(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.begin()
		w.fill(400, 2*time.Hour)
		first := &accountant{Store: w.s}
		w.target.Pace = throttle.Limits{Start: 1, Max: 1} // it is killed in the middle of its work
		c := w.config()
		w.target.Pace = throttle.Limits{Unlimited: true}
		c.Store = first
		s := w.serve(c)
		time.Sleep(10 * time.Second)
		first.dead.Store(true)
		s.stop()
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Record.Sort == store.SweepRecord || strings.HasSuffix(c.Records.Before, "~") {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		began := time.Now()
		if res := w.sweep(); res.Error != "" || !res.Complete || time.Since(began) > time.Minute { // a lease is 30 s
			t.Errorf("after %v: %+v", time.Since(began), res)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		sweep.Run(ctx, w.config())
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("a sweep that was told to stop after a second took %v", took)
		}
		s = w.serve(w.config())
		time.Sleep(time.Hour) // an idle daemon looks every five minutes
		if all, _, err := cursor.LoadHeartbeats(t.Context(), w.s, "sessions", nil, time.Now); err != nil || len(all) != 1 {
			t.Errorf("%d heartbeats, %v", len(all), err)
		}
		began = time.Now()
		s.stop()
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("a daemon took %v to stop", took)
		}
	})
}

// compared compares the history with the cursor records.
func (w *world) compared() inspect.HistoryCheck {
	w.t.Helper()
	got, err := inspect.ReadHistory(context.WithoutCancel(w.t.Context()), w.config(), w.target, inspect.HistoryQuery{Limit: 1, Check: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return *got.Check
}

// A check while processes work raises no false alarm: what was just deleted is in the cursor
// records a moment before it is in the history, or the other way round.
func TestCheckWhileProcessesWork(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.target.Breaker = roomy
		w.begin()
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.SweepRecord {
				time.Sleep(700 * time.Millisecond)
			}
			return nil
		}
		s := w.serve(w.config())
		for i := range 12 {
			w.dueIn(1, i%4, fmt.Sprint("due-", i), time.Now())
			over := make(chan bool)
			go func() {
				defer close(over)
				w.sweep()
				time.Sleep(time.Duration(i) * 400 * time.Millisecond)
			}()
			for working := true; working; {
				if got := w.compared(); got.Differs() {
					t.Errorf("after %d: %+v", i, got)
				}
				select {
				case <-over:
					working = false
				case <-time.After(130 * time.Millisecond):
				}
			}
		}
		s.stop()
		if got := w.compared(); got.Verdict != inspect.Agrees || got.Deleted != 12 || got.Budget.Verdict != inspect.Agrees ||
			got.Budget.Reported != 12 {
			t.Errorf("%+v", got)
		}
	})
}

// Replies of the store that are lost, for reports to the budget and for deletes, raise no false
// alarm: each process says how many deletes they leave in doubt.
func TestCheckAfterLostReplies(t *testing.T) {
	const lostFor = time.Minute // a write of the budget is tried for a shorter time
	for _, method := range []string{"Save", "Dispose"} {
		t.Run(method, func(t *testing.T) {
			withHistory(t, func(t *testing.T, w *world) {
				w.target.Pace = throttle.Limits{Start: 20, Max: 20}
				w.target.Breaker = roomy
				w.begin()
				for i := range 800 {
					w.dueIn(1, i%4, fmt.Sprint("due-", i), time.Now())
				}
				began := time.Now()
				var calls atomic.Int64
				w.s.After = func(_ context.Context, c modelstore.Call) error {
					since := time.Since(began)
					if c.Method == method && (method == "Dispose" && calls.Add(1)%3 == 0 ||
						c.Record.Sort == store.BudgetRecord && since > time.Second && since < lostFor) {
						return fmt.Errorf("the reply is lost: %w", store.ErrUnavailable)
					}
					return nil
				}
				w.sweep()
				w.sweep()
				b := w.compared().Budget
				// A delete is in neither account if its range ends before its entity is found to be gone.
				if method == "Save" && (b.Verdict != inspect.AtLeast || b.Deleted != 800 || b.Reported <= 800) ||
					method == "Dispose" && (b.Verdict == inspect.Differs || b.Reported > b.Deleted) || b.Doubtful == 0 {
					t.Errorf("%+v", b)
				}
			})
		})
	}
}

// The account of a target begins before its first delete, also if several processes begin at
// once, and one of them is slow to write.
func TestTheAccountBeginsBeforeTheFirstDelete(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Breaker = roomy
		w.begin()
		w.fill(400, 2*time.Hour)
		var calls atomic.Int64
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && strings.HasPrefix(c.Record.Key, "target.") && calls.Add(1) == 1 {
				time.Sleep(time.Second)
			}
			return nil
		}
		slow, over := w.config(), make(chan sweep.Result)
		go func() { over <- sweep.Run(context.WithoutCancel(t.Context()), slow) }()
		time.Sleep(100 * time.Millisecond)
		n := w.sweep().Deleted + (<-over).Targets[0].Deleted
		if got := w.compared(); got.Verdict != inspect.Agrees || n != 200 || got.Deleted != n ||
			got.Budget.Verdict != inspect.Agrees || got.Budget.Reported != n {
			t.Errorf("%d were deleted: %+v", n, got)
		}
	})
}

// A process that lost its lease, and lives on, has deleted more than its cursors say. The check
// knows why.
func TestCheckAfterALostLease(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.target.Pace = throttle.Limits{Start: 5, Max: 5}
		w.begin()
		for i := range 1000 {
			w.dueIn(1, i%4, fmt.Sprint("due-", i), time.Now())
		}
		var fails atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if fails.Load() && c.Method == "Save" && (c.Record.Sort == store.WorkerRecord || c.Record.Sort == store.CursorRecord) {
				return fmt.Errorf("not now: %w", store.ErrUnavailable)
			}
			return nil
		}
		s := w.serve(w.config())
		time.Sleep(15 * time.Second)
		fails.Store(true)
		time.Sleep(time.Minute)
		fails.Store(false)
		time.Sleep(20 * time.Minute)
		s.stop()
		got := w.compared()
		if got.Deleted != 1000 || got.Counted >= 1000 || got.Lost != 0 || got.Unsaved == 0 || got.Verdict != inspect.AtLeast {
			t.Errorf("%+v", got)
		}
	})
}

// The cursor records of a namespace that is gone are removed. What they had counted stays in
// the account.
func TestCheckAfterANamespaceIsGone(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Namespaces = []string{"*"}
		w.begin()
		w.putIn("tenant", 1, 4, "due", time.Now().Add(-time.Minute))
		list := []string{"", "tenant"}
		run := func() {
			c := w.config()
			c.Store = tenants{w.s, func() []string { return list }}
			if res := sweep.Run(t.Context(), c).Targets[0]; res.Error != "" {
				t.Fatalf("%+v", res)
			}
		}
		run()
		before := w.compared()
		list = []string{""}
		for range 10 {
			time.Sleep(13 * time.Hour)
			run()
		}
		got := w.compared()
		if before.Deleted != 1 || got.Verdict != inspect.Agrees || got.Counted != 1 ||
			len(w.history(history.KindGeneration)) != 2 || before.Ranges == 0 || got.Deleted != 1 {
			t.Errorf("before: %+v; after: %+v", before, got)
		}
	})
}

// Every way in which entities are deleted counts once on both sides: from a cursor, from the
// start of a range, of a generation that is drained, and by the audit.
func TestEachDeleteCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.target.History = sweep.History{Keep: keepHistory, Actor: "job"}
		e.sweep()
		for i := range 200 { // survivors of the first generations are carried
			e.stamped(1, 4, fmt.Sprintf("long-%03d", i), time.Now().Add(time.Duration(i)*10*time.Minute))
		}
		e.runFor(8 * time.Hour)
		for i := range 90 {
			e.stamped(1+i%3, 4, fmt.Sprintf("stray-%03d", i), time.Now().Add(time.Duration(i-45)*time.Minute))
			e.live[fmt.Sprintf("stray-%03d", i)].returned = true
		}
		res := sweep.Audit(t.Context(), e.config()).Targets[0]
		got := e.compared()
		if res.Deleted != 45 && res.Deleted != 46 || got.Verdict != inspect.Agrees || got.Retired == 0 || got.Deleted < 80 {
			t.Errorf("%+v; after an audit that deleted %d of %d strays", got, res.Deleted, res.Strays)
		}
		e.runFor(30 * time.Hour)
		if got := e.compared(); got.Verdict != inspect.Agrees || got.Deleted != 290 || len(e.s.Entities("Session", "")) != 0 {
			t.Errorf("%+v, %d are left", got, len(e.s.Entities("Session", "")))
		}
	})
}

// A sweep that cannot even read the records of its target has failed, and the history says so.
// One that was stopped before that did nothing.
func TestHistoryOfASweepThatCannotBegin(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		sweep.Run(ctx, w.config())
		if runs := w.runs(); len(runs) != 0 {
			t.Errorf("of a sweep that was stopped at once: %+v", runs)
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Load" && c.Record.Sort == store.CursorRecord {
				return fmt.Errorf("not you: %w", store.ErrDenied)
			}
			return nil
		}
		w.sweep()
		runs := w.runs()
		if len(runs) != 1 || runs[0].Run.End != history.Failed || !strings.Contains(runs[0].Run.Error, "not you") {
			t.Errorf("%+v", runs)
		}
	})
}

// An hour of a daemon that ends while the target is paused says so, and the hours of the pause
// after it cost nothing.
func TestHoursOfAPause(t *testing.T) {
	nightly.Races(t)
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.begin()
		w.put(0, 4, "due", time.Now())
		s := w.serve(w.config())
		time.Sleep(10 * time.Minute)
		order := control.Order{Actor: "ann", Reason: "a test"}
		if _, _, err := control.Pause(t.Context(), w.config(), w.target, order, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Hour)
		if runs := w.runs(); len(runs) != 1 || runs[0].Run.End != history.Paused || len(runs[0].Run.Held) != 1 {
			t.Errorf("%+v", runs)
		}
		if _, _, err := control.Resume(t.Context(), w.config(), w.target, order); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		s.stop()
		if runs := w.runs(); len(runs) != 2 || runs[1].Run.End != history.Idle {
			t.Errorf("%+v", runs)
		}
	})
}

// A record that the store refuses for good holds up no other record.
func TestOneRefusedRecordHoldsUpNoOther(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.target.Policy = hourly
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.SweepRecord && c.Record.Fields["what"] == "opened" {
				return fmt.Errorf("not this one: %w", store.ErrInvalid)
			}
			return nil
		}
		s := w.serve(w.config())
		w.put(0, 4, "due", time.Now())
		time.Sleep(3 * time.Hour)
		s.stop()
		if runs := w.runs(); len(runs) != 1 || runs[0].Run.Ended.IsZero() {
			t.Errorf("%+v", runs)
		}
		if list := w.history(history.KindGeneration); len(list) == 0 {
			t.Error("nothing else happened to generations")
		}
	})
}

// A process that is cut off for minutes counts as dead, and its run as lost. When it comes
// back it writes its numbers again, and takes the mark back.
func TestARunThatWasNotLost(t *testing.T) {
	withHistory(t, func(t *testing.T, w *world) {
		w.target.Next = everyMinute
		w.target.Pace = throttle.Limits{Start: 2, Max: 2}
		w.begin()
		for i := range 1000 {
			w.dueIn(1, i%4, fmt.Sprint("due-", i), time.Now())
		}
		cut, c := &accountant{Store: w.s}, w.config()
		c.Store = cut
		first := w.serve(c)
		end := func() history.End {
			for _, r := range w.runs() {
				if r.By.Owner == c.Owner {
					return r.Run.End
				}
			}
			return "without a record"
		}
		time.Sleep(30 * time.Second) // it has all ranges
		second := w.serve(w.config())
		cut.dead.Store(true)
		time.Sleep(5 * time.Minute)
		if got := end(); got != history.Lost {
			t.Errorf("after five minutes without a heartbeat the run is %q", got)
		}
		cut.dead.Store(false)
		for i := range 1000 {
			w.dueIn(1, i%4, fmt.Sprint("more-", i), time.Now())
		}
		time.Sleep(2 * time.Hour)
		first.stop()
		second.stop()
		if n := deletedIn(w.runs()); end() == history.Lost || n != 2000 {
			t.Errorf("the run is %q in the end, and the history has %d deletes", end(), n)
		}
	})
}
