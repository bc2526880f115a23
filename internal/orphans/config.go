package orphans

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// DefaultMax is how many orphans a run deletes at most, unless it is told otherwise.
const DefaultMax = 10_000

// A Config says in which target orphans are looked for. The zero Config deletes nothing.
type Config struct {
	Sweep      sweep.Config // its Store, Workers, Grace, Now, Log and Apply
	Target     sweep.Target
	Owners     []store.Target  // all targets that are configured: entities with their expiry stay
	Everywhere bool            // read whole namespaces, also if the target has a span of its own
	From       Place           // go on behind this place; zero is before all
	Max        int64           // most orphans that are deleted, by all workers of the run; zero means DefaultMax
	Unlimited  bool            // there is no Max
	Rate       throttle.Limits // deletes a second of all workers of the run
	Progress   *Progress       // may be nil
}

// A Place is one between keys: behind a key, and all that lies below it.
type Place struct {
	Namespace string `json:"namespace"`
	Key       string `json:"key"` // of a root, as [store.Relative] has it
}

// Progress is how far a run has come. It may be read at any time.
type Progress struct {
	Read, Orphans, Deleted, Parts, PartsDone atomic.Int64
}

// Errors of orders that cannot be carried out. Nothing was changed.
var (
	// ErrUnsupported is the error for a store whose entities have no descendants.
	ErrUnsupported = errors.New("this store has no descendants")
	// ErrScattered is the error for a collection group, unless everything may be read.
	ErrScattered = errors.New("the documents of a collection group may be anywhere")
	// ErrNamespace is the error for a place in a namespace that the target does not have.
	ErrNamespace = errors.New("the target does not have this namespace")
	// ErrMidst is the error for a place in the midst of what lies below a root: what was read there
	// before might have shown that the rest stays.
	ErrMidst = errors.New("a run goes on behind a whole root")
)

// ErrMax is why a run stopped that had deleted as many orphans as it may.
var ErrMax = errors.New("there are more orphans than may be deleted")

// ErrPartial is the error of a run that is complete but for these.
var ErrPartial = errors.New("the store refuses to delete orphans")

// A job is what somebody asks for, and what is needed to do it. It does not change.
type job struct {
	Config

	store store.Orphaner
}

func newJob(cfg Config) (*job, error) {
	orphaner, ok := cfg.Sweep.Store.(store.Orphaner)
	switch {
	case !ok:
		return nil, ErrUnsupported
	case cfg.Target.Group && !cfg.Everywhere:
		return nil, fmt.Errorf("%w: looking for orphans of target %s reads each document of the database", ErrScattered,
			cfg.Target.Name)
	}
	if cfg.Progress == nil {
		cfg.Progress = new(Progress)
	}
	if cfg.Max == 0 {
		cfg.Max = DefaultMax
	}
	return &job{cfg, orphaner}, nil
}

// newSwitches returns what says whether the target may be deleted from.
func (j *job) newSwitches() *switches.Switches {
	t := j.Target
	cfg := switches.Config{Store: j.Sweep.Store, Target: t.Name, Shards: t.Shards, Lease: t.Lease, Gate: t.Gate,
		Now: j.Sweep.Now, Log: j.Sweep.Log, Work: "deleting orphans"}
	if t.Archive != nil { // which names its objects by this clock, and is pruned by the store's
		cfg.Clock = storeclock.New(j.Sweep.Now, t.MaxClockSkew)
	}
	return switches.New(cfg)
}

// namespaces lists those in which orphans are looked for: from the one of the place on.
func (j *job) namespaces(ctx context.Context) (names []string, err error) {
	names = j.Target.Namespaces
	switch {
	case len(names) == 0:
		names = []string{""}
	case names[0] == "*":
		lister, ok := j.Sweep.Store.(store.Namespacer)
		if !ok {
			return nil, fmt.Errorf("%w: it does not list namespaces", ErrUnsupported)
		}
		err = store.Retry(ctx, patience, func() (err error) {
			names, err = lister.Namespaces(ctx)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if j.From == (Place{}) {
		return names, nil
	}
	for i, ns := range names {
		if ns == j.From.Namespace {
			return names[i:], nil
		}
	}
	return nil, fmt.Errorf("%w: %q of target %s", ErrNamespace, j.From.Namespace, j.Target.Name)
}

// query returns the lineage of a namespace.
func (j *job) query(namespace string, whole bool) store.LineageQuery {
	return store.LineageQuery{Target: j.Target.Target, Namespace: namespace, Whole: whole, Owners: j.Owners,
		Limit: store.MaxPage}
}
