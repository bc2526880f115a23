package schedule

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/throttle"
)

// A job runs until its outcome is there.
type job chan step.Outcome

func (j job) Step(step.Turn, step.Todo) step.Outcome { return <-j }
func (j job) End(out step.Outcome) step.Outcome      { return out }
func (j job) IsClaimed() bool                        { return false }

// A bench is an owner that does what outcomes say, and nothing else.
type bench struct {
	t       *testing.T
	s       *scheduler
	c       *site.Site
	now     time.Time
	running map[string]bool
}

func newBench(t *testing.T, workers int) *bench {
	b := &bench{t: t, now: time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC), running: map[string]bool{}}
	now := func() time.Time { return b.now }
	b.c = site.New(sitetest.Setup(modelstore.New(now), now))
	b.s = newScheduler(t.Context(), t.Context(), Config{Workers: workers, Now: now})
	return b
}

func (b *bench) note(it *item) { b.running[it.name] = it.state == step.Running }

func (b *bench) todo(*item) step.Todo { return step.Todo{} }

func (b *bench) stepped(it *item, now time.Time) {
	switch it.out.State {
	case step.Waiting:
		b.s.sleep(it, now)
	case step.Ready:
		b.s.makeReady(it, now)
	default:
		it.state = step.Resting
		b.note(it)
	}
}

func (b *bench) released(*item, cursor.Cursor, error, time.Time) { b.t.Error("nothing has a claim") }

// add makes a new item ready.
func (b *bench) add(name string, l lane) job {
	j := make(job, 1)
	it := &item{job: j, chore: plan.Chore{Kind: plan.Life}, c: b.c, owner: b, name: name, out: step.AtRest, lane: l}
	b.s.makeReady(it, b.now)
	return j
}

// end ends a step that is running.
func (b *bench) end(j job, out step.Outcome) {
	j <- out
	b.s.file(<-b.s.results)
}

func (b *bench) dispatch() {
	b.s.wakeUp(b.now)
	b.s.dispatch(b.now)
}

// Slow steps have at most half of the workers, but always one. The rest is for fast ones.
func TestSlowStepsLeaveHalfOfTheWorkers(t *testing.T) {
	for n, slow := range map[int]int{1: 1, 2: 1, 4: 2, 5: 2} {
		b := newBench(t, n)
		var jobs []job
		for i := range 2 * n {
			jobs = append(jobs, b.add(fmt.Sprintf("slow %d", i), lane{slow: true}))
		}
		b.dispatch()
		if b.s.at != (workers{slow, slow}) {
			t.Errorf("of %d workers, %d do something slow, want %d", n, b.s.at.slow, slow)
		}
		for i := range 2 * n {
			jobs = append(jobs, b.add(fmt.Sprintf("fast %d", i), lane{}))
		}
		b.dispatch()
		if b.s.at != (workers{n, slow}) {
			t.Errorf("of %d workers, %d work, %d of them at something slow", n, b.s.at.work, b.s.at.slow)
		}
		for _, j := range jobs {
			j <- step.Outcome{State: step.Resting}
		}
	}
}

// What waits takes no worker, and begins again at its wake.
func TestWaitingTakesNoWorker(t *testing.T) {
	b := newBench(t, 1)
	wake := b.now.Add(time.Second)
	first := b.add("first", lane{})
	b.dispatch()
	b.end(first, step.Outcome{State: step.Waiting, Wake: wake, Why: throttle.ReasonRamp})
	second := b.add("second", lane{})
	b.dispatch()
	if !b.running["second"] {
		t.Error("nothing runs while the first one waits")
	}
	b.end(second, step.Outcome{State: step.Resting})
	b.now = wake.Add(-time.Millisecond)
	if b.dispatch(); b.running["first"] {
		t.Error("it runs before its wake")
	}
	b.now = wake
	if b.dispatch(); !b.running["first"] {
		t.Error("it does not run at its wake")
	}
	if d := b.c.Tally.ThrottledFor()[throttle.ReasonRamp]; d != time.Second {
		t.Errorf("it was throttled for %v, want a second", d)
	}
	b.end(first, step.Outcome{State: step.Resting})
}

// What has been ready for longest runs first, in whichever lane it is. Chores that only count
// take no worker.
func TestLongestReadyRunsFirst(t *testing.T) {
	b := newBench(t, 1)
	counting := b.add("counting", lane{slow: true, apart: true})
	if !b.running["counting"] {
		t.Error("a chore that only counts waits for a worker")
	}
	jobs := map[string]job{}
	for i, l := range []lane{{}, {slow: true}, {}, {slow: true}} {
		b.now = b.now.Add(time.Second)
		name := fmt.Sprint(i)
		jobs[name] = b.add(name, l)
	}
	for i := range 4 {
		name := fmt.Sprint(i)
		if b.dispatch(); !b.running[name] {
			t.Fatalf("number %d does not run; running are %v", i, b.running)
		}
		b.end(jobs[name], step.Outcome{State: step.Resting})
	}
	b.end(counting, step.Outcome{State: step.Resting})
}

// No step begins once the context is done.
func TestNothingBeginsAtTheEnd(t *testing.T) {
	b := newBench(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	b.s.ctx = ctx
	j := b.add("late", lane{})
	cancel()
	if b.dispatch(); b.running["late"] {
		t.Error("a step begins")
		j <- step.Outcome{State: step.Resting}
	}
	if list := b.s.queued(b); len(list) != 1 {
		t.Errorf("%d items can be stopped, want 1", len(list))
	}
}

// A process gives back only ranges that have been in work for some time, and no more than it
// has to.
func TestGiveSomeOfWhatIsInWork(t *testing.T) {
	b := newBench(t, 1)
	long, before := b.now.Add(-time.Minute), b.now.Add(-time.Second)
	var list []*item
	for i, worked := range []time.Time{long, long, b.now, {}, long} {
		list = append(list, &item{job: rangeJob{}, c: b.c, name: fmt.Sprint(i), course: course{worked: worked, gives: i == 4}})
	}
	giveSome(list, 2, before)
	var gives []string
	for _, it := range list {
		if it.gives {
			gives = append(gives, it.name)
		}
	}
	if got := fmt.Sprint(gives); got != "[0 4]" {
		t.Errorf("%s are given back, want 0 in addition to 4", got)
	}
}

// A rangeJob is never run.
type rangeJob struct{ neverRun }

type neverRun = step.Range
