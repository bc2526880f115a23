package adopt

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A Result is what a run did or, without Apply, would do.
type Result struct {
	Target          string               `json:"target"`
	Order           Order                `json:"order"`
	Apply           bool                 `json:"apply"`
	Complete        bool                 `json:"complete"`
	Phase           Phase                `json:"phase"`
	Rule            string               `json:"rule"`
	Percent         float64              `json:"percent"`
	Round           int                  `json:"round"`
	RoundBegan      time.Time            `json:"round_began"`
	SpreadSeconds   float64              `json:"spread_seconds"`
	DurationSeconds float64              `json:"duration_seconds"`
	Scanned         int64                `json:"scanned"`
	Counts          map[Outcome]int64    `json:"counts"`
	Stamped         int64                `json:"stamped"`   // acknowledged
	Removed         int64                `json:"removed"`   // keys that undo removed
	Removable       int64                `json:"removable"` // keys that undo found to be the rule's
	DueAlready      int64                `json:"due_already"`
	Histogram       []Bar                `json:"histogram"`
	Samples         map[Outcome][]Sample `json:"samples"`
	Operations      store.Operations     `json:"operations"`
	Warnings        []string             `json:"warnings"`
	Held            string               `json:"held"`
	// Tripped tells that the run ended because the breaker holds the target.
	Tripped bool `json:"-"`
}

// takes returns how long so many writes take at the rate.
func (r *run) takes(writes int64) time.Duration {
	if r.job.cfg.Rate.Unlimited || r.job.cfg.Rate.Max <= 0 {
		return 0
	}
	return time.Duration(float64(writes) / r.job.cfg.Rate.Max * float64(time.Second))
}

// result returns what the run did so far.
func (r *run) result(complete bool) Result {
	res := Result{Target: r.job.cfg.Target.Name, Order: r.job.cfg.Order, Apply: r.job.applies(), Complete: complete,
		Rule: r.job.cfg.Rule.String(), Percent: r.job.cfg.Percent, SpreadSeconds: r.job.cfg.Spread.Seconds(),
		DurationSeconds: r.job.now().Sub(r.began).Seconds(),
		Operations:      r.meter.Operations(), Counts: map[Outcome]int64{}, Samples: map[Outcome][]Sample{},
		Histogram: []Bar{}, Warnings: []string{}, Held: r.view.Noted(),
		Tripped: r.view.Noted() != "" && !complete && r.view.Tripped()}
	if r.tally == nil { // it failed before it read anything
		return res
	}
	round := r.reading.record.Round()
	res.Phase, res.Round, res.RoundBegan = r.reading.record.Phase, round.Number, round.Began
	res.Percent, res.SpreadSeconds = round.Percent, round.Spread.Seconds()
	t := r.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	res.Scanned, res.DueAlready = t.scanned, t.expired
	if r.job.cfg.Order == Undo {
		res.Removed, res.Removable = t.written, t.wanted
	} else {
		res.Stamped = t.written
	}
	for _, o := range outcomes {
		res.Counts[o] = t.counts[o]
		if len(t.samples[o]) > 0 {
			res.Samples[o] = t.samples[o]
		}
	}
	res.Histogram = t.bars()
	if t.created.n >= importedAtOnce && t.created.last.Sub(t.created.first) <= time.Hour {
		res.Warnings = append(res.Warnings, fmt.Sprintf("all %d entities were created within one hour, %s to %s, "+
			"which looks like an import: their time of creation may say nothing of their age", t.created.n,
			t.created.first.UTC().Format(time.RFC3339), t.created.last.UTC().Format(time.RFC3339)))
	}
	if takes := r.takes(t.counts[Unstamped]); r.job.cfg.Order == Stamp && t.expired > 0 && takes > round.Spread {
		res.Warnings = append(res.Warnings, fmt.Sprintf("a round takes about %s, longer than the spread: what is stamped "+
			"late is due at once, behind the cursors of sweeps, and waits for their next read from the start: spread "+
			"over a longer time, or raise the rate", takes.Round(time.Second)))
	}
	if n := t.counts[Mismatch]; r.job.cfg.Order == Undo && n > 0 {
		res.Warnings = append(res.Warnings, fmt.Sprintf("keys that disagree with the rule stay: %d. After the undo sweeps "+
			"go by them alone, and nothing compares them any more: pause the target until you know why", n))
	}
	if n := t.counts[Unstamped] + t.counts[Keyed] + t.counts[Mismatch] + t.counts[Later]; n == 0 && t.scanned > 0 {
		res.Warnings = append(res.Warnings, fmt.Sprintf("the rule %q fits none of %d entities: check the property's name "+
			"and type", res.Rule, t.scanned))
	}
	return res
}
