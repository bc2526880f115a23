package archive

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// A Bucket holds objects by name. It is safe for concurrent use. Names are those of [fs.ValidPath], and no element
// of a name begins with a dot. Errors name the object's URL.
type Bucket interface {
	// Create writes an object, and returns once it is durable, with a text that differs each time the
	// name is written. It never overwrites: it fails with ErrExists if the name is taken, unless by these very
	// bytes: so it may be repeated after an error, when nobody knows whether the object was written.
	Create(ctx context.Context, name string, data []byte) (generation string, err error)
	// Open reads an object; ErrNotFound if there is no such object.
	Open(ctx context.Context, name string) (io.ReadCloser, error)
	// Stat describes an object; ErrNotFound if there is no such object.
	Stat(ctx context.Context, name string) (Object, error)
	// List yields the objects whose names begin with prefix and are not before from, in the order of their
	// names, and nothing after an error. An object that is written meanwhile may be missing.
	List(ctx context.Context, prefix, from string) iter.Seq2[Object, error]
	// Remove removes an object; ErrNotFound if there is no such object.
	Remove(ctx context.Context, name string) error
}

// An Object describes an object of a bucket.
type Object struct {
	Name       string
	Size       int64
	Generation string
	Created    time.Time
}

// OpenBucket opens the bucket that a URL names: file:///directory, which the first object creates, or
// gs://bucket/prefix, with the credentials of the environment, or of the emulator that STORAGE_EMULATOR_HOST names.
// The bucket lives as long as the process.
func OpenBucket(ctx context.Context, url string) (Bucket, error) {
	return nil, errors.ErrUnsupported
}
