package forecast

import "errors"

// A Forecast is what a target will do.
type Forecast struct {
	Drain       Drain       `json:"drain"`
	Delay       Delay       `json:"delay"`
	Shards      Shards      `json:"shards"`
	Generations Generations `json:"generations"`
	Storage     Storage     `json:"storage"`
	Breaker     Trips       `json:"breaker"`
	// Month is 30 days in the long run, once each way; the way of the settings comes first.
	Month []Bill `json:"month"`
	// First are the first 30 days of a target that begins empty.
	First   []Bill `json:"first_month"`
	Backlog []Bill `json:"backlog"` // once, to delete the backlog
	// StorageDollars is nil if the size of entities, or a price, is not known.
	StorageDollars *float64 `json:"storage_dollars"`
}

// Make returns the forecast for a workload under settings. It refuses what Check refuses.
func Make(s Settings, w Workload, p Prices) (Forecast, error) {
	if err := errors.Join(s.Check(), w.Check()); err != nil {
		return Forecast{}, err
	}
	f := Forecast{Drain: s.DrainOf(w), Delay: s.DelayOf(w), Shards: s.ShardsOf(w), Generations: s.GenerationsOf(w),
		Storage: s.StorageOf(w), Breaker: s.TripsOf(w), Month: []Bill{}, First: []Bill{}, Backlog: []Bill{}}
	f.StorageDollars = p.storageOf(f.Storage)
	days := float64(month) / day
	for _, way := range s.Ways() {
		b := p.billOf(way, s.MonthOf(w, way), days)
		b.Caveat = s.caveatOf(w, way)
		f.Month = append(f.Month, b)
		if len(w.Lives) > 0 {
			f.First = append(f.First, p.billOf(way, s.SpanOf(w, way, month, s.firstDeletes(w)), days))
		}
		if w.Backlog > 0 {
			d := 0.0
			if f.Drain.Seconds != nil {
				d = *f.Drain.Seconds / day
			}
			f.Backlog = append(f.Backlog, p.billOf(way, s.BacklogOf(w, way), d))
		}
	}
	return f, nil
}

// firstDeletes returns how many entities come to be due in the first month of a target that begins empty.
func (s Settings) firstDeletes(w Workload) float64 {
	n := 0.0
	for _, l := range w.Lives {
		n += w.Writes * l.Share * max(0, month-s.inStore(l))
	}
	return n
}
