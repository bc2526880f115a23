package reaper_test

import (
	"bytes"
	"go/ast"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/internal/typecheck"
)

// The rooms of the engine, and what a reader must be able to hold in mind of each:
// so many lines without tests, so many files; of a type so many fields and methods.
const (
	mostLines, mostFiles    = 2600, 15
	mostFields, mostMethods = 12, 25
)

// Types that are larger, and why.
var large = map[string]string{
	"sweep.Target":               "settings are a list",
	"sweep.TargetResult":         "results are a list",
	"internal/engine/site.Setup": "what a site is built from is a list",
	"internal/engine/site.Site":  "what all work on one target shares is a list",
}

func engine(t *testing.T) []room {
	t.Helper()
	return slices.DeleteFunc(rooms(t), func(r room) bool { return r.dir != "sweep" && !matches(r.dir, "internal/engine/*") })
}

// A reader must be able to hold each room, and each of its types, in mind.
func TestRoomsOfTheEngineAreSmall(t *testing.T) {
	for _, r := range engine(t) {
		files, lines := 0, 0
		fields, methods := map[string]int{}, map[string]int{}
		for name, file := range r.files {
			if r.isTest(name) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(r.dir, name))
			if err != nil {
				t.Fatal(err)
			}
			files++
			lines += bytes.Count(text, []byte("\n"))
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					if s, ok := n.Type.(*ast.StructType); ok {
						fields[n.Name.Name] = s.Fields.NumFields()
					}
				case *ast.FuncDecl:
					if n.Recv != nil {
						methods[receiver(n.Recv.List[0].Type)]++
					}
				}
				return true
			})
		}
		if files > mostFiles || lines > mostLines {
			t.Errorf("%s: %d files of %d lines together; at most %d and %d", r.dir, files, lines, mostFiles, mostLines)
		}
		for name, n := range fields {
			if n > mostFields && large[r.dir+"."+name] == "" {
				t.Errorf("%s: %s has %d fields, more than %d", r.dir, name, n, mostFields)
			}
		}
		for name, n := range methods {
			if n > mostMethods && large[r.dir+"."+name] == "" {
				t.Errorf("%s: %s has %d methods, more than %d", r.dir, name, n, mostMethods)
			}
		}
	}
}

// Within a room files build on each other, too: a reader can take them in some
// order, each after those that it uses. Two files may use each other.
func TestFilesFormNoCircle(t *testing.T) {
	exports, err := typecheck.List(t.Context(), ".", "./sweep", "./internal/engine/...")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range engine(t) {
		for _, circle := range circles(fileUses(t, r, exports)) {
			if len(circle) > 2 {
				t.Errorf("%s: these files use each other in a circle: %s", r.dir, strings.Join(circle, ", "))
			}
		}
	}
}

// fileUses returns which files of a room use what is declared in which others.
func fileUses(t *testing.T, r room, exports typecheck.Exports) map[string]map[string]bool {
	t.Helper()
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	fset, pkg, err := exports.Check(".", r.dir, nil, &info)
	if err != nil {
		t.Fatal(err)
	}
	uses := map[string]map[string]bool{}
	for id, obj := range info.Uses {
		from := filepath.Base(fset.Position(id.Pos()).Filename)
		to := filepath.Base(fset.Position(obj.Pos()).Filename)
		if obj.Pkg() != pkg || from == to {
			continue
		}
		if uses[from] == nil {
			uses[from] = map[string]bool{}
		}
		uses[from][to] = true
	}
	return uses
}

// circles returns the files from which one comes back to where one began, by
// group: Tarjan's strongly connected components, of more than one file.
func circles(uses map[string]map[string]bool) [][]string {
	var (
		found  [][]string
		stack  []string
		number = map[string]int{}
		lowest = map[string]int{}
		visit  func(file string)
	)
	visit = func(file string) {
		number[file] = len(number) + 1
		lowest[file] = number[file]
		stack = append(stack, file)
		for _, to := range slices.Sorted(maps.Keys(uses[file])) {
			if number[to] == 0 {
				visit(to)
				lowest[file] = min(lowest[file], lowest[to])
			} else if slices.Contains(stack, to) {
				lowest[file] = min(lowest[file], number[to])
			}
		}
		if lowest[file] == number[file] {
			i := slices.Index(stack, file)
			if group := slices.Clone(stack[i:]); len(group) > 1 {
				found = append(found, slices.Sorted(slices.Values(group)))
			}
			stack = stack[:i]
		}
	}
	for _, file := range slices.Sorted(maps.Keys(uses)) {
		if number[file] == 0 {
			visit(file)
		}
	}
	return found
}
