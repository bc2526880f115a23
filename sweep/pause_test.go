package sweep_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A safeLog keeps the log of several goroutines.
type safeLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// lines returns the lines that hold a text.
func (l *safeLog) lines(with string) (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, with) {
			list = append(list, line)
		}
	}
	return list
}

// pause pauses the target as an operator does.
func (p *paced) pause(long time.Duration) {
	p.t.Helper()
	o := control.Order{Actor: "ann@desk", Reason: "a restore"}
	if _, _, err := control.Pause(p.t.Context(), p.config(), p.target, o, long); err != nil {
		p.t.Fatal(err)
	}
}

// A pause with an end holds deletes until then, in the store's time, and nobody has to
// resume anything. The log names once who made it and why.
func TestPauseWithAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 500, throttle.Limits{Start: 20, Max: 20})
		log := &safeLog{}
		c := p.config()
		c.Log = slog.New(slog.NewTextHandler(log, nil))
		s := p.serve(c)
		time.Sleep(5 * time.Second)
		p.pause(10 * time.Minute)
		time.Sleep(10 * time.Second) // all know
		before := len(p.left())
		time.Sleep(9 * time.Minute)
		if n := len(p.left()); n != before || n == 0 || s.state().Held != throttle.ReasonPaused {
			t.Errorf("%d entities were left, and %d after nine minutes of pause; held %q", before, n, s.state().Held)
		}
		time.Sleep(5 * time.Minute)
		if n := len(p.left()); n > 0 || s.state().Held != "" {
			t.Errorf("%d entities are left minutes after the end of the pause; held %q", n, s.state().Held)
		}
		if said := log.lines("target is paused"); len(said) != 1 || !strings.Contains(said[0], "actor=ann@desk") ||
			!strings.Contains(said[0], `reason="a restore"`) || !strings.Contains(said[0], "until=") {
			t.Errorf("the log says %q", said)
		}
	})
}

// A sweep that a pause holds says so in its result and once in its log, with who made it
// and why. A dry run says it, too: the next sweep would delete nothing.
func TestPausedSweepSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 50, throttle.Limits{Unlimited: true})
		if _, _, err := sweep.EnsureRecord(t.Context(), p.config(), p.target); err != nil {
			t.Fatal(err)
		}
		p.pause(0)
		for _, apply := range []bool{true, false} {
			log := &safeLog{}
			c := p.config()
			c.Apply, c.Log = apply, slog.New(slog.NewTextHandler(log, nil))
			res := sweep.Run(t.Context(), c).Targets[0]
			if res.Held != "paused" || res.Reason != "a restore" || res.Actor != "ann@desk" || len(p.left()) != 200 {
				t.Errorf("with apply %v: %+v; %d are left", apply, res, len(p.left()))
			}
			if said := log.lines("a restore"); apply && len(said) != 1 {
				t.Errorf("the log says %q", said)
			}
			if !apply && res.Expired != 200 {
				t.Errorf("a dry run counts %d", res.Expired)
			}
		}
		if _, _, err := control.Resume(t.Context(), p.config(), p.target, control.Order{}); err != nil {
			t.Fatal(err)
		}
		if res := sweep.Run(t.Context(), p.config()).Targets[0]; res.Held != "" || res.Reason != "" || res.Deleted != 200 {
			t.Errorf("resumed: %+v", res)
		}
	})
}
