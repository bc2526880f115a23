package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A fileBucket keeps objects as files of a directory. Several processes may share it. An object is written to a
// temporary file, and linked to its name when it is on disk: so nobody sees half of one, and none is overwritten.
type fileBucket struct {
	root string
}

// temporary is the directory of files that are being written.
const temporary = ".tmp"

// abandonedAfter is how old a temporary file is when its process is gone.
const abandonedAfter = time.Hour

func newFileBucket(root string) *fileBucket { return &fileBucket{root: filepath.Clean(root)} }

func (b *fileBucket) path(name string) string { return filepath.Join(b.root, filepath.FromSlash(name)) }

// failed returns an error that names what was done, and to what.
func (b *fileBucket) failed(what, name string, err error) error {
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = ErrNotFound
	case errors.Is(err, fs.ErrExist):
		err = ErrExists
	}
	return fmt.Errorf("%s file://%s: %w", what, filepath.ToSlash(b.path(name)), err)
}

// Create is a method of [Bucket].
func (b *fileBucket) Create(ctx context.Context, name string, data []byte) (generation string, err error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	written, err := b.writeTemporary(ctx, data)
	if written != "" {
		defer os.Remove(written)
	}
	if err == nil {
		err = b.link(ctx, written, b.path(name), data)
	}
	if err != nil {
		return "", b.failed("create", name, err)
	}
	o, err := b.Stat(ctx, name)
	return o.Generation, err
}

// writeTemporary writes a file that is on disk before it has a name that others look for.
func (b *fileBucket) writeTemporary(ctx context.Context, data []byte) (name string, err error) {
	dir := filepath.Join(b.root, temporary)
	if err := makeDurable(dir); err != nil {
		return "", err
	}
	file, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return "", err
	}
	defer file.Close()
	if _, err := file.Write(data); err != nil {
		return file.Name(), err
	}
	if err := file.Sync(); err != nil {
		return file.Name(), err
	}
	if err := file.Close(); err != nil {
		return file.Name(), err
	}
	return file.Name(), ctx.Err()
}

// link gives a file its name, durably. Prune may remove the directory meanwhile.
func (b *fileBucket) link(ctx context.Context, from, to string, data []byte) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := makeDurable(filepath.Dir(to)); err != nil {
			return err
		}
		err := os.Link(from, to)
		if errors.Is(err, fs.ErrNotExist) {
			if _, lost := os.Lstat(from); lost != nil {
				return fmt.Errorf("the temporary file was removed: %w", errLost)
			}
			continue
		}
		if errors.Is(err, fs.ErrExist) {
			if err = isDurable(to, data); errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		if err != nil {
			return err
		}
		return syncUp(filepath.Dir(to), b.root)
	}
}

// isDurable makes sure of a file that has exactly these bytes; else it returns ErrExists.
func isDurable(name string, data []byte) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	there, err := io.ReadAll(io.LimitReader(file, int64(len(data))+1))
	if err != nil {
		return err
	}
	if !bytes.Equal(there, data) {
		return ErrExists
	}
	return file.Sync()
}

// makeDurable creates a directory with all above it that are missing, each durably.
func makeDurable(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if err := makeDurable(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		info, err := os.Stat(dir)
		if err == nil && !info.IsDir() {
			err = errors.New(dir + " is not a directory")
		}
		return err
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// syncUp syncs a directory and those above it up to the root: another process may have made them, and not be done.
func syncUp(dir, root string) error {
	for {
		if err := syncDir(dir); err != nil || dir == root {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

func syncDir(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}

// removeAbandoned removes the temporary files of processes that were killed: they have entities in them, too.
func (b *fileBucket) removeAbandoned() error {
	dir := filepath.Join(b.root, temporary)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nobody has written yet
	}
	if err != nil || len(entries) == 0 {
		return err
	}
	now, err := fileTime(dir)
	if err != nil {
		return err
	}
	var errs failures
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && info.ModTime().Before(now.Add(-abandonedAfter)) {
			err = os.Remove(filepath.Join(dir, e.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // its process, or another one, may have removed it
			errs.add(err)
		}
	}
	return errs.join()
}

// fileTime returns the time by the clock of the file system.
func fileTime(dir string) (time.Time, error) {
	file, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return time.Time{}, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// Open is a method of [Bucket].
func (b *fileBucket) Open(_ context.Context, name string) (io.ReadCloser, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	file, err := os.Open(b.path(name))
	if err != nil {
		return nil, b.failed("open", name, err)
	}
	return file, nil
}

// Stat is a method of [Bucket].
func (b *fileBucket) Stat(_ context.Context, name string) (Object, error) {
	if err := checkName(name); err != nil {
		return Object{}, err
	}
	info, err := os.Lstat(b.path(name))
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Object{}, b.failed("look at", name, err)
	}
	return describe(name, info), nil
}

func describe(name string, info fs.FileInfo) Object {
	at := info.ModTime().UTC()
	return Object{Name: name, Size: info.Size(), Generation: strconv.FormatInt(at.UnixNano(), 10), Created: at}
}

// List is a method of [Bucket].
func (b *fileBucket) List(ctx context.Context, prefix, from string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		if _, err := os.Stat(b.root); err != nil {
			yield(Object{}, b.failed("list", "", err))
			return
		}
		b.walk(ctx, "", prefix, from, yield)
	}
}

// walk yields the objects below a directory, whose name is empty or ends in a slash, and reports whether to go on.
func (b *fileBucket) walk(ctx context.Context, dir, prefix, from string, yield func(Object, error) bool) bool {
	names, byName, err := b.children(dir)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		yield(Object{Name: dir}, b.failed("list", dir, err)) // named for prune, which goes on behind it
		return false
	}
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) && !strings.HasPrefix(prefix, name) ||
			name < from && !strings.HasPrefix(from, name) {
			continue
		}
		if strings.HasSuffix(name, "/") {
			if !b.walk(ctx, name, prefix, from, yield) {
				return false
			}
			continue
		}
		if !strings.HasPrefix(name, prefix) || name < from {
			continue
		}
		info, err := byName[name].Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			yield(Object{Name: dir}, b.failed("list", name, err))
			return false
		}
		if !yield(describe(name, info), nil) {
			return false
		}
	}
	return true
}

// children returns what is in a directory, in the order of names: those of directories end in a slash. One that was
// removed meanwhile has nothing.
func (b *fileBucket) children(dir string) (names []string, byName map[string]fs.DirEntry, err error) {
	entries, err := os.ReadDir(b.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	byName = make(map[string]fs.DirEntry, len(entries))
	for _, e := range entries {
		name := dir + e.Name()
		if e.IsDir() {
			name += "/" // as it sorts among names
		}
		if strings.HasPrefix(e.Name(), ".") || !e.IsDir() && !e.Type().IsRegular() {
			continue
		}
		byName[name] = e
		names = append(names, name)
	}
	slices.Sort(names)
	return names, byName, err
}

// Remove is a method of [Bucket]. It also removes the directories that this leaves empty.
func (b *fileBucket) Remove(_ context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := os.Remove(b.path(name)); err != nil {
		return b.failed("remove", name, err)
	}
	dir := filepath.Dir(b.path(name))
	for dir != b.root && os.Remove(dir) == nil { // one that is not empty stays
		dir = filepath.Dir(dir)
	}
	return nil
}
