package sweep

import (
	"time"

	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
)

// A Result is what a sweep did, in the form that `reaper sweep --json` prints.
type Result struct {
	Store    string         `json:"store"`
	Apply    bool           `json:"apply"`
	Complete bool           `json:"complete"`
	Started  time.Time      `json:"started"`
	Duration float64        `json:"duration_seconds"`
	Targets  []TargetResult `json:"targets"`
}

// A TargetResult is what a sweep did with one target.
type TargetResult struct {
	Name     string    `json:"name"`
	Horizon  time.Time `json:"horizon"`
	Complete bool      `json:"complete"`
	Error    string    `json:"error"`  // empty if nothing failed
	Hint     string    `json:"hint"`   // what to do about the error; empty if there is no advice
	Held     string    `json:"held"`   // why nothing may be deleted at present; empty if it may
	Reason   string    `json:"reason"` // of a pause: why, in its operator's words; else the details of Held
	Actor    string    `json:"actor"`  // of a pause: who ordered it
	Duration float64   `json:"duration_seconds"`

	metrics.Counts
	Preview
	Outside    int64  `json:"outside"`                        // entities that carry the property but lie in no range
	Stepped    *int64 `json:"points_stepped_over"`            // nil if the store does not say
	Behind     *int64 `json:"points_stepped_over_from_start"` // of these, in reads of a range from its start
	Ranges     int    `json:"ranges"`
	Incomplete int    `json:"ranges_incomplete"`
	Retired    []int  `json:"retired"`

	Operations store.Operations   `json:"operations"`
	Throttled  map[string]float64 `json:"throttled_seconds"`
	EmptyIndex bool               `json:"empty_index"` // holds entities, but no index entry in any range
	EmptyKind  bool               `json:"empty_kind"`  // the kind holds no entity

	Err error `json:"-"` // what Error says, for errors.Is
}

// Failed reports whether anything went wrong, as opposed to having been stopped.
func (r Result) Failed() bool {
	for _, t := range r.Targets {
		if t.Error != "" {
			return true
		}
	}
	return false
}

// Outcome returns how the sweep ended, in the words of metrics.
func (r TargetResult) Outcome() metrics.Result {
	switch {
	case r.Error != "":
		return metrics.Failed
	case !r.Complete:
		return metrics.Incomplete
	}
	return metrics.Complete
}
