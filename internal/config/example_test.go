package config_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/config"
)

func ExampleParseTargets() {
	targets, err := config.ParseTargets("reaper.yaml", strings.NewReader(config.Example), config.Datastore)
	if err != nil {
		fmt.Println(err)
		return
	}
	t := targets[0]
	fmt.Println(t.Name, t.Kind, t.Layout, t.Property, t.Shards, t.Guard)
	fmt.Println(t.Pace.Start, t.Pace.Max, t.Pace.Total)
	// Output:
	// sessions Session generation expiry_key 16 auto
	// 500 5000 unlimited
}

// All problems are found in one go, each with its place.
func ExampleProblems() {
	_, err := config.ParseTargets("reaper.yaml", strings.NewReader(`targets:
  - name: sessions
    kind: Session
    shrads: 16
    retention: 30
`), config.Datastore)
	fmt.Println(err)
	// Output:
	// reaper.yaml:4:5: targets[0]: unknown field "shrads": did you mean shards?
	// reaper.yaml:5:16: targets[0].retention: 30 has no unit: write for example 90s, 15m, 36h or 7d
}

func ExampleParseStore() {
	s, err := config.ParseStore("datastore:my-project/sessions")
	fmt.Println(s.Driver, s.Project, s.Database, err)
	// Output: datastore my-project sessions <nil>
}

func ExampleDuration() {
	d, _ := config.Duration("1d12h")
	fmt.Println(d)
	_, err := config.Duration("90")
	fmt.Println(err)
	// Output:
	// 36h0m0s
	// "90" has no unit: write for example 90s, 15m, 36h or 7d
}

func ExampleParseSchedule() {
	s, err := config.ParseSchedule("*/5 * * * *")
	fmt.Println(s.Next(time.Date(2026, 11, 21, 0, 7, 30, 0, time.UTC)), err)
	_, err = config.ParseSchedule("*/90 * * * *")
	fmt.Println(err)
	// Output:
	// 2026-11-21 00:10:00 +0000 UTC <nil>
	// schedule "*/90 * * * *" has a step that is larger than the field's range, so it would run more often than it reads
}
