package control

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

const (
	// MaxReason is the longest reason in bytes: it is shown on one screen, and read with
	// the record every five seconds by every worker.
	MaxReason = 1000
	// MaxActor is the longest name of an actor in bytes: that of an e-mail address.
	MaxActor = 320
)

// ErrNoRecord is wrapped by the error for a target without a record: most likely this is not
// the store that the operator means.
var ErrNoRecord = errors.New("the store has no record of this target")

// An Order says who wants a switch of the target record changed, and why.
type Order struct {
	Actor  string
	Reason string // may be empty
}

// Check returns what is wrong with the order.
func (o Order) Check() error {
	return errors.Join(checkText("actor", o.Actor, MaxActor), checkText("reason", o.Reason, MaxReason))
}

// checkText refuses a text that is too long, or would not show as one line.
func checkText(what, text string, most int) error {
	switch {
	case len(text) > most:
		return fmt.Errorf("the %s has %d bytes, more than %d: write a shorter one", what, len(text), most)
	case !utf8.ValidString(text):
		return fmt.Errorf("the %s is not valid UTF-8: write it in UTF-8", what)
	}
	for _, r := range text {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return fmt.Errorf("the %s has the control character %U: write one line of text", what, r)
		}
	}
	return nil
}

// note returns the note about the order that the record keeps.
func (o Order) note(now time.Time) generation.Note {
	return generation.Note{Actor: o.Actor, At: now, Reason: o.Reason}
}

// Pause stops deletes in a target: for a while, or with 0 until [Resume]. It replaces an
// earlier pause and its end.
func Pause(
	ctx context.Context, cfg sweep.Config, t sweep.Target, o Order, long time.Duration,
) (rec generation.Record, now time.Time, err error) {
	if long < 0 {
		return rec, now, fmt.Errorf("pause for %v: want a positive duration", long)
	}
	return changeSwitch(ctx, cfg, t, action("pause"), o, func(r *generation.Record, now time.Time) {
		r.Paused, r.PausedUntil, r.PauseNote = true, time.Time{}, o.note(now)
		if long > 0 {
			r.PausedUntil = now.Add(long)
		}
	})
}

// Resume ends the pause of a target. If the target is not paused, it changes nothing.
func Resume(
	ctx context.Context, cfg sweep.Config, t sweep.Target, o Order,
) (rec generation.Record, now time.Time, err error) {
	return changeSwitch(ctx, cfg, t, action("resume"), o, func(r *generation.Record, now time.Time) {
		if r.Paused {
			r.Paused, r.PausedUntil, r.PauseNote = false, time.Time{}, o.note(now)
		}
	})
}

// A Pace is the change that an operator wants to make to the rates of a target.
type Pace struct {
	Reset      bool            // first clear both, so that the configuration applies
	Max, Total generation.Rate // not changed if they are not set
}

// SetPace changes the rates of a target. If they are the same, it writes nothing.
func SetPace(
	ctx context.Context, cfg sweep.Config, t sweep.Target, o Order, p Pace,
) (rec generation.Record, now time.Time, err error) {
	return changeSwitch(ctx, cfg, t, action("pace"), o, func(r *generation.Record, now time.Time) {
		most, total := r.PaceMax, r.PaceTotal
		if p.Reset {
			most, total = generation.Rate{}, generation.Rate{}
		}
		if p.Max.Set {
			most = p.Max
		}
		if p.Total.Set {
			total = p.Total
		}
		if most != r.PaceMax || total != r.PaceTotal {
			r.PaceMax, r.PaceTotal, r.PaceNote = most, total, o.note(now)
		}
	})
}

// An act is what the history calls a change of switches.
type act struct {
	kind   history.Kind
	what   string
	result func() string // what else came of it; nil stands for nothing
}

func action(what string) act { return act{kind: history.KindAction, what: what} }

// changeSwitch changes switches of a target that has a record. It creates no record: a
// switch in the wrong store would stop nothing, though the operator believes that it does.
func changeSwitch(
	ctx context.Context, cfg sweep.Config, t sweep.Target, a act, o Order, change func(*generation.Record, time.Time),
) (rec generation.Record, now time.Time, err error) {
	if err := o.Check(); err != nil {
		return rec, now, err
	}
	err = store.Retry(ctx, patience, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		_, _, err := generation.Load(ctx, cfg.Store, t.Name)
		return err
	})
	switch {
	case errors.Is(err, generation.ErrMissing):
		return rec, now, ErrNoRecord
	case err != nil:
		return rec, now, err
	}
	was, rec, now, err := alter(ctx, cfg, t, change)
	if err == nil && !was.EqualContent(rec) {
		t.History.Actor = o.Actor
		c := history.Change{What: a.what, Before: switches(was), After: switches(rec), Reason: o.Reason}
		if a.result != nil {
			c.After += ", " + a.result()
		}
		tell(ctx, cfg, t, now, a.kind, c)
	}
	return rec, now, err
}

// switches describes the switches of a record for the history.
func switches(r generation.Record) string {
	text := "not paused"
	if r.Paused {
		text = "paused"
		if !r.PausedUntil.IsZero() {
			text += " until " + r.PausedUntil.UTC().Format(time.RFC3339)
		}
	}
	for _, one := range []struct {
		name string
		rate generation.Rate
	}{{"max", r.PaceMax}, {"total", r.PaceTotal}} {
		if one.rate.Set {
			text += ", " + one.name + " " + one.rate.String()
		}
	}
	if r.Trip.IsOpen() {
		text += fmt.Sprintf(", trip %s open: %d due", r.Trip.ID, r.Trip.Due)
	}
	return text
}

// callTimeout bounds one read or write of a record, and patience all tries at it. Workers write the
// same records: on a store with locks some tries time out before one finds the record free.
const (
	callTimeout = 10 * time.Second
	patience    = time.Minute
)
