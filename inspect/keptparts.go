package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// lastText sorts after all texts that an index may be expected to hold.
const lastText = "\U0010FFFF\U0010FFFF"

// parts lists the pieces of the index in which entities kept for the lister's reason lie.
func (l *lister) parts() (parts []*part) {
	ranges := inOrder(l.Plan.Ranges())
	switch l.kept {
	case KeptMalformed:
		// Behind the cursors first: sweeps have met and counted those entities already.
		for _, r := range ranges {
			parts = append(parts, l.malformedBehind(r)...)
		}
		for _, r := range ranges {
			parts = append(parts, l.malformedAhead(r)...)
		}
	case KeptSuspect:
		for _, r := range ranges {
			// A sealed range that was found empty holds nothing well-formed.
			if l.Plan.Cursor(r).Stock.Emptied.IsZero() {
				parts = append(parts, l.suspects(r))
			}
		}
	case KeptRefused:
		for _, r := range ranges {
			if l.mayHoldRefused(r) {
				parts = append(parts, l.refused(r))
			}
		}
	case KeptOutside:
		for _, ns := range l.View.Namespaces {
			parts = append(parts, l.outside(ns)...)
		}
	}
	return parts
}

// nameOf names a range as status does.
func nameOf(r shardquery.Range) string {
	if !r.Form.HasGenerations() {
		return r.ShardName()
	}
	return fmt.Sprintf("%08d.%s", r.Generation, r.ShardName())
}

// reader reads the entries of a range that expire from one instant to another.
func (l *lister) reader(r shardquery.Range, floor, until time.Time) *shardquery.Reader {
	return &shardquery.Reader{Store: l.store, Target: l.Target.Target, Range: r, Floor: floor, Until: until,
		Timeout: callTimeout, Now: l.now}
}

// floor returns the instant before which an expiry is implausible.
func (l *lister) floor() time.Time { return l.Horizon().Add(-l.Target.MaxAge) }

// suspects returns the part of a range with expiries that are implausibly old.
func (l *lister) suspects(r shardquery.Range) *part {
	return &part{namespace: r.Namespace, name: nameOf(r),
		pages:    l.reader(r, shardquery.FirstInstant, l.floor().Add(-r.Resolution())),
		isWanted: func(e store.Entry) bool { return l.Judge(e.Value) == sweep.Suspect }}
}

// cursorAt returns the instant up to which what lies behind the cursor of a range expires, at most the horizon.
func (l *lister) cursorAt(r shardquery.Range, c cursor.Cursor) time.Time {
	horizon := l.Horizon()
	at, ok := r.Passed(c.Position.Value)
	if ok && c.Position.Value.Compare(r.At(at).Value) > 0 { // at a malformed text behind that instant
		at = at.Add(r.Resolution())
	}
	if ok && at.Before(horizon) {
		return at
	}
	return horizon
}

// malformedBehind returns the part of a range behind its cursor. A well-formed entry there
// was written late, or its entity has another value than the index shows.
func (l *lister) malformedBehind(r shardquery.Range) []*part {
	c := l.Plan.Cursor(r)
	if c.Position.IsZero() {
		return nil
	}
	return []*part{{namespace: r.Namespace, name: nameOf(r), pages: l.reader(r, l.floor(), l.cursorAt(r, c)),
		isWanted: func(e store.Entry) bool {
			return index.IsBehind(e, c) && (l.Judge(e.Value) == sweep.Malformed || l.readsToMakeSure())
		}}}
}

// malformedAhead returns the part of a range that the next sweep reads, and the part after
// all instants, which no sweep reads.
func (l *lister) malformedAhead(r shardquery.Range) []*part {
	isMalformed := func(e store.Entry) bool { return l.Judge(e.Value) == sweep.Malformed }
	ahead := l.reader(r, l.floor(), l.Horizon())
	ahead.From = l.Plan.Cursor(r).Position
	parts := []*part{{namespace: r.Namespace, name: nameOf(r), pages: ahead, isWanted: isMalformed}}
	if r.Form.HoldsMalformed() {
		last, _ := expirykey.UpTo(r.Generation, r.Shard, shardquery.LastInstant)
		_, hi := expirykey.Range(r.Generation, r.Shard)
		parts = append(parts, &part{namespace: r.Namespace, name: nameOf(r), isWanted: isMalformed,
			pages: l.spanReader(r.Namespace, last+"\x00", hi)})
	}
	return parts
}

