package shardread_test

import (
	"slices"
	"testing"

	"github.com/reaper-ttl/reaper/shardread"
)

// FuzzGroup: every shard value is in exactly one query, none of which has too many.
func FuzzGroup(f *testing.F) {
	f.Add(5, 2, "", "")
	f.Add(9999, 30, "a", "b")
	f.Add(10_000, 1, "", "\xff")
	f.Add(-1, 0, "x", "x")
	f.Fuzz(func(t *testing.T, n, most int, a, b string) {
		values := shardread.Numbers(min(n, 20_000))
		if a != b {
			values = shardread.Strings(a, b, a+b)
		}
		groups, err := shardread.Group(values, most)
		if err != nil {
			if groups != nil {
				t.Errorf("%v with the error %v", groups, err)
			}
			return
		}
		for _, g := range groups {
			if len(g) < 1 || len(g) > most {
				t.Errorf("a query of %d values, the most are %d", len(g), most)
			}
		}
		if got := slices.Concat(groups...); !slices.Equal(got, values) {
			t.Errorf("%v became %v", values, groups)
		}
	})
}
