package restore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Source is where the contents of entities come from.
type Source string

// The sources.
const (
	FromArchive Source = "archive"
	FromPITR    Source = "pitr" // the database's point-in-time recovery; the archive says what, and when
)

// A Selection says which lines of an archive are restored: those that fit all of it.
type Selection struct {
	Sweeps       []string  // of one of these; none stands for all
	IDs          []string  // of entities with one of these ids, or keys, and of what lies below them; likewise
	Since, Until time.Time // kept from then on, and before then; a zero time leaves that side open
}

// An Expiry says when what is restored expires. The zero Expiry is not valid.
type Expiry struct {
	In     time.Duration // so long after the restore began
	Spread time.Duration // and up to so much later, spread by a hash of the key
	Keep   bool          // when it did before
	Never  bool
}

// A Config says what is restored, and how. Without Apply of its sweep configuration nothing is written.
type Config struct {
	Sweep    sweep.Config // its Store, Owner, Grace, Now, Log and Apply
	Target   sweep.Target
	Bucket   archive.Bucket
	Pick     Selection
	Expiry   Expiry
	From     Source
	Others   []sweep.Target  // that may have some of the entities, too
	Database string          // what the archive must be of, as its headers name stores; empty: any
	Rate     throttle.Limits // entities a second
	Reason   string          // for the history
	// Order is what somebody asked for, in words: a run with the same words continues a restore that was killed.
	Order string
	// Abandon lets the run give up a restore that was not finished, even one with the same order.
	Abandon bool
	// Announce is called with the expiries of what was inserted. It may be nil.
	Announce func(ctx context.Context, expiries []time.Time) error
	Progress *Progress // may be nil
}

// Progress is how far a run has come. It may be read at any time.
type Progress struct {
	Objects, ObjectsRead   atomic.Int64 // of the plan
	Entities, EntitiesDone atomic.Int64
	Restored               atomic.Int64
}

// Errors of orders that cannot be carried out. Nothing was changed.
var (
	ErrUnsupported   = errors.New("this store cannot restore")
	ErrBusy          = errors.New("another restore of this target goes on")
	ErrUnfinished    = errors.New("another restore was not finished")
	ErrOtherKind     = errors.New("the archive is of another kind")
	ErrOtherDatabase = errors.New("the archive is of another database")
	ErrKeysOnly      = errors.New("the archive has keys alone")
	ErrNothing       = errors.New("the archive has nothing of this selection, and a restore was not finished")
	ErrSpan          = errors.New("the span does not begin before it ends")
	ErrTooMany       = errors.New("this is too much for one restore")
	ErrDue           = errors.New("entities would be due at once")
	ErrOtherTarget   = errors.New("another target would delete at once what comes back")
	ErrTooOld        = errors.New("point-in-time recovery no longer knows this time")
)

// ErrPartial is wrapped by the error of a restore that went through everything, and could not restore all of it.
var ErrPartial = errors.New("not everything could be restored")

const (
	// patience is how long a failing call is repeated, and callTimeout bounds one try. A stamp must be
	// written within the slack of its generation.
	patience    = 2 * time.Minute
	callTimeout = 30 * time.Second
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
)

// A job is what somebody asks for, and what is needed to do it. It does not change.
type job struct {
	Config

	store    store.Store
	archiver store.Archiver
	expirer  expirer // nil if the store tells no expiries
	keyer    store.Keyer
	log      *slog.Logger
	now      func() time.Time
}

func newJob(cfg Config) (*job, error) {
	archiver, ok := cfg.Sweep.Store.(store.Archiver)
	keyer, tells := cfg.Sweep.Store.(store.Keyer)
	if !ok || !tells {
		return nil, ErrUnsupported
	}
	if err := archiver.Archives(cfg.Target.Target); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if e := cfg.Expiry; (e.In > 0) == (e.Keep || e.Never) || e.Keep && e.Never || e.Spread > 0 && e.In <= 0 {
		return nil, fmt.Errorf("%w: an expiry is new, kept or none", store.ErrInvalid)
	}
	if cfg.Progress == nil {
		cfg.Progress = new(Progress)
	}
	if e, ok := cfg.Sweep.Store.(store.Exclusive); ok { // so that the lease of an earlier opening is void at once
		cfg.Sweep.Owner = e.Opening() + "/" + cfg.Sweep.Owner
	}
	j := &job{Config: cfg, store: cfg.Sweep.Store, archiver: archiver, keyer: keyer, log: cfg.Sweep.Log,
		now: cfg.Sweep.Now}
	j.expirer, _ = cfg.Sweep.Store.(expirer)
	return j, nil
}

// roots returns the keys of the entities that are selected by id.
func (j *job) roots(namespace string) (keys []string) {
	own, _ := j.keyer.Key(j.Target.Target, namespace, store.Entity{Name: "x"})
	for _, id := range j.Pick.IDs {
		// It may be a key. Where keys have kinds or collections in them, it is not one of these.
		if n := strings.Count(own, "/"); n == 0 || (strings.Count(id, "/")-n)%2 == 0 {
			keys = append(keys, id)
		}
		entities := []store.Entity{{Name: id}}
		if n := numberOf(id); n > 0 {
			entities = append(entities, store.Entity{Number: n})
		}
		for _, e := range entities {
			key, err := j.keyer.Key(j.Target.Target, namespace, e)
			if err != nil {
				continue // an id that no entity can have: it is a key
			}
			keys = append(keys, key)
		}
	}
	return keys
}

// grace is for how long what was done may still be told or noted after a stop.
func (j *job) grace() time.Duration { return max(j.Sweep.Grace, time.Second) }

// finishing returns a context for what must be told or noted of what was done. It outlasts a stop by the grace, and
// ends after a bound.
func (j *job) finishing(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := background.Graceful(ctx, j.grace(), background.ErrStopped)
	ctx, cancel := context.WithTimeout(ctx, bound)
	return ctx, func() { cancel(); stop() }
}

// call makes one call, which goes on for the grace if the run is to stop: what it did must be known.
func (j *job) call(ctx context.Context, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(j.Sweep.Grace, cancel) })
	defer stop()
	return do(bounded)
}
