package nightly_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/internal/nightly"
)

func TestSize(t *testing.T) {
	for value, want := range map[string]struct{ size, some int }{"": {2, 1}, "0": {2, 1}, "1": {10, 3}} {
		t.Setenv(nightly.Variable, value)
		if got := nightly.Size(t, 10, 2); got != want.size {
			t.Errorf("%s=%q: Size(10, 2) = %d, want %d", nightly.Variable, value, got, want.size)
		}
		for _, pick := range []int64{0, 1, 2, 3, -1} {
			if got := nightly.Some(t, pick, []string{"a", "b", "c"}); len(got) != want.some {
				t.Errorf("%s=%q: Some of three, pick %d: %v, want %d", nightly.Variable, value, pick, got, want.some)
			}
		}
	}
	t.Setenv(nightly.Variable, "")
	seen := map[string]bool{}
	for pick := range int64(3) {
		seen[nightly.Some(t, pick, []string{"a", "b", "c"})[0]] = true
	}
	if len(seen) != 3 {
		t.Errorf("three picks of three: %v", seen)
	}
	if got := nightly.Some(t, 7, []int{}); len(got) != 0 {
		t.Errorf("some of none: %v", got)
	}
}

// TestDocumented reads all tests: docs/correctness.md names each that has two sizes, and
// names none that has not.
func TestDocumented(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs", "correctness.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## Everyday and nightly runs\n")
	if !ok {
		t.Fatal("docs/correctness.md has no section Everyday and nightly runs")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	sized := sizedTests(t, root)
	if len(sized) < 10 {
		t.Fatalf("only %d tests have two sizes: %v", len(sized), sized)
	}
	for _, name := range sized {
		if !strings.Contains(section, name) {
			t.Errorf("docs/correctness.md does not say that %s has two sizes", name)
		}
	}
	for _, word := range strings.FieldsFunc(section, func(r rune) bool { return strings.ContainsRune(" \n,.:;|()`", r) }) {
		if strings.HasPrefix(word, "Test") && !slices.Contains(sized, word) {
			t.Errorf("docs/correctness.md says that %s has two sizes; it has one", word)
		}
	}
}

// sizedTests lists the tests that have two sizes, apart from those of this package.
func sizedTests(t *testing.T, root string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == "nightly"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && callsNightly(f) {
				names = append(names, f.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func callsNightly(f *ast.FuncDecl) (calls bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "nightly" && s.Sel.Name != "Races" {
				calls = true
			}
		}
		return true
	})
	return calls
}
