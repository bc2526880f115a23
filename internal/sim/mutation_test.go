package sim

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// Every mutation still finds its text, and what it makes of a package compiles.
func TestMutationsFit(t *testing.T) {
	list := mutations(t)
	exports := compiled(t)
	for _, m := range list {
		changed := map[string]string{}
		for _, f := range m.Files {
			text, err := f.Apply(root)
			if err != nil {
				t.Errorf("mutation %s: %v", m.Name, err)
				continue
			}
			changed[f.Path] = text
		}
		for name := range changed {
			if err := check(path.Dir(name), changed, exports); err != nil {
				t.Errorf("mutation %s does not compile: %v", m.Name, err)
			}
		}
	}
	if len(list) < 25 {
		t.Errorf("there are only %d mutations", len(list))
	}
}

// compiled returns where the compiler has written what each package exports.
func compiled(t *testing.T) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[name] = file
	}
	return files
}

// check checks the types of a package of which some files were changed.
func check(dir string, changed, exports map[string]string) error {
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		var text any // of the file, unless it was changed
		if c, ok := changed[path.Join(dir, filepath.Base(name))]; ok {
			text = c
		}
		f, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	open := func(name string) (io.ReadCloser, error) { return os.Open(exports[name]) }
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", open)}
	_, err = conf.Check(dir, fset, files, nil)
	return err
}
