package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// newer are the errors for records of a program that is newer than this one.
var newer = []error{generation.ErrNewer, cursor.ErrNewer, breaker.ErrNewer, adopt.ErrNewer, history.ErrNewer}

// checkRecords reads the records of a target. It returns no snapshot if it has found out why they
// cannot be used.
func (x *exam) checkRecords(ctx context.Context, t sweep.Target) (*sweep.Snapshot, error) {
	s, err := sweep.TakeSnapshot(ctx, x.Sweep, t)
	if err != nil {
		if x.judgeRecords(ctx, t, err) {
			return nil, nil
		}
		return nil, err
	}
	x.judgeRecord(t, s.View.Record, s.Missing)
	if n := s.View.Cursors.Len(); s.Missing && n > 0 {
		x.find(Finding{ID: "record-lost", Target: t.Name, What: "The target was swept before, and has no target record.",
			Evidence: []string{fmt.Sprintf("%d cursor records are there", n)},
			Mend: "reaper doctor --repair record-lost --target " + t.Name + " shows what the next sweep makes again, and with " +
				"--apply makes it now"})
	}
	if s.View.Record.EmptyIndex {
		x.find(Finding{ID: "index-empty", Target: t.Name,
			What:     fmt.Sprintf("The kind %s holds entities, and none has an entry in any range of this target.", t.Kind),
			Evidence: []string{"found by the sweep that looked at " + s.View.Record.Checked.UTC().Format(time.RFC3339)},
			Mend: "check property, layout and namespaces of the target, and that writers do not exclude the property " +
				"from indexes"})
	}
	return s, nil
}

// judgeRecords notes what is wrong with the records of a target, and reports whether it knows.
func (x *exam) judgeRecords(ctx context.Context, t sweep.Target, err error) bool {
	evidence := []string{oneLine(err.Error())}
	switch {
	case slices.ContainsFunc(newer, func(n error) bool { return errors.Is(err, n) }):
		x.find(Finding{ID: "record-newer", Target: t.Name, Evidence: evidence,
			What: "A record was written by a newer program: this one must not sweep the target.",
			Mend: "update this program; other processes of the newer version go on"})
	case errors.Is(err, sweep.ErrOldCopy):
		x.find(Finding{ID: "record-old-copy", Target: t.Name, Evidence: evidence,
			What: "The target record is older than a cursor record: somebody has put an old copy back.",
			Mend: "follow the chapter After a restore of docs/operations.md"})
	case errors.Is(err, store.ErrMissingIndex):
		x.findMissingIndex(t, err)
	case errors.Is(err, store.ErrDenied), errors.Is(err, store.ErrNotFound):
		x.findUnusable(t.Name, err)
	case errors.Is(err, store.ErrCorrupt):
		x.findUndecodable(t.Name, err)
	case isOfRecord(ctx, err):
		x.find(Finding{ID: "record-malformed", Target: t.Name, Evidence: evidence,
			What: "A record of this target makes no sense, so it is not swept.",
			Mend: fmt.Sprintf("if it is the %s record: put it back from a backup, or reaper doctor --repair record-malformed "+
				"--target %s, which shows what it would be, and with --apply writes it; for others see docs/records.md",
				store.TargetRecord, t.Name)})
	default:
		return false
	}
	return true
}

// isOfRecord reports whether an error is of a record and not of the store: the driver cannot decode the
// record, or the package that it belongs to says that it makes no sense.
func isOfRecord(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, store.ErrCorrupt):
		return true
	case store.IsMapped(err), store.Transient(err), errors.Is(err, context.Canceled), ctx.Err() != nil:
		return false
	}
	return true
}

// findUndecodable notes a record that the store cannot decode. No repair of ours can: a compare-and-set
// needs its revision.
func (x *exam) findUndecodable(target string, err error) {
	f := Finding{ID: "record-malformed", Target: target, Evidence: []string{oneLine(err.Error())},
		What: "The store cannot decode a record.",
		Mend: "put it back from a backup, or remove it by hand: docs/records.md says what is lost"}
	if x.Mode == "" { // nobody but this program writes there
		f.Mend = "the store's directory is damaged: put it back from a copy"
	}
	x.find(f)
}

// ofRecords is a check of a target that reads nothing but records. One that the store cannot decode is a
// finding.
func (x *exam) ofRecords(t sweep.Target, do func(context.Context, sweep.Target) error) check {
	return func(ctx context.Context) error {
		err := do(ctx, t)
		if errors.Is(err, store.ErrCorrupt) {
			x.findUndecodable(t.Name, err)
			return nil
		}
		return err
	}
}

// judgeRecord compares the target record with the configuration.
func (x *exam) judgeRecord(t sweep.Target, rec generation.Record, missing bool) {
	if missing || rec.Kind == t.Kind && rec.Property == t.Property {
		return
	}
	x.find(Finding{ID: "record-differs", Target: t.Name,
		What: "The target was swept with another kind or property before.",
		Evidence: []string{
			fmt.Sprintf("the record has %s by %s, the targets file %s by %s", rec.Kind, rec.Property, t.Kind, t.Property),
			"the next sweep discards all positions, and its breaker counts all that is due first",
		},
		Mend: "if that is not meant, correct the targets file; for another kind use another name"})
}

// liveOf returns the heartbeats of processes that are alive by a single read.
func liveOf(beats cursor.Heartbeats, now time.Time) (live []cursor.Heartbeat) {
	for _, key := range sortedKeys(beats) {
		h := beats[key]
		if h.Invalid == nil && now.Sub(h.Renewed) < trustOf(h) {
			live = append(live, h)
		}
	}
	return live
}

