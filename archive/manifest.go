package archive

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// encode returns the manifest as its object has it: one line, compressed, with zstd's own checksum.
func (m *Manifest) encode(encoder *zstd.Encoder) ([]byte, error) {
	text, err := encode(m)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	encoder.Reset(&packed)
	if _, err := encoder.Write(text); err != nil {
		return nil, err
	}
	err = encoder.Close()
	return packed.Bytes(), err
}

// ReadManifest reads the manifest of an object; ErrNotFound if it has none.
func ReadManifest(ctx context.Context, b Bucket, object string) (*Manifest, error) {
	name := manifestOf(object)
	in, err := b.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	raw := newSource(in)
	unpacked, err := newDecoder(raw)
	if err != nil {
		return nil, raw.unread(name, err)
	}
	defer unpacked.Close()
	text, err := io.ReadAll(io.LimitReader(unpacked, MaxLine+1))
	if err == nil && len(text) > MaxLine {
		err = errTooLong
	}
	if err != nil || raw.failed != nil {
		return nil, raw.unread(name, err)
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, damaged(name, err)
	}
	if m.Schema > Schema {
		return nil, newer(name, m.Schema)
	}
	if m.Object != object {
		return nil, damaged(name, fmt.Errorf("it is the manifest of %q", m.Object))
	}
	return &m, damaged(name, m.check())
}

// check reports whether the runs are in order, do not overlap, and are of lines that the object has.
func (m *Manifest) check() error {
	if m.Schema < 1 || m.Lines < 0 || m.Lines == math.MaxInt {
		return errors.New("its numbers make no sense")
	}
	both := slices.Concat(m.Deleted, m.Kept)
	slices.SortFunc(both, byFirst)
	for _, list := range [][]Run{m.Deleted, m.Kept, both} {
		next := 1
		for _, r := range list {
			if r[0] < next || r[1] < 1 || r[1] > m.Lines || r[0] > m.Lines-r[1]+1 {
				return fmt.Errorf("a run of %d lines from %d on makes no sense", r[1], r[0])
			}
			next = r[0] + r[1]
		}
	}
	return nil
}

func byFirst(a, b Run) int { return cmp.Compare(a[0], b[0]) }

// stateOf returns the state of a line; Unconfirmed without a manifest.
func (m *Manifest) stateOf(number int) State {
	switch {
	case m == nil:
	case has(m.Deleted, number):
		return Deleted
	case has(m.Kept, number):
		return Kept
	}
	return Unconfirmed
}

// has reports whether one of the runs, which are in order, has a line.
func has(runs []Run, number int) bool {
	i, found := slices.BinarySearchFunc(runs, Run{number}, byFirst)
	return found || i > 0 && number < runs[i-1][0]+runs[i-1][1]
}
