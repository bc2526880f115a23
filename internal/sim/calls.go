package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// The methods of the store, as a process calls them.

// Scan implements store.Store.
func (h *handle) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	c := call{method: "Scan", key: q.Namespace + " " + show(q.Lo) + " " + show(q.Hi) + " " + q.Shard.Text + " " + show(q.After.Value) + q.After.Key}
	c.drag = h.rush.drags(q)
	h.w.oracle.scans(h, q)
	var list []store.Entry
	var more bool
	err := h.do(ctx, c, func(fate) error {
		at := time.Now()
		if w := h.w; w.plan.lag > 0 && !w.calm {
			at = at.Add(-h.throw(c).on("stale").between(0, w.plan.lag))
		}
		list, more = h.w.db.scan(q, at)
		return nil
	})
	if err != nil {
		return err
	}
	page.Entries, page.More, page.Next, page.SteppedOver = append(page.Entries[:0], list...), more, nil, store.UnknownSteps
	return nil
}

// Dispose implements store.Store.
func (h *handle) Dispose(ctx context.Context, b *store.Batch) error {
	ops := append([]store.Op{}, b.Ops...) // the caller may be gone by then
	dry, q := b.DryRun, b.Query
	c := call{method: "Dispose", key: q.Namespace + " " + describe(ops), write: !dry, ops: len(ops)}
	h.sends(ctx, q, ops)
	sent, at := time.Now(), place{q.Target.Kind, q.Namespace}
	h.meddle(h.throw(c).on("meddle"), at, ops)
	shown, err := h.shows(ctx, q, at, ops)
	if err != nil {
		h.noteRefusals(at.namespace, ops, err)
		return err
	}
	var after []settled
	err = h.do(ctx, c, func(f fate) error {
		if f.partial && q.Target.Guard == store.GuardQuery {
			f.partial = false
		}
		for _, op := range ops {
			if err := h.rush.denies(op.Entry.Key); err != nil && !dry {
				return err
			}
			if !dry && h.w.locked(at, op.Entry.Key) {
				h.w.count("locked")
				return fmt.Errorf("%s is locked: %w", op.Entry.Key, store.ErrContention)
			}
			if shown.differs(h.w.rowOrNone(at, op.Entry.Key), op) && h.w.db.mode != native && h.w.db.mode != embedded {
				return store.ErrContention // of the transaction that has read it
			}
		}
		for i, op := range ops {
			if shown.lacks(op) {
				after = append(after, settled{})
				continue
			}
			if f.partial && h.throw(c).on("part").at(int64(i)).yes(0.5) {
				after = append(after, settled{})
				continue
			}
			before := *h.w.rowOrNone(at, op.Entry.Key)
			s := settled{outcome: store.Changed}
			if !shown.differs(&before, op) {
				s = h.w.db.dispose(at, op, dry, time.Now())
			}
			after = append(after, s)
			h.effect(q.Target.Name, at, op.Entry.Key, before, s.outcome, op.To, dry, time.Since(sent))
		}
		return nil
	})
	// Outcomes that are set are true even if an error is returned with them. If the
	// reply was lost, the caller learns nothing.
	if err == nil || errors.Is(err, errPart) {
		for i, s := range after {
			b.Ops[i].Outcome, b.Ops[i].Now, b.Ops[i].Known = s.outcome, s.now, s.known
		}
	}
	b.SteppedOver = store.UnknownSteps
	h.noteRefusals(at.namespace, ops, err)
	return err
}

// noteRefusals is noteRefusal for each entity of a batch.
func (h *handle) noteRefusals(namespace string, ops []store.Op, err error) {
	for _, op := range ops {
		h.noteRefusal(namespace, op.Entry.Key, err)
	}
}

// noteRefusal counts how often this process was told that an entity, or what lies below it, cannot be read or written.
func (h *handle) noteRefusal(namespace, key string, err error) {
	if errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrFailed) {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		h.w.refusals[refusal{h.name, namespace, key}]++
	}
}

// sends tells the oracle that a sweep is about to write. A call whose context has ended is not sent.
func (h *handle) sends(ctx context.Context, q store.Query, ops []store.Op) {
	if ctx.Err() != nil {
		return
	}
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.dead || h.dry || h.closed || !h.w.running() {
		return
	}
	h.w.oracle.disposes(h, q.Target, q)
	h.w.oracle.shares(h, q.Target)
	h.w.oracle.writes(h, q.Target.Name, len(ops))
	h.w.oracle.hasRightClock(h)
	h.w.pace.grant(h, q.Target, q, len(ops))
}

