package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A1: with an archive, what was deleted is in an object that was confirmed before: a whole entity exactly as it
// was deleted, a key with the expiry by which it was.

// archiving is in how many lives there is an archive.
const archiving = 0.1

// What an archive keeps.
const keysAlone, wholeOnes = "keys", "full"

// archiveFails is for how long an archive is taken to fail after a write has failed.
const archiveFails = 5 * time.Second

// drawArchive decides whether the targets have archives.
func (p *plan) drawArchive(d dice) {
	if p.overlap == nil && p.takesPart("archive", d.on("archives"), archiving) {
		p.archives = pick(d.on("archived"), keysAlone, wholeOnes)
	}
}

// openArchives gives a process the archives of its targets.
func (w *world) openArchives(h *handle, targets []sweep.Target) {
	if w.plan.archives == "" {
		return
	}
	for i, t := range targets {
		targets[i].Archive = &vault{h: h, kind: t.Kind}
	}
}

// A safeCopy is in a closed object of the archive.
type safeCopy struct {
	at   place
	key  string
	what string // the version of a whole entity, the expiry of a key
}

// A vault is the archive of one target of one process. A write of it travels as calls of the store do, and
// may fail as these do.
type vault struct {
	h    *handle
	kind string

	failed time.Time // when a write has failed last; guarded by the world's lock
}

// IsWhole implements sweep.Archive.
func (v *vault) IsWhole() bool { return v.h.w.plan.archives == wholeOnes }

// Reserve implements sweep.Archive.
func (v *vault) Reserve(ctx context.Context, _ int64) (release func(), err error) {
	return func() {}, ctx.Err()
}

// Failing implements sweep.Archive.
func (v *vault) Failing() error {
	v.h.w.mu.Lock()
	defer v.h.w.mu.Unlock()
	if !v.failed.IsZero() && time.Since(v.failed) < archiveFails {
		return store.ErrUnavailable
	}
	return nil
}

// Keep implements sweep.Archive.
func (v *vault) Keep(ctx context.Context, _, namespace string, list []store.Copy) (
	ended func(fate func(key string) store.Outcome), err error,
) {
	w, at := v.h.w, place{v.kind, namespace}
	safe := make([]safeCopy, len(list))
	for i, c := range list {
		safe[i] = safeCopy{at, c.Key, c.Version}
		if !v.IsWhole() {
			safe[i].what = show(c.Expiry)
		}
	}
	c := call{method: "Archive", key: fmt.Sprint(namespace, " ", safe), write: true}
	err = v.h.do(ctx, c, func(fate) error {
		for _, s := range safe {
			w.safe[s] = true
		}
		w.count("objects archived")
		return nil
	})
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		v.failed = time.Now()
		return nil, err
	}
	return func(fate func(key string) store.Outcome) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, s := range safe {
			if r := w.rowOrNone(at, s.key); v.IsWhole() && fate(s.key) == store.Deleted && version(r) == s.what && r.key != "" {
				w.violate("A1", "%s tells its archive that %s is deleted, which stands", v.h.name, s.key)
			}
		}
	}, nil
}

func version(r *row) string { return fmt.Sprint(r.version) }

// copyOf returns an entity as the store shows it to an archive.
func copyOf(r *row) store.Copy {
	return store.Copy{Key: r.key, Version: version(r), Expiry: r.expiry, Data: []byte(r.data)}
}

// Archives implements store.Archiver.
func (h *handle) Archives(store.Target) error { return nil }

// Fetch implements store.Archiver. No sweep calls it.
func (h *handle) Fetch(context.Context, store.Target, string, []string, time.Time) ([]store.Copy, error) {
	return nil, store.ErrUnsupported
}

// Insert implements store.Archiver. No sweep calls it.
func (h *handle) Insert(context.Context, store.Target, string, []store.Insertion) error {
	return store.ErrUnsupported
}

// A showing is what a call has shown to an archive, by key. A nil one asks for nothing.
type showing map[string]string

// shows gives the archive of a query what a call is about to delete. It may read less than all.
func (h *handle) shows(ctx context.Context, q store.Query, at place, ops []store.Op) (showing, error) {
	if q.Archive == nil {
		return nil, nil
	}
	c := call{method: "Get", key: q.Namespace + " " + describe(ops)}
	shown := showing{}
	var list []store.Copy
	err := h.do(ctx, c, func(fate) error {
		most := len(ops)
		if h.throw(c).on("less").yes(0.1) {
			most = 1 + h.throw(c).on("most").below(len(ops))
		}
		for _, op := range ops[:most] {
			r := h.w.rowOrNone(at, op.Entry.Key)
			shown[op.Entry.Key] = version(r)
			if r.key != "" && !op.IsCarry() {
				list = append(list, copyOf(r))
			}
		}
		return nil
	})
	if err != nil || len(list) == 0 {
		return shown, err
	}
	return shown, q.Archive.Keep(ctx, list)
}

// lacks reports whether an op was not shown, so that its entity is left for another call.
func (s showing) lacks(op store.Op) bool {
	_, ok := s[op.Entry.Key]
	return s != nil && !ok
}

// differs reports whether an entity is no longer what was shown.
func (s showing) differs(r *row, op store.Op) bool {
	was, ok := s[op.Entry.Key]
	return ok && was != version(r) && !op.IsCarry()
}

// archived holds A1 as an entity is deleted.
func (o *oracle) archived(h *handle, at place, was row) {
	s := safeCopy{at, was.key, version(&was)}
	switch {
	case o.w.plan.archives == "":
		return
	case o.w.plan.archives == keysAlone:
		s.what = show(was.expiry)
	}
	if !o.w.safe[s] {
		o.w.violate("A1", "%s deletes %s, of which the archive has no copy: %s", h.name, was.key, s.what)
	}
	o.w.count("deleted after it was archived")
}

// archivedBelow holds A1 as descendants are deleted. By its key alone one cannot be told from that of another
// entity.
func (o *oracle) archivedBelow(h *handle, s stem, list []store.Descendant) {
	if o.w.plan.archives != wholeOnes {
		return
	}
	for _, c := range copiesBelow(s, list, o.w.birthsLocked(s, list)) {
		if !o.w.safe[safeCopy{s.at, c.Key, c.Version}] {
			o.w.violate("A1", "%s deletes %s below %s, of which the archive has no copy", h.name, c.Key, s.key)
		}
	}
}

// birthsOf returns when descendants were written, as far as they exist.
func (w *world) birthsOf(s stem, list []store.Descendant) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.birthsLocked(s, list)
}

func (w *world) birthsLocked(s stem, list []store.Descendant) []time.Time {
	born := make([]time.Time, len(list))
	for i, d := range list {
		born[i] = w.kin[s][d.Key].born
	}
	return born
}

// copiesBelow returns descendants as the store shows them to an archive.
func copiesBelow(s stem, list []store.Descendant, born []time.Time) (copies []store.Copy) {
	for i, d := range list {
		if !born[i].IsZero() {
			copies = append(copies, store.Copy{Key: d.Key, Version: fmt.Sprint(s.key, " ", born[i].UnixNano())})
		}
	}
	return copies
}
