package archive

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"time"

	"github.com/klauspost/compress/zstd"
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
	prefix, from := "", ""
	if target != "" {
		prefix = target + "/"
	}
	if since = since.UTC().Truncate(time.Millisecond); target != "" && since.Year() >= 1 && !since.IsZero() {
		from = prefix + since.Format(nameLayout)
	}
	return func(yield func(Entry, error) bool) {
		var manifest *Entry // read, and its object was not yet
		for o, err := range b.List(ctx, prefix, from) {
			if err != nil {
				yield(Entry{}, err)
				return
			}
			name, ok := parseName(o.Name)
			if !ok || name.at.Before(since) {
				continue
			}
			if !until.IsZero() && !name.at.Before(until) {
				if target != "" {
					break // the others are younger
				}
				continue
			}
			e := Entry{Object: o, Target: name.target, At: name.at}
			e.Name = name.object
			before := manifest
			if manifest = nil; name.manifest {
				e.Object = Object{Name: name.object}
				e.Confirmed, e.Missing = true, true
				manifest = &e
			} else if before != nil && before.Name == e.Name {
				e.Confirmed, before = true, nil
			}
			if before != nil && !yield(*before, nil) || !name.manifest && !yield(e, nil) {
				return
			}
		}
		if manifest != nil {
			yield(*manifest, nil)
		}
	}
}

var errTooLong = fmt.Errorf("a line has more than %d bytes", MaxLine)

// damaged returns nil if err is nil, and else an error that wraps ErrDamaged and names the object.
func damaged(object string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("object %s is %w: %w", object, ErrDamaged, err)
}

func newer(object string, schema int) error {
	return fmt.Errorf("object %s was %w: its schema is %d, and this version reads up to %d", object, ErrNewer, schema,
		Schema)
}

// newDecoder decompresses with bounded memory, whatever the input asks for.
func newDecoder(in io.Reader) (*zstd.Decoder, error) {
	return zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxLine), zstd.WithDecoderMaxWindow(32<<20))
}

// A Reader reads one object.
type Reader struct {
	name     string
	in       io.ReadCloser
	raw      *source // the bytes of the object
	unpacked *zstd.Decoder
	text     *bufio.Reader
	lines    hash.Hash // of the lines that were read
	header   Header
	manifest *Manifest
	defect   error // of the manifest
}

// A source is the bytes of an object as the bucket gives them. It hashes and counts them, and remembers why they could
// not be read.
type source struct {
	in     io.Reader
	sum    hash.Hash
	size   int64
	failed error // of a read, but for the end
}

func newSource(in io.Reader) *source { return &source{in: in, sum: sha256.New()} }

// Read implements [io.Reader].
func (s *source) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	s.sum.Write(p[:n])
	s.size += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}

// unread returns the error for an object that could not be read to its end. If the bucket failed, the object may be
// intact: then that is the error, and else damage.
func (s *source) unread(object string, err error) error {
	if s.failed != nil {
		return fmt.Errorf("read object %s: %w", object, s.failed)
	}
	return damaged(object, err)
}

