package forecast

import (
	"math"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
)

// Trips say whether the breaker would hold a target.
type Trips struct {
	On        bool    `json:"on"`
	NewGround bool    `json:"new_ground"` // at the first sweep with --apply: more than floor is due
	Floor     int64   `json:"floor"`
	Hour      float64 `json:"due_per_window"` // usually
	Share     float64 `json:"share"`          // of all entities, in one window
	Limit     float64 `json:"limit"`          // what a window may hold once the usual is learnt
	// Unlearnt says that a usual window would trip it if nothing were learnt. On its first day it only
	// learns, so that this is harmless unless somebody removes the budget record.
	Unlearnt bool `json:"unlearnt"`
	Blind    bool `json:"blind"` // a usual window holds most of the entities: it cannot see bursts
}

// TripsOf asks the breaker's own rules about a workload.
func (s Settings) TripsOf(w Workload) Trips {
	r := s.Breaker
	t := Trips{On: r.On, Floor: r.Floor}
	if !r.On {
		return t
	}
	at := time.Date(2026, 1, 15, 12, 30, 0, 0, time.UTC) // any instant does
	t.NewGround = !w.Swept && breaker.JudgeUnswept(r, at, breaker.Count{Due: whole(w.Backlog)}) != nil
	all := s.StorageOf(w).Entities
	t.Hour = w.Writes * r.Window.Seconds()
	if all > 0 {
		t.Share = min(1, t.Hour/all)
	}
	b := breaker.Budget{Began: at.AddDate(0, 0, -2), Alls: []breaker.All{{N: whole(all), At: at}}}
	key := r.HourOf(at.Add(-2 * r.Window))
	_, trip := b.Judge(r, at, key, breaker.Count{Due: whole(t.Hour)})
	t.Unlearnt = trip != nil
	b.Days = []breaker.Day{{Begin: at.Truncate(24*time.Hour).AddDate(0, 0, -1), Share: t.Share}}
	t.Limit, t.Blind = float64(b.Limit(r, at, key)), b.IsBlind(r, at)
	return t
}

// whole rounds a count.
func whole(n float64) int64 { return int64(min(math.Round(n), MostEntities)) }
