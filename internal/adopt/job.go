package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// An Order is what somebody asks of a run.
type Order string

// The orders.
const (
	Stamp  Order = "stamp"  // give keys to what has none
	Verify Order = "verify" // count what has no key, and keys that disagree with the rule
	Undo   Order = "undo"   // remove the keys that the rule gave

	beginDual Order = "dual"
)

// A Config says what is adopted and how. The zero Config writes nothing.
type Config struct {
	Sweep   sweep.Config // its Store, Workers, Owner, Now, Log and Apply
	Target  sweep.Target
	Rule    Rule
	Spread  time.Duration
	Percent float64
	Rate    throttle.Limits // of all processes together
	Order   Order           // empty stands for Stamp
	// AlsoWriters lets Undo run after writers have begun to give keys: keys that a writer gave are removed,
	// too, if they are those of the rule.
	AlsoWriters bool
	Actor       string
	// Announce is called with the expiries of a batch before they are written. It may be nil.
	// A brake that watches how much comes to be due learns of adopted entities here.
	Announce func(ctx context.Context, expiries []time.Time) error
	Progress *Progress // may be nil
}

// Progress is how far a run has come. It may be read at any time. An entity counts as scanned
// when the run is done with it.
type Progress struct {
	Scanned, Written, Parts, PartsDone atomic.Int64
	Expected                           atomic.Int64 // what Scanned will come to, as [Expect] found out; 0 before
}

// Errors of orders that do not fit what was adopted before. Nothing was changed.
var (
	ErrOtherRule   = errors.New("this target is adopted by another rule")
	ErrPercent     = errors.New("the percentage is lower than before")
	ErrPhase       = errors.New("the adoption is in another phase")
	ErrNotAdopted  = errors.New("this target is not being adopted")
	ErrForeign     = errors.New("the key property is used for something else")
	ErrUnsupported = errors.New("this store cannot adopt")
)

// A job is what somebody asks for, and what is needed to do it. It does not change.
type job struct {
	cfg     Config
	store   store.Store
	adopter store.Adopter
	keyer   store.Keyer
	log     *slog.Logger
	now     func() time.Time
}

func newJob(cfg Config) (*job, error) {
	adopter, ok := cfg.Sweep.Store.(store.Adopter)
	keyer, tells := cfg.Sweep.Store.(store.Keyer)
	if !ok || !tells {
		return nil, ErrUnsupported
	}
	cfg.Order = cmp.Or(cfg.Order, Stamp)
	if cfg.Progress == nil {
		cfg.Progress = new(Progress)
	}
	if cfg.Target.Retention > cfg.Target.MaxAge {
		return nil, fmt.Errorf("%w: max_age is shorter than retention", store.ErrInvalid)
	}
	if e, ok := cfg.Sweep.Store.(store.Exclusive); ok { // so that parts of an earlier opening are free at once
		cfg.Sweep.Owner = e.Opening() + "/" + cfg.Sweep.Owner
	}
	return &job{cfg, cfg.Sweep.Store, adopter, keyer, cfg.Sweep.Log, cfg.Sweep.Now}, nil
}

func (j *job) applies() bool { return j.cfg.Sweep.Apply && j.cfg.Order != Verify }

// resumes reports whether the order goes on with the record's last round.
func (j *job) resumes(rec Record) bool {
	switch j.cfg.Order {
	case Stamp:
		last := rec.Round()
		return rec.Phase != Undoing && last.Percent == j.cfg.Percent && last.Spread == j.cfg.Spread &&
			last.Retention == j.cfg.Target.Retention
	case Undo:
		return j.applies() && rec.Phase == Undoing
	}
	return false
}

// namespaces lists those in which entities are adopted.
func (j *job) namespaces(ctx context.Context) ([]string, error) {
	names := j.cfg.Target.Namespaces
	if len(names) == 0 {
		return []string{""}, nil
	}
	if names[0] != "*" {
		return names, nil
	}
	lister, ok := j.store.(store.Namespacer)
	if !ok {
		return nil, fmt.Errorf("%w: it does not list namespaces", ErrUnsupported)
	}
	return lister.Namespaces(ctx)
}

// pageSize is the most that one read returns.
func (j *job) pageSize() int { return max(1, min(j.cfg.Target.Page, store.MaxPage)) }

// query returns the walk of a namespace.
func (j *job) query(namespace string) store.WalkQuery {
	return store.WalkQuery{Target: j.cfg.Target.Target, Namespace: namespace, Source: j.cfg.Rule.Property,
		Limit: j.pageSize()}
}

// look reads some entities.
func (j *job) look(ctx context.Context, namespace string, keys []string) (rows []store.Row, err error) {
	var read store.Rows
	err = store.Retry(ctx, savePatience, func() error {
		return j.adopter.Look(ctx, j.query(namespace), keys, &read)
	})
	return read.List, err
}

// sourceTarget is the target as a store must see it to read the index of the rule's property.
func (j *job) sourceTarget() store.Target {
	t := j.cfg.Target.Target
	return store.Target{Name: t.Name, Kind: t.Kind, Group: t.Group, Property: j.cfg.Rule.Property, Type: store.Instant,
		Guard: store.GuardLookup}
}

// scan reads a page of that index.
func (j *job) scan(ctx context.Context, q store.Query) (page store.Page, err error) {
	err = store.Retry(ctx, savePatience, func() error { return j.store.Scan(ctx, q, &page) })
	return page, err
}
