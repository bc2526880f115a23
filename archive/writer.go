package archive

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A Config says what a writer writes, and where.
type Config struct {
	Bucket    Bucket
	Header    Header        // of all objects
	Sweep     func() string // the id of the sweep that goes on, for the header of a new object; nil: Header.Sweep
	RollSize  int64         // an object with so many bytes before compression is written; zero means 16 MiB
	RollAfter time.Duration // an object so old is written; one that gets nothing more already after a fortieth; zero means 2s
	KeepFor   time.Duration // Prune removes what is older; zero means nothing
	Now       func() time.Time
	Log       *slog.Logger
	Counts    *Counts // what the writer adds to; may be shared by several; nil if nobody looks
}

// Counts are what writers have done.
type Counts struct {
	Entities   atomic.Int64 // that are safe; one that was kept twice counts twice
	Bytes      atomic.Int64 // of objects, before compression
	Compressed atomic.Int64 // of objects and manifests, as they are in the bucket
	Objects    atomic.Int64 // without manifests
	Manifests  atomic.Int64
	Failures   atomic.Int64 // writes that failed, of objects and manifests
	Waited     atomic.Int64 // nanoseconds that calls of Keep took
}

// A Writer keeps entities of one target. There is one in a process for a target. It is safe for concurrent use.
type Writer struct{}

// Open returns a writer, after it has written an object as a probe. The writer must be closed.
func Open(ctx context.Context, cfg Config) (*Writer, error) { return nil, errors.ErrUnsupported }

// Keep adds entities of a namespace, and returns once the objects that hold them are durable; else an error, and none
// of them may be deleted because of this call. It keeps neither the list nor the Data. Calls that come at the
// same time share an object. Keep tries again as long as ctx lives: give it a deadline.
func (w *Writer) Keep(ctx context.Context, namespace string, list []store.Copy) (*Receipt, error) {
	return nil, errors.ErrUnsupported
}

// Failing returns the error of the last write of an object if it failed; nil if it did not, and before the first.
func (w *Writer) Failing() error { return nil }

// Prune removes the objects of the target, and their manifests, that are older than KeepFor from a bucket of files,
// and returns how many files that were. Objects elsewhere are removed by a lifecycle rule of their bucket: there
// Prune does nothing.
func (w *Writer) Prune(ctx context.Context) (removed int, err error) { return 0, errors.ErrUnsupported }

// Close writes what calls of Keep still wait for, and the manifests of all objects of which something is known. It
// waits for them as long as ctx lives; objects without a manifest are unconfirmed. Keep fails from now on.
func (w *Writer) Close(ctx context.Context) error { return errors.ErrUnsupported }

// A Receipt stands for the entities of one call of Keep.
type Receipt struct{}

// Done says which of the entities were deleted, and that no more will be because of this receipt. After the last
// receipt of an object its manifest is written, in the background. Done must be called once for each receipt, also
// after failures: with what is known to be deleted. If a delete may have happened, do not call it: the
// entities then are unconfirmed.
func (r *Receipt) Done(deleted func(key string) bool) {}
