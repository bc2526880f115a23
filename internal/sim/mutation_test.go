package sim

import (
	"path"
	"testing"

	"github.com/reaper-ttl/reaper/internal/typecheck"
)

// Every mutation still finds its text, and what it makes of a package compiles.
func TestMutationsFit(t *testing.T) {
	list := mutations(t)
	exports, err := typecheck.List(t.Context(), root, "./...")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		texts, dirs := map[string]string{}, map[string]bool{}
		for _, f := range m.Files {
			text, err := f.Apply(root)
			if err != nil {
				t.Errorf("mutation %s: %v", m.Name, err)
				continue
			}
			texts[f.Path], dirs[path.Dir(f.Path)] = text, true
		}
		for dir := range dirs {
			if _, _, err := exports.Check(root, dir, texts, nil); err != nil {
				t.Errorf("mutation %s does not compile: %v", m.Name, err)
			}
		}
	}
	if len(list) < 25 {
		t.Errorf("there are only %d mutations", len(list))
	}
}
