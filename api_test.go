package reaper_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// promised are the packages that programs in Go may rely on, as docs/versions.md says, and
// of store what a source of the target record needs.
var promised = []string{"control", "expirykey", "generation", "history", "inspect", "shardread", "shardread/dsread",
	"shardread/fsread", "store", "sweep", "writers"}

var promisedOfStore = []string{"type Loader ", "type RecordQuery ", "type Records ", "type Record ", "type Fields ", "type RecordSort "}

// TestPromisedAPI compares what the promised packages export with testdata/api: a change
// there is one that applications may notice.
func TestPromisedAPI(t *testing.T) {
	for _, dir := range promised {
		golden := filepath.Join("testdata", "api", strings.ReplaceAll(dir, "/", "-")+".txt")
		got := exported(t, dir)
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("package %s exports something else than %s says (go test . -update rewrites it): %v\n%s", dir, golden, err, got)
		}
	}
}

// exported returns the declarations of what a package exports, without comments and
// bodies, in the order of their texts.
func exported(t *testing.T, dir string) []byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(file)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Body = nil; d.Recv != nil && !ast.IsExported(receiver(d.Recv.List[0].Type)) {
					continue
				}
			case *ast.GenDecl:
				if d.Tok == token.IMPORT {
					continue
				}
			}
			var text bytes.Buffer
			if err := format.Node(&text, set, d); err != nil {
				t.Fatal(err)
			}
			if dir == "store" && !slices.ContainsFunc(promisedOfStore, func(s string) bool { return strings.HasPrefix(text.String(), s) }) {
				continue
			}
			list[text.String()] = true
		}
	}
	return []byte(strings.Join(slices.Sorted(maps.Keys(list)), "\n\n") + "\n")
}

// receiver returns the name of the type that a method belongs to.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
