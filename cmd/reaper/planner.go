package main

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/measure"
	"github.com/reaper-ttl/reaper/internal/workload"
)

// A planner plans one target.
type planner struct {
	flags      *planFlags
	target     config.Target
	mode       forecast.Mode // empty if it is not known
	schedule   config.Schedule
	namespaces int // as counted; 0 if not
	job        bool
	prices     forecast.Prices
}

// settings returns what a forecast has to know of a target.
func (p planner) settings(t config.Target) forecast.Settings {
	s := measure.SettingsOf(sweepTarget(t), p.mode, tickOf(p.schedule))
	s.Job = p.job || p.flags.job
	s.Namespaces = cmp.Or(p.flags.namespaces, p.namespaces, s.Namespaces)
	return s
}

// tickOf returns how long it is on average from one tick of a schedule to the next.
func tickOf(s config.Schedule) time.Duration {
	const week = 8 * 24 * time.Hour
	from := time.Date(2026, 1, 4, 23, 59, 59, 0, time.UTC)
	first := s.Next(from)
	at, n := first, 0
	for n < 10_000 {
		next := s.Next(at)
		if next.IsZero() {
			break
		}
		at, n = next, n+1
		if at.Sub(first) > week {
			break
		}
	}
	if n == 0 {
		return 5 * time.Minute
	}
	return at.Sub(first) / time.Duration(n)
}

// plan returns the plan for a workload.
func (p planner) plan(w forecast.Workload) (planTarget, error) {
	t := p.target
	if p.flags.shards > 0 && t.Layout.Uses("shards") {
		t.Shards = p.flags.shards
	}
	s := p.settings(t)
	f, err := forecast.Make(s, w, p.prices)
	if err != nil {
		return planTarget{}, err
	}
	one := planTarget{Name: t.Name, Settings: settingLines(s, t), Workload: w, Forecast: f}
	change := p.advise(t, s, f)
	one.Stanza = t.PlanStanza(change)
	if changed := t.With(change); change != (config.StanzaChange{}) {
		next := p.settings(changed)
		g, err := forecast.Make(next, w, p.prices)
		if err != nil {
			return one, err
		}
		one.Changed = &planNext{Seconds: g.Drain.Seconds, Delay: g.Delay, Month: g.Month[0], Carries: g.Generations.Carries,
			Shards: g.Shards, Changes: change}
	}
	return one, nil
}

// advise says what to change, so that writes spread over enough ranges, nothing is carried, and sweeps keep up.
func (p planner) advise(t config.Target, s forecast.Settings, f forecast.Forecast) (c config.StanzaChange) {
	if t.Layout.Uses("shards") && f.Shards.Needed > f.Shards.Set && s.Mode != forecast.Embedded {
		c.Shards = min(f.Shards.Needed, forecast.MostShards)
	}
	// Few namespaces share out few shards; of many, each has those that it does not need. Only generations
	// may have fewer shards later.
	const many = 10
	if t.Layout.HasSuccession() && s.Namespaces >= many && f.Shards.Needed < f.Shards.Set {
		c.Shards = f.Shards.Needed
	}
	if f.Generations.WantedKeep > 0 {
		every := time.Duration(f.Generations.WantedEvery * float64(time.Second))
		if every != t.Generations.Every {
			c.Every = every
		}
		if f.Generations.WantedKeep != t.Generations.Keep {
			c.Keep = f.Generations.WantedKeep
		}
	}
	ranges := float64(cmp.Or(c.Shards, s.Shards) * s.Namespaces)
	if perRange := f.Drain.Inflow / ranges; s.Pace.Max > 0 && s.Pace.Max < 2*perRange {
		const step = 100
		c.Max = math.Ceil(2*perRange/step) * step
	}
	return c
}

// settingLines are the settings that a forecast depends on, for people and for a comparison.
func settingLines(s forecast.Settings, t config.Target) []string {
	mode := string(s.Mode)
	if mode == "" {
		mode = "native or datastore"
	}
	runner := "serve"
	if s.Job {
		runner = "sweep as a job"
	}
	list := []string{"mode: " + mode, "layout: " + string(t.Layout), fmt.Sprintf("shards: %d", s.Shards),
		fmt.Sprintf("namespaces: %d", s.Namespaces), "guard: " + string(s.Guard),
		"retention: " + config.FormatDuration(t.Retention), fmt.Sprintf("page: %d", t.Page), "pace: " + paceText(s.Pace),
		"schedule: " + config.FormatDuration(s.Tick.Round(time.Second)) + ", " + runner}
	if s.Layout.Every > 0 {
		list = append(list, fmt.Sprintf("generations: every %s, ramp %s, keep %d", config.FormatDuration(s.Layout.Every),
			config.FormatDuration(s.Layout.Ramp), s.Layout.Keep))
	}
	breaker := "off"
	if s.Breaker.On {
		breaker = fmt.Sprintf("floor %d, fraction %.4g%%, window %s", s.Breaker.Floor, 100*s.Breaker.Fraction,
			config.FormatDuration(s.Breaker.Window))
	}
	return append(list, "breaker: "+breaker)
}

func paceText(p forecast.Pace) string {
	limit := func(n float64) string {
		if n == 0 {
			return "unlimited"
		}
		return fmt.Sprintf("%.6g/s", n)
	}
	return fmt.Sprintf("start %s, max %s, total %s", limit(p.Start), limit(p.Max), limit(p.Total))
}

// workloadText says what a workload is.
func workloadText(w forecast.Workload) string {
	var parts []string
	if w.Writes > 0 {
		parts = append(parts, perSecondText(w.Writes)+" written")
	}
	if len(w.Lives) > 0 {
		parts = append(parts, "lives "+workload.Text(w.Lives))
	}
	if w.Size > 0 {
		parts = append(parts, fmt.Sprintf("%s bytes each", grouped(int64(w.Size))))
	}
	if w.Entities > 0 {
		parts = append(parts, grouped(int64(w.Entities))+" entities")
	}
	return strings.Join(append(parts, grouped(int64(w.Backlog))+" due"), "; ")
}

// perSecondText shows a rate for people.
func perSecondText(perSecond float64) string {
	switch {
	case perSecond == 0 || perSecond >= 10:
		return grouped(int64(math.Round(perSecond))) + "/s"
	case perSecond >= 0.1:
		return fmt.Sprintf("%.2g/s", perSecond)
	}
	return fmt.Sprintf("%.3g/h", perSecond*3600)
}
