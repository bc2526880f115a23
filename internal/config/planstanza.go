package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A StanzaChange is what a plan changes of a target; a zero field leaves it as it is.
type StanzaChange struct {
	Shards int
	Every  time.Duration // of generations
	Keep   int
	Max    float64 // pace.max
}

// With returns the target with a change made.
func (t Target) With(c StanzaChange) Target {
	if c.Shards > 0 {
		t.Shards = c.Shards
	}
	if c.Every > 0 {
		t.Generations.Every = c.Every
	}
	if c.Keep > 0 {
		t.Generations.Keep = c.Keep
	}
	if c.Max > 0 {
		t.Pace.Max = AtMost(c.Max)
	}
	return t
}

// PlanStanza returns a target as an entry of the targets file, with a change made: what [Target.Stanza] has,
// and the shards, generations and pace, which a plan is about.
func (t Target) PlanStanza(c StanzaChange) string {
	t = t.With(c)
	values := map[string]string{"shards": strconv.Itoa(t.Shards),
		"generations.every": FormatDuration(t.Generations.Every), "generations.ramp": FormatDuration(t.Generations.Ramp),
		"generations.staleness": FormatDuration(t.Generations.Staleness),
		"generations.slack":     FormatDuration(t.Generations.Slack),
		"generations.settle":    strconv.Itoa(t.Generations.Settle), "generations.keep": strconv.Itoa(t.Generations.Keep),
		"pace.start": t.Pace.Start.String(), "pace.max": t.Pace.Max.String(), "pace.total": t.Pace.Total.String(),
		"pace.gate": strconv.Quote(t.Pace.Gate)}
	text, rest := t.Stanza(), ""
	if head, _, found := strings.Cut(text, "    # and its other settings"); found {
		text, rest = head, "    # and its other settings, as they are\n"
	}
	var b strings.Builder
	b.WriteString(text)
	if t.Layout.Uses("shards") && !t.written["shards"] { // else it is there
		fmt.Fprintf(&b, "    shards: %s\n", values["shards"])
	}
	section := func(name string, always []string, others ...string) {
		var parts []string
		for i, field := range append(always, others...) {
			path := name + "." + field
			if i < len(always) || t.written[path] {
				parts = append(parts, field+": "+values[path])
			}
		}
		fmt.Fprintf(&b, "    %s: {%s}\n", name, strings.Join(parts, ", "))
	}
	if t.Layout.HasSuccession() {
		section("generations", []string{"every", "keep"}, "ramp", "staleness", "slack", "settle")
	}
	if t.written["pace.gate"] && strings.ContainsAny(t.Pace.Gate, "@?") { // it may hold a password, and a plan is shown
		section("pace", []string{"max"}, "start", "total")
		b.WriteString("    # and pace.gate, as it is\n")
	} else {
		section("pace", []string{"max"}, "start", "total", "gate")
	}
	return b.String() + rest
}
