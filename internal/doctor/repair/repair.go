package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// The findings that can be repaired.
const (
	RecordLost         = "record-lost"
	RecordMalformed    = "record-malformed"
	TargetRenamed      = "target-renamed"
	TargetUnconfigured = "target-unconfigured"
	WorkerDead         = "worker-dead"
)

// repairs has the repair of each finding.
var repairs = map[string]func(*run, context.Context) error{
	RecordLost:         (*run).rebuildRecords,
	RecordMalformed:    (*run).rebuildRecords,
	TargetRenamed:      (*run).removeTargets,
	TargetUnconfigured: (*run).removeTargets,
	WorkerDead:         (*run).removeHeartbeats,
}

// IDs lists the findings that can be repaired.
func IDs() []string { return slices.Sorted(maps.Keys(repairs)) }

const (
	// LeastUnused is the shortest OlderThan for the records of a target: a process that slept for
	// less may write by what it has read before.
	LeastUnused = time.Hour
	// DefaultUnused is how long nobody must have used the records of a target.
	DefaultUnused = 30 * 24 * time.Hour
	// DefaultSilent is how long nothing must have been heard of a process.
	DefaultSilent = time.Hour
)

// A Config says what is repaired.
type Config struct {
	ID   string // of the finding
	Spec string // of the store, as in --store
	// Sweep has the store, the targets to repair, and how the change is told in their history.
	Sweep sweep.Config
	All   []sweep.Target // of the configuration
	// Names are the targets, which nobody configures, whose records go. Without them a repair
	// that does not apply examines all.
	Names     []string
	OlderThan time.Duration // zero means DefaultUnused or DefaultSilent
	Apply     bool
}

// TakesNames reports whether a repair is of targets that nobody configures.
func TakesNames(id string) bool { return id == TargetRenamed || id == TargetUnconfigured }

// The actions of a repair.
const (
	Remove  = "remove"
	Rebuild = "rebuild"
)

// A Change is what a repair changes, or would change.
type Change struct {
	Target   string   `json:"target"`
	Action   string   `json:"action"` // remove or rebuild
	Record   string   `json:"record"` // what the records are called in the store, such as ReaperWorker
	Key      string   `json:"key"`    // of the record; empty for several
	Count    int      `json:"count"`  // of records
	Done     int      `json:"done"`   // how many of them were changed
	Evidence []string `json:"evidence"`
}

// A Left is what a repair has examined and leaves alone.
type Left struct {
	Target string `json:"target"`
	Record string `json:"record"` // empty if it is about the target as a whole
	Key    string `json:"key"`
	Why    string `json:"why"`
	Failed bool   `json:"failed"` // it is not right yet, and was not mended
}

// A Result is what a repair has done, in the form that `reaper doctor --repair --json` prints.
type Result struct {
	Store   string    `json:"store"`
	Repair  string    `json:"repair"`
	Apply   bool      `json:"apply"`
	Now     time.Time `json:"now"`
	Changes []Change  `json:"changes"`
	Left    []Left    `json:"left"`
	Kept    string    `json:"kept"` // what stays of targets that are removed; empty without any
}

// Failed reports whether something is not right yet, though it was to be mended.
func (r Result) Failed() bool {
	return slices.ContainsFunc(r.Left, func(l Left) bool { return l.Failed })
}

// ErrUsage is wrapped by the errors for a repair that cannot be asked for like that.
var ErrUsage = errors.New("cannot repair")

// Check returns what is wrong with a config, before anything is read.
func (c Config) Check() error {
	switch {
	case repairs[c.ID] == nil:
		return fmt.Errorf("%w: %q is not a finding that a program can mend: want %s", ErrUsage, c.ID,
			strings.Join(IDs(), ", "))
	case len(c.Names) > 0 && !TakesNames(c.ID):
		return fmt.Errorf("%w: names of targets that nobody configures are for %s and %s only", ErrUsage,
			TargetUnconfigured, TargetRenamed)
	case TakesNames(c.ID) && c.Apply && len(c.Names) == 0:
		return fmt.Errorf("%w: %s needs the name of each target whose records go: without --apply it lists them",
			ErrUsage, c.ID)
	case TakesNames(c.ID) && c.OlderThan != 0 && c.OlderThan < LeastUnused:
		return fmt.Errorf("%w: %v is too short to tell that nobody uses a target: want at least %v", ErrUsage,
			c.OlderThan, LeastUnused)
	case c.OlderThan != 0 && !TakesNames(c.ID) && c.ID != WorkerDead:
		return fmt.Errorf("%w: %s goes by no age", ErrUsage, c.ID)
	}
	for _, name := range c.Names {
		if slices.ContainsFunc(c.All, func(t sweep.Target) bool { return t.Name == name }) {
			return fmt.Errorf("%w: the target %s is in the targets file, so its records are in use", ErrUsage, name)
		}
	}
	return nil
}