// readsToMakeSure reports whether to read an entity whose entry looks well-formed, and
// counts it. In Datastore mode the index shows an element of a list as a plain value, a
// blob as a text, and a number as a timestamp: that is why deletes need a guard there.
func (l *lister) readsToMakeSure() bool {
	if _, hides := l.store.(store.Guarder); !hides || l.Target.SingleValued {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hidden++
	return l.hidden <= mostHidden
}

// mayHoldRefused reports whether a range may hold entities that the store refuses to
// delete. The record of a sealed range tells; any other range with a cursor may.
func (l *lister) mayHoldRefused(r shardquery.Range) bool {
	c := l.Plan.Cursor(r)
	return !c.Position.IsZero() && (c.Stock.Refused || !l.Plan.Stage(r.Generation).IsSealed())
}

// refused returns the part of a range behind its cursor, of which due entities are listed.
func (l *lister) refused(r shardquery.Range) *part {
	c := l.Plan.Cursor(r)
	return &part{namespace: r.Namespace, name: nameOf(r), pages: l.reader(r, l.floor(), l.cursorAt(r, c)),
		isRefused: c.Stock.Refused,
		isWanted:  func(e store.Entry) bool { return l.Judge(e.Value) == sweep.Due && index.IsBehind(e, c) }}
}

func whyRefused(p *part) string {
	const due = "it is due and behind its range's cursor: refused before, kept for what lies below it, or written " +
		"behind the cursor"
	if p.isRefused {
		return due + "; the record of its range says that the store refuses to delete or carry entities there"
	}
	return due + "; its range is not sealed, so no record tells which"
}

// spanReader returns a reader of all texts from one to another.
func (l *lister) spanReader(namespace, from, to string) *shardquery.SpanReader {
	return &shardquery.SpanReader{Store: l.store, Target: l.Target.Target, Namespace: namespace, From: from, To: to,
		Floor: l.floor(), Timeout: callTimeout, Now: l.now}
}

// outside lists the parts of a namespace's index outside all ranges that queries can read.
// Queries find texts and timestamps only.
func (l *lister) outside(namespace string) (parts []*part) {
	add := func(pages pager) {
		parts = append(parts, &part{namespace: namespace, name: outsideName, pages: pages,
			isWanted: func(store.Entry) bool { return true }})
	}
	ranges := l.Plan.RangesIn(namespace)
	if !l.Target.Layout.Form().BeginsAtFloor() {
		for _, gap := range layout.Gaps(ranges, l.floor()) {
			to := gap.To.Value.Text
			if to == "" {
				to = lastText
			}
			add(l.spanReader(namespace, gap.From.Value.Text, to))
		}
		add(l.ofType(namespace, store.Instant, store.Value{}))
		return parts
	}
	for _, r := range ranges {
		add(l.reader(r, shardquery.FirstInstant, l.floor().Add(-r.Resolution())))
		add(l.ofType(namespace, store.Text, r.Value))
	}
	return parts
}

// ofType returns a reader of all values of a type that the target's property should not have.
func (l *lister) ofType(namespace string, t store.Type, shard store.Value) *plainPager {
	q := store.Query{Target: l.Target.Target, Namespace: namespace, Shard: shard}
	q.Target.Type = t
	if t == store.Instant {
		q.Lo, q.Hi = store.InstantValue(shardquery.FirstInstant), store.InstantValue(shardquery.LastInstant)
	} else {
		q.Lo, q.Hi = store.TextValue(""), store.TextValue(lastText)
	}
	return &plainPager{l.store, q}
}

// A plainPager reads what a query asks for, without windows.
type plainPager struct {
	store store.Store
	query store.Query
}

func (p *plainPager) Next(ctx context.Context, page *store.Page, most int) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	p.query.Limit = most
	if err := p.store.Scan(ctx, p.query, page); err != nil {
		return true, err
	}
	if n := len(page.Entries); n > 0 {
		p.query.After = page.Entries[n-1].Position()
	}
	p.query.Next = page.Next
	return page.More, nil
}

