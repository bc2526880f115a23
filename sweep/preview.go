package sweep

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// A Preview is what a dry run says beyond the counts that every sweep has.
type Preview struct {
	// BehindCursors is how much is due and lies behind the cursors: the next sweep leaves it,
	// and a later read of its range from the start deletes it. Nil if that is not known: a
	// sweep that applies does not look there, unless it reads each range from its start. Then
	// it is zero if the sweep is complete and the store has refused nothing.
	BehindCursors *int64 `json:"behind"`
	// GoneBy is when the last of that goes: by the first sweep after it. Nil if nothing is
	// there, or if nobody can tell.
	GoneBy *time.Time `json:"behind_gone_by"`
	// Estimated says that some of it was counted in the index, and not read: what is
	// malformed counts as due there.
	Estimated bool      `json:"estimated"`
	Examples  []Example `json:"examples"` // of what is kept, up to three for each reason
	// WouldTrip is the event for which a sweep with --apply would trip the breaker; nil if it
	// would not, or if nobody can tell.
	WouldTrip *Foreseen `json:"would_trip,omitempty"`
}

// An Example is an entity that sweeps keep.
type Example struct {
	Kept      string `json:"kept"` // why: [KeptMalformed] or [KeptSuspect]
	Namespace string `json:"namespace"`
	ID        string `json:"id"`    // the name, or the digits of the number
	Value     string `json:"value"` // the property, as the index shows it
}

// Why entities are kept.
const (
	KeptMalformed = "malformed"
	KeptSuspect   = "suspect"
)

const (
	// MostExamples is how many examples a dry run gives for each reason.
	MostExamples = 3
	// mostSeen is how many entities a dry run remembers if it may meet one twice.
	mostSeen = 1 << 20
)

// A preview is what a dry run finds out beyond the counts. The tally has its lock.
type preview struct {
	behind    int64
	ranges    map[shardquery.Range]bool // in which that is
	estimated bool
	examples  []Example
	seen      map[[2]string]bool // by namespace and key: the next sweep leaves it
	oldest    time.Time          // when the first of what is due has expired, as far as it was read
}

// foundBehind counts what is due, and left by the next sweep.
func (t *tally) foundBehind(r shardquery.Range, n int64) {
	if n == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.preview.behind += n
	if t.preview.ranges == nil {
		t.preview.ranges = map[shardquery.Range]bool{}
	}
	if n > 0 {
		t.preview.ranges[r] = true
	}
}

// estimate notes that not all was read.
func (t *tally) estimate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.preview.estimated = true
}

// seenEntity notes that an entity was met, and whether the next sweep leaves it. It returns how it
// was met before, if it was. It remembers no more than mostSeen, and says so.
func (t *tally) seenEntity(namespace, key string, isLater bool) (wasLater, again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, id := &t.preview, [2]string{namespace, key}
	if wasLater, again = p.seen[id]; again {
		p.seen[id] = wasLater && isLater
		return wasLater, true
	}
	if p.seen == nil {
		p.seen = map[[2]string]bool{}
	}
	if p.estimated = p.estimated || len(p.seen) >= mostSeen; len(p.seen) < mostSeen {
		p.seen[id] = isLater
	}
	return false, false
}

// giveExample keeps an entity as an example, if there are not enough of its kind.
func (t *tally) giveExample(x Example) {
	t.mu.Lock()
	defer t.mu.Unlock()
	same := 0
	for _, y := range t.preview.examples {
		if x.Kept == y.Kept {
			same++
		}
		if x.Kept == y.Kept && x.Namespace == y.Namespace && x.ID == y.ID { // a list is met once for each element
			return
		}
	}
	if same < MostExamples {
		t.preview.examples = append(t.preview.examples, x)
	}
}

// giveExample names an entity that is kept. It is for dry runs.
func (v *visit) giveExample(kept string, e store.Entry) {
	keyer, ok := v.c.cfg.Store.(store.Keyer)
	if v.c.cfg.Apply || !ok {
		return
	}
	if id, err := keyer.ID(e.Key); err == nil {
		v.c.tally.giveExample(Example{Kept: kept, Namespace: v.r.Namespace, ID: id, Value: e.Value.String()})
	}
}

// countOnce returns how an entity that is due counts: as expired, or as behind if the next
// sweep leaves it. One that is met twice counts once: it has several shard values, or the
// audit reads its sealed generation, too, and then the sooner of both counts.
func (v *visit) countOnce(op *store.Op, isLater bool) (expired, behind int64) {
	c, again, wasLater := v.c, false, false
	switch {
	case c.cfg.Apply:
		again = op.Outcome == store.Gone && c.target.ShardProperty != ""
	case c.until.IsZero(): // a daemon counts it again at each tick
	case c.target.ShardProperty != "", v.auditing, v.start.need.Stage.IsSealed():
		wasLater, again = c.tally.seenEntity(v.r.Namespace, op.Entry.Key, isLater)
	}
	switch {
	case again && wasLater && !isLater:
		return 1, -1
	case again:
		return 0, 0
	case isLater:
		return 0, 1
	}
	return 1, 0
}

