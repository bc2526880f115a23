package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// First returns the target record that a target without one gets.
func First(r Rules, now time.Time) generation.Record {
	rec := generation.New(r.Target, r.Scope.Kind, r.Scope.Property, r.Policy.Shards, r.Generations, now)
	return rec.WithWriterBounds(r.Policy)
}

// Configured returns the target record as the configuration wants it, whatever
// the time.
func Configured(r Rules, rec generation.Record, now time.Time) generation.Record {
	if r.Generations {
		rec = rec.OpenFirst(r.Policy.Shards, now)
	}
	rec.Kind, rec.Property = r.Scope.Kind, r.Scope.Property
	rec.NurseryShards = max(rec.NurseryShards, r.Policy.Shards)
	return rec.WithWriterBounds(r.Policy)
}

// Desired returns the target record as configuration and time want it, and what
// is new in it. Blocked are the draining generations that the next one need not
// wait for.
func Desired(r Rules, rec generation.Record, blocked []int, now time.Time) (generation.Record, []generation.Step) {
	return Configured(r, rec, now).Next(r.Policy, now, blocked...)
}

// CheckLineage refuses a target record that cannot be the one its cursors belong
// to. Missing says that there is none.
func CheckLineage(rec generation.Record, missing bool, target string, table cursor.Table) error {
	for _, c := range table {
		if missing {
			return fmt.Errorf("the target record %s %q is missing, but there are %d cursor records (such as %s %q): "+
				"somebody removed it. Restore it or, to begin anew, remove the cursor records as well",
				store.TargetRecord, target, len(table), store.CursorRecord, c.Key())
		}
		if c.TargetRevision > store.RevisionCount(rec.Revision) {
			return fmt.Errorf("the target record %s %q has revision %s, but cursor record %q was written with revision %d: "+
				"an old copy was put back. Restore the newer one or, to begin anew, remove the target's cursor records",
				store.TargetRecord, target, rec.Revision, c.Key(), c.TargetRevision)
		}
	}
	return nil
}

func compareIDs(a, b cursor.ID) int {
	return cmp.Or(a.Generation-b.Generation, strings.Compare(a.Key(), b.Key()))
}
