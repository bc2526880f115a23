package restore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/store"
)

// apart is how long before its first line an object may have been begun, which waits for more lines, or after it: calls
// that are to be kept wait for each other.
const apart = 10 * time.Minute

// mostCopies is how many archived copies one restore may choose from: a plan takes some 200 bytes for each.
var mostCopies = 5_000_000 // a variable for tests

// A plan says what is restored. It does not change.
type plan struct {
	objects     []object  // in order of time
	depths      []int     // at which entities lie, in their order
	newest      time.Time // when the last line was archived
	others      string    // says what other targets would delete of it at once; empty: nothing
	fingerprint string    // it differs for other objects or lines: a place in one plan says nothing in another
}

// An object is one of the archive with lines that are restored.
type object struct {
	archive.Entry

	journal bool // it has keys alone

	lines  []uint32 // their numbers, in order
	depths []uint16 // and their depths
}

// A candidate is one archived copy of an entity.
type candidate struct {
	entity      [16]byte // a hash of namespace and key
	updated     int64    // when the entity was written, by the store's clock, in nanoseconds; else when it was kept
	kept        int64    // when, by the clock of the process that did, in nanoseconds
	expires     int64    // when it will expire, in milliseconds; 0 if it will not
	object      int32
	line        uint32
	other       uint32 // of the other targets the one that would delete it at once, from 1 on; 0: none
	depth       uint16
	unconfirmed bool
}

func entityHash(namespace, key string) (h [16]byte) {
	sum := sha256.Sum256([]byte(namespace + "\x00" + key))
	copy(h[:], sum[:])
	return h
}

// depthOf returns how deep a key lies. What lies below it lies deeper: see [store.IsBelow].
func depthOf(key string) uint16 { return uint16(min(strings.Count(key, "/"), 1<<16-1)) }

// A planner makes a plan from an archive.
type planner struct {
	job   *job
	tally *tally
	keep  func(context.Context) error // is called for each object
	began time.Time                   // from when on new expiries count
	now   time.Time                   // in the store's time

	roots      map[string][]string // by namespace
	candidates []candidate
	newest     time.Time
}

// plan reads all objects of the selection.
func (p *planner) plan(ctx context.Context) (plan, error) {
	var made plan
	since, until := p.job.Pick.listed()
	for e, err := range archive.Objects(ctx, p.job.Bucket, p.job.Target.Name, since, until) {
		if err != nil {
			return made, fmt.Errorf("list the archive: %w", err)
		}
		if err := p.keep(ctx); err != nil {
			return made, err
		}
		if e.Missing {
			p.missing(e)
			continue
		}
		p.job.Progress.Objects.Add(1)
		n := len(p.candidates)
		mode, err := p.object(ctx, e, len(made.objects))
		if err != nil {
			return made, err
		}
		p.job.Progress.ObjectsRead.Add(1)
		if len(p.candidates) > n {
			made.objects = append(made.objects, object{Entry: e, journal: mode == archive.Keys})
		}
	}
	p.choose(&made)
	p.tally.planned(int64(len(made.objects)))
	return made, p.check(made)
}

// listed returns between which instants objects may have been begun that have something of the selection; a zero time
// leaves that side open.
func (s Selection) listed() (from, until time.Time) {
	if from, until = s.Since, s.Until; !until.IsZero() {
		until = until.Add(apart)
	}
	var first time.Time
	for i, id := range s.Sweeps {
		began, ok := history.Began(id)
		if !ok {
			first = time.Time{}
			break
		}
		if i == 0 || began.Before(first) {
			first = began
		}
	}
	if first.After(from) {
		from = first
	}
	if !from.IsZero() {
		from = from.Add(-apart)
	}
	return from, until
}

// missing notes an object of which only the manifest is left. It may be of another sweep, or have other ids.
func (p *planner) missing(e archive.Entry) {
	err := errors.New("it was removed from the archive; its manifest is left")
	if len(p.job.Pick.Sweeps)+len(p.job.Pick.IDs) == 0 {
		p.tally.problem(e.Name, err)
	} else {
		p.tally.removed(e.Name)
	}
}

