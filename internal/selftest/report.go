package selftest

import (
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// Page is the page that explains each check, in a section of its group's name.
const Page = "docs/selftest.md"

// A Group is a part of a report.
type Group string

// The groups, in the order in which they run.
const (
	Contract    Group = "contract"    // what each driver must do: store/storetest
	Sweeps      Group = "sweeps"      // what an operator does
	Assumptions Group = "assumptions" // what the documentation assumes of the service
)

// Groups returns all groups in their order.
func Groups() []Group { return []Group{Contract, Sweeps, Assumptions} }

// A Status is how a check ended.
type Status string

// The ways in which a check ends.
const (
	Passed    Status = "passed"
	Failed    Status = "failed"    // the store broke a promise
	Unchecked Status = "unchecked" // it could not be found out
)

// A Result is what one check found.
type Result struct {
	Name     string   `json:"name"`
	Group    Group    `json:"group"`
	Status   Status   `json:"status"`
	What     string   `json:"what"`     // the promise
	Why      string   `json:"why"`      // why it could not be checked; empty otherwise
	Evidence []string `json:"evidence"` // what was seen
	Tries    int      `json:"tries"`    // more than 1 if calls failed meanwhile
	Duration float64  `json:"duration_seconds"`
	Anchor   string   `json:"anchor"` // the section of Page
}

// A Latency is how long one sort of calls took.
type Latency struct {
	Call    string  `json:"call"`
	Count   int     `json:"count"`
	Failed  int     `json:"failed"` // so many of them
	Median  float64 `json:"median_seconds"`
	P95     float64 `json:"p95_seconds"`
	Longest float64 `json:"longest_seconds"`
}

// A Difference is something in which the store is not like the emulator of its mode.
type Difference struct {
	What     string `json:"what"`
	Here     string `json:"here"`
	Emulator string `json:"emulator"`
}

// A Report is what a self-test found.
type Report struct {
	Store       string           `json:"store"`
	Endpoint    string           `json:"endpoint"`
	ID          string           `json:"id"`
	Kinds       []string         `json:"kinds"`
	Started     time.Time        `json:"started"`
	Duration    float64          `json:"duration_seconds"`
	Complete    bool             `json:"complete"` // false if it was stopped, or reached a limit
	Stopped     string           `json:"stopped"`  // why it is not complete
	Results     []Result         `json:"checks"`
	Latencies   []Latency        `json:"latencies"`
	Differences []Difference     `json:"differences"`
	Operations  store.Operations `json:"operations"`
	Dollars     float64          `json:"dollars"` // at most, at the prices of nam5
	Cleaned     Cleaned          `json:"cleaned"`
	Earlier     []Cleaned        `json:"earlier"` // what was left by runs that were killed
}

// Count returns how many checks ended so.
func (r Report) Count(s Status) (n int) {
	for _, c := range r.Results {
		if c.Status == s {
			n++
		}
	}
	return n
}

// HasFindings reports whether the store broke a promise, something is left, or the run ended early.
func (r Report) HasFindings() bool { return r.Count(Failed) > 0 || !r.Cleaned.Empty || !r.Complete }

// A Cleaned is what cleaning up after a run did.
type Cleaned struct {
	ID       string   `json:"id"`
	Entities int64    `json:"entities"` // deleted
	Records  int64    `json:"records"`  // removed
	Empty    bool     `json:"empty"`    // nothing of the run is left, nor anything else in its kinds
	Foreign  []string `json:"foreign"`  // keys of entities that the run did not write, at most MostForeign; they are kept
	Error    string   `json:"error"`    // why not everything could be removed
	Duration float64  `json:"duration_seconds"`
}