// whyOutside says why a value lies in no range; it is empty if the value lies in one.
func (l *lister) whyOutside(namespace string, v store.Value) string {
	form := l.Target.Layout.Form()
	if v.Type != form.Type() {
		return malformedText(l.Target, v)
	}
	if !form.HasGenerations() {
		if at, err := form.Expires(v); err == nil && form.BeginsAtFloor() && at.Before(l.floor()) {
			return suspectText(l.Target)
		}
		return ""
	}
	e := explainer{l.Snapshot, l.store}
	if _, err := expirykey.Parse(v.Text); err != nil {
		for _, r := range l.Plan.RangesIn(namespace) {
			if lo, hi := expirykey.Range(r.Generation, r.Shard); lo <= v.Text && v.Text < hi {
				return ""
			}
		}
		return malformedText(l.Target, v) + "; it sorts outside all ranges"
	}
	x := Explanation{Namespace: namespace}
	if e.isStray(&x, v, l.Judge(v)) {
		return x.Why
	}
	_, why, _ := e.rangeOfKey(namespace, v) // the key is well-formed
	return why
}

// readRest reads entities one by one, up to a bound, if the store counts more outside all
// ranges than the queries have found: no query reaches the index entries of numbers, lists
// and unknown shard values.
func (l *lister) readRest(ctx context.Context, rest *part, parts []*part) error {
	dumper, ok := l.store.(store.Dumper)
	if !ok || l.isOver() {
		return nil
	}
	found := 0
	for _, p := range parts {
		found += len(p.found)
	}
	counting, cancel := context.WithTimeout(ctx, countWithin)
	n, counted := l.CountOutside(counting)
	cancel()
	if counted && n <= int64(found) {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, dumpWithin)
	defer cancel()
	left := mostDumped
	for _, ns := range l.View.Namespaces {
		rest.namespace, rest.name = ns, outsideName
		for e, err := range dumper.Dump(within, l.Target.Target, ns) {
			switch {
			case err != nil && within.Err() != nil && ctx.Err() == nil:
				l.stopped = fmt.Sprintf("stopped after reading %d entities one by one in %v: %s",
					mostDumped-left, dumpWithin, onlyDumpShows)
				return nil
			case err != nil:
				return err
			case l.isOver():
				return nil
			case left == 0:
				l.stopped = fmt.Sprintf("stopped after reading %d entities one by one: %s",
					mostDumped, onlyDumpShows)
				return nil
			}
			left--
			if err := l.takeUnreachable(rest, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// onlyDumpShows says why entities were read one by one, and what to do if there are more.
const onlyDumpShows = "no query finds a number, a list or an unknown shard value; reaper dump shows all"

// takeUnreachable adds an entity to the list if it lies in no range.
func (l *lister) takeUnreachable(rest *part, e store.Entity) error {
	l.examine(1)
	why := l.whyUnreachable(rest.namespace, e)
	if why == "" {
		return nil
	}
	key, err := l.keyer.Key(l.Target.Target, rest.namespace, e)
	if err != nil {
		return err
	}
	return l.add(rest, key, e.Expiry, why)
}

// whyUnreachable says why an entity lies in no range; it is empty if it lies in one, or
// does not carry the property.
func (l *lister) whyUnreachable(namespace string, e store.Entity) string {
	v := e.Expiry
	if v.Type == store.Missing {
		return ""
	}
	if name := l.Target.ShardProperty; name != "" && !slices.Contains(l.Target.ShardValues, e.Shard) {
		return fmt.Sprintf("its %s is not one of the target's shard_values: no sweep reads it", name)
	}
	if l.isInRangeByElement(namespace, v) {
		return "" // it counts as malformed, not as outside
	}
	return l.whyOutside(namespace, v)
}

// isInRangeByElement reports whether the index has an entry of a malformed value within a
// range. In Datastore mode and in the embedded store a list has an entry for each element;
// in Datastore mode a number sorts among timestamps.
func (l *lister) isInRangeByElement(namespace string, v store.Value) bool {
	_, isDatastore := l.store.(store.Guarder)
	_, isEmbedded := l.store.(store.Exclusive)
	if n, ok := v.Integer(); ok && l.Target.Type == store.Instant {
		return isDatastore && !time.UnixMicro(n).Before(l.floor()) && !time.UnixMicro(n).After(shardquery.LastInstant)
	}
	var elements []any
	if v.Type != store.List || !isDatastore && !isEmbedded || json.Unmarshal([]byte(v.Text), &elements) != nil {
		return false
	}
	for _, one := range elements {
		text, ok := one.(string)
		if ok && l.Target.Type == store.Text && l.whyOutside(namespace, store.TextValue(text)) == "" {
			return true
		}
	}
	return false
}
