package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// rebuildRecords rebuilds the target records that are lost, or make no sense.
func (r *run) rebuildRecords(ctx context.Context) error {
	return each(r, r.Sweep.Targets, func(t sweep.Target) (string, error) { return t.Name, r.rebuild(ctx, t) })
}

func (r *run) rebuild(ctx context.Context, t sweep.Target) error {
	left := Left{Target: t.Name, Record: string(store.TargetRecord), Key: t.Name}
	was, found, now, err := r.records.raw(ctx, store.TargetRecord, t.Name, t.Name)
	if err != nil {
		return err
	}
	var fault string
	if found {
		if fault, left.Why, left.Failed = r.judgeRecord(ctx, was); fault == "" {
			r.leave(left)
			return r.judgeOthers(ctx, t, left.Failed)
		}
	} else if left.Why = "the target record is missing: repair " + RecordLost; r.ID != RecordLost {
		r.leave(left)
		return r.judgeOthers(ctx, t, left.Failed)
	}
	v := &veil{patient: r.records, target: t.Name, was: was, hidden: found}
	cfg := r.Sweep
	cfg.Store = v.store()
	s, err := sweep.TakeSnapshot(ctx, cfg, t)
	switch {
	case errors.Is(err, errHealed):
		left.Why = healed
		r.leave(left)
		return nil
	case err != nil:
		return err
	case !found && s.New:
		left.Why = "neither the index nor a cursor record shows that there ever was one: the first sweep makes it"
		r.leave(left)
		return nil
	}
	if err := r.judgeBudget(ctx, t, s); err != nil {
		return err
	}
	evidence := []string{"the next sweep would read: " + describe(s.View.Record)}
	if fault != "" {
		evidence = append(evidence, oneLine(fault))
	}
	if v.carried, evidence, err = r.carry(ctx, t, was, s.View.Record, now, evidence); err != nil {
		return err
	}
	c := r.change(Change{Target: t.Name, Action: Rebuild, Record: string(store.TargetRecord), Key: t.Name,
		Evidence: evidence})
	if !r.Apply {
		return nil
	}
	_, at, err := sweep.EnsureRecord(ctx, cfg, t)
	switch saved := v.isSaved(); {
	case saved:
		c.Done = 1
	case errors.Is(err, errHealed):
		left.Why = healed
		r.leave(left)
		return nil
	case err != nil:
		return err
	}
	return sweep.RecordHistory(ctx, r.Sweep, t, at, history.KindAction, history.Change{What: "repair",
		Before: r.ID, After: "the target record was rebuilt from the index", Reason: "reaper doctor --repair " + r.ID})
}

// healed is why a record is left alone that was at fault when the repair began.
const healed = "it has healed meanwhile: somebody else has written it"

// judgeRecord says what is wrong with a target record, or else why it is left alone.
func (r *run) judgeRecord(ctx context.Context, was store.Record) (fault, why string, failed bool) {
	_, err := decoded(ctx, was)
	switch {
	case err == nil:
		return "", "the target record can be read: it is right, or has healed", false
	case errors.Is(err, generation.ErrNewer):
		return "", "a newer program has written it: update this one", true
	case r.ID == RecordLost:
		return "", "there is a target record, and it makes no sense: repair " + RecordMalformed, true
	}
	// A record whose version cannot be read may be a newer program's.
	if n, ok := was.Fields["schema"].(int64); !ok || n < 1 || was.Revision == "" {
		return "", "it does not say which program has written it, or has no revision: put it back from a backup, or " +
			"remove it by hand", true
	}
	return err.Error(), "", false
}

// judgeOthers looks for another record that makes no sense, if the target record is not the one that does not.
// None of them is made again: a person has to say what may be lost.
func (r *run) judgeOthers(ctx context.Context, t sweep.Target, failed bool) error {
	if r.ID != RecordMalformed || failed { // the target record that was not mended would be met again
		return nil
	}
	for _, s := range sorts { // a snapshot does without some that the store cannot decode
		q := store.RecordQuery{Sort: s.sort, Target: t.Name}
		if err := store.LoadAll(ctx, r.records, q, func(store.Records) error { return nil }); err != nil {
			return err
		}
	}
	cfg := r.Sweep
	cfg.Store = (&veil{patient: r.records}).store() // which hides nothing
	s, err := sweep.TakeSnapshot(ctx, cfg, t)
	if err != nil {
		return r.failFor(ctx, t, err)
	}
	return r.judgeBudget(ctx, t, s)
}

// judgeBudget looks at the budget, which a snapshot does not have.
func (r *run) judgeBudget(ctx context.Context, t sweep.Target, s *sweep.Snapshot) error {
	if r.ID != RecordMalformed || !t.Breaker.On && !t.Limits.Any() {
		return nil
	}
	_, err := s.Budget(ctx)
	return r.failFor(ctx, t, err)
}

// failFor notes that a record of a target cannot be used. It returns an error that is not of a record.
func (r *run) failFor(ctx context.Context, t sweep.Target, err error) error {
	if err == nil || store.IsMapped(err) || store.Transient(err) || ctx.Err() != nil {
		return err
	}
	r.fail(Left{Target: t.Name, Why: "another record keeps the target from being swept, and docs/records.md says what " +
		"mends it: " + oneLine(err.Error())})
	return nil
}

