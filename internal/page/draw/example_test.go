package draw_test

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/page/draw"
)

// Two namespaces share the cell of their shard, which shows the worse of them.
func ExampleNewMap() {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	late, later := now.Add(-time.Minute), now.Add(-3*time.Hour)
	m := draw.NewMap(inspect.TargetStatus{Ranges: []inspect.RangeStatus{
		{Namespace: "eu", Generation: 1, Shard: "0000", OldestDue: &late},
		{Namespace: "us", Generation: 1, Shard: "0000", OldestDue: &later, ThrottledBy: "ramp"},
		{Namespace: "eu", Generation: 1, Shard: "0001"},
	}}, now, "")
	for _, c := range m.Rows[0].Cells {
		fmt.Println(c.Text, c.Mark.Letter, c.Label)
	}
	// Output:
	// 3h R ranges, shard 0000; due for 3h; 2 of 2 ranges; ramp
	// ·  ranges, shard 0001; nothing due
}
