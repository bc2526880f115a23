package dispose

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

func open(t *testing.T, s *modelstore.Store) *site.Site {
	t.Helper()
	c := site.New(sitetest.Setup(s, s.Now))
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func value(t *testing.T, generation int, expires time.Time) store.Value {
	t.Helper()
	k, err := expirykey.New(generation, 0, expires)
	if err != nil {
		t.Fatal(err)
	}
	return store.TextValue(k.String())
}

// Nothing is deleted unless it is due, and lies in a generation that is swept.
func TestVerdict(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	c := open(t, modelstore.New(func() time.Time { return now }))
	past, future := now.Add(-time.Hour), now.Add(time.Hour)
	for _, test := range []struct {
		name   string
		of     int // the generation of the range
		value  store.Value
		active bool
		want   store.Verdict
	}{
		{"due", 1, value(t, 1, past), false, store.Delete},
		{"at the horizon", 1, value(t, 1, now), false, store.Delete},
		{"not due", 1, value(t, 1, now.Add(time.Millisecond)), false, store.Keep},
		{"malformed", 1, store.TextValue("soon"), false, store.Keep},
		{"moved to a generation that is not swept", 1, value(t, 7, past), false, store.Keep},
		{"of the range's own generation, which is not listed any more", 7, value(t, 7, past), false, store.Delete},
		{"due, but not compared", 1, value(t, 1, past), true, store.Keep},
		{"extended", 1, value(t, 1, future), false, store.Keep},
	} {
		d := NewDecider(c, test.of, now, nil)
		d.Compared.Active = test.active
		if _, got := d.Verdict("s-1", test.value); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// take returns a range that is held until ctx ends.
func take(ctx context.Context, t *testing.T, c *site.Site, r shardquery.Range) Hold {
	t.Helper()
	go c.Keeper.Pulse.Run(ctx, ctx, false)
	hold := NewHold(c, plan.New(c.Rules, c.Viewer.View(), plan.Book{}, c.Clock.Now()).Cursor(r))
	if err := hold.Take(ctx, ctx, r, nil); err != nil {
		t.Fatal(err)
	}
	return hold
}

// A worker that holds a range writes nothing once the target record is too old: a pause may be in it.
func TestNothingIsWrittenByAnOldRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		entry := store.Entity{Name: "s-1", Expiry: value(t, 1, time.Now().Add(-time.Hour))}
		if err := s.Put(t.Context(), sitetest.Target, "", []store.Entity{entry}); err != nil {
			t.Fatal(err)
		}
		c := open(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		r := shardquery.Range{Generation: 1}
		hold := take(ctx, t, c, r)
		reader := &shardquery.Reader{Store: s, Target: sitetest.Target, Range: r, Until: time.Now(), Now: time.Now}
		scratch := &step.Scratch{}
		if _, err := reader.Next(ctx, &scratch.Page, 10); err != nil || len(scratch.Page.Entries) != 1 {
			t.Fatal(len(scratch.Page.Entries), err)
		}
		scratch.Ops = []store.Op{{Entry: scratch.Page.Entries[0]}}
		w := NewWriter(c, &hold, nil, time.Time{})
		turn := step.Turn{Ctx: ctx, Work: ctx, Scratch: scratch}

		time.Sleep(view.FreshFor + time.Second)
		var pause *throttle.Pause
		err := w.Dispose(turn, reader.Query(), scratch.Ops, false)
		if !errors.As(err, &pause) || pause.Why != throttle.ReasonRecord || scratch.Ops[0].Outcome != store.Unknown {
			t.Errorf("%v, outcome %v", err, scratch.Ops[0].Outcome)
		}
		if err := c.Viewer.ReloadRecord(ctx); err != nil {
			t.Fatal(err)
		}
		if err := w.Dispose(turn, reader.Query(), scratch.Ops, false); err != nil || scratch.Ops[0].Outcome != store.Deleted {
			t.Errorf("with a new record: %v, outcome %v", err, scratch.Ops[0].Outcome)
		}
		if _, err := hold.Release(ctx); err != nil {
			t.Error(err)
		}
	})
}

// A delete in a range that was empty ends its being empty, and a refusal in a sealed one is in its record: also
// if the visit takes no stock.
func TestRecordTellsWhatAnInterruptedVisitMet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, modelstore.New(time.Now))
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		hold := take(ctx, t, c, shardquery.Range{Generation: 1})
		hold.Update(func(c *cursor.Cursor) { c.Stock.Emptied = time.Now() })
		hold.WasNotEmpty()
		var kept Kept
		kept.Refuse(store.Entry{Key: `"in a filling range"`}, &hold, false)
		if hold.Cursor().Rewind.Refused {
			t.Error("a range that is not sealed has no stock to take")
		}
		kept.Refuse(store.Entry{Key: `"in a sealed range"`}, &hold, true)
		saved, err := hold.Release(ctx)
		if err != nil || !saved.Stock.Emptied.IsZero() || !saved.Rewind.Refused || !kept.AnyRefused() {
			t.Errorf("%+v, %+v, %v", saved.Stock, saved.Rewind, err)
		}
	})
}

// One entity that fails a batch is singled out, and batches have their whole size again after it.
func TestBatchSize(t *testing.T) {
	const page = 500
	var b BatchSize
	n := b.Next(page)
	for n > 1 {
		b.Halve(n, false)
		if next := b.Next(page); next != n/2 {
			t.Fatalf("%d after %d", next, n)
		}
		n = b.Next(page)
	}
	for b.InParts() {
		b.WentWell(b.Next(page), page)
	}
	if n := b.Next(page); n != page {
		t.Errorf("a page has %d", n)
	}
	b.Halve(page, true) // too large: later pages, too, until full batches have gone well for a while
	b.EndParts()
	if n := b.Next(page); n != page/2 {
		t.Errorf("after one that was too large: %d", n)
	}
	for range 4 * patientBatches {
		b.WentWell(b.Next(page), page)
	}
	if n := b.Next(page); n != page {
		t.Errorf("they have not grown again: %d", n)
	}
}
