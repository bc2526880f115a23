package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// followEvery is how long a process waits that has found the end of the index.
	followEvery = 10 * time.Second
	// sampledParts and sampledRows bound the look at what the rule's property holds.
	sampledParts, sampledRows = 5, 20
	// mostAlike is how many entries with one value are read to find an entity among them.
	mostAlike = 50
	// mostAhead is how many values may lie in the future, as mistakes, in an index whose values
	// rise with the time.
	mostAhead = 100
	// followLog is how often a follower that writes keys says so.
	followLog = 5 * time.Minute
)

// ErrCannotFollow is wrapped by the reason why what is new cannot be found by an index.
var ErrCannotFollow = errors.New("what old writers create cannot be found by an index")

// ErrRoundNeeded is wrapped by the error for an adoption whose last round is not done, or was
// of another share or spread.
var ErrRoundNeeded = errors.New("the round of the adoption is not done")

// A source is the index that a follower reads.
type source struct {
	target store.Target
	// back is how far before the last value a pass begins: clocks differ, and a writer may commit
	// later than another one that began after it. ahead is how far into the future it reads.
	back, ahead time.Duration
}

// Follow stamps what old writers create, until ctx is done: it reads the index of the rule's
// property again and again, from the last value on less an overlap, and looks at the
// entities that are new there. It fails with ErrCannotFollow if that index does not show what
// is new, with ErrRoundNeeded if not all entities have been read yet, and if another process
// begins a new round. Of several processes one follows; another takes over if it dies.
func Follow(ctx context.Context, cfg Config) (Result, error) {
	cfg.Order = Stamp
	r, err := newRun(cfg)
	if err != nil {
		return Result{Target: cfg.Target.Name}, err
	}
	ctx = store.WithMeter(ctx, r.meter)
	if err = r.prepareFollow(ctx); err == nil {
		var s source
		if s, err = r.findSource(ctx); err == nil {
			err = r.follow(ctx, s)
		}
	}
	return r.ended(ctx, true, err)
}

// IsNewRound reports whether a run ended because another process began a new round, or ended
// the adoption.
func IsNewRound(err error) bool { return errors.Is(err, errStop) }

// prepareFollow reads the records, and checks that all entities have been read.
func (r *run) prepareFollow(ctx context.Context) error {
	rec, exists, err := r.planner.load(ctx)
	if err != nil {
		return err
	}
	if !exists || !r.resumes(rec) {
		return fmt.Errorf("%w: target %s", ErrRoundNeeded, r.cfg.Target.Name)
	}
	if unfinished, err := unfinished(ctx, r.store, rec); err != nil || unfinished {
		return errors.Join(err, fmt.Errorf("%w: target %s", ErrRoundNeeded, r.cfg.Target.Name))
	}
	r.begin(rec)
	return nil
}

// findSource returns the index that shows what is new, or says why nothing shows it. It reads a
// few entities, and looks them up in the index: some of them may not be in it.
func (r *run) findSource(ctx context.Context) (s source, err error) {
	cannot := func(format string, args ...any) (source, error) {
		return s, fmt.Errorf("%w: %s", ErrCannotFollow, fmt.Sprintf(format, args...))
	}
	name := r.cfg.Rule.Property
	if r.cfg.Rule.CreateTime {
		return cannot("the rule goes by the time of creation, of which there is no index")
	}
	skew := r.cfg.Target.MaxClockSkew
	s = source{target: r.sourceTarget(), back: r.cfg.Target.Overlap + skew, ahead: skew}
	sampled, values, err := r.sample(ctx)
	if err != nil {
		return s, err
	}
	if len(values) == 0 {
		return cannot("none of %d entities has a value in %s that the rule can read", sampled, name)
	}
	s.target.Type = values[0].value.Type
	for _, v := range values {
		switch {
		case v.value.Type != s.target.Type:
			return cannot("%s holds timestamps and texts", name)
		case !rises(v.value):
			return cannot("%s holds texts that do not sort by time, such as %q", name, v.value.Text)
		}
	}
	for _, v := range values[:min(len(values), sampledRows)] {
		page, err := r.scan(ctx, store.Query{Target: s.target, Namespace: v.namespace, Lo: v.value, Hi: v.value,
			Limit: mostAlike})
		isIn := page.More || slices.ContainsFunc(page.Entries, func(e store.Entry) bool { return e.Key == v.key })
		switch {
		case err != nil && !store.Transient(err) && ctx.Err() == nil:
			return cannot("%v", err)
		case err != nil:
			return s, err
		case isIn:
			continue
		}
		if still, err := r.stillHas(ctx, v); err != nil {
			return s, err
		} else if still {
			return cannot("the index of %s does not contain %s", name, v.key)
		}
	}
	namespaces, err := r.namespaces(ctx)
	if err != nil {
		return s, err
	}
	for _, ns := range namespaces {
		last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
		now := r.view.storeNow().Add(s.ahead)
		page, err := r.scan(ctx, store.Query{Target: s.target, Namespace: ns, Lo: s.value(now, true),
			Hi: s.value(last, true), Limit: mostAhead + 1})
		if err != nil {
			return s, err
		}
		if len(page.Entries) > mostAhead {
			return cannot("values of %s lie in the future, so its index does not show what is new", name)
		}
	}
	return s, nil
}