// object reads one object. What cannot be read of it is noted, and the rest counts; nothing of it does if bytes
// were changed, since any line may be another one than was written.
func (p *planner) object(ctx context.Context, e archive.Entry, index int) (archive.Mode, error) {
	r, err := archive.OpenObject(ctx, p.job.Bucket, e.Name)
	if err != nil {
		return "", p.unreadable(ctx, e, err)
	}
	defer r.Close()
	h := r.Header()
	if len(p.job.Pick.Sweeps) > 0 && !slices.Contains(p.job.Pick.Sweeps, h.Sweep) {
		return h.Mode, nil
	}
	unfit := p.unfit(e, h)
	if pick := p.job.Pick; unfit != nil && !e.At.Before(pick.Since) && (pick.Until.IsZero() || e.At.Before(pick.Until)) {
		return h.Mode, unfit
	}
	n := len(p.candidates)
	for line, err := range r.Lines() {
		if errors.Is(err, archive.ErrChanged) {
			p.candidates = p.candidates[:n]
		}
		if err != nil {
			return h.Mode, p.unreadable(ctx, e, err)
		}
		if !p.wants(line) {
			continue
		}
		if unfit != nil {
			return h.Mode, unfit
		}
		if err := p.add(line, index); err != nil {
			return h.Mode, fmt.Errorf("plan the restore, at line %d of object %s: %w", line.Number, e.Name, err)
		}
	}
	return h.Mode, nil
}

// unfit returns why entities of an object cannot be restored here; nil if they can.
func (p *planner) unfit(e archive.Entry, h archive.Header) error {
	switch {
	case h.Kind != p.job.Target.Kind:
		return fmt.Errorf("%w: object %s has entities of %s, target %s is of %s", ErrOtherKind, e.Name, h.Kind,
			p.job.Target.Name, p.job.Target.Kind)
	case p.job.Database != "" && h.Store != p.job.Database:
		return fmt.Errorf("%w: object %s is of %s, and this is %s", ErrOtherDatabase, e.Name, h.Store, p.job.Database)
	}
	return nil
}

// unreadable notes an object that is not as it was written. Any other failure ends the restore.
func (p *planner) unreadable(ctx context.Context, e archive.Entry, err error) error {
	for _, noted := range []error{archive.ErrDamaged, archive.ErrNewer, archive.ErrNotFound} {
		if errors.Is(err, noted) && ctx.Err() == nil {
			p.tally.problem(e.Name, err)
			return nil
		}
	}
	return fmt.Errorf("read the archive: %w", err)
}

// wants reports whether a line is selected.
func (p *planner) wants(line archive.Line) bool {
	pick := p.job.Pick
	if line.At.Before(pick.Since) || !pick.Until.IsZero() && !line.At.Before(pick.Until) {
		return false
	}
	if len(pick.IDs) == 0 {
		return true
	}
	roots, known := p.roots[line.Namespace]
	if !known {
		roots = p.job.roots(line.Namespace)
		p.roots[line.Namespace] = roots
	}
	return slices.ContainsFunc(roots, func(root string) bool { return line.Key == root || store.IsBelow(line.Key, root) })
}

// add notes a line as a candidate. What was kept and not deleted has nothing to come back from.
func (p *planner) add(line archive.Line, index int) error {
	p.tally.line(line.State)
	if line.At.After(p.newest) {
		p.newest = line.At
	}
	if line.State == archive.Kept {
		return nil
	}
	c := candidate{entity: entityHash(line.Namespace, line.Key), kept: line.At.UnixNano(), object: int32(index),
		line: uint32(line.Number), depth: depthOf(line.Key), unconfirmed: line.State == archive.Unconfirmed}
	c.updated = c.kept
	if !line.Updated.IsZero() {
		c.updated = line.Updated.UnixNano()
	}
	if at, has := p.job.expiryFrom(p.began, line.Namespace, line.Copy); has {
		c.expires = at.UnixMilli()
	}
	c.other = uint32(p.job.deletedBy(line.Namespace, line.Copy, p.now))
	if p.candidates = append(p.candidates, c); len(p.candidates) > mostCopies {
		return fmt.Errorf("%w: the archive has more than %d copies of the selection", ErrTooMany, mostCopies)
	}
	return nil
}

