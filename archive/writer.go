package archive

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/klauspost/compress/zstd"

	"github.com/reaper-ttl/reaper/store"
)

// A Config says what a writer writes, and where.
type Config struct {
	Bucket    Bucket
	Header    Header        // of all objects
	Sweep     func() string // the id of the sweep that goes on, for the header of a new object; nil: Header.Sweep
	RollSize  int64         // an object of so many bytes before compression is written; zero means 16 MiB
	RollAfter time.Duration // an object so old is written; a small one earlier, see quietParts; zero means 2s
	Now       func() time.Time
	Log       *slog.Logger // names the target
	Counts    *Counts      // what the writer adds to; may be shared by several; nil if nobody looks
}

// MinRollSize is the least RollSize: smaller objects cost more than they hold.
const MinRollSize = 1 << 20

// quietParts is which part of RollAfter an object with less than a page waits for more: a range that is alone must not
// wait for others.
const quietParts = 40

// spacingParts is which part of RollAfter lies at least between an object and the next one with less than a page, and
// less than MinRollSize, where writes are billed: ranges with a slow pace would else take turns, each with an object of
// its own for what it deletes in half a second.
const spacingParts = 8

func (c Config) withDefaults() Config {
	c.RollSize = cmp.Or(c.RollSize, 16<<20)
	c.RollAfter = cmp.Or(c.RollAfter, 2*time.Second)
	c.Counts = cmp.Or(c.Counts, new(Counts))
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.Header.Schema = Schema
	return c
}

func (c Config) validate() error {
	var problems []error
	if c.Bucket == nil || c.Now == nil {
		problems = append(problems, errors.New("a bucket and a clock are required"))
	}
	if c.Header.Mode != Keys && c.Header.Mode != Full {
		problems = append(problems, fmt.Errorf("unknown mode %q (want keys or full)", c.Header.Mode))
	}
	if !targetName.MatchString(c.Header.Target) {
		problems = append(problems, fmt.Errorf("%q is not a valid target name", c.Header.Target))
	}
	if c.RollSize < MinRollSize {
		problems = append(problems, fmt.Errorf("objects of %d bytes are too small: want at least %d", c.RollSize,
			MinRollSize))
	}
	if c.RollAfter < quietParts {
		problems = append(problems, errors.New("times must be positive"))
	}
	return errors.Join(problems...)
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
type Writer struct {
	cfg    Config
	ctx    context.Context // of all that is written; ends with Close
	cancel context.CancelFunc

	mu         sync.Mutex
	open       *object              // that collects; nil if none does
	rolled     time.Time            // when the last one ended
	unfinished map[*object]struct{} // that have no manifest yet, if they get one
	seq        int                  // of the last name
	closed     bool
	failing    error
	writing    int // objects that are being written
	encoders   sync.Pool
	writes     group // of objects
	manifests  group
}

// A group is goroutines that Close waits for.
type group struct {
	sync.WaitGroup
	slots chan struct{} // how many work at once; nil: all
}

// wait waits for all of them; if ctx ends, for none.
func (g *group) wait(ctx context.Context) error {
	all := make(chan struct{})
	go func() {
		g.Wait()
		close(all)
	}()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// manifestSlots is how many manifests a writer writes at once.
const manifestSlots = 4

// Open returns a writer, after it has written an object as a probe. The writer must be closed.
func Open(ctx context.Context, cfg Config) (*Writer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("archive of target %s: %w", cfg.Header.Target, err)
	}
	// A bucket may not let us remove it: then the next probe of this process finds its own bytes.
	probe := cfg.Header.Target + "/probe-" + ownerHash(cfg.Header.Owner) + ".txt"
	if _, err := cfg.Bucket.Create(ctx, probe, []byte("reaper can write here\n")); err != nil {
		return nil, fmt.Errorf("archive of target %s: %w", cfg.Header.Target, err)
	}
	if err := cfg.Bucket.Remove(ctx, probe); err != nil {
		cfg.Log.DebugContext(ctx, "the probe of the archive stays", slog.Any("err", err))
	}
	w := &Writer{cfg: cfg, unfinished: map[*object]struct{}{}}
	w.manifests.slots = make(chan struct{}, manifestSlots)
	w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return w, nil
}

// Keep adds entities of a namespace, and returns once the objects that hold them are durable; else an error, and none
// of them may be deleted because of this call. It keeps neither the list nor the Data. Calls that come at the
// same time share an object. Keep tries again as long as ctx lives: give it a deadline.
func (w *Writer) Keep(ctx context.Context, namespace string, list []store.Copy) (*Receipt, error) {
	if len(list) == 0 {
		return &Receipt{w: w}, nil
	}
	begun := w.cfg.Now()
	defer func() { w.cfg.Counts.Waited.Add(int64(w.cfg.Now().Sub(begun))) }()
	var text bytes.Buffer
	size := 0
	for i := range list {
		size += len(list[i].Key) + len(list[i].Data) + metaSize
	}
	text.Grow(size)
	ends := make([]int, 0, len(list))
	for _, c := range list {
		if err := encodeLine(&text, w.cfg.Header.Mode, namespace, c, begun); err != nil {
			return nil, fmt.Errorf("archive: %w", err)
		}
		ends = append(ends, text.Len())
	}
	r := &Receipt{w: w}
	err := w.collect(r, list, text.Bytes(), ends)
	if err == nil {
		err = w.await(ctx, r)
	}
	if err != nil {
		r.giveUp()
		return nil, fmt.Errorf("archive: %w", err)
	}
	w.cfg.Counts.Entities.Add(int64(len(list)))
	return r, nil
}

// metaSize is about how long a line is without its key and data.
const metaSize = 256

// collect adds lines to objects, and the objects to the receipt, which waits for them.
func (w *Writer) collect(r *Receipt, list []store.Copy, text []byte, ends []int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return ErrClosed
	}
	if o := w.open; o != nil && o.sweep != w.sweep() {
		w.rollLocked(o) // its header would say that they are of another sweep
	}
	for first, from := 0, 0; first < len(ends); {
		if w.open == nil {
			if err := w.beginLocked(); err != nil {
				return err
			}
		}
		o := w.open
		last := o.fitting(w.cfg.RollSize, from, ends[first:]) + first
		if last > first {
			if err := o.add(text[from:ends[last-1]]); err != nil {
				return err
			}
			r.addLocked(o, list[first:last])
			from = ends[last-1]
		}
		if last < len(ends) || o.size >= w.cfg.RollSize {
			w.rollLocked(o)
		}
		first = last
	}
	if w.open != nil {
		w.open.quiet.Reset(w.quietLocked(w.open))
	}
	w.rollWorthyLocked()
	return nil
}

