//go:build linux

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/reaper-ttl/reaper/internal/badproxy"
)

// between draws a length of time.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// trouble breaks something again and again until ctx is done: a process or its network or,
// if there is no process, the network alone. Then it repairs everything.
func (w *world) trouble(ctx context.Context, r *rand.Rand, proxy *badproxy.Proxy, p *process) {
	defer proxy.Heal()
	for {
		sleep(ctx, between(r, w.calm/2, 3*w.calm/2))
		if ctx.Err() != nil {
			return
		}
		n := r.IntN(100)
		if p == nil {
			n = 30 + r.IntN(70)
		}
		direction := []badproxy.Direction{badproxy.Requests, badproxy.Replies, badproxy.Both}[r.IntN(3)]
		one := []badproxy.Direction{badproxy.Requests, badproxy.Replies}[r.IntN(2)]
		switch {
		case n < 14:
			if n < 7 { // in the middle of a transaction, whose locks are nobody's then
				p.say("hold %d, and die", one)
				proxy.Hold(one)
				sleep(ctx, between(r, 0, w.lease/2))
			}
			if p.strike(ctx, r, syscall.SIGKILL) {
				w.kills.Add(1)
				p.say("killed")
			}
			proxy.Heal()
		case n < 25:
			w.freeze(ctx, p, r)
		case n < 30:
			if p.strike(ctx, r, syscall.SIGTERM) {
				w.terms.Add(1)
				p.say("told to end")
			}
		case n < 45:
			p.say("cut")
			w.cuts.Add(int64(proxy.Cut()))
		case n < 60:
			p.say("cut in mid stream")
			w.cuts.Add(int64(proxy.CutAfter(one, 1+r.IntN(3000))))
		case n < 68:
			p.say("half-close")
			w.halfCloses.Add(int64(proxy.HalfClose(one)))
		case n < 80: // a pause, after which all arrives late
			p.say("hold %d", direction)
			w.holds.Add(1)
			proxy.Hold(direction)
			sleep(ctx, between(r, w.lease/20, w.lease/2))
			proxy.Heal()
			p.say("healed")
		case n < 90: // what was on its way is lost: requests, or the replies to what was done
			p.say("hold %d, and lose it", direction)
			w.holds.Add(1)
			proxy.Hold(direction)
			sleep(ctx, between(r, w.lease/20, w.lease*3/2))
			w.cuts.Add(int64(proxy.Cut()))
			proxy.Heal()
			p.say("healed")
		default:
			p.say("slow")
			w.delays.Add(1)
			proxy.Delay(time.Millisecond, between(r, 2*time.Millisecond, 200*time.Millisecond))
			sleep(ctx, between(r, w.calm, 4*w.calm))
			proxy.Heal()
			p.say("healed")
		}
	}
}

// strike sends a signal to a process at a random moment of its run.
func (p *process) strike(ctx context.Context, r *rand.Rand, s syscall.Signal) bool {
	for range 20 {
		sleep(ctx, between(r, 0, second))
		if p.signal(s) {
			return true
		}
	}
	return false
}

// freeze stops a process for longer than its lease lasts, and then lets it continue.
func (w *world) freeze(ctx context.Context, p *process, r *rand.Rand) {
	if !p.strike(ctx, r, syscall.SIGSTOP) {
		return
	}
	d := between(r, w.lease*11/10, w.lease*3/2)
	w.freezes.Add(1)
	p.say("frozen for %v", d)
	sleep(ctx, d)
	p.signal(syscall.SIGCONT)
	p.say("goes on")
}

// operate does what an operator may do in the meantime. At its end nothing is paused. It
// begins with two generations, so that even a short run has the first one sealed and
// carried.
func (w *world) operate(ctx context.Context, r *rand.Rand) {
	for range 2 {
		sleep(ctx, w.ramp+second)
		w.reshard("sessions", 1+r.IntN(2*w.shards)) // or the next one is it
	}
	for {
		sleep(ctx, between(r, w.operator/2, w.operator*3/2))
		if ctx.Err() != nil {
			return
		}
		switch n := r.IntN(12); {
		case n < 5:
			w.reshard([]string{"sessions", "sessions", "events", "orders"}[r.IntN(4)], 1+r.IntN(2*w.shards))
		case n < 6:
			_ = w.operation("generation", "advance", "--target", "sessions", "--force")
		case n < 8:
			_ = w.operation("pause", "--reason", "chaos")
			sleep(ctx, between(r, w.lease/4, w.lease*2))
			for w.operation("resume") != nil {
				sleep(context.Background(), time.Second)
			}
		case n < 10:
			_ = w.operation("audit", "--apply")
		default:
			_ = w.operation("pace", "--max", fmt.Sprint(10+r.IntN(60)))
		}
	}
}

// reshard opens a generation with another number of shards. While writers still move it is refused, as
// it should be.
func (w *world) reshard(target string, shards int) {
	if w.operation("generation", "advance", "--target", target, "--shards", fmt.Sprint(shards)) == nil {
		w.reshards.Add(1)
	}
}

func (w *world) operation(args ...string) error {
	err := w.command(w.host, args...).Run()
	if err == nil {
		w.operations.Add(1)
	}
	return err
}
