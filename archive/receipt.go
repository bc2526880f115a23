package archive

import (
	"context"
	"log/slog"

	"github.com/reaper-ttl/reaper/store"
)

// A Receipt stands for the entities of one call of Keep.
type Receipt struct {
	w      *Writer
	shares []*share
	done   bool
}

// A share is what one object has of a receipt: lines that follow each other.
type share struct {
	of      *object
	first   int // index in the object's states
	keys    []string
	waiting bool // its Keep waits for the object
}

// addLocked notes that the last lines of an object are of this receipt, and whose they are. It is called once for each
// object.
func (r *Receipt) addLocked(o *object, list []store.Copy) {
	s := &share{of: o, first: len(o.states), keys: make([]string, len(list)), waiting: true}
	for i := range list {
		s.keys[i] = list[i].Key
	}
	r.shares = append(r.shares, s)
	o.states = append(o.states, make([]State, len(list))...)
	o.unconfirmed++
	o.waiting++
}

// arrived notes that nobody waits for the objects of the receipt any more.
func (r *Receipt) arrived() {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.arrivedLocked()
}

func (r *Receipt) arrivedLocked() {
	for _, s := range r.shares {
		if !s.waiting {
			continue
		}
		s.waiting = false
		if s.of.waiting--; s.of.waiting == 0 && r.w.open != s.of {
			s.of.write.cancel(errNobodyWaits)
		}
	}
}

// giveUp ends a receipt whose Keep failed: none of its entities is deleted.
func (r *Receipt) giveUp() {
	r.arrived()
	r.Done(func(string) State { return Kept })
}

// Done says what became of the entities by now: no more of them is deleted because of this receipt. The state is
// Deleted, Kept or, if a delete failed so that it may have happened, Unconfirmed. After the last receipt of an
// object its manifest is written, in the background. Only the first call counts; entities of a receipt without
// a call are unconfirmed.
func (r *Receipt) Done(state func(key string) State) {
	states := make([][]State, len(r.shares))
	for i, s := range r.shares {
		for _, key := range s.keys {
			states[i] = append(states[i], state(key))
		}
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.done {
		return
	}
	r.done = true
	for i, s := range r.shares {
		if s.of.unconfirmed == 0 {
			continue // the writer is closed
		}
		copy(s.of.states[s.first:], states[i])
		s.keys = nil
		s.of.unconfirmed--
		r.w.confirmLocked(s.of)
	}
}

// confirmLocked writes the manifest of an object in the background, if it is time to.
func (w *Writer) confirmLocked(o *object) {
	select {
	case <-o.write.done:
	default:
		return
	}
	if _, ok := w.unfinished[o]; !ok || o.unconfirmed > 0 || o.write.as.Object == "" {
		return
	}
	m := o.manifest(w.cfg.Now())
	o.states = nil
	if m == nil {
		delete(w.unfinished, o)
		return
	}
	o.write.as = Manifest{} // only once
	w.manifests.Go(func() {
		if !w.putManifest(m) {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.unfinished, o)
	})
}

// putManifest writes a manifest, and reports whether it did before the writer was closed.
func (w *Writer) putManifest(m *Manifest) bool {
	select {
	case w.manifests.slots <- struct{}{}:
		defer func() { <-w.manifests.slots }()
	case <-w.ctx.Done():
		return false
	}
	encoder, err := w.encoder()
	var data []byte
	if err == nil {
		data, err = m.encode(encoder)
		w.putBack(encoder)
	}
	if err == nil {
		err = w.retry(w.ctx, "write a manifest of the archive", func(error) {}, func(ctx context.Context) error {
			_, err := w.putOnce(ctx, manifestOf(m.Object), data)
			return err
		})
	}
	if err != nil {
		w.cfg.Log.WarnContext(w.ctx, "an object of the archive stays unconfirmed", slog.String("object", m.Object),
			slog.Any("err", err))
		return false
	}
	w.cfg.Counts.Manifests.Add(1)
	w.cfg.Counts.Compressed.Add(int64(len(data)))
	return true
}
