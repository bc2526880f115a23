package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A describer is a store whose database an administration knows.
type describer interface {
	Describe(ctx context.Context) (facts.Database, error)
}

// checkDatabase says what of the database as a whole does not suit a target, or the person who
// deletes from it.
func (x *exam) checkDatabase(ctx context.Context, d describer) error {
	db, err := d.Describe(ctx)
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.report.Database = &db
	x.mu.Unlock()
	if !db.Deleted.IsZero() {
		x.find(Finding{ID: "database-deleted", What: "The database was deleted, or is being deleted.",
			Evidence: []string{"delete time " + db.Deleted.UTC().Format(time.RFC3339)},
			Mend:     "name another database in --store, or restore this one from a backup"})
	}
	if db.Mode != "" && x.Mode != "" && db.Mode != x.Mode {
		x.find(Finding{ID: "database-mode",
			What: fmt.Sprintf("The database is in %s mode, and %s names the other one.", db.Mode, x.Spec),
			Mend: "write --store " + otherDriver(x.Spec)})
	}
	if db.Edition == facts.Enterprise {
		x.find(Finding{ID: "database-edition",
			What: "The database has the Enterprise edition, which reaper does not support.",
			Evidence: []string{
				"it makes no index of a single field by itself, so a query without one reads the whole collection",
				"it bills by size of what is read and written, so no cost that reaper names is right",
			},
			Mend: "use a database of the Standard edition"})
	}
	if db.Concurrency == facts.OptimisticWithGroups && db.Mode == facts.DatastoreMode {
		x.find(Finding{ID: "concurrency-mode", What: "The database is in the concurrency mode " + db.Concurrency + ".",
			Evidence: []string{"a transaction may have 25 entities, so a sweep makes 20 commits for a page of 500",
				"guard: query is not possible"},
			Mend: "change the concurrency mode to optimistic or pessimistic in the console, if no application relies on it"})
	}
	if db.Recovery != nil && !*db.Recovery {
		x.find(Finding{ID: "recovery-off", What: "Point-in-time recovery is off: what a wrong expiry deletes is lost.",
			Evidence: earliest(db),
			Mend:     "gcloud firestore databases update --database=" + x.databaseID() + " --enable-pitr"})
	}
	if db.Protected != nil && !*db.Protected {
		x.find(Finding{ID: "protection-off",
			What: "Anybody who may administer the project can delete the database with one command.",
			Mend: "gcloud firestore databases update --database=" + x.databaseID() + " --delete-protection"})
	}
	return nil
}

// earliest says which version of the database can be read at least.
func earliest(db facts.Database) []string {
	if db.Earliest.IsZero() {
		return nil
	}
	return []string{"the earliest version that can be read is of " + db.Earliest.UTC().Format(time.RFC3339)}
}

// databaseID returns the id of the database, as gcloud takes it.
func (x *exam) databaseID() string {
	if _, id, ok := strings.Cut(x.Spec, "/"); ok {
		return "'" + id + "'"
	}
	return "'(default)'"
}

// otherDriver returns the spec of the same database in the other mode.
func otherDriver(spec string) string {
	if rest, ok := strings.CutPrefix(spec, "datastore:"); ok {
		return "firestore:" + rest
	}
	return "datastore:" + strings.TrimPrefix(spec, "firestore:")
}

// A fieldLister is a store whose administration knows the policies of fields.
type fieldLister interface {
	Fields(ctx context.Context, kind string) ([]facts.Field, error)
}

// checkFields looks for TTL policies on a target's kind, and for the indexes of its property.
func (x *exam) checkFields(ctx context.Context, l fieldLister, t sweep.Target) error {
	fields, err := l.Fields(ctx, t.Kind)
	if err != nil {
		return err
	}
	for _, f := range fields {
		if f.TTL {
			x.findPolicy(t, f.Name)
		}
		isRead := f.Name == t.Property && t.ShardProperty == "" // a composite index serves the other layout
		has := f.Ascending
		if t.Group {
			has = f.AscendingGroup
		}
		if isRead && f.Own && !has && x.Mode == facts.NativeMode {
			x.find(Finding{ID: "index-exempt", Target: t.Name,
				What:     fmt.Sprintf("The field %s of %s is exempt from the index that sweeps read.", t.Property, t.Kind),
				Evidence: []string{"the field has indexes of its own, and none is ascending" + scopeText(t.Target)},
				Mend:     "reaper indexes --target " + t.Name + " prints the definition; deploy it"})
		}
	}
	return nil
}

func scopeText(t store.Target) string {
	if t.Group {
		return " over the collection group"
	}
	return " over the collection"
}

// findPolicy notes a TTL policy on a field of a target's kind.
func (x *exam) findPolicy(t sweep.Target, field string) {
	off := fmt.Sprintf("gcloud firestore fields ttls update %s --collection-group=%s --database=%s --disable-ttl", field,
		t.Kind[strings.LastIndexByte(t.Kind, '/')+1:], x.databaseID())
	if field == t.Property {
		x.find(Finding{ID: "ttl-policy", Target: t.Name,
			What: fmt.Sprintf("The built-in TTL policy deletes by %s of %s, too: without retention, pace, breaker or pause.",
				field, t.Kind),
			Mend: off})
		return
	}
	x.find(Finding{ID: "ttl-policy-nearby", Target: t.Name,
		What: fmt.Sprintf("A built-in TTL policy deletes entities of %s by another field, %s.", t.Kind, field),
		Mend: "if that is not meant: " + off})
}
