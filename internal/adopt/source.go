package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// sampledParts and sampledRows bound the look at what the rule's property holds.
	sampledParts, sampledRows = 5, 20
	// mostAlike is how many entries with one value are read to find an entity among them.
	mostAlike = 50
	// mostAhead is how many values may lie in the future, as mistakes, in an index whose values
	// rise with the time.
	mostAhead = 100
)

// ErrCannotFollow is wrapped by the reason why what is new cannot be found by an index.
var ErrCannotFollow = errors.New("what old writers create cannot be found by an index")

// A source is the index that a follower reads.
type source struct {
	target store.Target
	// back is how far before the last value a pass begins: clocks differ, and a writer may commit
	// later than another one that began after it. ahead is how far into the future it reads.
	back, ahead time.Duration
}

// findSource returns the index that shows what is new, or says why nothing shows it. It reads a
// few entities, and looks them up in the index: some of them may not be in it.
func (r *reading) findSource(ctx context.Context, v *targetView) (s source, err error) {
	cannot := func(format string, args ...any) (source, error) {
		return s, fmt.Errorf("%w: %s", ErrCannotFollow, fmt.Sprintf(format, args...))
	}
	name := r.job.cfg.Rule.Property
	if r.job.cfg.Rule.CreateTime {
		return cannot("the rule goes by the time of creation, of which there is no index")
	}
	skew := r.job.cfg.Target.MaxClockSkew
	s = source{target: r.job.sourceTarget(), back: r.job.cfg.Target.Overlap + skew, ahead: skew}
	sampled, values, err := r.sample(ctx)
	if err != nil {
		return s, err
	}
	if len(values) == 0 {
		return cannot("none of %d entities has a value in %s that the rule can read", sampled, name)
	}
	s.target.Type = values[0].value.Type
	for _, one := range values {
		switch {
		case one.value.Type != s.target.Type:
			return cannot("%s holds timestamps and texts", name)
		case !rises(one.value):
			return cannot("%s holds texts that do not sort by time, such as %q", name, one.value.Text)
		}
	}
	for _, one := range values[:min(len(values), sampledRows)] {
		page, err := r.job.scan(ctx, store.Query{Target: s.target, Namespace: one.namespace, Lo: one.value, Hi: one.value,
			Limit: mostAlike})
		isIn := page.More || slices.ContainsFunc(page.Entries, func(e store.Entry) bool { return e.Key == one.key })
		switch {
		case err != nil && !store.Transient(err) && ctx.Err() == nil:
			return cannot("%v", err)
		case err != nil:
			return s, err
		case isIn:
			continue
		}
		if still, err := r.stillHas(ctx, one); err != nil {
			return s, err
		} else if still {
			return cannot("the index of %s does not contain %s", name, one.key)
		}
	}
	namespaces, err := r.job.namespaces(ctx)
	if err != nil {
		return s, err
	}
	for _, ns := range namespaces {
		last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
		now := v.StoreAtMost().Add(s.ahead)
		page, err := r.job.scan(ctx, store.Query{Target: s.target, Namespace: ns, Lo: s.value(now, true),
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
func (r *reading) sample(ctx context.Context) (n int, values []sampled, err error) {
	var rest []sampled
	err = r.peek(ctx, sampledParts, sampledRows, func(namespace string, rows []store.Row) {
		n += len(rows)
		for j, row := range rows {
			if _, fits, _ := r.job.cfg.Rule.expires(row); fits != Unstamped && fits != Suspect {
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
func (r *reading) stillHas(ctx context.Context, v sampled) (bool, error) {
	rows, err := r.job.look(ctx, v.namespace, []string{v.key})
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
