package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A Setup is what is examined.
type Setup struct {
	Spec     string // of the store, as in --store
	Mode     string // facts.NativeMode or facts.DatastoreMode; empty for an embedded store
	Endpoint string
	// Sweep has the store, which is nil if it could not be opened, and the targets to examine.
	Sweep   sweep.Config
	OpenErr error          // why the store could not be opened
	All     []sweep.Target // of the configuration, also those that are not to be examined
	Getenv  func(string) string
	Within  time.Duration // for all checks together; zero means DefaultWithin
}

// DefaultWithin is how long a doctor takes at most unless somebody says otherwise.
const DefaultWithin = 9 * time.Second

// atOnce is how many checks run at the same time: most wait for the store.
const atOnce = 32

// Run makes all checks and returns what they have found. It writes nothing.
func Run(ctx context.Context, s Setup) Report {
	if s.Within <= 0 {
		s.Within = DefaultWithin
	}
	if s.Getenv == nil {
		s.Getenv = func(string) string { return "" }
	}
	s.Sweep.Apply, s.Sweep.Log = false, slog.New(slog.DiscardHandler) // what goes wrong is a finding
	began := s.Sweep.Now()
	whole, cancel := context.WithTimeout(ctx, s.Within)
	defer cancel()
	x := &exam{Setup: s, whole: whole, slots: make(chan struct{}, atOnce)}
	x.report = Report{Store: s.Spec, Endpoint: s.Endpoint, Version: s.Sweep.Version, Now: began.UTC(),
		Targets: []string{}, Findings: []Finding{}, Unchecked: []Unchecked{}}
	for _, t := range s.Sweep.Targets {
		x.report.Targets = append(x.report.Targets, t.Name)
	}
	x.run()
	x.report.Duration = s.Sweep.Now().Sub(began).Seconds()
	x.report.tidy()
	return x.report
}

// An exam is one run of all checks.
type exam struct {
	Setup
	whole context.Context // it bounds this one run
	slots chan struct{}
	group errgroup.Group

	mu     sync.Mutex
	report Report
}

func (x *exam) run() {
	x.checkEmulator()
	x.checkOverlaps()
	if d, ok := x.Sweep.Store.(describer); ok {
		x.start("database", "", func(ctx context.Context) error { return x.checkDatabase(ctx, d) })
	}
	if p, ok := x.Sweep.Store.(permissionTester); ok { // an embedded store has none
		x.start("permissions", "", func(ctx context.Context) error { return x.checkPermissions(ctx, p) })
	}
	switch {
	case x.OpenErr != nil:
		x.findUnusable("", x.OpenErr)
		x.skip("targets", "", "the store could not be opened")
	case x.reach():
		if l, ok := x.Sweep.Store.(targetLister); ok {
			x.start("target records", "", func(ctx context.Context) error { return x.checkUnconfigured(ctx, l) })
		}
		for _, t := range x.Sweep.Targets {
			x.startTarget(t)
		}
	default:
		x.skip("targets", "", "the store cannot be read")
	}
	// No check returns an error: what it could not do is in the report.
	if err := x.group.Wait(); err != nil {
		x.skip("all", "", err.Error())
	}
}

// A check looks for some findings. Its error is why it could not.
type check func(ctx context.Context) error

// start makes a check as soon as there is room for it.
func (x *exam) start(id, target string, do check) {
	x.begin(func() { x.perform(id, target, do) })
}

// begin runs do in the background. A panic of one check must not end the others.
func (x *exam) begin(do func()) {
	background.Go(&x.group, func() error {
		do()
		return nil
	})
}

// perform makes a check within its own deadline, and reports whether it could be made.
func (x *exam) perform(id, target string, do check) (made bool) {
	select {
	case x.slots <- struct{}{}:
	case <-x.whole.Done():
		x.skip(id, target, x.why(x.whole.Err()))
		return false
	}
	defer func() { <-x.slots }()
	ctx, cancel := context.WithTimeout(x.whole, x.each())
	defer cancel()
	err := background.Protect(func() error { return do(ctx) })
	if err != nil {
		x.skip(id, target, x.why(err))
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.report.Checks++
	return true
}

// each is how long one check may take.
func (x *exam) each() time.Duration { return x.Within * 2 / 3 }

// why says why a check could not be made.
func (x *exam) why(err error) string {
	switch {
	case errors.Is(err, facts.ErrEmulated):
		return facts.ErrEmulated.Error()
	case errors.Is(err, context.Canceled):
		return "it was interrupted"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, store.ErrDeadline):
		return fmt.Sprintf("the store did not answer in time: --wait %v gives it longer", 4*x.Within)
	}
	return oneLine(err.Error())
}

// skip notes a check that could not be made.
func (x *exam) skip(id, target, why string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.report.Unchecked = append(x.report.Unchecked, Unchecked{id, target, why})
}

// find notes a finding. Its severity and group come with its id.
func (x *exam) find(f Finding) {
	k, ok := kinds[f.ID]
	if !ok {
		panic("a finding without a kind: " + f.ID)
	}
	f.Severity, f.Group, f.Anchor = k.severity, k.group, Page+"#"+f.ID
	if f.Evidence == nil {
		f.Evidence = []string{}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.report.Findings = append(x.report.Findings, f)
}

// anySkew is more than two clocks ever differ.
const anySkew = 200 * 365 * 24 * time.Hour

// startTarget makes the checks of a target. Most need what its records say.
func (x *exam) startTarget(t sweep.Target) {
	t.MaxClockSkew = anySkew // a clock that is wrong is one finding, and hides no other
	x.start("sample", t.Name, func(ctx context.Context) error { return x.checkSample(ctx, t) })
	if l, ok := x.Sweep.Store.(fieldLister); ok {
		x.start("field policies", t.Name, func(ctx context.Context) error { return x.checkFields(ctx, l, t) })
	}
	x.start("heartbeats", t.Name, x.ofRecords(t, x.checkHeartbeats))
	x.start("history", t.Name, x.ofRecords(t, x.checkConfig))
	x.start("adoption", t.Name, x.ofRecords(t, x.checkAdoption))
	x.begin(func() {
		var s *sweep.Snapshot
		made := x.perform("records", t.Name, func(ctx context.Context) (err error) {
			s, err = x.checkRecords(ctx, t)
			return err
		})
		if !made || s == nil {
			x.skip("state and data", t.Name, "its records could not be read")
			return
		}
		for id, do := range map[string]func(context.Context, *sweep.Snapshot) error{
			"hold": x.checkHold, "status": x.checkStatus, "breaker": x.checkBudget, "malformed": x.checkMalformed,
			"suspect": x.checkSuspect, "outside": x.checkOutside, "lives": x.checkLives,
		} {
			x.start(id, t.Name, func(ctx context.Context) error { return do(ctx, s) })
		}
		past := func(ctx context.Context, _ sweep.Target) error { return x.checkPast(ctx, s) }
		x.start("past", t.Name, x.ofRecords(t, past))
	})
}
