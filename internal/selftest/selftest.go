package selftest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

const (
	// DefaultWithin is how long all checks together take at most. Cleaning up comes on top.
	DefaultWithin = 10 * time.Minute

	checkWithin = 2 * time.Minute
	locksWithin = 6 * time.Minute
	mostTries   = 3
)

// ErrInUse is wrapped by the error for scratch kinds or records that are there already.
var ErrInUse = errors.New("the scratch kind is in use")

// ErrNoCheck is wrapped by the error for the name of a check that does not exist.
var ErrNoCheck = errors.New("no such check")

// A Setup says what is tested.
type Setup struct {
	Store    Database
	Spec     string         // of the store, for people
	Endpoint string         // where calls go; empty for an embedded store
	Mode     Mode           // what the differences are taken from
	Caps     storetest.Caps // of the driver; Namespaces only says whether there are any
	ID       string         // of the run
	Checks   []string       // names of those to make; empty for all
	Skip     []string       // names of those to leave out
	Within   time.Duration
	Now      func() time.Time
	Progress func(name string, number, of int) // called before each check; may be nil
}

// A run is one self-test at work.
type run struct {
	setup   Setup
	scratch scratch
	ledger  *ledger
	touched *touched
	facts   map[string]string // what the store showed, by what was asked
	stopped string            // why no more checks are made
}

func newRun(s Setup) *run {
	r := &run{setup: s, scratch: scratch{s.ID}, touched: new(touched), facts: map[string]string{},
		ledger: newLedger(s.Now, s.Mode != Embedded)}
	r.setup.Caps.Scratch = &storetest.Scratch{Kind: r.scratch.kind(), Target: r.scratch.target()}
	r.setup.Caps.Small, r.setup.Caps.Clock = true, s.Now
	if len(s.Caps.Namespaces) > 0 {
		r.setup.Caps.Namespaces = []string{r.scratch.namespace()}
	}
	return r
}

// fence returns the store as checks see it.
func (r *run) fence(h hooks) Database {
	f := &fence{in: r.setup.Store, scratch: r.scratch, ledger: r.ledger, touched: r.touched, hooks: h}
	return f.shape()
}

// cleaner removes what the run of a scratch has written.
func (r *run) cleaner(s scratch) *cleaner {
	f := &fence{in: r.setup.Store, scratch: s, ledger: r.ledger, touched: new(touched), cleaning: true}
	return &cleaner{db: f.shape(), scratch: s, spaces: s.namespaces(len(r.setup.Caps.Namespaces) > 0)}
}

// Clean removes what a run has left. It can be repeated.
func Clean(ctx context.Context, s Setup) (Cleaned, error) {
	if err := CheckID(s.ID); err != nil {
		return Cleaned{}, err
	}
	r := newRun(s)
	return r.cleaner(r.scratch).all(ctx, s.Now), nil
}

// Run makes all checks, and cleans up after them, also when ctx is done. It fails if it could
// not begin: then it has written nothing that is left.
func Run(ctx context.Context, s Setup) (Report, error) {
	checks, err := choose(s)
	if err != nil {
		return Report{}, err
	}
	r, began := newRun(s), s.Now()
	rep := Report{Store: s.Spec, Endpoint: s.Endpoint, ID: s.ID, Kinds: r.scratch.kinds(), Started: began.UTC().Round(0),
		Results: []Result{}, Earlier: []Cleaned{}}
	if rep.Earlier, err = r.begin(ctx); err != nil {
		return rep, err
	}
	working, cancel := context.WithTimeout(ctx, s.Within)
	for i, c := range checks {
		if s.Progress != nil && r.stopped == "" {
			s.Progress(c.name, i+1, len(checks))
		}
		rep.Results = append(rep.Results, r.check(working, c))
	}
	cancel()
	rep.Cleaned = r.cleaner(r.scratch).all(context.WithoutCancel(ctx), s.Now)
	rep.Stopped, rep.Complete = r.stopped, r.stopped == ""
	rep.Latencies, rep.Operations = r.ledger.latencies(), r.ledger.operations()
	if s.Mode != Embedded {
		rep.Dollars = dollars(rep.Operations)
	}
	rep.Differences = r.differences()
	rep.Duration = s.Now().Sub(began).Seconds()
	return rep, nil
}

