// Package typecheck checks the types of packages of this module, for tests that ask what their
// files use, or whether they would still compile with other texts.
//
// It compiles nothing itself: what a package imports is read from what the go command has compiled,
// which it does when the exports are listed. So a check takes milliseconds, and what imports the
// package that is checked is not looked at.
package typecheck

import (
	"context"
	"fmt"
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
)

// Module is the path that all import paths of this module begin with.
const Module = "github.com/reaper-ttl/reaper"

// Exports says where the compiler has written what each package exports.
type Exports map[string]string

// List has the packages compiled that match the patterns, seen from a directory, and all that these
// import.
func List(ctx context.Context, dir string, patterns ...string) (Exports, error) {
	args := append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, patterns...)
	list := exec.CommandContext(ctx, "go", args...)
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w", list, err)
	}
	files := Exports{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[name] = file
	}
	return files, nil
}

// Check checks a package without its tests. Its directory is relative to the root of the module, as
// are the names of files that have another text for this check. Info is filled in; it may be nil.
func (e Exports) Check(
	root, dir string, texts map[string]string, info *types.Info,
) (*token.FileSet, *types.Package, error) {
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return nil, nil, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		var text any // nil for what the file holds
		if other, ok := texts[path.Join(dir, filepath.Base(name))]; ok {
			text = other
		}
		f, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, f)
	}
	open := func(name string) (io.ReadCloser, error) { return os.Open(e[name]) }
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", open)}
	pkg, err := conf.Check(path.Join(Module, dir), fset, files, info)
	return fset, pkg, err
}