// Run makes one repair. Its error says why it could not examine everything; what the result
// has was examined, and done, anyway.
func Run(ctx context.Context, c Config) (Result, error) {
	if err := c.Check(); err != nil {
		return Result{}, err
	}
	r := &run{Config: c, records: patient{c.Sweep.Store}}
	r.result = Result{Store: c.Spec, Repair: c.ID, Apply: c.Apply, Now: c.Sweep.Now().UTC(), Changes: []Change{},
		Left: []Left{}}
	err := repairs[c.ID](r, ctx)
	return r.result, err
}

// A run is one repair.
type run struct {
	Config
	records patient
	result  Result
}

// each calls do for each target. What is wrong with one keeps no other from being repaired, but a
// store that refuses or fails one will do so with all. A record that cannot be decoded is wrong with one.
func each[T any](r *run, list []T, do func(T) (name string, err error)) error {
	var errs []error
	for i, t := range list {
		name, err := do(t)
		if err == nil {
			continue
		}
		if errors.Is(err, store.ErrCorrupt) {
			r.fail(leftUndecodable(name, err))
			continue
		}
		errs = append(errs, fmt.Errorf("target %s: %w", name, err))
		if rest := len(list) - i - 1; rest > 0 && store.IsMapped(err) {
			errs = append(errs, fmt.Errorf("%d more targets were not examined", rest))
			break
		}
	}
	return errors.Join(errs...)
}

// change notes what is changed, and returns where to count it.
func (r *run) change(c Change) *Change {
	c.Count = max(c.Count, 1)
	if c.Evidence == nil {
		c.Evidence = []string{}
	}
	r.result.Changes = append(r.result.Changes, c)
	return &r.result.Changes[len(r.result.Changes)-1]
}

// leave notes what stays as it is, and that this is right.
func (r *run) leave(l Left) { r.result.Left = append(r.result.Left, l) }

// fail notes what stays as it is, though it is not right.
func (r *run) fail(l Left) {
	l.Failed = true
	r.leave(l)
}

// An undecodable is the error for a record that the store cannot decode, with what was asked for.
type undecodable struct {
	error

	sort store.RecordSort
	key  string // empty if several were asked for
}

func (u *undecodable) Unwrap() error { return u.error }

// leftUndecodable says which record of a target keeps it from being repaired. It cannot be written over:
// a compare-and-set needs its revision.
func leftUndecodable(target string, err error) Left {
	l := Left{Target: target}
	var u *undecodable
	if errors.As(err, &u) {
		l.Record, l.Key, err = string(u.sort), u.key, u.error
	}
	l.Why = "the store cannot decode it: remove it by hand, or take it from a backup: " + oneLine(err.Error())
	return l
}

const (
	callTimeout = 10 * time.Second
	patience    = 30 * time.Second
)

// A patient store repeats reads and writes of records that fail for a while. A repeated write
// finds its own revision.
type patient struct{ store.Store }

func (p patient) Load(ctx context.Context, q store.RecordQuery) (got store.Records, err error) {
	err = retry(ctx, func(ctx context.Context) (err error) {
		got, err = p.Store.Load(ctx, q)
		return err
	})
	if errors.Is(err, store.ErrCorrupt) {
		u := &undecodable{error: err, sort: q.Sort}
		if len(q.Keys) == 1 {
			u.key = q.Keys[0]
		}
		err = u
	}
	return got, err
}

func (p patient) Save(ctx context.Context, rec store.Record, prev string) error {
	return retry(ctx, func(ctx context.Context) error { return p.Store.Save(ctx, rec, prev) })
}

func retry(ctx context.Context, call func(context.Context) error) error {
	return store.Retry(ctx, patience, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return call(ctx)
	})
}

// raw reads one record as it is; found is false without one. Now is the store's time.
func (p patient) raw(
	ctx context.Context, sort store.RecordSort, target, key string,
) (rec store.Record, found bool, now time.Time, err error) {
	got, err := p.Load(ctx, store.RecordQuery{Sort: sort, Target: target, Keys: []string{key}})
	if err != nil {
		return rec, false, now, fmt.Errorf("load %s %s: %w", sort, key, err)
	}
	if len(got.List) == 0 {
		return rec, false, got.Now, nil
	}
	return got.List[0], true, got.Now, nil
}

// remove removes a record, unless it has changed; it then fails with store.ErrConflict.
func (p patient) remove(ctx context.Context, sort store.RecordSort, target, key, revision string) error {
	gone := store.Record{Sort: sort, Key: key, Target: target, Revision: store.NewRevision(revision)}
	if err := p.Save(ctx, gone, revision); err != nil {
		return fmt.Errorf("remove %s %s: %w", sort, key, err)
	}
	return nil
}

// ago says when something was, and how long ago that is.
func ago(now, at time.Time) string {
	return fmt.Sprintf("%s (%s ago)", at.UTC().Format(time.RFC3339), inspect.Age(now.Sub(at)))
}
