package plan_test

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/layout"
)

func Example() {
	created := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	rules := plan.Rules{
		Target: "sessions", Scope: cursor.Scope{Kind: "Session", Property: "expiry_key", Layout: "generation"},
		Form: layout.Keys, Generations: true, Rewind: 24 * time.Hour,
		Policy: generation.Policy{Every: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 3, Shards: 1},
	}
	record := plan.First(rules, created)
	record.Checked = created
	record.Probe = time.Time{} // nobody stamped by a former record
	view := &plan.View{Record: record, Namespaces: []string{""}}

	// Nothing was read yet.
	p := plan.New(rules, view, plan.Book{}, created)
	for _, r := range p.Ranges() {
		fmt.Println(r, "from its start:", p.Range(r).FromStart())
	}
	// An hour later the next generation is due.
	later := created.Add(time.Hour)
	for _, c := range plan.New(rules, view, plan.Book{}, later).Chores() {
		fmt.Println(c.Kind, "due at", c.At.Format(time.TimeOnly))
	}
	_, steps := plan.Desired(rules, record, nil, later)
	fmt.Println(steps)
	// Output:
	// range 00000001.0000 from its start: true
	// range 00000000.0000 from its start: true
	// life due at 04:00:00
	// [{2 filling}]
}
