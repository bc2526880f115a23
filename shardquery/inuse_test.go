package shardquery_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

var keyed = store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}

// A hopper is a store whose queries are counted.
type hopper struct {
	*modelstore.Store
	queries int
}

func holding(t *testing.T, namespace string, texts ...string) *hopper {
	t.Helper()
	h := &hopper{Store: modelstore.New(time.Now)}
	var list []store.Entity
	for i, text := range texts {
		list = append(list, store.Entity{Name: fmt.Sprintf("e-%05d", i), Expiry: store.TextValue(text)})
	}
	if err := h.Put(t.Context(), keyed, namespace, list); err != nil {
		t.Fatal(err)
	}
	h.Before = func(_ context.Context, c modelstore.Call) error {
		if c.Method == "Scan" {
			h.queries++
		}
		return nil
	}
	return h
}

func keyIn(number, shard, n int) string {
	k, err := expirykey.New(number, shard, time.Date(2026, 11, 22, 0, 0, n, 0, time.UTC))
	if err != nil {
		panic(err)
	}
	return k.String()
}

// One query for each generation in use, and two more, whatever is in them.
func TestInUse(t *testing.T) {
	many := []string{"", "~", "tomorrow", "2026-11-22T00:00:00Z", "00000000.0001.x", "00000011", "00000012-x", "000000 3.0000."}
	for n := range 200 {
		many = append(many, keyIn(0, n%4, n), keyIn(3, n%4, n), keyIn(7, 9999, n), keyIn(20261122, 0, n))
	}
	for _, c := range []struct {
		name    string
		texts   []string
		want    []int
		tooHigh int
		most    int // queries
	}{
		{"nothing", nil, nil, 0, 2},
		{"the nursery", []string{keyIn(0, 3, 1)}, nil, 0, 2},
		{"one", []string{keyIn(1, 3, 1), keyIn(1, 0, 9)}, []int{1}, 0, 3},
		{"among other texts", many, []int{3, 7, 20261122}, 0, 8},
		{"malformed, but in a range", []string{"00000005.0001.soon"}, []int{5}, 0, 3},
		{"the last one that is believed", []string{keyIn(shardquery.LastBelieved, 0, 1)}, []int{shardquery.LastBelieved}, 0, 3},
		{"one that is not", []string{keyIn(2, 0, 0), keyIn(shardquery.LastBelieved+1, 0, 1), keyIn(99_999_999, 0, 1)}, []int{2},
			shardquery.LastBelieved + 1, 3},
		{"the last of all", []string{keyIn(99_999_999, 9999, 1)}, nil, 99_999_999, 2},
	} {
		h := holding(t, "eu", c.texts...)
		got, tooHigh, err := shardquery.InUse(t.Context(), h, keyed, "eu", time.Now, time.Second)
		if err != nil || !slices.Equal(got, c.want) || tooHigh != c.tooHigh || h.queries > c.most {
			t.Errorf("%s: %v, too high %d, %v in %d queries; want %v, %d in at most %d", c.name, got, tooHigh, err, h.queries,
				c.want, c.tooHigh, c.most)
		}
	}
}

// What was deleted lies between: a query that is late is followed by one for less.
func TestInUseBehindTombstones(t *testing.T) {
	h := holding(t, "", keyIn(41, 0, 1), keyIn(43, 2, 1))
	late := 0
	h.Before = func(_ context.Context, c modelstore.Call) error {
		from, to := max(c.Query.Lo.Text, c.Query.After.Value.Text), c.Query.Hi.Text
		if c.Method == "Scan" && from < "00000040." && to > "00000040/" { // 40 generations of tombstones
			late++
			return store.ErrDeadline
		}
		return nil
	}
	got, _, err := shardquery.InUse(t.Context(), h, keyed, "", time.Now, time.Minute)
	if err != nil || !slices.Equal(got, []int{41, 43}) || late == 0 {
		t.Errorf("%v, %v after %d late queries", got, err, late)
	}
}

// A property that holds other texts is told from one that holds expiry keys.
func TestInUseOfOtherTexts(t *testing.T) {
	var seconds []string
	for n := range 1100 {
		seconds = append(seconds, fmt.Sprintf("%08d.5", 17_000_000+3*n))
	}
	_, _, err := shardquery.InUse(t.Context(), holding(t, "", seconds...), keyed, "", time.Now, time.Second)
	if err == nil || !slices.Contains(store.Hints(err), "check that expiry_key of Session holds expiry keys") {
		t.Errorf("%v", err)
	}
}

func TestShardsInUse(t *testing.T) {
	for _, c := range []struct {
		shards  []int
		atLeast int
		want    int
	}{
		{nil, 4, 4}, {[]int{0, 3}, 4, 4}, {[]int{4}, 4, 5}, {[]int{4, 5, 6, 7}, 4, 8}, {[]int{5, 7, 8}, 4, 9},
		{[]int{6}, 4, 4}, {[]int{9998}, 4, 4}, {[]int{4, 5, 9998}, 4, 6}, {[]int{1}, 1, 2}, {[]int{9999}, 9999, 9999},
	} {
		var texts []string
		for _, shard := range c.shards {
			texts = append(texts, keyIn(6, shard, 1), keyIn(7, 40, 1))
		}
		got, err := shardquery.ShardsInUse(t.Context(), holding(t, "", texts...), keyed, "", 6, c.atLeast, time.Second)
		if err != nil || got != c.want {
			t.Errorf("shards %v of at least %d: %d, %v; want %d", c.shards, c.atLeast, got, err, c.want)
		}
	}
}
