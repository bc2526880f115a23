package schedule

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/step"
)

// A worker runs steps, one after the other, in a goroutine of its own: the stack that the first
// step needed is there for all others, and so is the memory. Its fields say what the present
// step is; the scheduler's goroutine sets them while the worker is idle.
type worker struct {
	s            *scheduler
	begin        chan struct{} // the present step may begin; closed when no other one will
	scratch      step.Scratch
	it           *item
	todo         step.Todo
	turn         step.Turn
	cancel       context.CancelFunc
	over         func() bool // isOver, made once
	end, longest time.Time   // of the turn: if somebody waits, and if nobody does
}

// takeWorker returns the worker whose step ended last. So there are as many workers as there
// were steps at one time, and not as many as there may be.
func (s *scheduler) takeWorker() *worker {
	n := len(s.idle) - 1
	if n < 0 {
		w := &worker{s: s, begin: make(chan struct{}, 1)}
		w.over = w.isOver
		go w.run()
		return w
	}
	last := s.idle[n]
	s.idle = s.idle[:n]
	return last
}

// free makes a worker idle, which keeps nothing of its last step.
func (s *scheduler) free(w *worker) {
	w.it, w.todo, w.turn, w.cancel = nil, step.Todo{}, step.Turn{}, nil
	s.idle = append(s.idle, w)
}

// dismiss ends the workers, all of which are idle.
func (s *scheduler) dismiss() {
	for _, w := range s.idle {
		close(w.begin)
	}
	s.idle = nil
}

// isOver reports whether the turn is over.
func (w *worker) isOver() bool {
	now := w.s.cfg.Now()
	return w.s.crowd.Load() > 0 && !now.Before(w.end) || !now.Before(w.longest)
}

func (w *worker) run() {
	for range w.begin {
		w.s.results <- w.step()
	}
}

// step runs one step.
func (w *worker) step() result {
	defer w.cancel()
	w.it.reportBegin()
	r := result{item: w.it, worker: w}
	err := background.Protect(func() error { r.out = w.it.job.Step(w.turn, w.todo); return nil })
	if err != nil {
		w.scratch.Ahead.Drop()
		r.out = w.it.job.End(step.Outcome{State: step.Failed, Err: err})
	}
	return r
}
