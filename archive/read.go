package archive

import (
	"context"
	"errors"
	"iter"
	"time"
)

// An Entry is an object in the list of an archive.
type Entry struct {
	Object
	Target    string
	At        time.Time // when the object was begun
	Confirmed bool      // it has a manifest
	Missing   bool      // there is only a manifest: the object was removed
}

// Objects lists the objects of a target that were begun from since on and before until, in order of time. A zero
// time leaves that side open, and an empty target stands for all of them. An entity is deleted after its object
// was begun: a second, or as long as its transaction takes.
func Objects(ctx context.Context, b Bucket, target string, since, until time.Time) iter.Seq2[Entry, error] {
	return nil
}

// ReadManifest reads the manifest of an object; ErrNotFound if it has none.
func ReadManifest(ctx context.Context, b Bucket, object string) (*Manifest, error) {
	return nil, errors.ErrUnsupported
}

// A Reader reads one object.
type Reader struct{}

// OpenObject opens an object, and reads its manifest, if it has one, and its header.
func OpenObject(ctx context.Context, b Bucket, object string) (*Reader, error) {
	return nil, errors.ErrUnsupported
}

// Header returns the header of the object.
func (r *Reader) Header() Header { return Header{} }

// Manifest returns the manifest of the object; nil if it has none, and is unconfirmed.
func (r *Reader) Manifest() *Manifest { return nil }

// Lines yields the lines of the object, once. The last pair has an error if the object is not what was written: then
// it names the object and the line, and what is missing; the lines before it are as far as the object can be read.
func (r *Reader) Lines() iter.Seq2[Line, error] { return nil }

// Close ends the reading.
func (r *Reader) Close() error { return nil }

// Read yields the lines of an object, as [Reader.Lines] does.
func Read(ctx context.Context, b Bucket, object string) iter.Seq2[Line, error] { return nil }
