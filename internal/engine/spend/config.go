package spend

import (
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/chronicle"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/metrics"
)

// A Config says whose budget is spent, and how.
type Config struct {
	Rules   breaker.Rules
	Plan    plan.Rules  // of the same target
	Page    int         // entries of a page: the first slice that is asked for
	Hourly  bool        // a slice ends with its hour of the clock, by which limits count
	IsOnce  func() bool // one sweep gives up what cannot be counted; a daemon keeps trying
	Index   *index.Index
	Viewer  *view.Viewer
	Clock   *storeclock.Clock
	Log     *journal.Journal
	Story   *chronicle.Chronicle // nil without a history
	Metrics *metrics.Metrics
	Now     func() time.Time // this process's clock
}
