package plan

import (
	"slices"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
)

// The namespaces of a target are those that this deployment sweeps, and those that the
// target record has of all deployments.
type namespaces struct {
	names []string           // those that this deployment sweeps, as the view lists them
	index map[string]int     // in names
	every bool               // this deployment sweeps whatever namespaces the store lists
	named []generation.Swept // what deployments have put into the target record
	swept []string           // see Swept
}

func newNamespaces(rules *Rules, view *View) namespaces {
	n := namespaces{names: view.Namespaces, index: make(map[string]int, len(view.Namespaces)),
		every: slices.Contains(rules.Namespaces, cursor.AllNamespaces), named: view.Record.Namespaces,
		swept: sweptNamespaces(rules, view)}
	for i, name := range n.names {
		n.index[name] = i
	}
	return n
}

// sweptNamespaces lists the namespaces that any deployment sweeps.
func sweptNamespaces(rules *Rules, view *View) (names []string) {
	names = slices.Clone(rules.Namespaces)
	if len(names) == 0 {
		names = slices.Clone(view.Namespaces)
	}
	for _, n := range view.Record.Namespaces {
		names = append(names, n.Name)
	}
	if slices.Contains(names, cursor.AllNamespaces) {
		return []string{cursor.AllNamespaces}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Swept lists the namespaces that any deployment sweeps, in order, or
// [cursor.AllNamespaces].
func (n *namespaces) Swept() []string { return slices.Clone(n.swept) }

// sweeps reports whether this deployment sweeps a namespace.
func (n *namespaces) sweeps(name string) bool {
	_, ok := n.index[name]
	return ok
}

// isNamed reports whether a deployment has named a namespace in the target record.
func (n *namespaces) isNamed(name string) bool {
	return slices.ContainsFunc(n.named, func(s generation.Swept) bool { return s.Name == name })
}

// isGone reports whether the store no longer lists a namespace, and no deployment names it.
func (n *namespaces) isGone(name string) bool {
	return n.every && !n.sweeps(name) && !n.isNamed(name)
}

// isForeign reports whether only other deployments sweep a namespace.
func (n *namespaces) isForeign(name string) bool {
	return !n.every && !n.sweeps(name) && (n.isNamed(name) || n.isNamed(cursor.AllNamespaces))
}
