package sim

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A Case is the shortest history that was found to break a rule.
type Case struct {
	Report
	First *Violation // as it was found
}

// Shrink leaves out of a run that broke a rule whatever it can, as long as the same
// rule is broken: one feature after the other, then time.
func Shrink(t *testing.T, r Report) Case {
	best := r
	try := func(o Options) bool {
		next := Run(t, o)
		if next.Violation == nil || next.Violation.Rule != r.Violation.Rule {
			return false
		}
		best = next
		return true
	}
	for again := true; again; {
		again = false
		for _, f := range features {
			if o := best.Options; !slices.Contains(o.Without, f) {
				o.Without = append(slices.Clone(o.Without), f)
				again = try(o) || again
			}
		}
	}
	for _, part := range []float64{0.1, 0.2, 0.35, 0.5, 0.7, 0.85} {
		o := best.Options
		o.Until = time.Duration(float64(newPlan(o).busy) * part)
		if try(o) {
			break
		}
	}
	o := best.Options
	o.Trace = true
	if traced := Run(t, o); traced.Violation != nil {
		best = traced
	}
	return Case{best, r.Violation}
}

// String shows what broke, what led to it, and how to see it again.
func (c Case) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "seed %d: %v\n", c.Options.Seed, c.First)
	if c.Violation.Text != c.First.Text {
		fmt.Fprintf(&s, "shrunk: %v\n", c.Violation)
	}
	fmt.Fprintf(&s, "%s\n", c.Plan)
	for _, e := range c.telling() {
		s.WriteString(e + "\n")
	}
	fmt.Fprintf(&s, "repeat it: go run ./internal/sim/prove -seed %d", c.Options.Seed)
	if len(c.Options.With) > 0 {
		fmt.Fprintf(&s, " -with '%s'", strings.Join(c.Options.With, ","))
	}
	if len(c.Options.Without) > 0 {
		fmt.Fprintf(&s, " -without '%s'", strings.Join(c.Options.Without, ","))
	}
	if c.Options.Until > 0 {
		fmt.Fprintf(&s, " -until %v", c.Options.Until)
	}
	return s.String()
}

var names = regexp.MustCompile(`"[a-z]+[0-9-]+"|[a-z]+\.[0-9]{8}\.[a-z0-9-]+(@[a-z]+)?`)

// telling returns the events that have to do with what the violation names, and the
// last ones.
func (c Case) telling() []string {
	const last, most = 12, 34 // with what stands around them, a screen of 40 lines
	about := names.FindAllString(c.Violation.Text, -1)
	var list []string
	for i, e := range c.Events {
		isAbout := func(name string) bool { return strings.Contains(e, name) }
		if i >= len(c.Events)-last || slices.ContainsFunc(about, isAbout) {
			list = append(list, e)
		}
	}
	if len(list) > most {
		list = append([]string{fmt.Sprintf("... %d more", len(list)-most)}, list[len(list)-most:]...)
	}
	return list
}
