package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
)

// An object is one that a writer fills, writes, and confirms. The writer's mutex guards it, but for what write
// reads after it was sealed.
type object struct {
	created time.Time
	sweep   string // of its header
	encoder *zstd.Encoder
	packed  bytes.Buffer // what the encoder has written
	lines   hash.Hash    // of the lines before compression
	size    int64        // their bytes
	states  []State      // of each entity's line; "" until it is known
	stop    func()       // stops the timers
	quiet   *time.Timer

	unconfirmed int // receipts and calls of Keep that have not said yet what they deleted
	waiting     int // calls of Keep that wait for it
	write       *writing
}

// A writing is an object's way into the bucket.
type writing struct {
	ctx    context.Context // ends when nobody waits for the object any more
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it is durable, or err is set
	err    error
	as     Manifest // without runs: how the object is named, and what it has
}

var errNobodyWaits = errors.New("nobody waits for the object any more")

// newObject begins an object with its header.
func newObject(ctx context.Context, h Header, encoder *zstd.Encoder) (*object, error) {
	o := &object{created: h.Created, sweep: h.Sweep, encoder: encoder, lines: sha256.New(),
		write: &writing{done: make(chan struct{})}}
	o.write.ctx, o.write.cancel = context.WithCancelCause(ctx)
	o.encoder.Reset(&o.packed)
	first, err := encode(h)
	if err != nil {
		return nil, err
	}
	return o, o.add(first)
}

// newEncoder returns an encoder that works in one goroutine, with a window that holds several entities. At its
// fastest it makes lines as small as by default, in two thirds of the time.
func newEncoder() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20),
		zstd.WithEncoderLevel(zstd.SpeedFastest))
}

// fitting returns how many of the next lines, which end there in a text, have room in an object of so many bytes: at
// least one if it has none.
func (o *object) fitting(most int64, from int, ends []int) (n int) {
	size, has := o.size, len(o.states)
	for n < len(ends) && (has+n == 0 || size < most && o.size+int64(ends[n]-from) <= most) {
		size = o.size + int64(ends[n]-from)
		n++
	}
	return n
}

// add adds lines.
func (o *object) add(text []byte) error {
	o.size += int64(len(text))
	o.lines.Write(text)
	_, err := o.encoder.Write(text)
	return err
}

// seal adds the last line. Nothing can be added after it.
func (o *object) seal() error {
	o.stop()
	last, err := encode(struct {
		End end `json:"end"`
	}{end{len(o.states), hex.EncodeToString(o.lines.Sum(nil))}})
	if err != nil {
		return err
	}
	o.size += int64(len(last))
	if _, err := o.encoder.Write(last); err != nil {
		return err
	}
	return o.encoder.Close()
}

// manifest returns what is known of the entities by now; nil if it is nothing.
func (o *object) manifest(now time.Time) *Manifest {
	m := o.write.as
	m.Deleted, m.Kept = runs(o.states, Deleted), runs(o.states, Kept)
	if len(m.Deleted)+len(m.Kept) == 0 {
		return nil
	}
	m.Written = now.UTC()
	return &m
}

// runs returns the runs of lines that have a state. It is not nil, which is null in JSON.
func runs(states []State, want State) []Run {
	all := []Run{}
	for i := 0; i < len(states); i++ {
		if states[i] != want {
			continue
		}
		n := slices.IndexFunc(states[i:], func(s State) bool { return s != want })
		if n < 0 {
			n = len(states) - i
		}
		all = append(all, Run{i + 1, n})
		i += n
	}
	return all
}