// effect tells the oracle what took effect.
func (h *handle) effect(target string, at place, key string, before row, o store.Outcome, to store.Value, dry bool, late time.Duration) {
	w := h.w
	changed := w.rowOrNone(at, key).version != before.version
	switch {
	case changed && (dry || h.dry):
		w.violate("dry", "%s writes %s in a dry run", h.name, key)
	case changed && o == store.Deleted:
		w.oracle.spends(h, target, at, key, time.Now().Add(-late))
		w.oracle.parts(h, stem{at, key}, late)
		w.oracle.archived(h, at, before)
		w.oracle.deleted(h.name, h.file, at, key)
	case changed && o == store.Carried:
		w.oracle.carried(h.name, target, at, key, to, late)
	case o == store.Changed:
		w.count("changed meanwhile")
	case o == store.Gone:
		w.count("gone meanwhile")
	}
}

// Settle implements store.Store. It reads at one instant and commits at a later one.
func (h *handle) Settle(ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (o store.Outcome, err error) {
	at, sent := place{q.Target.Kind, q.Namespace}, time.Now()
	q.Lo = e.Position().Value // who tries an entity again has no page that it was on
	h.sends(ctx, q, make([]store.Op, 1))
	var seen row
	read := call{method: "Get", key: q.Namespace + " " + e.Key}
	if err := h.do(ctx, read, func(fate) error { seen = *h.w.rowOrNone(at, e.Key); return nil }); err != nil {
		h.noteRefusal(at.namespace, e.Key, err)
		return store.Unknown, err
	}
	if seen.key == "" {
		return store.Gone, nil
	}
	verdict := decide(seen.expiry)
	if verdict == store.Keep {
		return store.Kept, nil
	}
	to, carry := verdict.To()
	done := store.Deleted
	if carry {
		done = store.Carried
	} else if q.Archive != nil {
		if err := q.Archive.Keep(ctx, []store.Copy{copyOf(&seen)}); err != nil {
			return store.Unknown, err
		}
	}
	err = h.do(ctx, call{method: "Settle", key: q.Namespace + " " + e.Key + " " + show(to), write: true}, func(fate) error {
		if err := h.rush.denies(e.Key); err != nil {
			return err
		}
		now := *h.w.rowOrNone(at, e.Key)
		if now.version != seen.version || h.w.locked(at, e.Key) {
			return store.ErrContention
		}
		if carry {
			h.w.db.carry(at, h.w.db.get(at, e.Key), to, time.Now())
		} else {
			h.w.db.remove(at, e.Key, time.Now())
		}
		h.effect(q.Target.Name, at, e.Key, now, done, to, false, time.Since(sent))
		h.w.count("settled")
		return nil
	})
	if err != nil {
		h.noteRefusal(at.namespace, e.Key, err)
		return store.Unknown, err
	}
	return done, nil
}

// Load implements store.Store.
func (h *handle) Load(ctx context.Context, q store.RecordQuery) (got store.Records, err error) {
	if err := q.Check(); err != nil {
		return got, err
	}
	key := strings.Join(append([]string{string(q.Sort), q.Target, q.After, q.Before}, q.Keys...), " ")
	var at time.Time
	err = h.do(ctx, call{method: "Load", key: key}, func(fate) error {
		at = time.Now()
		got = h.w.db.load(q)
		got.Now = time.Now().UTC().Round(0)
		return nil
	})
	if err != nil {
		return store.Records{}, err
	}
	if q.Sort == store.TargetRecord && len(got.List) > 0 {
		h.known.Store(&got.List[0])
	}
	if q.Sort == store.WorkerRecord && len(q.Keys) == 0 {
		h.heardBeats(q.Target, at)
	}
	return got, nil
}

// Save implements store.Store.
func (h *handle) Save(ctx context.Context, r store.Record, prev string) error {
	c := call{method: "Save", key: r.Key, write: true}
	c.mark = r.Sort == store.TargetRecord
	if deadline, ok := ctx.Deadline(); ok && r.Sort == store.TargetRecord {
		c.latest = deadline // servers know it, too
		c.creates = prev == ""
	}
	err := h.do(ctx, c, func(fate) error {
		w := h.w
		if w.locked(place{}, r.Key) {
			w.count("locked record")
			return fmt.Errorf("%s is locked: %w", r.Key, store.ErrContention)
		}
		old := w.db.records[r.Sort][r.Key]
		changed, err := w.db.save(r, prev)
		switch {
		case !changed:
		case h.dry:
			w.violate("dry", "%s saves %s in a dry run", h.name, r.Key)
		case r.Sort == store.TargetRecord:
			w.oracle.lists(h, r.Key)
			w.oracle.savedTarget(h.name, old, r, w.plan.kind(r.Key))
			w.oracle.tripped(old, r)
		case r.Sort == store.BudgetRecord:
			w.oracle.savedBudget(h, old, r)
			h.daze(old, r)
		case r.Sort == store.CursorRecord:
			w.oracle.savedCursor(h, old, r)
		case r.Sort == store.WorkerRecord:
			w.oracle.savedBeat(h, old, r)
		}
		return err
	})
	if err != nil && r.Sort == store.BudgetRecord {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		h.w.oracle.doubts(h.name, r.Key)
	}
	return err
}

// Count implements store.Counter.
func (h *handle) Count(
	ctx context.Context, t store.Target, namespace string, s store.Span, upTo int64,
) (n int64, err error) {
	c := call{method: "Count", key: t.Name + " " + namespace + " " + show(s.From.Value) + " " + show(s.To.Value) + s.From.Shard.Text}
	if upTo > 0 { // the fate of a count without a bound stays what it was
		c.key += fmt.Sprintf(" up to %d", upTo)
	}
	err = h.do(ctx, c, func(fate) error {
		n = h.w.db.count(t, namespace, s, upTo)
		h.ground.of(t.Name).counts(namespace, s, n)
		return nil
	})
	return n, err
}

// Holds implements store.Counter.
func (h *handle) Holds(ctx context.Context, t store.Target, namespace string) (any bool, err error) {
	err = h.do(ctx, call{method: "Holds", key: t.Name + " " + namespace}, func(fate) error {
		any = len(h.w.db.rows[place{t.Kind, namespace}]) > 0
		return nil
	})
	return any, err
}

// Namespaces implements store.Namespacer.
func (h *handle) Namespaces(ctx context.Context) (list []string, err error) {
	err = h.do(ctx, call{method: "Namespaces"}, func(fate) error { list = h.w.db.namespaces(); return nil })
	return list, err
}

// Key implements store.Keyer.
func (h *handle) Key(_ store.Target, _ string, e store.Entity) (string, error) {
	return keyOf(e.Name), nil
}

// ID implements store.Keyer.
func (h *handle) ID(key string) (string, error) { return strings.Trim(key, `"`), nil }

// An exclusive handle is one to a store that only one process can have open.
type exclusive struct {
	*handle
	opening string
}

// Opening implements store.Exclusive.
func (e *exclusive) Opening() string { return e.opening }

// Drop implements store.Dropper.
func (e *exclusive) Drop(ctx context.Context, t store.Target, from, to string) error {
	return e.do(ctx, call{method: "Drop", key: t.Name + " " + from, write: true}, func(fate) error {
		if e.dry {
			e.w.violate("dry", "%s drops in a dry run", e.name)
		}
		e.w.count("dropped")
		return e.w.db.drop(t.Kind, from, to)
	})
}

// Dropped implements store.Dropper.
func (e *exclusive) Dropped(ctx context.Context, t store.Target) (to string, err error) {
	err = e.do(ctx, call{method: "Dropped", key: t.Name}, func(fate) error {
		for _, g := range e.w.db.dropped[t.Kind] {
			to = max(to, g.to)
		}
		return nil
	})
	return to, err
}

func show(v store.Value) string {
	if v.Type == store.Instant {
		return store.FormatTime(v.Time)
	}
	return v.Text
}

func describe(ops []store.Op) string {
	var s strings.Builder
	for i, op := range ops {
		if i > 0 {
			s.WriteByte(' ')
		}
		s.WriteString(op.Entry.Key + " " + show(op.Entry.Value))
		if op.To.Type != store.Missing {
			s.WriteString(" to " + op.To.Text)
		}
	}
	return s.String()
}
