package chronicle_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/chronicle"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const target = "sessions"

// A process is what a chronicle tells of, without any work behind it.
type process struct {
	*chronicle.Chronicle
	s      *modelstore.Store
	ctx    context.Context
	marked chan struct{}

	mu     sync.Mutex
	sums   chronicle.Sums
	refuse error // of writes of history
	failed int
}

// start starts a chronicle in a synctest bubble, whose goroutine ends with the test.
func start(t *testing.T, s *modelstore.Store, owner, task string) *process {
	p := &process{s: s, marked: make(chan struct{}, 1)}
	s.Before = func(_ context.Context, c modelstore.Call) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if c.Record.Sort == store.SweepRecord && c.Method == "Save" {
			return p.refuse
		}
		return nil
	}
	p.Chronicle = chronicle.New(chronicle.Config{Store: s, Target: target, Keep: 24 * time.Hour,
		By:  history.Origin{Actor: "ann", Owner: owner, Version: "1", Config: "0"},
		Now: time.Now, StoreNow: time.Now, Sums: p.has,
		Budgeted: func(context.Context) (history.Budgeted, error) { return history.Budgeted{}, nil },
		Failed:   func(string, error) { p.mu.Lock(); p.failed++; p.mu.Unlock() },
		Marked:   func() { p.marked <- struct{}{} }})
	p.For(task)
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithCancel(t.Context())
	var writer sync.WaitGroup
	p.Open(p.ctx, cursor.Table{})
	writer.Go(func() { p.Run(p.ctx) })
	t.Cleanup(func() { cancel(); writer.Wait() })
	return p
}

func (p *process) has() chronicle.Sums {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sums
}

// delete counts deletes.
func (p *process) delete(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sums.Counts.Deleted += n
}

