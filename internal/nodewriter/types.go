package nodewriter

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// TypesOptions say which database things live in.
type TypesOptions struct {
	Emulator *emulator.Emulator `json:"-"`
	Mode     string             `json:"mode"` // native or datastore
	Project  string             `json:"project"`
	Target   string             `json:"target"`
	Shards   int                `json:"shards"`
}

// Types is a Node process that keeps entities of the kind Thing with properties of every type, by Google's own
// client, in Datastore mode in the namespaces "" and eu. It stamps their expiry keys in expiry_key, and compares
// what it reads with what it has read before.
type Types struct{ application Application }

// StartTypes starts one, which ends with the test.
func StartTypes(t testing.TB, o TypesOptions) *Types {
	t.Helper()
	return &Types{Application{t, talk(t, "types", o.Mode, o.Emulator, o)}}
}

// Fill writes n entities, and returns how many of them have expired.
func (y *Types) Fill(n int) (expired int) {
	y.application.t.Helper()
	var answer struct{ Expired int }
	y.application.do("fill", map[string]any{"n": n}, &answer)
	return answer.Expired
}

// Read reads everything, also in another project if that is not empty, and keeps it under a name.
func (y *Types) Read(as, project string) (entities int) {
	y.application.t.Helper()
	var answer struct{ N int }
	y.application.do("read", map[string]any{"as": as, "project": project}, &answer)
	return answer.N
}

// Swept returns how a copy differs from an earlier one of which a sweep has deleted what had expired.
func (y *Types) Swept(was, is string) Few {
	y.application.t.Helper()
	return y.compare(map[string]any{"was": was, "is": is, "by": "sweep"})
}

// Restored returns how a copy differs from an earlier one of which all that had expired was restored, to expire
// between two instants.
func (y *Types) Restored(was, is string, from, until time.Time) Few {
	y.application.t.Helper()
	return y.compare(map[string]any{"was": was, "is": is, "by": "restore", "from": from.UnixMilli(),
		"until": until.UnixMilli()})
}

// Loaded returns how a copy differs from an earlier one that was loaded into another project.
func (y *Types) Loaded(was, is string) Few {
	y.application.t.Helper()
	return y.compare(map[string]any{"was": was, "is": is, "by": "load"})
}

func (y *Types) compare(how map[string]any) Few {
	y.application.t.Helper()
	var answer struct{ Wrong Few }
	y.application.do("compare", how, &answer)
	return answer.Wrong
}

// Put writes entities with these marks, by their ids, which are due or live for an hour; and with so many bytes
// of something else in each.
func (y *Types) Put(marks map[string]string, due bool, pad int) {
	y.application.t.Helper()
	y.application.do("put", map[string]any{"marks": marks, "due": due, "pad": pad}, nil)
}

// Remove deletes entities.
func (y *Types) Remove(ids []string) {
	y.application.t.Helper()
	y.application.do("remove", map[string]any{"ids": ids}, nil)
}

// Marks returns the marks of all entities, by id.
func (y *Types) Marks() map[string]string {
	y.application.t.Helper()
	var answer struct{ Marks map[string]string }
	y.application.do("marks", nil, &answer)
	return answer.Marks
}
