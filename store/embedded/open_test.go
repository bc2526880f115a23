package embedded

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reaper-ttl/reaper/store"
)

// holdEnv makes this test binary open a store, say so, and wait for its input to
// close.
const holdEnv = "EMBEDDED_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		os.Exit(hold(dir))
	}
	os.Exit(m.Run())
}

func hold(dir string) int {
	db, err := Open(dir, Options{Now: time.Now})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("open")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // ends with the parent at the latest
	if err := db.Close(); err != nil {
		return 1
	}
	return 0
}

// listing is all that can be seen of a directory: names, sizes, times, contents.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var text []byte
		if !d.IsDir() {
			if text, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		when := info.ModTime().String()
		if d.IsDir() || d.Name() == "LOCK" {
			when = "" // taking the lock truncates an empty file
		}
		out[path] = fmt.Sprint(info.Mode(), when, string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refuses checks that opening dir fails as it should and touches nothing.
func refuses(t *testing.T, dir string, create bool, says string, sentinels ...error) {
	t.Helper()
	root := filepath.Dir(dir)
	for _, err := os.Stat(root); err != nil; _, err = os.Stat(root) {
		root = filepath.Dir(root)
	}
	before := listing(t, root)
	db, err := Open(dir, Options{Now: time.Now, Create: create})
	if err == nil {
		closeDB(t, db)
		t.Fatal("it was opened")
	}
	for _, want := range sentinels {
		if !errors.Is(err, want) {
			t.Errorf("%v\ndoes not wrap %q", err, want)
		}
	}
	if !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v\ndoes not say %q and name %s", err, says, dir)
	}
	if after := listing(t, root); !maps.Equal(before, after) {
		t.Errorf("something was touched: before\n%q\nafter\n%q", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
	}
}

// filled makes a store with some tables and a log in a directory of its own.
func filled(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "store")
	db, err := Open(dir, Options{Now: time.Now, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, db, entities(0, 400)...)
	if err := db.engine.Flush(); err != nil {
		t.Fatal(err)
	}
	mustPut(t, db, entities(400, 100)...)
	closeDB(t, db)
	return dir
}

func TestReopen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	open := func() *DB {
		db, err := Open(dir, Options{Now: time.Now, Create: true})
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	db := open()
	mustPut(t, db, entities(0, 10)...)
	first := db.Opening()
	b := batchOf(scanAll(t, db)[:4]...)
	if err := db.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	r := cursor(4, "")
	if err := db.Save(t.Context(), r, ""); err != nil {
		t.Fatal(err)
	}
	if err := db.Drop(t.Context(), sessions, "00000000.", "00000000/"); err != nil {
		t.Fatal(err)
	}
	closeDB(t, db)

	db = open()
	defer closeDB(t, db)
	if got := scanAll(t, db); len(got) != 6 || got[0].Value != expiry(4) {
		t.Errorf("%d entries after reopening, the first %v", len(got), got[0].Value)
	}
	if got := load(t, db); len(got) != 1 || !reflect.DeepEqual(got[0], r) {
		t.Errorf("records after reopening: %+v, not %+v", got, r)
	}
	nursery := []store.Entity{{Name: "n", Expiry: store.TextValue("00000000.0000.20261121T000730.855Z")}}
	if err := db.Put(t.Context(), sessions, "", nursery); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("put into a span that was dropped before reopening: %v", err)
	}
	if db.Opening() == first {
		t.Errorf("two openings have the same text %q", first)
	}
	checkRows(t, db)
}

func TestCloseIsFinal(t *testing.T) {
	db := openIn(t, vfs.NewMem())
	mustPut(t, db, entities(0, 500)...)
	mustPut(t, db, entities(500, 500)...)
	found := scanAll(t, db)
	seen := 0
	var last error
	for _, err := range db.Dump(t.Context(), sessions, "") {
		if last = err; seen == 0 {
			closeDB(t, db) // in the middle of a dump
		}
		seen++
	}
	if seen != dumpChunk+1 || !errors.Is(last, store.ErrFailed) {
		t.Errorf("a dump that lost its store yielded %d times and ended with %v", seen, last)
	}
	closeDB(t, db)
	calls := map[string]error{
		"scan":    db.Scan(t.Context(), everything(), new(store.Page)),
		"dispose": db.Dispose(t.Context(), batchOf(found[0])),
		"put":     db.Put(t.Context(), sessions, "", entities(0, 1)),
		"save":    db.Save(t.Context(), cursor(1, ""), ""),
		"drop":    db.Drop(t.Context(), sessions, "a", "b"),
		"flush":   db.Flush(),
	}
	_, calls["settle"] = db.Settle(t.Context(), everything(), found[0], func(store.Value) store.Verdict { return store.Delete })
	_, calls["load"] = db.Load(t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"})
	_, calls["count"] = db.Count(t.Context(), sessions, "", store.Span{}, 0)
	_, calls["holds"] = db.Holds(t.Context(), sessions, "")
	for what, err := range calls {
		if !errors.Is(err, store.ErrFailed) || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s on a closed store: %v", what, err)
		}
	}
}

func TestOpenRefusesWhatIsNotOurs(t *testing.T) {
	base := t.TempDir()
	sub := func(name string, files ...string) string {
		dir := filepath.Join(base, strings.ReplaceAll(t.Name(), "/", "-"), name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(dir, f), []byte("their text\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	t.Run("missing", func(t *testing.T) {
		refuses(t, filepath.Join(sub("x"), "none"), false, "no such directory", store.ErrCorrupt, fs.ErrNotExist)
	})
	t.Run("missing parents", func(t *testing.T) {
		refuses(t, filepath.Join(sub("x"), "none", "at", "all"), false, "no such directory", store.ErrCorrupt, fs.ErrNotExist)
	})
	t.Run("empty", func(t *testing.T) { refuses(t, sub("empty"), false, "empty", store.ErrCorrupt) })
	t.Run("foreign", func(t *testing.T) { refuses(t, sub("foreign", "letter.txt"), false, "letter.txt", store.ErrCorrupt) })
	t.Run("foreign with create", func(t *testing.T) { refuses(t, sub("foreign", "letter.txt"), true, "letter.txt", store.ErrCorrupt) })
	t.Run("another engine's", func(t *testing.T) {
		refuses(t, sub("engine", "CURRENT", "LOCK", "MANIFEST-000001"), true, "CURRENT", store.ErrCorrupt)
	})
	t.Run("marker of another text", func(t *testing.T) {
		refuses(t, sub("marker", markerName), true, markerName, store.ErrCorrupt)
	})
	t.Run("marker alone", func(t *testing.T) {
		dir := sub("alone")
		if err := os.WriteFile(filepath.Join(dir, markerName), []byte(markerText+"1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "LOCK"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		refuses(t, dir, true, "damaged", store.ErrCorrupt)
	})
	t.Run("file", func(t *testing.T) {
		refuses(t, filepath.Join(sub("file", "plain"), "plain"), false, "not a directory", store.ErrCorrupt)
	})
	t.Run("below a file", func(t *testing.T) {
		path := filepath.Join(sub("below", "plain"), "plain")
		if _, err := Open(filepath.Join(path, "store"), Options{Now: time.Now, Create: true}); err == nil {
			t.Error("a store was opened below a file")
		}
	})
	t.Run("newer format", func(t *testing.T) {
		dir := filled(t)
		if err := os.WriteFile(filepath.Join(dir, markerName), []byte(markerText+"2\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		refuses(t, dir, false, "newer program", store.ErrCorrupt)
	})
	t.Run("newer engine", func(t *testing.T) {
		dir := filled(t)
		old, err := filepath.Glob(filepath.Join(dir, "marker.format-version.*"))
		if err != nil || len(old) != 1 {
			t.Fatal(old, err)
		}
		stem := old[0][:strings.LastIndex(old[0], ".")]
		if err := os.Rename(old[0], stem+".999"); err != nil {
			t.Fatal(err)
		}
		refuses(t, dir, false, "newer program", store.ErrCorrupt)
	})
	t.Run("no clock", func(t *testing.T) {
		if _, err := Open(sub("clock"), Options{Create: true}); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("without a clock: %v", err)
		}
	})
}

// TestOpenIgnoresItsOwnLeftovers: a crash between taking the lock and writing
// anything leaves a directory that may still become a store.
func TestOpenIgnoresItsOwnLeftovers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "LOCK"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	db, err := Open(dir, Options{Now: time.Now, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	closeDB(t, db)
}

func TestOpenIsExclusive(t *testing.T) {
	dir := filled(t)
	db, err := Open(dir, Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(dir))
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, "store", "./store/../store", link} {
		if _, err := Open(path, Options{Now: time.Now}); !errors.Is(err, store.ErrLocked) {
			t.Errorf("opening %s again: %v", path, err)
		}
	}
	mustPut(t, db, entities(0, 1)...)
	closeDB(t, db)
	db, err = Open(link, Options{Now: time.Now})
	if err != nil {
		t.Fatalf("after it was closed: %v", err)
	}
	closeDB(t, db)
}

func TestOpenWhileAnotherProcessHasIt(t *testing.T) {
	dir := filled(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), exe)
	other.Env = append(os.Environ(), holdEnv+"="+dir)
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if said, err := bufio.NewReader(out).ReadString('\n'); said != "open\n" {
		t.Fatalf("the other process said %q, %v", said, err)
	}
	for _, create := range []bool{false, true} {
		_, err := Open(dir, Options{Now: time.Now, Create: create})
		if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), dir) {
			t.Errorf("while another process has it: %v", err)
		}
	}
	// Being refused must not have cost the other process its lock.
	if _, err := Open(dir, Options{Now: time.Now}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a second time: %v", err)
	}
	if err := errors.Join(in.Close(), other.Wait()); err != nil {
		t.Errorf("the other process: %v", err)
	}
	db, err := Open(dir, Options{Now: time.Now})
	if err != nil {
		t.Fatalf("after the other process ended: %v", err)
	}
	closeDB(t, db)
}

// TestDamage damages each file of a store in turn. The store must then refuse to
// open, without touching anything, or report the damage when it is read; it must
// never crash. What it may do is lose the end of its log, as after a crash.
func TestDamage(t *testing.T) {
	damages := map[string]func([]byte) []byte{
		"emptied": func([]byte) []byte { return nil },
		"cut":     func(b []byte) []byte { return b[:len(b)/2] },
		"flipped": func(b []byte) []byte {
			for i := range b {
				if i%7 == 3 {
					b[i] ^= 0x55
				}
			}
			return b
		},
		"removed": nil,
	}
	pristine := filled(t)
	names, err := os.ReadDir(pristine)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range names {
		for what, damage := range damages {
			t.Run(entry.Name()+" "+what, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "store")
				if err := os.CopyFS(dir, os.DirFS(pristine)); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(dir, entry.Name())
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if damage == nil {
					err = os.Remove(path)
				} else {
					err = os.WriteFile(path, damage(text), 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
				before := listing(t, dir)
				db, err := Open(dir, Options{Now: time.Now})
				if err != nil {
					if !errors.Is(err, store.ErrCorrupt) {
						t.Errorf("%v\ndoes not wrap %q", err, store.ErrCorrupt)
					}
					after := listing(t, dir)
					delete(after, filepath.Join(dir, "LOCK")) // it may have been the one removed
					delete(before, filepath.Join(dir, "LOCK"))
					// A table's damage shows only when the table is read, and by then
					// the engine may have been at work.
					if !strings.HasSuffix(path, ".sst") && !maps.Equal(before, after) {
						t.Errorf("the damaged store was touched: %q", slices.Sorted(maps.Keys(after)))
					}
					return
				}
				defer func() { _ = db.Close() }() // after damage it may fail, but not panic
				var page store.Page
				n := 0
				for _, err = range db.Dump(t.Context(), sessions, "") {
					if err != nil {
						break
					}
					n++
				}
				err = errors.Join(err, db.Scan(t.Context(), everything(), &page))
				switch {
				case err != nil && !errors.Is(err, store.ErrCorrupt):
					t.Errorf("reading it: %v\ndoes not wrap %q", err, store.ErrCorrupt)
				case err == nil && n != 500 && !strings.HasSuffix(entry.Name(), ".log"):
					t.Errorf("%d of 500 entities are there, and no error", n)
				case err == nil && n != 500 && n != 400:
					t.Errorf("%d entities are there: a commit was split", n)
				}
			})
		}
	}
}
