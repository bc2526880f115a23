package plan

import (
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// First returns the target record of a target that has none, and no generation in use.
func First(r Rules, now time.Time) generation.Record {
	rec := generation.New(r.Target, r.Scope.Kind, r.Scope.Property, r.Policy.Shards, r.Generations, now)
	if r.Generations {
		rec = rec.ProbeLater(r.Policy)
	}
	return rec.WithWriterBounds(r.Policy).WithNamespaces(r.Namespaces, now, time.Time{})
}

// FirstAdopting returns the target record that a target without one gets if its index was
// probed: the generations that were found are listed, as [generation.Record.Adopt] does,
// and the next one, above floor, is open.
func FirstAdopting(r Rules, used []generation.Generation, floor int, now time.Time) (generation.Record, error) {
	if !r.Generations {
		return First(r, now), nil
	}
	rec := generation.New(r.Target, r.Scope.Kind, r.Scope.Property, r.Policy.Shards, false, now)
	rec, err := rec.Adopt(used, floor, r.Policy, now)
	rec = rec.WithWriterBounds(r.Policy).WithNamespaces(r.Namespaces, now, time.Time{})
	return rec.ProbeLater(r.Policy), err
}

// ListsNone reports whether a target record lists no generations though the layout has some. A
// process with a layout without generations made it, and looked for none. Perhaps the record
// before it listed some, and is lost.
func ListsNone(r Rules, rec generation.Record) bool {
	return r.Generations && len(rec.Generations) == 0
}

// Configured returns the target record with the changes that the configuration requires.
func Configured(r Rules, rec generation.Record, now time.Time) generation.Record {
	rec.NurseryShards = max(rec.NurseryShards, r.Policy.Shards)
	if !rec.Sweeps(r.Namespaces, time.Time{}) { // nobody has looked there for generations and extra shards
		rec.Checked = time.Time{}
		if rec.Probe.After(now) { // later on, what is not listed has retired, and is the audit's
			rec.Probe = now.UTC().Truncate(time.Microsecond)
		}
	}
	if !rec.Sweeps(r.Namespaces, now.Add(-r.Rewind/2)) {
		rec = rec.WithNamespaces(r.Namespaces, now, time.Time{})
	}
	return rec.WithWriterBounds(r.Policy)
}

// Desired returns the target record with the changes that configuration and time require,
// and the steps of generations among them. Blocked are the draining generations that the
// next one need not wait for.
func Desired(r Rules, rec generation.Record, blocked []int, now time.Time) (generation.Record, []generation.Step) {
	return Configured(r, rec, now).Next(r.Policy, now, blocked...)
}

// CheckLineage refuses a target record that is older than a cursor record: a copy that
// somebody put back does not list the generations that were opened since. Missing says
// that no record exists, which is fine: then the index shows which generations there are.
func CheckLineage(rec generation.Record, missing bool, target string, cursors cursor.Table) error {
	if missing {
		return nil
	}
	for _, c := range cursors.All() {
		if c.TargetRevision > store.RevisionCount(rec.Revision) {
			return OldCopy(rec, target,
				fmt.Sprintf("but cursor record %q was written with revision %d", c.Key(), c.TargetRevision))
		}
	}
	return nil
}

// ErrOldCopy is why a target record is refused that is older than what goes by it.
var ErrOldCopy = errors.New("an old copy was put back")

// OldCopy returns the error for a target record that somebody has put back, and what
// shows that it is old.
func OldCopy(rec generation.Record, target, shows string) error {
	return fmt.Errorf("the target record %s %q has revision %s, %s: %w. "+
		"Restore the newer one, or remove this one: the reaper then makes a new one "+
		"from the generations that it finds in the index", store.TargetRecord, target, rec.Revision, shows, ErrOldCopy)
}
