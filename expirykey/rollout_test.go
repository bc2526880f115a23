package expirykey_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/reaper-ttl/reaper/expirykey"
)

func ExampleInRollout() {
	for _, percent := range []float64{5, 25, 100} {
		fmt.Println(percent, expirykey.InRollout("s-1842", "adopt sessions", percent))
	}
	// Output:
	// 5 false
	// 25 false
	// 100 true
}

// Raising the percent takes no id out, the share is what was asked for, in every shard,
// and another salt takes other ids.
func TestInRollout(t *testing.T) {
	const n, shards = 40_000, 8
	steps := []float64{-1, 0, 0.01, 5, 25, 50, 99.99, 100, 1000, math.Inf(1)}
	counts, perShard, both := make([]int, len(steps)), [shards]int{}, 0
	for i := range n {
		id := fmt.Sprint("session-", i)
		before := false
		for j, percent := range steps {
			in := expirykey.InRollout(id, "a", percent)
			if before && !in {
				t.Fatalf("%s leaves the rollout at %v per cent", id, percent)
			}
			if before = in; in {
				counts[j]++
			}
		}
		if expirykey.InRollout(id, "a", 25) {
			perShard[expirykey.ShardOfName(id, shards)]++
			if expirykey.InRollout(id, "b", 25) {
				both++
			}
		}
	}
	for j, percent := range steps {
		want := n * min(max(percent, 0), 100) / 100
		if math.Abs(float64(counts[j])-want) > 5*math.Sqrt(want*(1-want/n)) {
			t.Errorf("%v per cent: %d of %d ids, want about %.0f", percent, counts[j], n, want)
		}
	}
	for shard, got := range perShard {
		if even := float64(n) / 4 / shards; math.Abs(float64(got)-even) > 5*math.Sqrt(even) {
			t.Errorf("25 per cent: %d ids in shard %d, want about %.0f", got, shard, even)
		}
	}
	if want := n / 16.0; math.Abs(float64(both)-want) > 5*math.Sqrt(want) {
		t.Errorf("%d ids are in both rollouts, want about %.0f", both, want)
	}
	if expirykey.InRollout("a", "a", math.NaN()) {
		t.Error("an id is in a rollout of NaN per cent")
	}
}
