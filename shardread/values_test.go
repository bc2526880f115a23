package shardread_test

import (
	"math"
	"reflect"
	"testing"

	"github.com/reaper-ttl/reaper/shardread"
)

func TestGroup(t *testing.T) {
	type region string
	for _, c := range []struct {
		values []any
		most   int
		want   [][]any
	}{
		{shardread.Numbers(5), 2, [][]any{{int64(0), int64(1)}, {int64(2), int64(3)}, {int64(4)}}},
		{shardread.Strings("a", ""), 30, [][]any{{"a", ""}}},
		{[]any{uint8(3), -1, int32(2)}, 1, [][]any{{int64(3)}, {int64(-1)}, {int64(2)}}},
		{[]any{region("eu"), "us"}, 2, [][]any{{"eu", "us"}}},
	} {
		if got, err := shardread.Group(c.values, c.most); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("Group(%v, %d) = %v, %v; want %v", c.values, c.most, got, err, c.want)
		}
	}
	if groups, err := shardread.Group(shardread.Numbers(shardread.MaxValues), 30); err != nil || len(groups) != 334 {
		t.Errorf("the most values: %d groups, %v; want 334", len(groups), err)
	}
}

func TestGroupRefuses(t *testing.T) {
	for _, c := range []struct {
		values []any
		most   int
		want   string
	}{
		{nil, 30, "there are no shard values; a reader needs all that writers use"},
		{shardread.Numbers(-1), 30, "there are no shard values; a reader needs all that writers use"},
		{shardread.Numbers(10_000), 30, "there are 10000 shard values; a reader takes at most 9999"},
		{[]any{1}, 0, "a query is to have 0 shard values; it needs at least one"},
		{[]any{1, 2, int64(1)}, 2, "shard value 3 of 3: 1 is there twice"},
		{[]any{"a", "b", "a"}, 1, `shard value 3 of 3: "a" is there twice`},
		{[]any{1, "1"}, 30, `shard value 2 of 2: "1" is string, while the first one is int64; mixed types are not supported`},
		{[]any{1, nil}, 30, "shard value 2 of 2: nil is neither an integer nor a string"},
		{[]any{1.5}, 30, "shard value 1 of 1: 1.5 (float64) is neither an integer nor a string"},
		{[]any{uint64(math.MaxUint64)}, 30, "shard value 1 of 1: 18446744073709551615 is larger than the stores' integers"},
		{[]any{"\xff"}, 30, `shard value 1 of 1: "\xff" is not valid UTF-8`},
	} {
		if got, err := shardread.Group(c.values, c.most); err == nil || err.Error() != c.want {
			t.Errorf("Group(%.3v, %d) = %v, %v; want the error: %s", c.values, c.most, got, err, c.want)
		}
	}
}
