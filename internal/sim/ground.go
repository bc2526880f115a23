package sim

import (
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// What is due at first in a target is to be counted before anything of it goes. As a rule the target
// record says that it was. Where targets files overlap the oracle goes by what the process has counted.

// Grounds are by target what a process has counted.
type grounds map[string]*groundFact

// A groundFact is what a process has counted of what was due in a target as it began.
type groundFact struct {
	due    map[string]int64 // by namespace and range: the last count of each
	passed bool             // it has reserved something, rightly: what it counts from then on does not matter
}

// of returns what was counted in a target.
func (g *grounds) of(target string) *groundFact {
	if *g == nil {
		*g = grounds{}
	}
	if (*g)[target] == nil {
		(*g)[target] = &groundFact{due: map[string]int64{}}
	}
	return (*g)[target]
}

// longSpan is longer than any hour of a simulated breaker, and much shorter than the age from which on
// what is due at first is counted: by that a count of ground differs from one of an hour.
const longSpan = 24 * time.Hour

// counts notes a count of what is due in a range of expiry keys. Other counts begin or end outside of
// ranges.
func (g *groundFact) counts(namespace string, s store.Span, n int64) {
	if len(s.From.Value.Text) != expirykey.Len || len(s.To.Value.Text) != expirykey.Len {
		return
	}
	from, err := expirykey.Parse(s.From.Value.Text)
	to, toErr := expirykey.Parse(s.To.Value.Text)
	if g.passed || err != nil || toErr != nil || to.Expires.Sub(from.Expires) < longSpan {
		return
	}
	g.due[rangeOf(namespace, s.From.Value)] = n
}

// rangeOf names the range of an expiry key in a namespace.
func rangeOf(namespace string, v store.Value) string {
	return namespace + " " + v.Text[:len("00000000.0000")]
}

// passes reports whether a process has counted what is due, and that is no more than may go without an
// approval.
func (g *groundFact) passes(floor int64) bool {
	sum := int64(0)
	for _, n := range g.due {
		sum += n
	}
	g.passed = g.passed || len(g.due) > 0 && sum <= floor
	return g.passed
}
