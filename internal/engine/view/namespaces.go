package view

import (
	"context"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
)

// namespacesEvery is the time between two lists of all namespaces.
const namespacesEvery = 10 * time.Second

// The namespaces of a target are those that its configuration names, or all that the store lists.
type namespaces struct {
	source *source
	listed time.Time // when the store was last asked for a list
}

// areListed reports whether the store lists them.
func (n *namespaces) areListed() bool {
	return slices.Contains(n.source.Rules.Namespaces, cursor.AllNamespaces)
}

// areDue reports whether the store is to be asked for a new list.
func (n *namespaces) areDue(now time.Time) bool {
	return now.Sub(n.listed) >= namespacesEvery && n.areListed()
}

// LoadNamespaces lists the namespaces that are swept.
func (n *namespaces) LoadNamespaces(ctx context.Context, next *plan.View) error {
	next.Namespaces = n.source.Rules.Namespaces
	if !n.areListed() {
		return nil
	}
	n.listed = n.source.Clock.Local()
	names, err := n.source.ListNamespaces(ctx)
	if err == nil {
		next.Namespaces = names
	}
	return err
}
