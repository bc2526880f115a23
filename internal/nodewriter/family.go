package nodewriter

import (
	"testing"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// FamilyOptions say which database a family lives in.
type FamilyOptions struct {
	Emulator *emulator.Emulator `json:"-"`
	Mode     string             `json:"mode"` // native or datastore
	Project  string             `json:"project"`
}

// A Family is a Node process that keeps parents with three levels of children, by Google's own client: of
// the kind u, with the expiry in the property expires, and one of four numbers in shard. It extends parents
// that are due, deletes and re-creates them, writes below them, and knows what must be left.
type Family struct{ application Application }

// StartFamily starts one, which ends with the test.
func StartFamily(t testing.TB, o FamilyOptions) *Family {
	t.Helper()
	return &Family{Application{t, talk(t, "family", o.Mode, o.Emulator, o)}}
}

// Fill writes so many parents that are due, each with so many descendants, one of them with as many as huge
// says; and parents that are not due, with names next to theirs.
func (f *Family) Fill(parents, children, huge int) (entities int) {
	f.application.t.Helper()
	var answer struct{ Entities int }
	f.application.do("fill", map[string]any{"n": parents, "children": children, "huge": huge}, &answer)
	return answer.Entities
}

// Begin lets it meddle with parents of which some descendants are gone and some left.
func (f *Family) Begin() {
	f.application.t.Helper()
	f.application.do("begin", nil, nil)
}

// HasActed reports whether it has meddled with so many parents in all, or with all that it can.
func (f *Family) HasActed(n int) bool {
	f.application.t.Helper()
	var answer struct{ Enough bool }
	f.application.do("acts", map[string]any{"n": n}, &answer)
	return answer.Enough
}

// Acts are how often a family did what in the middle of a parent's descendants, and how often it wrote below one
// while nobody deleted.
type Acts struct {
	InMiddle map[string]int
	Bears    int
}

// Sum is how often it did anything in the middle.
func (a Acts) Sum() (n int) {
	for _, times := range a.InMiddle {
		n += times
	}
	return n
}

// Rest ends that, once no process deletes. With more it meddles once again, undisturbed. It returns what it has
// done so far.
func (f *Family) Rest(more bool) (a Acts) {
	f.application.t.Helper()
	f.application.do("rest", map[string]any{"andGo": more}, &a)
	return a
}

// Due returns how many parents are left that must be deleted.
func (f *Family) Due() int {
	f.application.t.Helper()
	var answer struct{ Due int }
	f.application.do("left", nil, &answer)
	return answer.Due
}

// Audit reads everything, and returns how many orphans there are and what is wrong. Without orphans, none may
// be left, and nothing else be gone.
func (f *Family) Audit(withoutOrphans bool) (orphans int, wrong Few) {
	f.application.t.Helper()
	command := "audit"
	if withoutOrphans {
		command = "auditWithoutOrphans"
	}
	var answer struct {
		Orphans int
		Wrong   Few
	}
	f.application.do(command, nil, &answer)
	return answer.Orphans, answer.Wrong
}

// Connect opens a project in native mode, in which RecursiveDelete then deletes.
func (f *Family) Connect(project string) {
	f.application.t.Helper()
	f.application.do("connect", map[string]any{"project": project}, nil)
}

// RecursiveDelete deletes documents and all below them by the client's function of that name, so many of them
// at the same time.
func (f *Family) RecursiveDelete(paths []string, atOnce int) {
	f.application.t.Helper()
	f.application.do("recursiveDelete", map[string]any{"paths": paths, "atOnce": atOnce}, nil)
}
