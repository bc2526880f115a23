package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/restore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A lister is a store that lists the targets of which it has records.
type lister interface {
	RecordedTargets(ctx context.Context, most int) ([]string, error)
}

const (
	// mostNames bounds how many targets are examined by one repair that was given no names.
	mostNames = 500
	// removersAtOnce is how many records are removed at the same time.
	removersAtOnce = 8
)

// sorts are the records of a target, in the order in which they are removed, and the newest
// version of each that this program reads. A range without a cursor counts as empty only if its
// generation has a seal, so seals go first. The budget goes last, after the target record: a target
// record that was swept by has no breaker without its budget, since a new one only learns, while one
// that a sweep makes again is unswept ground, whatever the budget says.
var sorts = []struct {
	sort   store.RecordSort
	schema int64
}{
	{store.SealRecord, cursor.SealSchema},
	{store.CursorRecord, cursor.Schema},
	{store.AdoptRecord, adopt.Schema},
	{store.RestoreRecord, restore.Schema},
	{store.WorkerRecord, cursor.HeartbeatSchema},
	{store.TargetRecord, generation.Schema},
	{store.BudgetRecord, breaker.Schema},
}

// keptHistory is what stays of a target that is removed.
const keptHistory = "the history stays (ReaperSweep): it says who has deleted what"

// removeTargets removes the records of targets that nobody configures.
func (r *run) removeTargets(ctx context.Context) error {
	names, more := slices.Clone(r.Names), error(nil)
	if len(names) == 0 {
		var err error
		if names, err = r.recorded(ctx); err != nil {
			return err
		}
		if len(names) > mostNames {
			names = names[:mostNames]
			more = fmt.Errorf("only the first %d targets that have records were examined: give the names of others", mostNames)
		}
		names = slices.DeleteFunc(names, func(name string) bool {
			return slices.ContainsFunc(r.All, func(t sweep.Target) bool { return t.Name == name })
		})
	}
	slices.Sort(names)
	err := each(r, slices.Compact(names), func(name string) (string, error) { return name, r.removeTarget(ctx, name) })
	return errors.Join(err, more)
}

// recorded returns the targets that have a record, and one more than are examined if there are more.
func (r *run) recorded(ctx context.Context) (names []string, err error) {
	l, ok := r.Sweep.Store.(lister)
	if !ok {
		return nil, errors.New("this store cannot list its target records: give the names")
	}
	err = retry(ctx, func(ctx context.Context) (err error) {
		names, err = l.RecordedTargets(ctx, mostNames+1)
		return err
	})
	return names, err
}

func (r *run) removeTarget(ctx context.Context, name string) error {
	x, err := r.examine(ctx, name)
	switch {
	case err != nil:
		return err
	case x.why != "":
		r.leave(Left{Target: name, Why: x.why, Failed: len(r.Names) > 0})
		return nil
	case x.records() == 0:
		r.leave(Left{Target: name, Why: "it has no records: they were removed already, or never were"})
		return nil
	}
	r.result.Kept = keptHistory
	for _, s := range sorts {
		found := x.found[s.sort]
		if len(found) == 0 {
			continue
		}
		c := Change{Target: name, Action: Remove, Record: string(s.sort), Count: len(found)}
		if len(found) == 1 {
			c.Key = found[0].key
		}
		if s.sort == store.TargetRecord {
			c.Evidence = append([]string{x.about}, x.evidence()...)
		}
		done := r.change(c)
		if !r.Apply {
			continue
		}
		if why, err := r.stillUnused(ctx, name, x); err != nil || why != "" {
			if why != "" {
				r.fail(Left{Target: name, Why: why})
			}
			return err
		}
		if done.Done, err = r.removeAll(ctx, s.sort, name, found); errors.Is(err, store.ErrConflict) {
			r.fail(Left{Target: name, Record: string(s.sort),
				Why: "a record was written meanwhile: somebody uses the target, so the rest stays, and sweeps read again"})
			return nil
		}
		if err != nil {
			return err
		}
		x.found[s.sort] = nil // from now on such a record is somebody else's
	}
	return nil
}

// A known record is one that was examined.
type known struct{ key, revision string }

