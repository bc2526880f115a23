package main

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/workload"
)

// planFlags are the flags of plan, and what they say.
type planFlags struct {
	given      map[string]string // by name; only those that were given
	namespaces int
	shards     int
	job, yes   bool

	mode, out, compare string
	compared           planResult  // in the file of --compare
	replaced           *planResult // in the file of --out, if that is another one

	workload forecast.Workload
	prices   forecast.Prices
}

// workloadFlags are the flags that package workload reads, with what they are for.
var workloadFlags = [][2]string{
	{"writes", "entities that are written with an expiry: 20000/s, 300/m, 5M/d"},
	{"backlog", "entities that are due already: 500M"},
	{"ttl", "how long they live: 30d, or 1h:80%,30d:20%"},
	{"size", "bytes of an entity without the index rows of its expiry: 2KiB"},
	{"location", "whose prices: " + strings.Join(forecast.ProvenLocations(), " or ")},
	{"price", "other prices: reads=0.03,writes=0.09,deletes=0.01,storage=0.15,ttl=0.01"},
}

func (f *planFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	for _, one := range workloadFlags {
		flags.Var(&text{}, one[0], one[1])
	}
	flags.StringVar(&f.mode, "mode", "", "native, datastore or embedded, without a store (default both cloud modes)")
	flags.IntVar(&f.namespaces, "namespaces", 0, "how many there are (default: as the targets file says)")
	flags.IntVar(&f.shards, "shards", 0, "as if the targets file said so")
	flags.BoolVar(&f.job, "job", false, "a job runs sweep at each tick of the schedule, and serve does not run")
	flags.StringVar(&f.out, "out", "", "keep the plan in this file, which ends in .json or .svg")
	flags.StringVar(&f.compare, "compare", "", "say whether the plan in this file is still right")
	flags.BoolVar(&f.yes, "yes", false, "do not ask before counting")
}

// isLive reports whether the workload is that of live targets.
func (f *planFlags) isLive() bool { return f.given["writes"] == "" && f.given["backlog"] == "" }

// read reads what the flags say. All that is wrong is said at once.
func (f *planFlags) read(cmd *cobra.Command, now time.Time) error {
	f.given, f.prices.List = map[string]string{}, map[forecast.PriceName]forecast.Price{}
	var problems config.Problems
	wrong := func(flag string, err error) {
		if err != nil {
			problems = append(problems, config.Problem{What: "--" + flag, Reason: err.Error()})
		}
	}
	for _, one := range workloadFlags {
		flag := cmd.Flags().Lookup(one[0])
		if flag.Changed {
			f.given[one[0]] = flag.Value.String()
			if strings.TrimSpace(flag.Value.String()) == "" {
				wrong(one[0], fmt.Errorf("is empty: it is for %s", one[1]))
				continue
			}
			wrong(one[0], f.parse(one[0], flag.Value.String(), cmd.Flags().Changed("price"), now))
		}
	}
	f.checkOthers(cmd, wrong)
	if len(problems) > 0 {
		return &exit{exitUsage, problems}
	}
	return nil
}

// parse reads one flag. Priced says that --price is given, too.
func (f *planFlags) parse(name, value string, priced bool, now time.Time) (err error) {
	switch name {
	case "writes":
		f.workload.Writes, err = workload.Rate(value)
	case "backlog":
		f.workload.Backlog, err = workload.Count(value)
	case "ttl":
		f.workload.Lives, err = workload.Lives(value)
	case "size":
		f.workload.Size, err = workload.Size(value)
	case "location":
		if !priced { // else the prices may be for it
			f.prices, err = workload.Location(value)
		}
	case "price":
		var list map[forecast.PriceName]forecast.Price
		list, err = workload.Prices(value, now.UTC().Format("2006-01-02"))
		f.prices, _ = forecast.ProvenPrices(f.given["location"])
		f.prices.List = maps.Clone(f.prices.List)
		if f.prices.List == nil {
			f.prices.List = map[forecast.PriceName]forecast.Price{}
		}
		maps.Copy(f.prices.List, list)
	}
	return err
}

// checkOthers checks the flags that hold no workload, and what flags say together.
func (f *planFlags) checkOthers(cmd *cobra.Command, wrong func(string, error)) {
	if cmd.Flags().Changed("namespaces") && (f.namespaces < 1 || f.namespaces > 1_000_000) {
		wrong("namespaces", fmt.Errorf("%d is not between 1 and 1000000", f.namespaces))
	}
	if cmd.Flags().Changed("shards") && (f.shards < 1 || f.shards > forecast.MostShards) {
		wrong("shards", fmt.Errorf("%d is not between 1 and %d", f.shards, forecast.MostShards))
	}
	switch f.mode {
	case "", string(forecast.Native), string(forecast.Datastore), string(forecast.Embedded):
	default:
		wrong("mode", fmt.Errorf("%q is not native, datastore or embedded", f.mode))
	}
	if f.isLive() && f.mode != "" {
		wrong("mode", fmt.Errorf("it is for plans without a store: give --writes or --backlog, too"))
	}
	if f.given["writes"] != "" && f.given["ttl"] == "" {
		wrong("writes", fmt.Errorf("without --ttl it is not known how many entities there are: give for example --ttl 30d"))
	}
	for name, file := range map[string]string{"out": f.out, "compare": f.compare} {
		if cmd.Flags().Changed(name) && !isPicture(file) && filepath.Ext(file) != ".json" {
			wrong(name, fmt.Errorf("%q does not end in .json or .svg", file))
		}
	}
}

func isPicture(file string) bool { return filepath.Ext(file) == ".svg" }

// newPlanned returns a targets file with one target that has all the defaults.
func newPlanned() io.Reader {
	return strings.NewReader("targets:\n  - {name: planned, kind: Planned}\n")
}

// modeName returns the mode of the stores that a driver opens.
func modeName(d config.Driver) string {
	switch d {
	case config.Firestore:
		return string(forecast.Native)
	case config.Datastore:
		return string(forecast.Datastore)
	case config.Embedded:
		return string(forecast.Embedded)
	}
	return ""
}

// driverOf returns the driver by whose defaults a target without a file is planned.
func driverOf(mode string, d config.Driver) config.Driver {
	switch forecast.Mode(mode) {
	case forecast.Native:
		return config.Firestore
	case forecast.Embedded:
		return config.Embedded
	case forecast.Datastore:
		return config.Datastore
	}
	return d
}

func scheduleOf(c config.Config, t config.Target) config.Schedule {
	if t.Schedule.IsZero() {
		return c.Schedule
	}
	return t.Schedule
}