// Names lists all checks that a store with these capabilities is asked to make.
func Names(s Setup) (names []string) {
	for _, c := range newRun(s).checks() {
		names = append(names, c.name)
	}
	return names
}

// choose returns the checks that are to be made.
func choose(s Setup) ([]check, error) {
	if err := CheckID(s.ID); err != nil {
		return nil, err
	}
	all := newRun(s).checks()
	for _, name := range slices.Concat(s.Checks, s.Skip) {
		if !slices.ContainsFunc(all, func(c check) bool { return c.name == name }) {
			return nil, fmt.Errorf("%w: %q; %s names all", ErrNoCheck, name, Page)
		}
	}
	return slices.DeleteFunc(all, func(c check) bool {
		return len(s.Checks) > 0 && !slices.Contains(s.Checks, c.name) || slices.Contains(s.Skip, c.name)
	}), nil
}

// begin cleans up after runs that were killed, refuses kinds that are in use, and writes down
// that this run is under way.
func (r *run) begin(ctx context.Context) ([]Cleaned, error) {
	earlier := []Cleaned{}
	db := r.fence(hooks{})
	overdue, now, err := loadJournal(ctx, db)
	if err != nil {
		return earlier, err
	}
	for _, id := range overdue {
		earlier = append(earlier, r.cleaner(scratch{id}).all(ctx, r.setup.Now))
	}
	if err := r.refuse(ctx, db); err != nil {
		return earlier, err
	}
	// Once Within and CleanWithin have passed, the run is dead.
	err = r.scratch.register(ctx, db, now.Add(r.setup.Within+2*CleanWithin))
	if err != nil && store.MayHaveHappened(err) {
		r.cleaner(r.scratch).all(context.WithoutCancel(ctx), r.setup.Now)
	}
	return earlier, err
}

// refuse returns an error if the scratch kinds or records hold anything.
func (r *run) refuse(ctx context.Context, db Database) error {
	hint := "nothing was written. Take another id, or remove what such a run has left: reaper selftest --clean " +
		r.scratch.id
	for _, space := range r.scratch.namespaces(len(r.setup.Caps.Namespaces) > 0) {
		for _, kind := range r.scratch.kinds() {
			var holds bool
			err := store.Retry(ctx, patience, func() (err error) {
				holds, err = db.Holds(ctx, r.scratch.storeTarget(kind), space)
				return err
			})
			if err != nil {
				return fmt.Errorf("look whether %s is empty: %w", kind, err)
			}
			if holds {
				return store.WithHint(fmt.Errorf("%w: %s holds entities", ErrInUse, kind), hint)
			}
		}
	}
	for _, target := range r.scratch.targets() {
		for _, sort := range sorts {
			got, err := loadOne(ctx, db, sort, target)
			switch {
			case err != nil:
				return fmt.Errorf("look for records of the target %s: %w", target, err)
			case r.scratch.whoseTarget(got) != nil:
				return store.WithHint(r.scratch.whoseTarget(got), "nothing was written. Take another id")
			case len(got.List) > 0:
				return store.WithHint(fmt.Errorf("%w: there is a record %s of the target %s", ErrInUse, sort, target), hint)
			}
		}
	}
	return nil
}

// loadOne reads a record of a target.
func loadOne(ctx context.Context, db Database, sort store.RecordSort, target string) (got store.Records, err error) {
	err = store.Retry(ctx, patience, func() (err error) {
		got, err = db.Load(ctx, store.RecordQuery{Sort: sort, Target: target, Limit: 1})
		return err
	})
	return got, err
}