// work looks once a second for a time.
func (p *process) work(d time.Duration, held throttle.Reason) {
	for range d / time.Second {
		p.Look(time.Now(), held, true)
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

// runs returns the records of runs.
func (p *process) runs(t *testing.T) (list []history.Run) {
	t.Helper()
	all, err := history.Read(context.Background(), p.s, target, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all.Records {
		if r.Kind == history.KindRun {
			list = append(list, r.Run)
		}
	}
	return list
}

func deletedBy(r history.Run) (n int64) {
	for _, s := range r.Sums {
		n += s.Counts.Deleted
	}
	return n
}

func inBubble(t *testing.T, test func(t *testing.T, s *modelstore.Store)) {
	synctest.Test(t, func(t *testing.T) { test(t, modelstore.New(time.Now)) })
}

// A daemon that only reads has no record; one that deletes has a record for each hour, whose
// numbers are at most half a minute old.
func TestRunsOfADaemon(t *testing.T) {
	inBubble(t, func(t *testing.T, s *modelstore.Store) {
		p := start(t, s, "a", "serve")
		p.mu.Lock()
		p.sums.Counts.Scanned, p.sums.Counts.Pages = 1000, 10
		p.mu.Unlock()
		p.work(2*time.Hour, "")
		if got := p.runs(t); len(got) != 0 {
			t.Fatalf("a daemon that deleted nothing has %d records", len(got))
		}
		for i := range 120 { // one a minute
			p.delete(1)
			p.work(time.Minute, "")
			var told int64
			for _, r := range p.runs(t) {
				told += deletedBy(r)
			}
			if told != int64(i+1) {
				t.Fatalf("a minute after delete %d the history has %d", i+1, told)
			}
		}
		p.Finish(p.ctx, history.Signal, "")
		got := p.runs(t)
		if len(got) < 2 || len(got) > 3 {
			t.Fatalf("%d runs in two hours", len(got))
		}
		for _, r := range got {
			if r.End == history.Open {
				t.Errorf("a run has no end: %+v", r)
			}
		}
	})
}

// A run that the store refuses holds the target at once; one that it does not answer for, only
// after a while. Both are over once the store takes it.
func TestRefusedAndUnansweredWrites(t *testing.T) {
	inBubble(t, func(t *testing.T, s *modelstore.Store) {
		p := start(t, s, "a", "serve")
		p.work(time.Second, "")
		p.mu.Lock()
		p.refuse = store.ErrUnavailable
		p.mu.Unlock()
		p.delete(1)
		p.work(5*time.Second, "")
		if p.Failing() == nil || p.Lasting() != nil {
			t.Errorf("unanswered for five seconds: failing %v, lasting %v", p.Failing(), p.Lasting())
		}
		p.work(20*time.Second, "")
		if p.Lasting() == nil {
			t.Error("unanswered for 25 s holds nothing")
		}
		p.mu.Lock()
		p.refuse = nil
		p.mu.Unlock()
		p.work(time.Minute, "")
		if p.Failing() != nil || p.Lasting() != nil || p.failed == 0 {
			t.Errorf("afterwards: failing %v, lasting %v, %d failures told", p.Failing(), p.Lasting(), p.failed)
		}
		p.mu.Lock()
		p.refuse = store.ErrDenied
		p.mu.Unlock()
		p.delete(1)
		p.work(time.Minute, "")
		if !errors.Is(p.Lasting(), store.ErrDenied) {
			t.Errorf("refused for good: %v", p.Lasting())
		}
	})
}

// The heartbeat of a dead process stays until its runs are marked as lost.
func TestRunsOfTheDeadAreMarked(t *testing.T) {
	inBubble(t, func(t *testing.T, s *modelstore.Store) {
		dead := start(t, s, "dead", "serve")
		dead.delete(7)
		dead.work(time.Minute, "")
		p := start(t, s, "a", "serve")
		beat := cursor.Heartbeat{Target: target, Owner: "dead", Renewed: time.Now()}
		if p.Bury(beat) {
			t.Error("the heartbeat may go before the run is marked")
		}
		<-p.marked
		synctest.Wait()
		if !p.Bury(beat) {
			t.Error("the heartbeat must stay though the run is marked")
		}
		got := p.runs(t)
		if len(got) != 1 || got[0].End != history.Lost || deletedBy(got[0]) != 7 {
			t.Errorf("%d runs, the first: %+v", len(got), got[0])
		}
	})
}

// What held a process stands in its run, and is its end.
func TestHeldRun(t *testing.T) {
	inBubble(t, func(t *testing.T, s *modelstore.Store) {
		p := start(t, s, "a", "sweep")
		p.work(5*time.Second, throttle.ReasonGate)
		end, isHeld := chronicle.HeldEnd(string(throttle.ReasonGate))
		if !isHeld {
			t.Fatal("a closed gate is no end of a run")
		}
		p.Finish(p.ctx, end, "")
		got := p.runs(t)
		if len(got) != 1 || got[0].End != history.Gate || fmt.Sprint(got[0].Held) != "[gate]" {
			t.Errorf("%+v", got)
		}
	})
}

// Nothing waits for a chronicle that is nil, and nothing comes of it.
func TestNilChronicle(t *testing.T) {
	var h *chronicle.Chronicle
	ctx := t.Context()
	h.For("sweep")
	h.Open(ctx, cursor.Table{})
	h.Look(time.Time{}, "", true)
	h.Failed(errors.New("no"))
	h.LostCursor()
	h.Tell(history.KindTrip, history.Change{})
	h.Finish(ctx, history.Done, "")
	h.FinishChanges(ctx)
	if err := h.Record(ctx, time.Time{}, history.KindAction, history.Change{}); err != nil ||
		h.Failing() != nil || h.Lasting() != nil || !h.Bury(cursor.Heartbeat{Owner: "dead"}) {
		t.Error("a nil chronicle holds something")
	}
}

// A command that changes a target tells of it.
func ExampleChronicle_Record() {
	at := time.Date(2026, 11, 24, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return at })
	h := chronicle.New(chronicle.Config{Store: s, Target: "sessions", Keep: 90 * 24 * time.Hour,
		By:  history.Origin{Actor: "ann@example.com", Owner: "laptop/1"},
		Now: time.Now, StoreNow: s.Now, Sums: func() chronicle.Sums { return chronicle.Sums{Counts: metrics.Counts{}} }})
	ctx := context.Background()
	err := h.Record(ctx, at, history.KindAction, history.Change{What: "pause", Reason: "a restore is under way"})
	fmt.Println(err)
	list, err := history.Read(ctx, s, "sessions", at.Add(-time.Hour))
	for _, r := range list.Records {
		fmt.Println(r.At.Format(time.TimeOnly), r.By.Actor, r.Change.What+":", r.Change.Reason)
	}
	fmt.Println(err)
	// Output:
	// <nil>
	// 03:00:00 ann@example.com pause: a restore is under way
	// <nil>
}
