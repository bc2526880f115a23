//go:build linux

package chaos

import (
	"context"
	"errors"
	"time"
)

// An oldWriter creates, replaces, extends and removes entities, and knows nothing of expiry: an adoption
// gives them keys meanwhile.
type oldWriter struct{ bookkeeper }

func (w *world) newOld() *oldWriter {
	return &oldWriter{w.newBookkeeper(old, 40, 800)}
}

// next makes an entity that was created then.
func (o *oldWriter) next(created time.Time) change {
	created = created.UTC().Truncate(time.Millisecond)
	d := doc{fields: newFields(o.rand, serial.Add(1)), property: properties[old]}
	d.fields[ruled] = created
	at := created.Add(o.rule)
	return change{verdict{put: &d}, state{present: true, body: canon(d.fields), ruled: true, stamped: time.Now(),
		expiry: expiry{"by the rule at " + formatInstant(at), at}}}
}

// run writes until ctx is done. In the end no entity has a key that disagrees with the rule.
func (o *oldWriter) run(ctx context.Context) {
	all := context.WithoutCancel(ctx)
	o.write(all, o.slots, nil, func(*slot, *found) change { return o.next(time.Now()) })
	for ctx.Err() == nil {
		o.one(all, o.slots[o.rand.IntN(len(o.slots))])
		sleep(ctx, time.Duration(o.rand.Int64N(int64(2*o.pause))))
	}
	for _, s := range o.slots {
		if !s.look().state.former.IsZero() {
			o.replace(all, s, nil)
		}
	}
}

// one makes one write. Most created entities are new; others are so old that they expire soon, and
// that a process that follows the index does not meet them.
func (o *oldWriter) one(ctx context.Context, s *slot) {
	switch n := o.rand.IntN(100); {
	case n < 20:
		o.write(ctx, []*slot{s}, nil, func(_ *slot, is *found) change {
			return o.next(time.Now().Add(-time.Duration(o.rand.Int64N(int64(o.rule)))))
		})
	case n < 50 && s.look().state.former.IsZero():
		o.extend(ctx, s)
	case n < 60:
		o.write(ctx, []*slot{s}, nil, func(_ *slot, is *found) change {
			return change{verdict: verdict{remove: is != nil}}
		})
	default:
		o.replace(ctx, s, nil)
	}
}

// replace writes a whole entity, which has no key then.
func (o *oldWriter) replace(ctx context.Context, s *slot, before []state) {
	o.write(ctx, []*slot{s}, before, func(*slot, *found) change { return o.next(time.Now()) })
}

// extend lets an entity live longer, and leaves a key that it has as it was: that one is too early then.
func (o *oldWriter) extend(ctx context.Context, s *slot) {
	was := s.begin()
	if !was.present {
		s.end(was, "as it was")
		return
	}
	c := o.next(time.Now())
	c.to.former = was.expiry.at
	s.say("extend %s", c.to)
	try, cancel := context.WithTimeout(ctx, writePatience)
	defer cancel()
	switch err := o.direct.patch(try, old, s.id, *c.put); {
	case err == nil:
		c.to.acked = time.Now()
		o.count(was, c.to)
		s.end(c.to, patched)
	case errors.Is(err, errAbsent):
		if !was.expired(time.Now()) {
			o.violation(s, "S1: it is live, and was gone when it was to be extended")
		}
		s.end(state{}, "gone")
	case errors.Is(err, errAborted):
		o.aborted.Add(1)
		s.end(was, "aborted")
	default:
		o.unknown.Add(1)
		s.end(was, "unknown")
		o.replace(ctx, s, []state{c.to})
	}
}
