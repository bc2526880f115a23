package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
)

// planned returns the plan for a target with the defaults in us-central1.
func planned(t *testing.T, mode forecast.Mode, f planFlags, w forecast.Workload) planTarget {
	t.Helper()
	targets, err := config.ParseTargets("", newPlanned(), driverOf(string(mode), ""))
	if err != nil {
		t.Fatal(err)
	}
	schedule, err := config.ParseSchedule("*/5 * * * *")
	if err != nil {
		t.Fatal(err)
	}
	prices, _ := forecast.ProvenPrices("us-central1")
	p, err := planner{flags: &f, target: targets[0], mode: mode, schedule: schedule, prices: prices}.plan(w)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// docs/plan.md has what the program says of its four workloads, and the table of prices.
func TestPageOfPlan(t *testing.T) {
	text, err := os.ReadFile("../../docs/plan.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	wants := func(format string, args ...any) {
		t.Helper()
		if want := fmt.Sprintf(format, args...); !strings.Contains(page, want) {
			t.Errorf("the page does not have: %s", want)
		}
	}
	const day = 24 * time.Hour
	lives := func(d time.Duration) []forecast.Life { return []forecast.Life{{For: d, Share: 1}} }
	for life, name := range map[time.Duration]string{time.Hour: "1 h", day: "24 h", 30 * day: "30 d"} {
		p := planned(t, forecast.Datastore, planFlags{}, forecast.Workload{Writes: 20_000, Lives: lives(life), Size: 2048})
		wants("| %s | %d | %s | %s, %s | %s | %s | %s |", name, p.Shards.Needed, countText(p.Storage.Entities), secondsText(p.Delay.P50),
			secondsText(p.Delay.P99), moneyText(p.Month[0].Dollars), moneyText(p.Month[1].Dollars), moneyText(p.Month[2].Dollars))
		if life == day {
			wants("the program says %s.", countText(p.Month[0].Reads))
			wants("the program says %s.", countText(p.Month[0].Writes))
		}
	}
	p := planned(t, forecast.Datastore, planFlags{}, forecast.Workload{Backlog: 500e6})
	wants("Together 7,288 s: %s", secondsText(*p.Drain.Seconds))
	wants("%s reads; ", countText(p.Backlog[0].Reads))
	wants("= %s. `query`: %s reads, %s.", moneyText(p.Backlog[0].Dollars), countText(p.Backlog[1].Reads), moneyText(p.Backlog[1].Dollars))
	tenants := forecast.Workload{Writes: 1000, Lives: lives(7 * day), Size: 1024}
	p = planned(t, forecast.Datastore, planFlags{namespaces: 1000, shards: 1}, tenants)
	wants("the program says %s.", countText(p.Month[0].Reads))
	wants("the program says %s. Money: %s with `lookup`, %s with `query`", countText(p.Month[0].Writes), moneyText(p.Month[0].Dollars),
		moneyText(p.Month[1].Dollars))
	p = planned(t, forecast.Datastore, planFlags{namespaces: 1000}, tenants)
	if wants("it would be %s**", moneyText(p.Month[0].Dollars)); !strings.Contains(p.Stanza, "shards: 1\n") {
		t.Errorf("the stanza has too many shards:\n%s", p.Stanza)
	}
	p = planned(t, forecast.Native, planFlags{shards: 1}, forecast.Workload{Writes: 1.0 / 6, Lives: lives(7 * day), Size: 2048})
	wants("the program says %s.", countText(p.First[0].Reads))
	wants("the program says %s.", countText(p.First[0].Writes))
	wants("= %s. The free tier covers it", moneyText(p.First[0].Dollars))
	for _, location := range forecast.ProvenLocations() {
		prices, _ := forecast.ProvenPrices(location)
		for name, price := range prices.List {
			wants("| %s | %s | %.2f | %s | %s |", location, name, price.Dollars, price.Source, price.Date)
		}
	}
}