// choose takes the newest copy of each entity into the plan: that of what was written last. The clocks of two
// processes that deleted an entity twice may disagree.
func (p *planner) choose(made *plan) {
	slices.SortFunc(p.candidates, func(a, b candidate) int {
		return cmp.Or(slices.Compare(a.entity[:], b.entity[:]), cmp.Compare(b.updated, a.updated),
			cmp.Compare(b.kept, a.kept), cmp.Compare(b.object, a.object), cmp.Compare(b.line, a.line))
	})
	chosen := slices.CompactFunc(p.candidates, func(a, b candidate) bool { return a.entity == b.entity })
	p.tally.chose(chosen, int64(len(p.candidates)-len(chosen)), p.now.Add(-p.job.Target.Retention))
	slices.SortFunc(chosen, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.object, b.object), cmp.Compare(a.line, b.line))
	})
	depths := map[int]bool{}
	for _, c := range chosen {
		o := &made.objects[c.object]
		o.lines, o.depths = append(o.lines, c.line), append(o.depths, c.depth)
		depths[int(c.depth)] = true
	}
	made.newest, made.others = p.newest, p.others(chosen)
	p.candidates = nil
	for d := range depths {
		made.depths = append(made.depths, d)
	}
	slices.Sort(made.depths)
	made.fingerprint = fingerprint(made.objects)
	p.job.Progress.Entities.Store(int64(len(chosen)))
}

func fingerprint(objects []object) string {
	sum := sha256.New()
	for _, o := range objects {
		_ = binary.Write(sum, binary.BigEndian, int64(len(o.Name)))
		_, _ = io.WriteString(sum, o.Name)
		_ = binary.Write(sum, binary.BigEndian, int64(len(o.lines)))
		_ = binary.Write(sum, binary.BigEndian, o.lines)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// check refuses a plan as a whole.
func (p *planner) check(made plan) error {
	n, journals := p.tally.soFar(), 0
	for _, o := range made.objects {
		if o.journal && len(o.lines) > 0 {
			journals++
		}
	}
	switch {
	case journals > 0 && p.job.From == FromArchive:
		return fmt.Errorf("%w: %d of %d objects", ErrKeysOnly, journals, len(made.objects))
	case n.Due > 0: // with a new expiry, if the restore goes on that late
		return fmt.Errorf("%w: %d of %d", ErrDue, n.Due, n.Restorable)
	case made.others != "":
		return fmt.Errorf("%w: %s", ErrOtherTarget, made.others)
	}
	return nil
}

// until returns the end of the span of a restore that has this plan. What is archived later is not part of it, be it
// within the time by which the clock of what archived the last lines may have been ahead.
func (p *plan) until(rec record) time.Time {
	end := p.newest.Add(time.Microsecond)
	if end.Before(rec.began) {
		end = rec.began
	}
	if end.After(rec.until) {
		end = rec.until
	}
	return end
}

// behind counts the entities up to a place.
func (p *plan) behind(to place) (n int64) {
	for i := range p.objects {
		o := &p.objects[i]
		for k, line := range o.lines {
			if !to.isAhead(int(o.depths[k]), o, int(line)) {
				n++
			}
		}
	}
	return n
}

// wanted returns which lines of the object are to be restored in the pass of a depth.
func (o *object) wanted(depth int) (lines []uint32) {
	for i, n := range o.lines {
		if int(o.depths[i]) == depth {
			lines = append(lines, n)
		}
	}
	return lines
}