// A check is one promise, and how it is tried.
type check struct {
	name  string
	group Group
	what  string
	why   string // why it does not apply; empty if it does
	idle  bool   // it asks the store nothing, and is made even if the run was stopped
	test  func(*bench)
}

// A bench is a check at work.
type bench struct {
	*tb

	run *run
	db  Database
}

// checks returns all checks, in the order in which they are made.
func (r *run) checks() []check {
	contract, last := contractChecks(r.setup.Caps)
	return slices.Concat(contract, sweepChecks(guardsOf(r.setup.Store)), assumptionChecks(), last)
}

// check makes one check, again if calls failed meanwhile that need not fail, and cleans up.
func (r *run) check(ctx context.Context, c check) Result {
	res := Result{Name: c.name, Group: c.group, Status: Unchecked, What: c.what, Why: c.why, Evidence: []string{},
		Anchor: Page + "#" + string(c.group)}
	if r.stopped != "" && !c.idle {
		res.Why = r.stopped
	}
	began := r.setup.Now()
	var before []string // what earlier tries failed by
	for res.Why == "" && res.Status != Passed && res.Tries < mostTries {
		res.Tries++
		r.ledger.begin()
		failures, notes, why := r.try(ctx, c)
		trouble := r.ledger.troubles()
		res.Evidence = slices.Concat(before, failures, notes)
		for _, failure := range failures {
			before = append(before, fmt.Sprintf("try %d, in which %d of %d calls failed: %s", res.Tries, trouble.transient,
				trouble.calls, failure))
		}
		switch {
		case why != "" && len(failures) == 0:
			res.Why = why
		case len(failures) == 0:
			res.Status = Passed
		default:
			again, why := false, ""
			if !c.idle {
				again, why = r.judge(ctx, trouble)
			}
			if res.Why = why; why == "" && !again {
				res.Status = Failed
				res.Duration = r.setup.Now().Sub(began).Seconds()
				return res
			}
			if again && res.Tries == mostTries {
				res.Why = fmt.Sprintf("%d of %d calls failed meanwhile: %v", trouble.transient, trouble.calls, trouble.last)
			}
		}
	}
	res.Duration = r.setup.Now().Sub(began).Seconds()
	return res
}

// try runs a check once, and cleans up after it.
func (r *run) try(ctx context.Context, c check) (failures, notes []string, why string) {
	within := checkWithin
	if c.name == nameLocks {
		within = locksWithin
	}
	within = min(within, r.setup.Within)
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	t := &tb{ctx: bounded}
	t.run(func() { c.test(&bench{t, r, r.fence(hooks{})}) })
	entities, records := r.touched.take()
	cleaner := r.cleaner(r.scratch)
	if err := cleaner.spots(bounded, entities, records); err != nil && bounded.Err() == nil {
		t.Errorf("clean up after the check: %v", err)
	}
	if len(cleaner.foreign) > 0 {
		r.stopped = fmt.Sprintf("somebody else writes to %s: %q", r.scratch.kind(), cleaner.foreign)
	}
	return t.result()
}

// judge says why a failure is not the store's, or whether the check is to be made again.
func (r *run) judge(ctx context.Context, t trouble) (again bool, why string) {
	switch {
	case ctx.Err() != nil:
		r.stopped = "no time was left"
		if errors.Is(ctx.Err(), context.Canceled) {
			r.stopped = "the self-test was stopped"
		}
		return false, r.stopped
	case t.denied != nil:
		r.stopped = t.denied.Error()
		return false, r.stopped
	case r.ledger.allows() != nil:
		r.stopped = errLimit.Error()
		return false, r.stopped
	case t.missing != nil:
		r.facts[factIndexes] = "yes"
		return false, t.missing.Error()
	case t.lacking != nil:
		return false, t.lacking.Error()
	}
	return t.transient > 0, ""
}