// A sampled is a value of the rule's property.
type sampled struct {
	namespace, key string
	value          store.Value
}

// sample reads a few entities of some parts, and returns how many, and the values that the
// rule can read: those of different parts first.
func (r *run) sample(ctx context.Context) (n int, values []sampled, err error) {
	var rest []sampled
	err = r.reading.peek(ctx, sampledParts, sampledRows, func(namespace string, rows []store.Row) {
		n += len(rows)
		for j, row := range rows {
			if _, fits, _ := r.cfg.Rule.expires(row); fits != Unstamped && fits != Suspect {
				continue
			}
			one := sampled{namespace, row.Key, row.Source}
			if j < sampledRows/sampledParts {
				values = append(values, one)
			} else {
				rest = append(rest, one)
			}
		}
	})
	return n, append(values, rest...), err
}

// stillHas reports whether an entity has the value that the sample showed. Its writer may have
// changed it since.
func (r *run) stillHas(ctx context.Context, v sampled) (bool, error) {
	rows, err := r.look(ctx, v.namespace, []string{v.key})
	return len(rows) == 1 && rows[0].Source.Compare(v.value) == 0, err
}

// textSecond is the begin of a text in RFC 3339 in UTC. Such texts sort by time.
const textSecond = "2006-01-02T15:04:05"

// rises reports whether values like this one sort by time.
func rises(v store.Value) bool {
	if v.Type == store.Instant {
		return true
	}
	if _, err := expirykey.Parse(v.Text); err == nil {
		return false // generation and shard come first
	}
	at, err := time.Parse(time.RFC3339Nano, v.Text)
	return err == nil && len(v.Text) > len(textSecond) && v.Text[len(v.Text)-1] == 'Z' && at.Year() > 0
}

// value returns a bound of the index at an instant: for texts that of its second.
func (s source) value(at time.Time, last bool) store.Value {
	if s.target.Type == store.Instant {
		return store.InstantValue(at)
	}
	text := at.UTC().Format(textSecond)
	if last {
		text += "~" // behind fractions of the second and the Z
	}
	return store.TextValue(text)
}

// instant returns the instant of a value of the index.
func (s source) instant(v store.Value) (at time.Time, ok bool) {
	if v.Type == store.Instant {
		return v.Time, true
	}
	at, err := time.Parse(time.RFC3339Nano, v.Text)
	return at.UTC(), err == nil
}

// follow claims the index, and follows it.
func (r *run) follow(ctx context.Context, s source) error {
	parts := newRecordedParts(r.reading)
	for {
		p, err := r.claimFollow(ctx, parts)
		if err == nil && p != nil {
			r.log.InfoContext(ctx, "following the index", "target", r.cfg.Target.Name, "property", r.cfg.Rule.Property,
				"from", p.after)
			err = p.use(ctx, r.share, func(ctx context.Context, p *heldPart) error { return r.followPart(ctx, s, p) })
		}
		if err != nil && !errors.Is(err, errLost) {
			return err
		}
		if err := throttle.Sleep(ctx, min(followEvery, r.cfg.Target.Lease/4)); err != nil {
			return err
		}
	}
}

// claimFollow claims the index. Without it, another process holds it.
func (r *run) claimFollow(ctx context.Context, parts *recordedParts) (*heldPart, error) {
	if err := r.stillFollows(ctx); err != nil {
		return nil, err
	}
	one, err := loadFollow(ctx, r.store, r.reading.record)
	if err != nil || one.owner != "" && one.owner != r.cfg.Sweep.Owner && !parts.isDead(one) {
		return nil, err
	}
	return parts.take(ctx, one)
}

// stillFollows fails if the adoption is in another round or phase by now.
func (r *run) stillFollows(ctx context.Context) error {
	if err := r.view.fresh(ctx); err != nil {
		return err
	}
	return r.reading.over(r.view.adoption())
}

