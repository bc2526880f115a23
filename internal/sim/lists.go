package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
)

// Lists are what namespaces the deployments of one target list, where they differ for the whole life:
// the sweepers of one number are one deployment.
type lists struct {
	first, then [][]string    // by the number of the sweeper: until an instant, and from it on
	changes     time.Duration // since the beginning
}

// listsRate is in which part of the lives deployments have lists of their own.
const listsRate = 0.05

// drawLists draws lists that differ, which make the life one of several namespaces and sweepers.
func (p *plan) drawLists(d dice) {
	if !p.has("sweeper 2") || p.mode == embedded || !p.takesPart("lists", d.on("lists"), listsRate) {
		return
	}
	d = d.on("drawn lists")
	p.namespaces = []string{"", "eu"}
	if d.on("three").yes(0.5) {
		p.namespaces = []string{"", "eu", "us"}
	}
	p.sweepers = max(2, p.sweepers)
	all, star := p.namespaces, []string{cursor.AllNamespaces}
	l := &lists{}
	switch pick(d.on("kind"), "disjoint", "overlap", "star", "loses", "loses", "gains") {
	case "disjoint":
		l.first = [][]string{all[:1], all[1:]}
	case "overlap":
		l.first = [][]string{all[:len(all)-1], all[1:]}
	case "star":
		l.first = [][]string{star, pick(d.on("the other one"), all[1:], all[:1], []string{"", "none"})}
	case "loses": // of one deployment, or of all
		l.first = [][]string{all, pick(d.on("other"), all[:1], all[1:], all)}
		l.then = [][]string{all[:1], pick(d.on("keeps"), l.first[1], all[:1])}
	case "gains":
		l.first = [][]string{all[:1], all[:1]}
		l.then = [][]string{all[:1], pick(d.on("gains"), all[1:], all, star)}
	}
	if d.on("swapped").yes(0.5) {
		slices.Reverse(l.first)
		slices.Reverse(l.then)
	}
	if l.then == nil {
		l.then = l.first
	}
	l.changes = d.on("changes").between(p.busy/4, p.busy)
	p.lists = l
}

// listOf returns what a process that begins now lists. A command and what people sweep by hand is of
// one of the deployments.
func (w *world) listOf(name string, d dice) []string {
	l := w.plan.lists.first
	if time.Since(w.began) >= w.plan.lists.changes {
		l = w.plan.lists.then
	}
	for i := range w.plan.sweepers {
		if strings.HasPrefix(name, "sweeper "+string(rune('0'+i))+".") {
			return l[i%len(l)]
		}
	}
	return pick(d.on("list"), l...)
}

// deployments are the lists that there are in the end, each of which sweeps once.
func (w *world) deployments() [][]string {
	if w.plan.lists == nil {
		return [][]string{nil}
	}
	return w.plan.lists.then
}

// leftBehind says why nobody swept a namespace recently: no deployment lists it any more, or the one that
// does has not come for long. The caller holds mu.
func (w *world) leftBehind(namespace string) string {
	l := w.plan.lists
	if l == nil {
		return "left behind before it was listed"
	}
	list := l.first
	if time.Since(w.began) >= l.changes {
		list = l.then
	}
	if slices.ContainsFunc(list, func(names []string) bool { return hasNamespace(names, namespace) }) {
		return "left behind by who is away"
	}
	return "left behind by all"
}

// nobodyLists reports whether no deployment sweeps a namespace in the end.
func (w *world) nobodyLists(namespace string) bool {
	l := w.plan.lists
	return l != nil && !slices.ContainsFunc(l.then, func(list []string) bool { return hasNamespace(list, namespace) })
}

func hasNamespace(list []string, namespace string) bool {
	return slices.Contains(list, namespace) || slices.Contains(list, cursor.AllNamespaces)
}

// lists notes which namespaces a process lists that writes the target record.
func (o *oracle) lists(h *handle, target string) {
	for _, ns := range h.lists {
		if o.listedAt == nil {
			o.listedAt = map[place]time.Time{}
		}
		o.listedAt[place{o.w.plan.kind(target), ns}] = time.Now()
	}
}

// areSwept adds to the namespaces of a target record what a deployment was about to sweep a moment
// ago, whatever the record says.
func (o *oracle) areSwept(target string, recorded map[string]bool) map[string]bool {
	if len(o.w.former[target]) > 0 { // the new record knows the deployments that have come since
		return recorded
	}
	for at, last := range o.listedAt {
		if at.kind == o.w.plan.kind(target) && time.Since(last) < o.w.plan.target.Rewind {
			recorded[at.namespace] = true
		}
	}
	return recorded
}
