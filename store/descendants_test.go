package store

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"
)

// Every sort of records is known as one of the reaper's own.
func TestIsRecordKind(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "store.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != "RecordSort" {
			return true
		}
		kind, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil || !IsRecordKind(kind) {
			t.Errorf("%q is not taken for a kind of records; %v", kind, err)
		}
		found++
		return true
	})
	if found != len(recordSorts) {
		t.Errorf("%d sorts are declared, and %d listed", found, len(recordSorts))
	}
	for _, kind := range []string{"", "Reaper", "ReaperLog", "sessions", "reapertarget"} {
		if IsRecordKind(kind) {
			t.Errorf("%q is taken for a kind of records", kind)
		}
	}
}
