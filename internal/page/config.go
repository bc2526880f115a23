package page

import (
	"context"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A Config says what a page shows.
type Config struct {
	Store   string // as --store has it
	Version string // of the program
	Mode    Mode
	IDs     bool     // ids of entities are shown
	Hosts   []string // names of this host in addition to those that it knows itself
	Targets []Target
	Source  Source
	// States is what this process knows of its targets, and Own what it knows of the ranges of one; nil
	// if it does not collect.
	States func() []sweep.State
	Own    func(target string) sweep.Own
	Now    func() time.Time
	Log    *slog.Logger
}

// A Mode is what the process of a page does in addition to showing it.
type Mode string

// The modes.
const (
	Shows   Mode = "shows"    // reaper page
	DryRuns Mode = "dry run"  // reaper serve without --apply
	Deletes Mode = "collects" // reaper serve
)

// A Target is what a page knows of a target by its configuration.
type Target struct {
	Name, Kind, Layout string
	Schedule           string // as it was written; empty if this process does not collect
}

// A Source reads what the page shows. Each method reads from the store and writes nothing.
type Source interface {
	// Status may leave out counting what last has.
	Status(ctx context.Context, target string, last inspect.BehindCount) (inspect.TargetStatus, error)
	Breaker(ctx context.Context, target string) (inspect.BreakerStatus, error)
	// History reads all records from an instant on, at most so many.
	History(ctx context.Context, target string, since time.Time, limit int) (inspect.TargetHistory, error)
	Doctor(ctx context.Context) (doctor.Report, error)
	Explain(ctx context.Context, q Question) (inspect.Explanation, error)
	// Prices returns what operations cost where the store is, as far as that is proven.
	Prices(ctx context.Context) (forecast.Prices, error)
	// Plan forecasts a target by its records and its history. It counts nothing: as much is due as was seen.
	Plan(ctx context.Context, target string, due int64) (Plan, error)
}

// A Plan is a forecast of a target.
type Plan struct {
	Text     string // for people, as reaper plan prints it
	Document any    // for programs, as reaper plan --json prints it
}

// A Question names an entity that is to be explained.
type Question struct {
	Target, Namespace string
	ID                store.Entity
}
