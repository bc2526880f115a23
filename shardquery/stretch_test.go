package shardquery_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A stretch over generations shows each entry once, in order, whatever queries are
// too slow, and wherever one stops and another goes on from its position.
func TestStretchReadsEachEntryOnce(t *testing.T) {
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			stretchReadsOnce(t, rand.New(rand.NewPCG(seed, 5)))
		})
		if t.Failed() {
			return
		}
	}
}

// FuzzStretch has the fuzzer choose what is there and which queries fail.
func FuzzStretch(f *testing.F) {
	f.Add([]byte("\xff\x00\xff\x00"))
	f.Add([]byte("what is there, and which queries fail"))
	f.Fuzz(func(t *testing.T, text []byte) {
		synctest.Test(t, func(t *testing.T) {
			stretchReadsOnce(t, rand.New(&script{text, rand.NewPCG(1, 2)}))
		})
	})
}

func stretchReadsOnce(t *testing.T, rng *rand.Rand) {
	t.Helper()
	now := time.Now()
	s := modelstore.New(time.Now)
	from, _ := expirykey.GenerationRange(3)
	_, to := expirykey.GenerationRange(5)
	if rng.IntN(3) == 0 { // what lies before a sealed range's first survivor
		last, _ := expirykey.UpTo(4, 1, now)
		from, to = expirykey.Prefix(4, 1), last
	}
	var rows, want []string
	add := func(value string) {
		name := fmt.Sprintf("e-%03d", len(rows))
		rows = append(rows, value)
		if value >= from && value < to {
			want = append(want, value+` "`+name+`"`)
		}
		_ = s.Put(t.Context(), target, "", []store.Entity{{Name: name, Expiry: store.TextValue(value)}})
	}
	for range rng.IntN(120) {
		at := now.Add(time.Duration(rng.Int64N(int64(4000*time.Hour))) - 2000*time.Hour)
		if rng.IntN(4) == 0 {
			at = now.AddDate(rng.IntN(4000)-1900, 0, 0)
		}
		key, err := expirykey.New(2+rng.IntN(5), rng.IntN(4), at)
		if err != nil {
			t.Fatal(err)
		}
		add(key.String())
	}
	last, _ := expirykey.UpTo(4, 1, now)
	for _, odd := range []string{last, "00000003.0002.tomorrow", "00000004.", "00000004.x", "00000003/", "00000004.9999.", "00000006.", "00000002/"} {
		add(odd)
	}
	slices.Sort(want)
	// Tombstones lie in two shards of generation 4, over the last 300 hours; a
	// query over more than some of them is too slow.
	type span struct{ from, to string }
	var dense []span
	for _, shard := range []int{1, 3} {
		for h := -300; h < 0; h += 10 {
			a, _ := expirykey.UpTo(4, shard, now.Add(time.Duration(h)*time.Hour))
			b, _ := expirykey.UpTo(4, shard, now.Add(time.Duration(h+10)*time.Hour))
			dense = append(dense, span{a, b})
		}
	}
	most := 1 + rng.IntN(8)
	row := 0 // of failures
	s.Before = func(ctx context.Context, c modelstore.Call) error {
		first := max(c.Query.Lo.Text, c.Query.After.Value.Text)
		steps := 0
		for _, d := range dense {
			if d.to > first && d.from < c.Query.Hi.Text {
				steps++
			}
		}
		switch {
		case rng.IntN(15) == 0 && row < 3: // a reader gives up where it is for ever
			row++
			return fmt.Errorf("now and then: %w", store.ErrUnavailable)
		case c.Query.Limit > 20 && rng.IntN(2) == 0:
			return fmt.Errorf("%d at once: %w", c.Query.Limit, store.ErrTooLarge)
		case steps > most+1:
			<-ctx.Done()
			return fmt.Errorf("too many tombstones: %w", ctx.Err())
		}
		row = 0
		return nil
	}
	begin := func(after store.Position) *shardquery.Stretch {
		return &shardquery.Stretch{Store: s, Target: target, From: from, To: to, After: after,
			Plain: now.Add(-1825 * 24 * time.Hour), Page: 1 + rng.IntN(60), Now: time.Now}
	}
	var got []string
	reader := begin(store.Position{})
	var page store.Page
	pages := 0
	for more := true; more; {
		var err error
		if more, err = reader.Next(t.Context(), &page); err != nil {
			t.Fatal(err)
		}
		if pages++; pages > 10_000 {
			t.Fatal("it does not end")
		}
		for _, e := range page.Entries {
			got = append(got, e.Value.Text+" "+e.Key)
		}
		if more && rng.IntN(10) == 0 {
			reader = begin(reader.Position()) // another process goes on
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("read %d entries, want %d\n%q\n%q", len(got), len(want), got, want)
	}
}