// An examination is what the records of a target say of who uses it.
type examination struct {
	why     string // it is not to be removed; empty if nobody uses it
	about   string // what the target record says that the target is
	used    time.Time
	usedBy  string // what says so
	silence time.Duration
	now     time.Time
	found   map[store.RecordSort][]known
}

func (x examination) records() (n int) {
	for _, list := range x.found {
		n += len(list)
	}
	return n
}

func (x examination) evidence() []string {
	if x.used.IsZero() {
		return []string{"no record says when it was used"}
	}
	return []string{"last used at " + ago(x.now, x.used) + " by " + x.usedBy}
}

// note takes in that something was done at an instant. An instant to come is a plan.
func (x *examination) note(at time.Time, by string) {
	if at.After(x.used) && !at.After(x.now.Add(time.Minute)) {
		x.used, x.usedBy = at, by
	}
}

// examine reads all records of a target, and says whether anything shows that it is in use.
func (r *run) examine(ctx context.Context, name string) (x examination, err error) {
	x = examination{found: map[store.RecordSort][]known{}, silence: r.OlderThan}
	if x.silence == 0 {
		x.silence = DefaultUnused
	}
	rec, now, err := generation.Load(ctx, r.records, name)
	x.now = now
	switch {
	case errors.Is(err, generation.ErrMissing):
		x.about = "it has no target record"
	case err != nil && (store.IsMapped(err) || ctx.Err() != nil):
		return x, err
	case err != nil:
		x.why = "its record cannot be read, so nobody knows whether it is paused: " + oneLine(err.Error())
		return x, nil
	default:
		x.about = fmt.Sprintf("kind %s, property %s, since %s", rec.Kind, rec.Property,
			rec.Created.UTC().Format(time.DateOnly))
		if x.why = heldBy(rec, now); x.why != "" {
			return x, nil
		}
	}
	for _, s := range sorts {
		q := store.RecordQuery{Sort: s.sort, Target: name}
		err := store.LoadAll(ctx, r.records, q, func(page store.Records) error {
			for _, one := range page.List {
				x.take(s.schema, one)
			}
			return nil
		})
		if err != nil || x.why != "" {
			return x, err
		}
	}
	for _, goesOn := range []func(context.Context, string) (string, error){r.adoptionOf, r.restoreOf} {
		if x.why, err = goesOn(ctx, name); err != nil || x.why != "" {
			return x, err
		}
	}
	if x.why, err = r.historyOf(ctx, name, &x); err != nil || x.why != "" {
		return x, err
	}
	if x.why, err = r.livingOf(ctx, name); err != nil || x.why != "" {
		return x, err
	}
	if unused := x.now.Sub(x.used); unused <= x.silence {
		x.why = fmt.Sprintf("it was used at %s by %s, not longer ago than %v", ago(x.now, x.used), x.usedBy, x.silence)
	}
	return x, nil
}

// heldBy says what holds a target. That would be lost with its record.
func heldBy(rec generation.Record, now time.Time) string {
	switch {
	case rec.Trip.IsOpen():
		return "its breaker holds it, and nobody has decided"
	case rec.IsPaused(now):
		why := "it is paused"
		if by := rec.PauseNote.Actor; by != "" {
			why += " by " + by
		}
		if reason := rec.PauseNote.Reason; reason != "" {
			why += " (" + oneLine(reason) + ")"
		}
		return why + ", and the pause would be lost: configure it and reaper resume, if that is right"
	}
	return ""
}

// take takes in one record.
func (x *examination) take(schema int64, rec store.Record) {
	by := fmt.Sprintf("%s %s", rec.Sort, rec.Key)
	if n, ok := rec.Fields["schema"].(int64); !ok || n < 1 || n > schema {
		x.why = by + " is of a program that this one does not know"
		return
	}
	x.found[rec.Sort] = append(x.found[rec.Sort], known{rec.Key, rec.Revision})
	x.noteAll(rec.Fields, by)
}