// OpenObject opens an object, and reads its manifest, if it has one, and its header. If the manifest cannot be
// read, the lines are Unconfirmed, and Lines ends with that error.
func OpenObject(ctx context.Context, b Bucket, object string) (_ *Reader, err error) {
	name, ok := parseName(object)
	if !ok || name.manifest {
		return nil, fmt.Errorf("%q: %w", object, ErrName)
	}
	r := &Reader{name: object, lines: sha256.New()}
	if r.manifest, r.defect = ReadManifest(ctx, b, object); r.defect != nil {
		r.manifest = nil
		if errors.Is(r.defect, ErrNotFound) {
			r.defect = nil
		}
	}
	if r.in, err = b.Open(ctx, object); err != nil {
		return nil, err
	}
	r.raw = newSource(r.in)
	if r.unpacked, err = newDecoder(r.raw); err == nil {
		r.text = bufio.NewReaderSize(r.unpacked, 64<<10)
		err = r.readHeader()
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Reader) readHeader() error {
	first, err := r.next()
	if err != nil {
		return r.raw.unread(r.name, fmt.Errorf("its header cannot be read: %w", err))
	}
	err = json.Unmarshal(first, &r.header)
	switch {
	case err != nil:
		return damaged(r.name, fmt.Errorf("its header cannot be read: %w", err))
	case r.header.Schema > Schema:
		return newer(r.name, r.header.Schema)
	case r.header.Schema < 1 || r.header.Mode != Keys && r.header.Mode != Full:
		return damaged(r.name, fmt.Errorf("its header has schema %d and mode %q", r.header.Schema, r.header.Mode))
	}
	r.lines.Write(first)
	return nil
}

// next reads a line with its end.
func (r *Reader) next() ([]byte, error) {
	var long []byte
	for {
		part, err := r.text.ReadSlice('\n')
		if len(long)+len(part) > MaxLine {
			return nil, errTooLong
		}
		long = append(long, part...)
		switch {
		case err == nil:
			return long, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// Header returns the header of the object.
func (r *Reader) Header() Header { return r.header }

// Manifest returns the manifest of the object; nil if it has none, and is unconfirmed.
func (r *Reader) Manifest() *Manifest { return r.manifest }

// Lines yields the lines of the object, once. The last pair has an error if the object is not what was written: then
// it names the object and the line, and what is missing; the lines before it are as far as the object can be read,
// and are what was written unless it is an ErrChanged. An error of the bucket is no ErrDamaged: it says nothing of
// the object, whose lines are not known to be what was written either.
func (r *Reader) Lines() iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		for n := 1; ; n++ {
			l, last, err := r.line(n)
			if last != nil {
				err = r.checkEnd(n-1, *last)
			}
			switch {
			case err != nil:
				yield(Line{}, err)
				return
			case last != nil:
				return
			case !yield(l, nil):
				return
			}
		}
	}
}

// line reads the line of the n-th entity, or the end.
func (r *Reader) line(n int) (Line, *end, error) {
	text, err := r.next()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Line{}, nil, r.raw.unread(r.name, fmt.Errorf("line %d and all behind it are missing: %w", n, err))
	case err != nil:
		return Line{}, nil, r.raw.unread(r.name, fmt.Errorf("%w, before or at line %d: %w", ErrChanged, n, err))
	}
	var rec record
	if err := json.Unmarshal(text, &rec); err != nil {
		return Line{}, nil, damaged(r.name, fmt.Errorf("%w: line %d cannot be read: %w", ErrChanged, n, err))
	}
	if rec.End != nil {
		return Line{}, rec.End, nil
	}
	r.lines.Write(text)
	l, err := rec.decode()
	if err == nil && r.header.Mode == Full && len(l.Data) == 0 {
		err = errors.New("no data")
	}
	if err != nil {
		return Line{}, nil, damaged(r.name, fmt.Errorf("%w: line %d cannot be read: %w", ErrChanged, n, err))
	}
	l.Number, l.State = n, r.manifest.stateOf(n)
	return l, nil, nil
}

// checkEnd compares what was read with the last line and the manifest.
func (r *Reader) checkEnd(n int, last end) error {
	if n != last.Lines {
		return damaged(r.name, fmt.Errorf("%w: it has %d lines instead of %d", ErrChanged, n, last.Lines))
	}
	if sum := hex.EncodeToString(r.lines.Sum(nil)); sum != last.SHA256 {
		return damaged(r.name, fmt.Errorf("%w: the hash of its %d lines is %s instead of %s", ErrChanged, n, sum,
			last.SHA256))
	}
	if _, err := r.text.ReadByte(); !errors.Is(err, io.EOF) || r.raw.failed != nil {
		if err == nil {
			err = errors.New("there is more behind its last line")
		}
		return r.raw.unread(r.name, err)
	}
	if r.defect != nil {
		return r.defect
	}
	if m := r.manifest; m != nil {
		if sum := hex.EncodeToString(r.raw.sum.Sum(nil)); m.Lines != n || m.Size != r.raw.size || m.SHA256 != sum {
			return damaged(r.name, fmt.Errorf("its manifest is of an object with %d lines, %d bytes and hash %s; "+
				"this has %d, %d and %s", m.Lines, m.Size, m.SHA256, n, r.raw.size, sum))
		}
	}
	return nil
}

// Close ends the reading.
func (r *Reader) Close() error {
	if r.unpacked != nil {
		r.unpacked.Close()
	}
	return r.in.Close()
}

// Read yields the lines of an object, as [Reader.Lines] does.
func Read(ctx context.Context, b Bucket, object string) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		r, err := OpenObject(ctx, b, object)
		if err != nil {
			yield(Line{}, err)
			return
		}
		defer r.Close()
		for l, err := range r.Lines() {
			if !yield(l, err) {
				return
			}
		}
	}
}