// trustOf returns how long after its last heartbeat a process counts as alive.
func trustOf(h cursor.Heartbeat) time.Duration {
	if h.Lease == 0 {
		return 2 * cursor.IdleBeat
	}
	return h.Lease
}

// checkHeartbeats looks for processes that are dead, and for living ones of several versions.
func (x *exam) checkHeartbeats(ctx context.Context, t sweep.Target) error {
	beats, now, err := cursor.LoadHeartbeats(ctx, x.Sweep.Store, t.Name, nil, x.Sweep.Now)
	switch {
	case errors.Is(err, cursor.ErrNewer):
		return nil // a finding of the records
	case err != nil:
		return err
	}
	_, exclusive := x.Sweep.Store.(store.Exclusive) // opening it voids all claims of earlier processes
	var dead []string
	var gone dying
	versions := map[string][]string{}
	for _, key := range sortedKeys(beats) {
		h := beats[key]
		if isLive := h.Invalid == nil && now.Sub(h.Renewed) < trustOf(h); isLive && h.Why != "" {
			x.find(Finding{ID: "worker-fault", Target: t.Name,
				What:     "A process deletes nothing, because it cannot read or write a record.",
				Evidence: []string{h.Owner + ": " + oneLine(h.Why)},
				Mend: "look at the log of that process; most often its credentials lack a permission, or a record was changed " +
					"by hand"})
		}
		switch {
		case h.Invalid != nil:
			x.find(Finding{ID: "heartbeat-malformed", Target: t.Name, What: "The heartbeat of a process makes no sense.",
				Evidence: []string{oneLine(h.Invalid.Error())},
				Mend: fmt.Sprintf("remove the %s record %s, if its process is gone: otherwise a daemon removes it after an hour",
					store.WorkerRecord, key)})
		case exclusive:
		case now.Sub(h.Renewed) < trustOf(h):
			versions[h.Version] = append(versions[h.Version], h.Owner)
		case h.Lease > 0 && now.Sub(h.Renewed) > 2*h.Lease:
			dead = append(dead, fmt.Sprintf("%s held %d ranges, and was last heard of at %s", h.Owner, h.Claims,
				h.Renewed.UTC().Format(time.RFC3339)))
			gone.add(h)
		}
	}
	if n := len(dead); n > 0 {
		x.find(Finding{ID: "worker-dead", Target: t.Name, Evidence: dead[:min(n, examples)],
			What: fmt.Sprintf("%d processes ended without giving back what they held.", n),
			Mend: "look for the reason (out of memory, a node that went away, kill -9); " + gone.mend(t.Name, now)})
	}
	if len(versions) > 1 {
		var evidence []string
		for _, v := range sortedKeys(versions) {
			owners := versions[v]
			evidence = append(evidence, fmt.Sprintf("%s: %s", v, strings.Join(owners[:min(len(owners), examples)], ", ")))
		}
		x.find(Finding{ID: "version-drift", Target: t.Name, Evidence: evidence,
			What: fmt.Sprintf("The processes at work have %d versions.", len(versions)),
			Mend: "roll out one version to all, and see docs/versions.md for what may work together meanwhile"})
	}
	return nil
}

// A dying is what is known of some dead processes together: when the last of them was heard of, and how long a repair
// must not have heard of any.
type dying struct {
	last    time.Time
	silence time.Duration
}

func (d *dying) add(h cursor.Heartbeat) {
	if h.Renewed.After(d.last) {
		d.last = h.Renewed
	}
	d.silence = max(d.silence, 2*h.Lease, 2*cursor.IdleBeat)
}

// mend says what removes their heartbeats, and from when on if that is not yet so. Without --older-than a repair waits
// for an hour. Other processes watch a heartbeat for a lease and more, so a short sweep removes none.
func (d *dying) mend(target string, now time.Time) string {
	text := fmt.Sprintf("reaper doctor --repair worker-dead --target %s --older-than %.0fm --apply removes the records",
		target, math.Ceil(d.silence.Minutes()))
	if from := d.last.Add(d.silence); !now.After(from) {
		text += " from " + from.UTC().Add(time.Second).Format(time.RFC3339) + " on"
	}
	return text + "; a daemon, or a sweep that works for more than two leases, does so by itself"
}

// checkConfig compares this targets file with that of the process which began last.
func (x *exam) checkConfig(ctx context.Context, t sweep.Target) error {
	st, found, err := history.LoadState(ctx, x.Sweep.Store, t.Name)
	if err != nil || !found || st.Config == "" || len(t.History.Settings) == 0 {
		return err
	}
	text, hash := history.Settings(t.History.Settings)
	if hash == st.Config {
		return nil
	}
	var evidence []string
	was, is := lines(st.Settings), lines(text)
	for _, line := range sortedKeys(is) {
		if name, _, _ := strings.Cut(line, ": "); !was[line] {
			evidence = append(evidence, fmt.Sprintf("here %s, there %s", line, setting(st.Settings, name)))
		}
	}
	x.find(Finding{ID: "config-drift", Target: t.Name, Evidence: evidence[:min(len(evidence), mostNames)],
		What: "This targets file differs from that of the process which began to sweep last.",
		Mend: "deploy one targets file to all processes; ignore this if the change is being rolled out"})
	return nil
}

func lines(text string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.SplitSeq(text, "\n") {
		all[line] = line != ""
	}
	return all
}

// setting returns the value of a setting in a text with one a line.
func setting(text, name string) string {
	for line := range strings.SplitSeq(text, "\n") {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			return orElse(value, "nothing")
		}
	}
	return "nothing"
}
