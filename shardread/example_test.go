package shardread_test

import (
	"cmp"
	"context"
	"fmt"

	"github.com/reaper-ttl/reaper/shardread"
)

// Three shards, each sorted by itself, are read as one, and no further than
// needed.
func ExampleMerge() {
	var sources []shardread.Source[int]
	for _, shard := range [][]int{{1, 4, 9}, {2, 3}, {5, 6, 7, 8}} {
		sources = append(sources, func(_ context.Context, n int) ([]int, bool, error) {
			page := shard[:min(n, len(shard))]
			shard = shard[len(page):]
			return page, len(shard) > 0, nil
		})
	}
	for item, err := range shardread.Merge(context.Background(), sources, cmp.Compare, shardread.Options{Limit: 5}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(item, " ")
	}
	// Output:
	// 1 2 3 4 5
}

// Values that cannot be right are refused before anything is read.
func ExampleGroup() {
	groups, err := shardread.Group(shardread.Numbers(5), 2)
	fmt.Println(groups, err)
	_, err = shardread.Group([]any{1, 2, 1}, 30)
	fmt.Println(err)
	// Output:
	// [[0 1] [2 3] [4]] <nil>
	// shard value 3 of 3: 1 is there twice
}