// followPart makes one pass over the end of the index after the other. Only a pass that was
// read to its end, and whose entities were stamped, moves the position.
func (r *run) followPart(ctx context.Context, s source, p *heldPart) error {
	last, err := time.Parse(store.TimeLayout, p.after)
	if err != nil {
		return fmt.Errorf("adoption record of %s: after: %w", r.cfg.Target.Name, err)
	}
	pass := &pass{run: r, source: s, part: p, last: last, seen: map[string]seen{}}
	said, written := r.now(), p.stamped
	for {
		stamped := p.stamped
		if err := r.stillFollows(ctx); err != nil {
			return err
		}
		switch err := pass.read(ctx); {
		case errors.Is(err, errHeld): // the next pass reads the same
		case err != nil:
			return err
		default:
			p.after = store.FormatTime(pass.last)
		}
		if p.stamped > stamped { // status counts them
			if err := p.save(ctx, false); err != nil {
				return err
			}
		}
		if r.now().Sub(said) >= followLog && p.stamped > written {
			r.log.InfoContext(ctx, "stamped what was created without keys", "target", r.cfg.Target.Name,
				"keys", p.stamped-written, "followed_to", p.after)
			said, written = r.now(), p.stamped
		}
		if err := p.pause(ctx, followEvery); err != nil {
			return err
		}
	}
}

// A pass reads the end of an index.
type pass struct {
	*run

	source source
	part   *heldPart
	last   time.Time
	seen   map[string]seen // by namespace and key: what the overlap shows again
}

// A seen is an entry that was looked at.
type seen struct {
	value store.Value
	at    time.Time
}

// read makes one pass over all namespaces.
func (p *pass) read(ctx context.Context) error {
	now := p.view.storeNow()
	p.pager.judge.horizon = now.Add(-p.cfg.Target.Retention)
	from, to := p.last.Add(-p.source.back), now.Add(p.source.ahead)
	for key, s := range p.seen {
		if s.at.Before(from.Add(-time.Second)) {
			delete(p.seen, key)
		}
	}
	namespaces, err := p.namespaces(ctx)
	if err != nil {
		return err
	}
	last := p.last
	for _, ns := range namespaces {
		q := store.Query{Target: p.source.target, Namespace: ns, Lo: p.source.value(from, false),
			Hi: p.source.value(to, true), Limit: p.job.pageSize()}
		for more := true; more; {
			page, err := p.scan(ctx, q)
			if err != nil {
				return err
			}
			at, err := p.look(ctx, ns, page.Entries)
			if err != nil {
				return err
			}
			if at.After(last) {
				last = at
			}
			if more = page.More && (page.Next != nil || len(page.Entries) > 0); !more {
				break
			}
			if q.Next = page.Next; q.Next == nil {
				q.After = page.Entries[len(page.Entries)-1].Position()
			}
			if err := p.part.keep(ctx); err != nil {
				return err
			}
		}
	}
	p.last = last
	return nil
}

// look reads the entities of entries that are new, and stamps them. It returns the last
// instant among the entries.
func (p *pass) look(ctx context.Context, namespace string, entries []store.Entry) (last time.Time, err error) {
	var keys []string
	for _, e := range entries {
		at, ok := p.source.instant(e.Value)
		if !ok {
			continue // a full round counts it
		}
		if at.After(last) {
			last = at
		}
		if s, ok := p.seen[namespace+"\x00"+e.Key]; !ok || s.value.Compare(e.Value) != 0 {
			keys = append(keys, e.Key)
		}
	}
	if len(keys) == 0 {
		return last, nil
	}
	rows, err := p.run.look(ctx, namespace, keys)
	if err != nil {
		return last, err
	}
	if err := p.respread(ctx, rows); err != nil {
		return last, err
	}
	if err := p.pager.page(ctx, p.part, namespace, rows); err != nil {
		return last, err
	}
	p.part.scanned += int64(len(rows))
	for _, e := range entries {
		if at, ok := p.source.instant(e.Value); ok {
			p.seen[namespace+"\x00"+e.Key] = seen{e.Value, at}
		}
	}
	return last, nil
}

// respread begins the spread again if some of what was created has expired by now: nobody has followed the
// index for a while, or nothing could be written. All of it would be due at once.
func (p *pass) respread(ctx context.Context, rows []store.Row) error {
	for {
		now := p.view.storeNow().UTC().Truncate(time.Microsecond)
		j := p.pager.judging()
		isDue := func(row store.Row) bool {
			one, err := p.pager.item(j, "", row)
			return err == nil && one.outcome == Unstamped && !one.expires.Add(p.cfg.Target.Retention).After(now)
		}
		if !j.round().isLate(now) || p.view.held() != "" || !slices.ContainsFunc(rows, isDue) {
			return nil
		}
		rec, _ := p.view.adoption()
		_, err := rec.spreadFrom(now).save(ctx, p.store)
		if err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
		if err := p.view.refresh(ctx); err != nil {
			return err
		}
		if err := p.stillFollows(ctx); err != nil {
			return err
		}
	}
}