// isLater reports whether the next sweep leaves what is due at this place of a reading. A
// sweep that applies leaves nothing that it reads.
func (v *visit) isLater(rd *reading, at store.Value) bool {
	need := v.start.need
	switch {
	case v.c.cfg.Apply || v.c.cfg.FromStart || v.auditing:
		return false
	case rd == v.readings[0]:
		return need.Rests
	}
	return need.Asked || at.Compare(v.passed()) < 0
}

// passed returns the place that a read from the start, which the next sweep goes on with,
// has passed.
func (v *visit) passed() store.Value {
	under := v.start.cursor.Rewind
	if under.Began.IsZero() || under.Began.Before(v.start.need.Stage.Since) {
		return store.Value{}
	}
	return under.Position.Value
}

// samples reports whether a dry run reads no further than the page at hand of a reading,
// and counts what follows.
func (v *visit) samples(s *scratch, rd *reading) bool {
	c := v.c
	if c.cfg.Apply || c.cfg.Exact || v.auditing || rd.uncounted || len(s.page.Entries) == 0 {
		return false
	}
	_, counts := c.cfg.Store.(store.Counter)
	_, isRange := rd.reader.(*shardquery.Reader)
	return counts && isRange
}

// A part is a piece of what follows in a reading, and how it counts.
type part struct {
	to  store.Value // behind its last entry
	add func(n int64)
	n   int64
}

// countRest counts what follows in a reading, in the place of reading it. If that cannot
// be counted, it is read.
func (v *visit) countRest(t turn, rd *reading) error {
	c := v.c
	at, read := rd.reader.Position().Value, int64(0)
	for _, e := range t.scratch.page.Entries {
		if e.Position().Value == at { // the COUNT begins with this value
			read++
		}
	}
	parts, from := v.parts(rd), at
	for i := range parts {
		p := &parts[i]
		if p.to.Compare(from) <= 0 {
			continue
		}
		n, err := v.countBetween(t.ctx, from, p.to)
		if err != nil && t.ctx.Err() != nil {
			return errStopped
		}
		if err != nil {
			c.log.WarnContext(t.ctx, "cannot count what is due; reading it instead", "range", v.start.cursor.Key(),
				"error", err)
			rd.uncounted = true
			return nil
		}
		p.n, from = max(0, n-read), p.to
		read = 0
	}
	for _, p := range parts { // only now: what cannot be counted to the end is read
		p.add(p.n)
	}
	rd.done, rd.counted = true, true
	c.tally.estimate()
	return nil
}

// parts lists, in order, how what a reading meets counts.
func (v *visit) parts(rd *reading) []part {
	c, r := v.c, v.r
	reader, _ := rd.reader.(*shardquery.Reader)
	_, hi := expirykey.Range(r.Generation, r.Shard)
	last := store.TextValue(hi)
	if reader.Until.Before(shardquery.LastInstant) {
		last = r.At(reader.Until.Add(r.Resolution())).Value
	}
	horizon := r.At(v.horizon.Add(r.Resolution())).Value
	if last.Compare(horizon) < 0 {
		horizon = last
	}
	carried := func(n int64) { c.tally.counts.Carried.Add(n) }
	suspects := carried
	if v.carry == nil {
		suspects = func(n int64) { c.tally.counts.Suspect.Add(n) }
	}
	behind := func(n int64) { c.tally.foundBehind(r, n) }
	due := behind
	if !v.isLater(rd, horizon) {
		due = func(n int64) {
			c.tally.counts.Expired.Add(n)
			c.cfg.Progress.Expired.Add(n)
		}
	}
	passed := v.passed()
	if rd == v.readings[0] || horizon.Compare(passed) < 0 {
		passed = store.Value{} // it says nothing of this reading
	}
	return []part{{to: r.At(c.floor(v.horizon)).Value, add: suspects}, {to: passed, add: behind},
		{to: horizon, add: due}, {to: last, add: carried}}
}

// countBetween counts the entries of the range from one value on and before another.
func (v *visit) countBetween(ctx context.Context, from, to store.Value) (int64, error) {
	counter, ok := v.c.cfg.Store.(store.Counter)
	if !ok {
		return 0, store.ErrUnsupported
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	return counter.Count(ctx, v.c.target.Target, v.r.Namespace, store.Span{
		From: store.Point{Shard: v.r.Value, Value: from}, To: store.Point{Shard: v.r.Value, Value: to}}, 0)
}

// tellPreview puts into a result what a dry run found beyond the counts.
func (b *book) tellPreview(res *TargetResult) {
	if b.c.cfg.Apply && b.c.cfg.FromStart && res.Complete && res.Refused == 0 {
		res.BehindCursors = new(int64) // every range was read from its start
	}
	if b.c.cfg.Apply || b.view == nil {
		return
	}
	t := b.c.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	found := &t.preview
	n := found.behind
	res.BehindCursors, res.Estimated = &n, found.estimated
	res.Examples = slices.SortedFunc(slices.Values(found.examples), func(x, y Example) int {
		return cmp.Or(cmp.Compare(x.Kept, y.Kept), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.ID, y.ID))
	})
	if n == 0 {
		return
	}
	rules := b.c.rules
	rules.ReadSince = time.Time{} // as the sweeps that follow see it
	var ranges []shardquery.Range
	for r := range found.ranges {
		ranges = append(ranges, r)
	}
	if by, known := plan.New(rules, b.view, plan.Book{}, b.c.clock.Now()).BehindGone(ranges); known {
		res.GoneBy = &by
	}
}
