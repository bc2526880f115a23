package index_test

import (
	"context"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

func keyAt(t *testing.T, at time.Time) store.Value {
	t.Helper()
	k, err := expirykey.New(1, 2, at)
	if err != nil {
		t.Fatal(err)
	}
	return store.TextValue(k.String())
}

// Only what expires from the floor up to the horizon, both included, may be deleted.
func TestDecide(t *testing.T) {
	x := site.New(sitetest.Setup(modelstore.New(func() time.Time { return now }), func() time.Time { return now })).Index
	for _, c := range []struct {
		what  string
		value store.Value
		want  index.Judgement
	}{
		{"no value", store.Value{}, index.Never},
		{"another text", store.TextValue("tomorrow"), index.Malformed},
		{"an instant", store.InstantValue(now.Add(-time.Hour)), index.Malformed},
		{"after the horizon", keyAt(t, now.Add(time.Millisecond)), index.Early},
		{"at the horizon", keyAt(t, now), index.Due},
		{"at the floor", keyAt(t, x.Floor(now)), index.Due},
		{"before the floor", keyAt(t, x.Floor(now).Add(-time.Millisecond)), index.Suspect},
	} {
		if got := x.Decide(c.value, now); got != c.want {
			t.Errorf("%s: %v, not %v", c.what, got, c.want)
		}
	}
}

// Whatever is asked of an index, nothing is written.
func TestIndexWritesNothing(t *testing.T) {
	s := modelstore.New(func() time.Time { return now })
	sitetest.PutExpired(s, now)
	ctx, r := context.Background(), shardquery.Range{Generation: 1, Shard: 2}
	x := site.New(sitetest.Setup(s, s.Now)).Index
	before := s.Writes()
	spans := index.AppendSpan(nil, r, now.Add(-2*time.Hour), now)
	spans = index.AppendSpan(spans, r, now, now) // nothing expires in no time
	if n, err := x.Count(ctx, spans, 0); n != 1 || err != nil || len(spans) != 1 {
		t.Errorf("%d entries in %d spans, %v", n, len(spans), err)
	}
	isDue := func(_ store.Entry, j index.Judgement) bool { return j == index.Due }
	at, found, err := x.FirstOf(ctx, r, store.Position{}, now, now, isDue)
	if !found || !at.Equal(now.Add(-time.Hour)) || err != nil {
		t.Errorf("the first due entry: %v, %v, %v", at, found, err)
	}
	if n := s.Writes() - before; n != 0 {
		t.Errorf("%d writes", n)
	}
}

// Of an entry at the cursor's own value nobody knows on which side it lies, so it counts as behind if keys
// were passed there.
func TestIsBehind(t *testing.T) {
	at := func(late time.Duration, key string) cursor.Cursor {
		return cursor.Cursor{Position: store.Position{Value: keyAt(t, now.Add(late)), Key: key}}
	}
	e := store.Entry{Key: "e", Value: keyAt(t, now)}
	for _, c := range []struct {
		cursor cursor.Cursor
		want   bool
	}{{at(time.Second, ""), true}, {at(-time.Second, "x"), false}, {at(0, ""), false}, {at(0, "x"), true}} {
		if got := index.IsBehind(e, c.cursor); got != c.want {
			t.Errorf("%+v: %v", c.cursor.Position, got)
		}
	}
}