// decoded reads a record as a program does.
func decoded(ctx context.Context, rec store.Record) (generation.Record, error) {
	got, _, err := generation.Load(ctx, one{rec}, rec.Key)
	return got, err
}

// A one is a store with one record.
type one struct{ record store.Record }

func (o one) Load(context.Context, store.RecordQuery) (store.Records, error) {
	return store.Records{List: []store.Record{o.record}}, nil
}

func describe(rec generation.Record) string {
	var list []string
	for _, g := range rec.Generations {
		state := "open"
		if !g.Closed.IsZero() {
			state = "closed"
		}
		list = append(list, fmt.Sprintf("generation %d (%d shards, %s)", g.Number, g.Shards, state))
	}
	if rec.NurseryShards > 0 {
		list = append(list, fmt.Sprintf("the nursery (%d shards)", rec.NurseryShards))
	}
	if len(list) == 0 {
		return "the timestamps of the property"
	}
	return strings.Join(list, ", ")
}

// Groups of fields that a rebuilt record takes over from the one that makes no sense, each as a
// whole, if it can be read. What the breaker said is not among them: what is due is counted again.
var (
	pauseFields = []string{"paused", "paused_until", "pause_by", "pause_at", "pause_reason"}
	paceFields  = []string{"pace_max", "pace_total", "pace_by", "pace_at", "pace_reason"}
)

// carry returns the fields of a rebuilt record that an operator has set. A pause must not be lost:
// if it cannot be read whether there was one, the rebuilt record is paused.
func (r *run) carry(
	ctx context.Context, t sweep.Target, was store.Record, next generation.Record, now time.Time, evidence []string,
) (store.Fields, []string, error) {
	var why string
	carried := store.Fields{}
	switch {
	case len(was.Fields) > 0:
		if !take(ctx, carried, was, paceFields) {
			evidence = append(evidence, "what reaper pace had set cannot be read: set it again")
		}
		switch take(ctx, carried, was, pauseFields); {
		case was.Fields["paused"] == false:
			return carried, evidence, nil
		case carried["paused"] == true:
			return carried, append(evidence, "it stays paused, as it was"), nil
		}
		why = "whether it was paused cannot be read"
	default: // a record that is lost says nothing, but the history may
		list, err := history.Read(ctx, r.records, t.Name, now.Add(-pausesWithin))
		if err != nil {
			return nil, nil, err
		}
		switch by, at, found := lastPause(list, now); {
		case found:
			why = fmt.Sprintf("the history says that %s paused it at %s", by, at.UTC().Format(time.RFC3339))
		case list.Newer+list.Malformed > 0:
			why = fmt.Sprintf("%d records of its history cannot be read, and may say that it was paused",
				list.Newer+list.Malformed)
		default:
			return carried, append(evidence, "what reaper pause and reaper pace had set is lost"), nil
		}
	}
	for name, v := range map[string]any{"paused": true, "paused_until": "", "pause_by": "reaper doctor",
		"pause_at": store.FormatTime(next.Created), "pause_reason": "its record was rebuilt: " + why} {
		carried[name] = v
	}
	return carried, append(evidence, why+": it is paused until reaper resume"), nil
}

// pausesWithin is how old the pause of a lost record may be to be found in its history.
const pausesWithin = 90 * 24 * time.Hour

// lastPause returns the last pause that is neither over nor followed by a resume.
func lastPause(list history.List, now time.Time) (by string, at time.Time, found bool) {
	for _, rec := range slices.Backward(list.Records) {
		if rec.Kind != history.KindAction {
			continue
		}
		switch rec.Change.What {
		case "resume":
			return "", at, false
		case "pause":
			_, text, _ := strings.Cut(rec.Change.After, "paused until ")
			text, _, _ = strings.Cut(text, ",")
			if until, err := time.Parse(time.RFC3339, text); err == nil && !until.After(now) {
				return "", at, false
			}
			return rec.By.Actor, rec.At, true
		}
	}
	return "", at, false
}

// take adds a group of fields of a record to others, and reports whether a program can read them.
func take(ctx context.Context, to store.Fields, was store.Record, names []string) bool {
	var probe sample
	if _, err := generation.Save(ctx, &probe, generation.New(was.Key, "k", "p", 1, false, time.Unix(0, 0))); err != nil {
		return false
	}
	for _, name := range names {
		if v, ok := was.Fields[name]; ok {
			probe.record.Fields[name] = v
		} else {
			delete(probe.record.Fields, name)
		}
	}
	if _, err := decoded(ctx, probe.record); err != nil {
		return false
	}
	for _, name := range names {
		if v, ok := was.Fields[name]; ok {
			to[name] = v
		}
	}
	return true
}

// A sample keeps the record that is saved in it, to show which fields a record has.
type sample struct {
	store.Store
	record store.Record
}

func (s *sample) Save(_ context.Context, rec store.Record, _ string) error {
	s.record = rec
	return nil
}
