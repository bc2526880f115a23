package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reaper-ttl/reaper/store"
)

// A fault remembers the first error after which the engine cannot be trusted.
//
// Pebble stops its process where a write-ahead log or a manifest cannot be
// written, and tries a failed flush again for ever while writers wait for it.
// Here such an error ends the goroutine that met it, and only that one: it is
// remembered, every call that waits returns it, and every later call does.
type fault struct {
	once    sync.Once
	err     error
	hit     chan struct{}
	opening atomic.Bool // the engine is not open yet
}

func (f *fault) set(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.hit)
	})
}

// get returns the error, wrapped as what a caller sees, or nil.
func (f *fault) get() error {
	select {
	case <-f.hit:
		return f.err
	default:
		return nil
	}
}

// fatal remembers err and does not return. If the goroutine is one of ours, it
// panics, and [rescue] or [fault.run] turns that into an error. The engine's own
// goroutines end. While the engine opens, any goroutine blocks here: unwinding it
// would close what the engine's own goroutines still read with, and they would panic.
func (f *fault) fatal(err error) {
	f.set(classify("the engine", err))
	if f.opening.Load() {
		select {}
	}
	if ours() {
		panic(stopped{})
	}
	runtime.Goexit()
}

// stopped is what fatal panics with; the error is in the fault.
type stopped struct{}

// ours reports whether a function of this package, other than those that the
// engine calls back, is on the stack.
func ours() bool {
	var pcs [128]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		frame, more := frames.Next()
		if strings.Contains(frame.Function, "/store/embedded.") &&
			!strings.Contains(frame.Function, "fault") && !strings.HasSuffix(frame.Function, "embedded.ours") &&
			!strings.Contains(frame.Function, "engineLog") && !strings.Contains(frame.Function, "engineEvents") {
			return true
		}
		if !more {
			return false
		}
	}
}

// rescue turns a panic of the engine into the error of the surrounding call. A
// panic that did not come from the engine goes on: it is a bug of ours.
func (f *fault) rescue(err *error) {
	r := recover()
	if r == nil {
		return
	}
	*err = f.caught(r)
}

func (f *fault) caught(r any) error {
	if _, ok := r.(stopped); !ok {
		if !strings.Contains(string(debug.Stack()), "cockroachdb/pebble") {
			panic(r)
		}
		cause, ok := r.(error)
		if !ok {
			cause = fmt.Errorf("%v", r)
		}
		f.set(classify("the engine", cause))
	}
	return f.get()
}

// run calls do, which may be stopped or stuck by a fault, and returns when do
// has ended or the fault is there. Where it was stuck, do's goroutine stays.
func (f *fault) run(do func() error) error {
	if err := f.get(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go guarded(f, do, done)
	select {
	case err := <-done:
		return err
	case <-f.hit:
	}
	select {
	case err := <-done: // it had ended before the fault was seen
		return err
	default:
		return f.get()
	}
}

func guarded(f *fault, do func() error, done chan<- error) {
	err := error(nil)
	defer func() { done <- err }()
	defer f.rescue(&err)
	err = do()
}

// classify wraps an error of the engine in the sentinel that callers know.
func classify(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, store.ErrFailed), errors.Is(err, store.ErrCorrupt): // it has been here before
		return err
	case pebble.IsCorruptionError(err), errors.Is(err, errRow), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s: %w", store.ErrCorrupt, op, err)
	}
	return fmt.Errorf("%w: %s: %w", store.ErrFailed, op, err)
}

// engineLog is where the engine writes its log, and where it stops.
type engineLog struct {
	log   *slog.Logger
	fault *fault
}

func (l engineLog) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("engine", "text", fmt.Sprintf(format, args...))
	}
}

func (l engineLog) Errorf(format string, args ...any) {
	l.log.Warn("engine", "text", fmt.Sprintf(format, args...))
}

// Fatalf keeps the error among args, so that its kind survives.
func (l engineLog) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	for _, a := range args {
		if cause, ok := a.(error); ok {
			what := strings.NewReplacer("pebble: ", "", "%+v", "", "%v", "", "%s", "").Replace(format)
			if err = cause; strings.Trim(what, ": ") != "" {
				err = fmt.Errorf("%s: %w", strings.Trim(what, ": "), cause)
			}
		}
	}
	l.fault.fatal(err)
}

// engineEvents makes the fault of a flush or compaction that failed. The engine
// would try again at once, for ever.
func engineEvents(f *fault, roomier func()) *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) { f.fatal(err) },
		DataCorruption:  func(info pebble.DataCorruptionInfo) { f.set(classify("the engine", info.Details)) },
		CompactionEnd:   func(pebble.CompactionInfo) { roomier() },
		FlushEnd:        func(pebble.FlushInfo) { roomier() },
	}
}
