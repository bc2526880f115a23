package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// A releasedFile is a file of the tree, as the module's archive holds it.
type releasedFile struct{ path string }

func (f releasedFile) Path() string                 { return f.path }
func (f releasedFile) Lstat() (os.FileInfo, error)  { return os.Lstat(filepath.Join("..", f.path)) }
func (f releasedFile) Open() (io.ReadCloser, error) { return os.Open(filepath.Join("..", f.path)) }

// installed is the version under which the tree is released to the test's own proxy.
var installed = module.Version{Path: "github.com/reaper-ttl/reaper", Version: "v0.9.9-test"}

// release writes the tree, as git knows it, to a module proxy in the file system, and
// returns its address.
func release(t *testing.T) string {
	t.Helper()
	list, err := exec.Command("git", "-C", "..", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if _, missing := os.Stat("../.git"); missing != nil {
		t.Skip("the tree is not a checkout: git cannot say which files are in it")
	}
	if err != nil {
		t.Fatal(err)
	}
	var own []string // directories of other modules, which are none of this one's files
	var files []zip.File
	names := strings.Split(strings.TrimRight(string(list), "\x00"), "\x00")
	for _, name := range names {
		if dir, isModule := strings.CutSuffix(name, "/go.mod"); isModule {
			own = append(own, dir+"/")
		}
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join("..", name)); err != nil ||
			slices.ContainsFunc(own, func(dir string) bool { return strings.HasPrefix(name, dir) }) {
			continue
		}
		files = append(files, releasedFile{name})
	}
	dir := t.TempDir()
	at := filepath.Join(dir, installed.Path, "@v")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := zip.Create(&archive, installed, files); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(mod, []byte("replace")) {
		t.Error("go.mod replaces a module: go install would refuse it")
	}
	info := fmt.Sprintf(`{"Version":%q,"Time":%q}`, installed.Version, time.Now().UTC().Format(time.RFC3339))
	for ending, text := range map[string][]byte{".info": []byte(info), ".mod": mod, ".zip": archive.Bytes()} {
		if err := os.WriteFile(filepath.Join(at, installed.Version+ending), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(at, "list"), []byte(installed.Version+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file://" + filepath.ToSlash(dir)
}

// A stranger is somebody with a fresh module cache and nothing but the proxies.
type stranger struct {
	t   *testing.T
	dir string
	env []string
}

func newStranger(t *testing.T) stranger {
	t.Helper()
	proxy := release(t)
	cached, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	// What this machine has downloaded already need not be downloaded again.
	local := "file://" + filepath.ToSlash(filepath.Join(strings.TrimSpace(string(cached)), "cache", "download"))
	others, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return stranger{t, dir, append(os.Environ(), "GOPROXY="+strings.Join([]string{proxy, local, strings.TrimSpace(string(others))}, ","),
		"GONOSUMDB="+installed.Path+","+os.Getenv("GONOSUMDB"), "GOFLAGS=-modcacherw -trimpath -mod=mod", "GOMODCACHE="+filepath.Join(dir, "mod"),
		"GOBIN="+filepath.Join(dir, "bin"), "CGO_ENABLED=0", "GOWORK=off")}
}

func (s stranger) run(name string, args ...string) string {
	s.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// The README says: go install …/cmd/reaper@VERSION.
func TestInstall(t *testing.T) {
	s := newStranger(t)
	s.run("go", "install", installed.Path+"/cmd/reaper@"+installed.Version)
	reaper := filepath.Join(s.dir, "bin", "reaper")
	var v struct{ Version string }
	if err := json.Unmarshal([]byte(s.run(reaper, "version", "--json")), &v); err != nil || v.Version != installed.Version {
		t.Errorf("it says that it is %q: %v", v.Version, err)
	}
	if out := s.run(reaper, "demo", "--entities", "2000"); !strings.Contains(out, "expired sessions are gone") {
		t.Errorf("its demo says:\n%s", out)
	}
}

// An application gets the packages that it stamps and reads by, and none of the reaper's
// own libraries that they do not need.
func TestGet(t *testing.T) {
	s := newStranger(t)
	program := `package main

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
)

func main() {
	f := &generation.Follower{Target: "sessions", Now: time.Now}
	key, err := f.Name("s-1842", time.Now().Add(time.Hour)) // without a record: in the nursery
	parsed, parseErr := expirykey.Parse(key.String())
	fmt.Println(parsed.Generation, err, parseErr)
}
`
	if err := os.WriteFile(filepath.Join(s.dir, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run("go", "mod", "init", "example.com/app")
	s.run("go", "get", installed.Path+"@"+installed.Version)
	s.run("go", "mod", "tidy")
	if out := s.run("go", "run", "."); out != "0 <nil> <nil>\n" {
		t.Errorf("the application prints %q", out)
	}
	for _, library := range []string{"github.com/cockroachdb/pebble", "cloud.google.com/go/firestore", "github.com/spf13/cobra"} {
		if strings.Contains(s.run("go", "list", "-deps", "."), library) {
			t.Errorf("an application that stamps carries %s", library)
		}
	}
}
