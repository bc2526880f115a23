package embedded

import (
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A disk is the file system that the engine sees. A write that fails sets the store's
// fault, and is never reported to the engine: some of the engine's error handling ends
// the process in a way that recover cannot stop (a log that cannot be rotated unlocks a
// mutex twice), and some retries for ever. The goroutine of the failed write stays
// blocked. Nothing waits for it, since every wait for the engine also ends with the
// fault.
type disk struct {
	vfs.FS
	fault  *fault
	paused func() bool // compactions wait while it says so; may be nil
}

// A diskFile is a file that is open for writing, or a directory.
type diskFile struct {
	vfs.File
	fault *fault
}

// A logFile is a log that is read.
type logFile struct {
	vfs.File
	fault *fault
}

// A tableFile is a table that is read. An error goes back to the engine, which handles it, and
// is the store's fault: nothing tells whose entities are in the block, so a sweep must not take
// it for the refusal of one entity and go on past that.
type tableFile struct {
	vfs.File
	fault *fault
}

// must returns only where err is nil.
func (f *fault) must(err error) {
	if err != nil {
		f.set(classify("use the disk", err))
		select {}
	}
}

// mustRead returns only where err is nil or says that the file ends.
func (f *fault) mustRead(err error) {
	if !errors.Is(err, io.EOF) {
		f.must(err)
	}
}

// unread makes the fault of what a table could not be read for.
func (f *fault) unread(err error) {
	if err != nil {
		f.set(classify("use the disk", err))
	}
}

func (d disk) file(f vfs.File, err error) (vfs.File, error) {
	d.fault.must(err)
	return diskFile{f, d.fault}, nil
}

// pauseRecheck is how often a paused compaction checks whether it may continue.
const pauseRecheck = 5 * time.Millisecond

// Create implements [vfs.FS].
func (d disk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	for category == "pebble-compaction" && d.paused != nil && d.paused() {
		<-time.After(pauseRecheck)
	}
	if strings.HasPrefix(d.PathBase(name), "marker.") {
		d.fault.must(d.syncDir(d.PathDir(name)))
	}
	return d.file(d.FS.Create(name, category))
}

// syncDir makes the names in a directory durable. The engine does so once for a
// marker and the file that the marker names: a disk that then keeps only the
// marker has a store that cannot be opened.
func (d disk) syncDir(dir string) error {
	f, err := d.FS.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// List implements [vfs.FS]. The engine lists its directory once more at the end of an
// opening, while goroutines of its own already read tables. If that call failed, the
// engine would close what these goroutines use, and they would panic.
func (d disk) List(dir string) ([]string, error) {
	names, err := d.FS.List(dir)
	d.fault.must(err)
	return names, nil
}

// Open implements [vfs.FS]. A log is read while the engine opens, which reads the
// tables of earlier logs already: see [disk.List]. A table that it opens once more, to read it from end to end, it
// reads as it is open if that fails.
func (d disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.Open(name, opts...)
	switch {
	case strings.HasSuffix(name, ".log"):
		d.fault.must(err)
		return logFile{f, d.fault}, nil
	case !strings.HasSuffix(name, ".sst"):
		return f, err
	case err != nil:
		if !slices.Contains(opts, vfs.SequentialReadsOption) {
			d.fault.unread(err)
		}
		return nil, err
	}
	return tableFile{f, d.fault}, nil
}

// OpenReadWrite implements [vfs.FS].
func (d disk) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.file(d.FS.OpenReadWrite(name, category, opts...))
}

// ReuseForWrite implements [vfs.FS].
func (d disk) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return d.file(d.FS.ReuseForWrite(oldname, newname, category))
}

// OpenDir implements [vfs.FS]. The engine opens the directory to sync it, and reports an
// error by itself.
func (d disk) OpenDir(name string) (vfs.File, error) {
	f, err := d.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return diskFile{f, d.fault}, nil
}

// Link implements [vfs.FS].
func (d disk) Link(oldname, newname string) error {
	d.fault.must(d.FS.Link(oldname, newname))
	return nil
}

// Rename implements [vfs.FS].
func (d disk) Rename(oldname, newname string) error {
	d.fault.must(d.FS.Rename(oldname, newname))
	return nil
}

// Read implements [vfs.File].
func (f logFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.fault.mustRead(err)
	return n, err
}

// ReadAt implements [vfs.File].
func (f logFile) ReadAt(p []byte, offset int64) (int, error) {
	n, err := f.File.ReadAt(p, offset)
	f.fault.mustRead(err)
	return n, err
}

// Stat implements [vfs.File]: the engine asks how long a table is before it reads it.
func (f tableFile) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	f.fault.unread(err)
	return info, err
}

// ReadAt implements [vfs.File]. The engine knows how long a table is: one that ends too early cannot be read either.
func (f tableFile) ReadAt(p []byte, offset int64) (int, error) {
	n, err := f.File.ReadAt(p, offset)
	f.fault.unread(err)
	return n, err
}

// Write implements [vfs.File].
func (f diskFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.fault.must(err)
	return n, nil
}

// WriteAt implements [vfs.File].
func (f diskFile) WriteAt(p []byte, offset int64) (int, error) {
	n, err := f.File.WriteAt(p, offset)
	f.fault.must(err)
	return n, nil
}

// Sync implements [vfs.File].
func (f diskFile) Sync() error {
	f.fault.must(f.File.Sync())
	return nil
}

// SyncData implements [vfs.File].
func (f diskFile) SyncData() error {
	f.fault.must(f.File.SyncData())
	return nil
}

// SyncTo implements [vfs.File].
func (f diskFile) SyncTo(length int64) (fullSync bool, err error) {
	fullSync, err = f.File.SyncTo(length)
	f.fault.must(err)
	return fullSync, nil
}

// Preallocate implements [vfs.File]: it is where a full disk shows first.
func (f diskFile) Preallocate(offset, length int64) error {
	f.fault.must(f.File.Preallocate(offset, length))
	return nil
}

// Stat implements [vfs.File]: the engine asks for the size of a log that it is
// about to use again.
func (f diskFile) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	f.fault.must(err)
	return info, nil
}

// Close implements [vfs.File].
func (f diskFile) Close() error {
	f.fault.must(f.File.Close())
	return nil
}
