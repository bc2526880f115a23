package page

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/page/draw"
	"github.com/reaper-ttl/reaper/metrics"
)

const (
	// delaysEvery is how often the delays of this process's deletes are looked at.
	delaysEvery = time.Minute
	// delayHours is for how many hours they are kept.
	delayHours = 24
)

// Delays keep how long deletes of this process took in each hour, in memory: the history has no
// delays. With its buckets a target takes 4 KiB.
type delays struct {
	cfg    *Config
	mu     sync.Mutex
	before map[string][]metrics.DelaysWithin // as counted when the present hour began
	latest map[string][]metrics.DelaysWithin
	hour   time.Time // the present one
	hours  map[string]map[time.Time]draw.Quantiles
}

// run looks at the delays until ctx is done.
func (d *delays) run(ctx context.Context) {
	if d.cfg.Delays == nil {
		return
	}
	ticker := time.NewTicker(delaysEvery)
	defer ticker.Stop()
	for d.observe(d.cfg.Now()); ; d.observe(d.cfg.Now()) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// observe takes in how many deletes had which delays so far.
func (d *delays) observe(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	hour := now.UTC().Truncate(time.Hour)
	if d.hours == nil {
		d.before, d.latest = map[string][]metrics.DelaysWithin{}, map[string][]metrics.DelaysWithin{}
		d.hours, d.hour = map[string]map[time.Time]draw.Quantiles{}, hour
	}
	for _, t := range d.cfg.Targets {
		counted := d.cfg.Delays(t.Name)
		if !hour.Equal(d.hour) {
			d.before[t.Name] = d.latest[t.Name]
		}
		d.latest[t.Name] = counted
		if d.hours[t.Name] == nil {
			d.hours[t.Name] = map[time.Time]draw.Quantiles{}
		}
		if q := quantilesOf(counted, d.before[t.Name]); q.N > 0 {
			d.hours[t.Name][hour] = q
		}
		for h := range d.hours[t.Name] {
			if h.After(hour) || hour.Sub(h) >= delayHours*time.Hour { // after: the clock was set back
				delete(d.hours[t.Name], h)
			}
		}
	}
	d.hour = hour
}

// of returns the delays of a target up to now, by the hour.
func (d *delays) of(target string) map[time.Time]draw.Quantiles {
	if d.cfg.Delays == nil {
		return nil
	}
	d.observe(d.cfg.Now())
	d.mu.Lock()
	defer d.mu.Unlock()
	list := map[time.Time]draw.Quantiles{}
	for h, q := range d.hours[target] {
		list[h] = q
	}
	return list
}

// quantilesOf returns the quantiles of what was counted since an earlier count.
func quantilesOf(now, before []metrics.DelaysWithin) (q draw.Quantiles) {
	if len(now) == 0 {
		return q
	}
	now = slices.Clone(now)
	for i := range now {
		if i < len(before) {
			now[i].N -= min(now[i].N, before[i].N)
		}
	}
	q.N = now[len(now)-1].N
	at := func(share float64) (d time.Duration, over bool) {
		want := share * float64(q.N)
		var low time.Duration
		var below uint64
		for _, b := range now {
			if float64(b.N) < want {
				low, below = b.Within, b.N
				continue
			}
			if b.Within <= 0 { // the last one has no bound
				return low, true
			}
			part := (want - float64(below)) / float64(b.N-below)
			return low + time.Duration(part*float64(b.Within-low)), false
		}
		return low, true
	}
	if q.N == 0 {
		return q
	}
	q.P50, _ = at(.5)
	q.P99, q.Over = at(.99)
	return q
}