// noteAll takes in every instant of a record. Some of them are not of its use, such as when the
// first survivor of a range expires: they only make a target count as in use for longer.
func (x *examination) noteAll(fields store.Fields, by string) {
	for _, v := range fields {
		switch v := v.(type) {
		case string:
			if at, err := time.Parse(store.TimeLayout, v); err == nil {
				x.note(at, by)
			}
		case []store.Fields:
			for _, one := range v {
				x.noteAll(one, by)
			}
		}
	}
}

// unreadable says that the record of some work on a target cannot be read. If the store failed, that is an error.
func unreadable(ctx context.Context, work string, err error) (why string, _ error) {
	if store.IsMapped(err) || ctx.Err() != nil {
		return "", err
	}
	return fmt.Sprintf("the record of its %s cannot be read: %s", work, oneLine(err.Error())), nil
}

// adoptionOf says whether an adoption is under way.
func (r *run) adoptionOf(ctx context.Context, name string) (why string, err error) {
	rec, _, exists, err := adopt.Load(ctx, r.records, name)
	switch {
	case err != nil:
		return unreadable(ctx, "adoption", err)
	case exists && rec.Phase != adopt.Finished:
		return fmt.Sprintf("its entities are being adopted (phase %s): reaper adopt finish or reaper adopt undo first",
			rec.Phase), nil
	}
	return "", nil
}

// restoreOf says whether a restore was not finished: it could not be gone on with.
func (r *run) restoreOf(ctx context.Context, name string) (why string, err error) {
	if why, err = restore.Unfinished(ctx, r.records, r.Sweep.Store, name); err != nil {
		return unreadable(ctx, "restore", err)
	}
	return why, nil
}

// historyOf takes in what was done within the silence that is asked for.
func (r *run) historyOf(ctx context.Context, name string, x *examination) (why string, err error) {
	list, err := history.Read(ctx, r.records, name, x.now.Add(-x.silence))
	if err != nil {
		return "", err
	}
	if list.Newer > 0 {
		return "a newer program has written its history", nil
	}
	for _, rec := range list.Records {
		by := "its history: " + string(rec.Kind)
		x.note(rec.At, by)
		x.note(rec.Run.Updated, by)
	}
	return "", nil
}

// livingOf says whether the heartbeat of a process shows that it may work on a target.
func (r *run) livingOf(ctx context.Context, name string) (why string, err error) {
	beats, now, err := cursor.LoadHeartbeats(ctx, r.records, name, nil, r.Sweep.Now)
	if err != nil {
		return "", err
	}
	for _, h := range beats {
		if why, dead := r.judgeHeartbeat(h, now); !dead {
			return fmt.Sprintf("process %s works on it: %s", orUnknown(h.Owner), oneLine(why)), nil
		}
	}
	return "", nil
}

// stillUnused says why the removal of a target's records stops: a process has begun to use it. The
// target record must be as it was examined, or not there once this run has removed it.
func (r *run) stillUnused(ctx context.Context, name string, x examination) (why string, err error) {
	for _, userOf := range []func(context.Context, string) (string, error){r.livingOf, r.restoreOf, r.adoptionOf} {
		if why, err := userOf(ctx, name); err != nil || why != "" {
			return why, err
		}
	}
	rec, found, _, err := r.records.raw(ctx, store.TargetRecord, name, name)
	if err != nil {
		return "", err
	}
	was := x.found[store.TargetRecord]
	if found != (len(was) > 0) || found && rec.Revision != was[0].revision {
		return "its record was written meanwhile: somebody uses the target", nil
	}
	return "", nil
}

// removeAll removes records, each unless it has changed, and returns how many it has removed.
func (r *run) removeAll(ctx context.Context, sort store.RecordSort, name string, list []known) (int, error) {
	var done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(removersAtOnce)
	for _, k := range list {
		background.Go(group, func() error {
			if err := ctx.Err(); err != nil {
				return err // another one has failed
			}
			if err := r.records.remove(ctx, sort, name, k.key, k.revision); err != nil {
				return err
			}
			done.Add(1)
			return nil
		})
	}
	err := group.Wait()
	return int(done.Load()), err
}

func orUnknown(owner string) string {
	if owner == "" {
		return "unknown"
	}
	return owner
}

// oneLine joins the lines of a text.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
