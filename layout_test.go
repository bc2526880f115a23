// Package reaper_test holds the repository to its own layout: imports point
// one way, every package says what it promises, and what is exported shows how
// it is used.
package reaper_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/internal/typecheck"
)

const module = typecheck.Module

// Rooms and the floor that each is on. A package imports only from floors
// below its own, so imports point one way and never sideways. The longest
// matching name counts; a new package that matches none fails until somebody
// says here where it stands.
//
// What Go users import is at the top; what only this program imports is below internal.
var floors = map[string]int{
	"expirykey":   0,
	"store":       0, // the contract
	"store/*":     3, // drivers, and the suite that they must pass
	"archive":     2,
	"breaker":     1,
	"cursor":      2,
	"generation":  2,
	"layout":      2,
	"metrics":     2, // knows what store errors are called
	"throttle":    2,
	"history":     3,
	"shardquery":  3,
	"shardread":   0, // for applications
	"shardread/*": 1,
	"writers":     3,  // for applications; its directories hold other languages
	"sweep":       14, // what callers use; the house of which it is the door:

	"internal/engine/plan":       4, // pure
	"internal/engine/storeclock": 4,
	"internal/engine/index":      4, // what anybody may read
	"internal/engine/journal":    5,
	"internal/engine/guard":      6,
	"internal/engine/view":       6, // records
	"internal/engine/step":       6, // the contract of schedule, visit and chore
	"internal/engine/pace":       7,
	"internal/engine/spend":      7,
	"internal/engine/site":       8, // what all work on one target shares
	"internal/engine/dispose":    9, // the one place that deletes and carries
	"internal/engine/chore":      9,
	"internal/engine/visit":      10,
	"internal/engine/schedule":   11,

	"control":    15,
	"inspect":    16,
	"cmd/*":      19,
	"internal/*": helpers,

	"internal/adopt":         15,
	"internal/orphans":       15,
	"internal/restore":       15,
	"internal/switches":      5,  // by the store's clock
	"internal/doctor":        17, // all that inspect knows, and what only drivers do
	"internal/doctor/facts":  0,  // what drivers say of a database
	"internal/doctor/repair": 17, // it tells ages as inspect does
	"internal/page":          18, // shows what all of these know
	"internal/page/draw":     17, // pure
	"internal/selftest":      16, // what operators do, and the suite of all drivers
	"internal/background":    0,  // for all of them
	"internal/chronicle":     4,
	"internal/config":        3,
	"internal/forecast":      3, // pure: for commands, inspect, the doctor and the page
	"internal/workload":      4, // what a person says of a workload
	"internal/measure":       17,
	"internal/linechart":     4, // pictures of numbers
	"internal/indexes":       3,
	"internal/baseline":      15, // for the demo, too
	"store/internal/*":       2,  // what drivers share
}

// Helpers are packages for tests, and imported by nothing else.
const helpers = 20

// Libraries that only some rooms may know, and which.
var confined = map[string][]string{
	"cloud.google.com/go/datastore":        {"store/datastore", "shardread/dsread", "internal/*"},
	"cloud.google.com/go/firestore":        {"store/firestore", "shardread/fsread", "internal/*"},
	"cloud.google.com/go/storage":          {"archive"},
	"google.golang.org/api":                {"archive", "store/datastore", "store/firestore", "store/internal/*", "shardread/*", "internal/*"},
	"google.golang.org/grpc":               {"store/datastore", "store/firestore", "store/internal/*", "shardread/*", "internal/*"},
	"github.com/cockroachdb/pebble":        {"store/embedded"},
	"go.yaml.in/yaml":                      {"internal/config", "internal/indexes"},
	"github.com/kelseyhightower/envconfig": {"internal/config"},
	"github.com/robfig/cron":               {"internal/config"},
	"github.com/spf13/cobra":               {"cmd/*"},
	"github.com/schollz/progressbar":       {"cmd/*"},
	"github.com/guptarohit/asciigraph":     {"cmd/*"},
	"golang.org/x/term":                    {"cmd/*"},
	"testing":                              {"internal/*"}, // it would register flags in the binary
}

// Exported packages without an example: the suite is called from a driver's
// tests, and has no output of its own.
var withoutExample = []string{"store/storetest", "internal/background", "internal/baseline", "internal/doctor/facts"}

// A room is one directory with Go files.
type room struct {
	dir   string // relative to the root, with slashes
	files map[string]*ast.File
}

func (r room) isTest(file string) bool { return strings.HasSuffix(file, "_test.go") }

// matches reports whether the directory is the one named, or below it where
// the name ends in "/*".
func matches(dir, name string) bool {
	if below, ok := strings.CutSuffix(name, "/*"); ok {
		return strings.HasPrefix(dir, below+"/")
	}
	return dir == name
}

func floor(dir string) (int, bool) {
	best, level := "", 0
	for name, l := range floors {
		if matches(dir, name) && len(name) > len(best) {
			best, level = name, l
		}
	}
	return level, best != ""
}

// skipped are directories that hold nothing of ours, and modules of their own.
func skipped(name string) bool {
	return slices.Contains([]string{".git", ".cache", "bin", "node_modules", "deploy", "bench", "gcstest"}, name)
}