// quietLocked returns for how long an object waits for more.
func (w *Writer) quietLocked(o *object) time.Duration {
	quiet := w.cfg.RollAfter / quietParts
	if _, free := w.cfg.Bucket.(*fileBucket); free || o.isWorthy() {
		return quiet
	}
	return max(quiet, w.cfg.RollAfter/spacingParts-max(0, w.cfg.Now().Sub(w.rolled)))
}

// worthy is how many entities are worth an object of their own. Those of a whole page need not wait for others: while
// an object is written, the next one collects what comes meanwhile.
const worthy = store.MaxPage

// isWorthy reports whether an object is worth being written: one call has fewer entities than a page if they are large.
func (o *object) isWorthy() bool { return len(o.states) >= worthy || o.size >= MinRollSize }

// rollWorthyLocked writes the open object if that is worth it and no other one is being written.
func (w *Writer) rollWorthyLocked() {
	if o := w.open; o != nil && w.writing == 0 && o.isWorthy() {
		w.rollLocked(o)
	}
}

// await waits until all objects of a receipt are durable.
func (w *Writer) await(ctx context.Context, r *Receipt) error {
	for _, s := range r.shares {
		select {
		case <-s.of.write.done:
			if s.of.write.err != nil {
				return s.of.write.err
			}
		case <-ctx.Done():
			if err := w.Failing(); err != nil {
				return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
			}
			return context.Cause(ctx)
		}
	}
	r.arrived()
	return nil
}

// encoder returns an encoder, whose memory is as large as some entities: it goes back into encoders.
func (w *Writer) encoder() (*zstd.Encoder, error) {
	if e, ok := w.encoders.Get().(*zstd.Encoder); ok {
		return e, nil
	}
	return newEncoder()
}

// beginLocked begins an object.
func (w *Writer) beginLocked() error {
	encoder, err := w.encoder()
	if err != nil {
		return err
	}
	h := w.cfg.Header
	h.Created, h.Sweep = w.cfg.Now().UTC(), w.sweep()
	o, err := newObject(w.ctx, h, encoder)
	if err != nil {
		return err
	}
	roll := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.rollLocked(o)
	}
	old := time.AfterFunc(w.cfg.RollAfter, roll)
	o.quiet = time.AfterFunc(w.quietLocked(o), roll)
	o.stop = func() { old.Stop(); o.quiet.Stop() }
	w.open = o
	w.unfinished[o] = struct{}{}
	return nil
}

// putBack gives back an encoder, which keeps no memory of what it wrote.
func (w *Writer) putBack(e *zstd.Encoder) {
	e.Reset(nil)
	w.encoders.Put(e)
}

// sweep returns the id of the sweep that goes on.
func (w *Writer) sweep() string {
	if w.cfg.Sweep == nil {
		return w.cfg.Header.Sweep
	}
	return w.cfg.Sweep()
}

// rollLocked seals an object and writes it in the background, unless that was done before.
func (w *Writer) rollLocked(o *object) {
	if w.open != o {
		return
	}
	w.open, w.rolled = nil, w.cfg.Now()
	if o.waiting == 0 {
		o.write.cancel(errNobodyWaits)
	}
	err := o.seal()
	w.putBack(o.encoder)
	o.encoder = nil
	w.writing++
	name := w.newNameLocked(o) // now, so that names are in the order of objects
	w.writes.Go(func() {
		if err == nil {
			err = w.put(o, name)
		}
		w.written(o, err)
	})
}

