package sweep

import (
	"context"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/engine/schedule"
)

// A Daemon sweeps for as long as it runs: at each tick of a target's schedule
// every range at rest becomes ready. No range waits for another one.
type Daemon struct {
	cfg    Config
	first  bool
	states map[string]*schedule.StateBox // by target
}

// A State is what a daemon knows of one target.
type State = schedule.State

// Own is what a daemon knows of the ranges of a target by its own work.
type Own = schedule.Own

// An OwnRange is what a daemon knows of one range by its own work.
type OwnRange = schedule.OwnRange

// NewDaemon returns a daemon for the targets of a configuration, each of which must
// have a Next. If first is true, a sweep begins at once instead of at the first tick.
func NewDaemon(cfg Config, first bool) *Daemon {
	d := &Daemon{cfg: cfg.withDefaults(), first: first, states: map[string]*schedule.StateBox{}}
	now := cfg.Now().Round(0)
	for _, t := range cfg.Targets {
		next := now
		if !first {
			next = t.Next(now)
		}
		d.states[t.Name] = schedule.NewStateBox(t.Name, next)
	}
	return d
}

// States returns the state of each target, in the order of the configuration.
func (d *Daemon) States() (list []State) {
	for _, t := range d.cfg.Targets {
		list = append(list, d.states[t.Name].Get())
	}
	return list
}

// Own returns what the daemon knew of the ranges of a target a second ago. It looks at them only while
// somebody asks every second or so: the first answer is that nothing is known.
func (d *Daemon) Own(target string) Own {
	box := d.states[target]
	if box == nil {
		return Own{}
	}
	return box.Own()
}

// Run sweeps until ctx is done. No goroutine outlives it.
func (d *Daemon) Run(ctx context.Context) {
	targets := targetsOf(&d.cfg)
	var boxes []*schedule.StateBox
	for _, t := range d.cfg.Targets {
		boxes = append(boxes, d.states[t.Name])
	}
	schedule.Serve(ctx, workOf(d.cfg), targets, boxes, d.first)
	finishHistories(ctx, targets, func(int) (history.End, string) { return history.Signal, "" })
	for _, t := range targets {
		t.Site.Log.End()
	}
}
