package archive

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/url"
	"path"
	"path/filepath"
	"strings"
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
func OpenBucket(ctx context.Context, address string) (Bucket, error) {
	if err := CheckURL(address); err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "file" {
		return newFileBucket(u.Path), nil
	}
	return newGoogleBucket(ctx, u.Host, strings.Trim(u.Path, "/"))
}

// CheckURL reports whether OpenBucket knows buckets with such a URL. It opens nothing.
func CheckURL(address string) error {
	const want = "want file:///directory or gs://bucket/prefix"
	u, err := url.Parse(address)
	if err != nil {
		return fmt.Errorf("archive %q: not a URL (%s)", address, want)
	}
	trimmed := strings.Trim(u.Path, "/")
	switch {
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil || u.Opaque != "":
		return fmt.Errorf("archive %q: there is more than a path (%s)", address, want)
	case u.Scheme == "file" && u.Host != "":
		return fmt.Errorf("archive %q: the path is not absolute (%s)", address, want)
	case u.Scheme == "file" && (!filepath.IsAbs(u.Path) || trimmed == ""):
		return fmt.Errorf("archive %q: it has no directory (%s)", address, want)
	case u.Scheme == "gs" && u.Host == "":
		return fmt.Errorf("archive %q: it has no bucket (%s)", address, want)
	case u.Scheme == "gs" && trimmed != "" && (!fs.ValidPath(trimmed) || path.Clean(trimmed) != trimmed):
		return fmt.Errorf("archive %q: not a valid prefix (%s)", address, want)
	case u.Scheme != "file" && u.Scheme != "gs":
		return fmt.Errorf("archive %q: unknown scheme %q (%s)", address, u.Scheme, want)
	}
	return nil
}

// checkName refuses names that would lead out of the bucket, or to what it keeps for itself.
func checkName(name string) error {
	if !fs.ValidPath(name) || name == "." || strings.HasPrefix(name, ".") || strings.Contains(name, "/.") {
		return fmt.Errorf("%q is not a valid name for an object", name)
	}
	return nil
}