func rooms(t *testing.T) []room {
	t.Helper()
	byDir := map[string]room{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipped(d.Name()) || d.Name() == "testdata" || name != "." && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		dir := path.Dir(filepath.ToSlash(name))
		if !strings.HasSuffix(name, ".go") || dir == "." {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		if byDir[dir].files == nil {
			byDir[dir] = room{dir, map[string]*ast.File{}}
		}
		byDir[dir].files[d.Name()] = file
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all := make([]room, 0, len(byDir))
	for _, r := range byDir {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b room) int { return strings.Compare(a.dir, b.dir) })
	if len(all) < 3 {
		t.Fatalf("only %d packages found: this test does not run in the root of the repository", len(all))
	}
	return all
}

func TestImportsPointOneWay(t *testing.T) {
	for _, r := range rooms(t) {
		own, ok := floor(r.dir)
		if !ok {
			t.Errorf("%s: no floor is named for it in this test", r.dir)
			continue
		}
		helper := own == helpers
		for name, file := range r.files {
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				where := r.dir + "/" + name
				if ours, ok := strings.CutPrefix(imported, module+"/"); ok && !r.isTest(name) {
					level, _ := floor(ours)
					if level >= own && !helper {
						t.Errorf("%s imports %s, which is not below it", where, ours)
					}
					driver := matches(ours, "store/*") && !matches(ours, "store/internal/*") && ours != "store/storetest"
					if driver && r.dir != "cmd/reaper" && !helper {
						t.Errorf("%s imports the driver %s; only the command opens drivers", where, ours)
					}
				}
				for library, allowed := range confined {
					if imported != library && !strings.HasPrefix(imported, library+"/") {
						continue
					}
					if r.isTest(name) && (library == "testing" || matches(r.dir, "store/*") || matches(r.dir, "cmd/*") || matches(r.dir, "shardread/*")) {
						continue // tests break a real store, or look at one, below its surface, or are compared with its client
					}
					if !slices.ContainsFunc(allowed, func(a string) bool { return matches(r.dir, a) && (a != "internal/*" || helper) }) {
						t.Errorf("%s imports %s; only %v may", where, imported, allowed)
					}
				}
			}
		}
	}
}

func TestPackagesAreDocumented(t *testing.T) {
	for _, r := range rooms(t) {
		doc, code := "", false
		for name, file := range r.files {
			if r.isTest(name) {
				continue
			}
			code = true
			if file.Doc != nil {
				doc = file.Doc.Text()
			}
		}
		// A sentence that says less than this says no more than the name does.
		if code && len(doc) < 100 {
			t.Errorf("%s: the package has no documentation that gives its invariant and limits: %q", r.dir, doc)
		}
	}
}

func TestExportedPackagesHaveExamples(t *testing.T) {
	for _, r := range rooms(t) {
		if level, _ := floor(r.dir); level == helpers || matches(r.dir, "store/internal/*") || matches(r.dir, "cmd/*") {
			continue
		}
		found := false
		for name, file := range r.files {
			for _, decl := range file.Decls {
				f, ok := decl.(*ast.FuncDecl)
				found = found || ok && r.isTest(name) && strings.HasPrefix(f.Name.Name, "Example") && hasOutput(file, f)
			}
		}
		if !found && !slices.Contains(withoutExample, r.dir) {
			t.Errorf("%s: no example with output shows how the package is used", r.dir)
		}
	}
}

// hasOutput reports whether the example's output is checked: one that is only
// compiled proves little.
func hasOutput(file *ast.File, f *ast.FuncDecl) bool {
	for _, c := range file.Comments {
		text := strings.ToLower(strings.TrimSpace(c.Text()))
		if c.Pos() > f.Pos() && c.End() < f.End() && (strings.HasPrefix(text, "output:") || strings.HasPrefix(text, "unordered output:")) {
			return true
		}
	}
	return false
}

// The repository stands on its own: no file in it points at one that only its
// authors have.
func TestNothingPointsOutside(t *testing.T) {
	outside := [][]byte{[]byte("../" + "shared"), []byte("/" + "work/")}
	seen := 0
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipped(d.Name()) && !slices.Contains([]string{"deploy", "bench", "gcstest"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if info, err := d.Info(); err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
			return err // binaries that somebody built here
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		seen++
		for _, o := range outside {
			if bytes.Contains(text, o) {
				t.Errorf("%s mentions %s", name, o)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 10 {
		t.Fatalf("only %d files were looked at", seen)
	}
}

// Packages in which goroutines meet are tested with the race detector: .ci/raced names
// them, or says why one needs none.
func TestRacedPackages(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(".ci", "raced"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		name, why, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "- "), " ")
		if name == "" || name == "#" {
			continue
		}
		if strings.TrimSpace(why) == "" {
			t.Errorf(".ci/raced gives no reason for %s", name)
		}
		listed[name] = true
	}
	for _, r := range rooms(t) {
		if how := concurrent(r); how != "" && !listed[r.dir] {
			t.Errorf("%s %s, and .ci/raced does not name it", r.dir, how)
		}
	}
	for name := range listed {
		if _, err := os.Stat(name); err != nil {
			t.Errorf(".ci/raced: %v", err)
		}
	}
}

// concurrent says how the program of a room has to do with goroutines, if it has.
func concurrent(r room) (how string) {
	for name, file := range r.files {
		if r.isTest(name) {
			continue
		}
		for _, i := range file.Imports {
			switch lib, _ := strconv.Unquote(i.Path.Value); lib {
			case "sync", "sync/atomic", "golang.org/x/sync/errgroup":
				how = "imports " + lib
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok {
				how = "starts goroutines"
			}
			return true
		})
	}
	return how
}