// written records how the writing of an object ended.
func (w *Writer) written(o *object, err error) {
	if err == nil {
		w.cfg.Counts.Objects.Add(1)
		w.cfg.Counts.Bytes.Add(o.size)
		w.cfg.Counts.Compressed.Add(o.write.as.Size)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	o.packed = bytes.Buffer{}
	if o.write.err = err; err != nil {
		delete(w.unfinished, o)
	}
	close(o.write.done)
	o.write.cancel(nil)
	w.confirmLocked(o)
	w.writing--
	w.rollWorthyLocked()
}

// put writes a sealed object until it is in the bucket, or nobody waits for it any more.
func (w *Writer) put(o *object, name string) error {
	data := o.packed.Bytes()
	sum := sha256.Sum256(data)
	return w.retry(o.write.ctx, "write an object of the archive", w.setFailing, func(ctx context.Context) error {
		generation, err := w.putOnce(ctx, name, data)
		if errors.Is(err, ErrExists) || errors.Is(err, errLost) {
			name = w.newName(o)
			return err
		}
		o.write.as = Manifest{Schema: Schema, Object: name, Generation: generation, SHA256: hex.EncodeToString(sum[:]),
			Size: int64(len(data)), Lines: len(o.states)}
		return err
	})
}

var (
	errLost    = errors.New("an object that was written is not in the bucket")
	errTooSlow = errors.New("an object was not written for as long as anybody waited for it")
)

// tryFor bounds one try of a write: a connection may hang. It is longer than any delete waits.
const tryFor = time.Minute

// putOnce writes an object, and looks whether it is there.
func (w *Writer) putOnce(ctx context.Context, name string, data []byte) (generation string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	if generation, err = w.cfg.Bucket.Create(ctx, name, data); err != nil {
		return "", err
	}
	seen, err := w.cfg.Bucket.Stat(ctx, name)
	switch {
	case errors.Is(err, ErrNotFound):
		return "", fmt.Errorf("%w: %w", errLost, err)
	case err != nil:
		return "", err
	case seen.Size != int64(len(data)):
		return "", fmt.Errorf("%w: %s has %d bytes instead of %d", errLost, name, seen.Size, len(data))
	}
	return generation, nil
}

func (w *Writer) newName(o *object) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newNameLocked(o)
}

func (w *Writer) newNameLocked(o *object) string {
	w.seq++
	return nameOf(w.cfg.Header.Target, w.cfg.Header.Owner, o.created, w.seq)
}

// retry calls do until it succeeds or ctx ends, and tells note how each call ended.
func (w *Writer) retry(ctx context.Context, what string, note func(error), do func(context.Context) error) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 50 * time.Millisecond
	wait.MaxInterval = 5 * time.Second
	var last error
	level := slog.LevelWarn // one line for each object, however long the bucket fails
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		if ctx.Err() != nil {
			return struct{}{}, backoff.Permanent(context.Cause(ctx))
		}
		last = do(ctx)
		note(last)
		if last != nil && ctx.Err() == nil {
			w.cfg.Counts.Failures.Add(1)
			w.cfg.Log.Log(ctx, level, what+": trying again", slog.Any("err", last))
			level = slog.LevelDebug
		}
		return struct{}{}, last
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	if err != nil && last != nil && !errors.Is(err, last) {
		err = fmt.Errorf("%w (%w)", last, err)
	}
	return err
}

func (w *Writer) setFailing(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if errors.Is(err, context.Canceled) {
		if w.failing != nil {
			return // it says less than what is known
		}
		err = errTooSlow
	}
	w.failing = err
}

// Failing returns the error of the last write of an object if it failed; nil if it did not, and before the first.
func (w *Writer) Failing() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failing
}

// Close writes what calls of Keep still wait for, and the manifests of all objects of which something is known. It
// waits for them as long as ctx lives; objects without a manifest are unconfirmed. Keep fails from now on.
func (w *Writer) Close(ctx context.Context) error {
	defer w.cancel()
	w.mu.Lock()
	w.closed = true
	if w.open != nil {
		w.rollLocked(w.open)
	}
	w.mu.Unlock()
	err := w.writes.wait(ctx)
	if err == nil {
		w.mu.Lock()
		for o := range w.unfinished { // receipts that are not done by now stay so
			if o.unconfirmed > 0 {
				o.unconfirmed = 0
				w.confirmLocked(o)
			}
		}
		w.mu.Unlock()
		err = w.manifests.wait(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.unfinished); err != nil && n > 0 {
		return fmt.Errorf("archive of target %s: %d objects stay unconfirmed: %w", w.cfg.Header.Target, n, err)
	}
	return err
}
