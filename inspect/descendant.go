package inspect

import (
	"context"
	"fmt"
	"strings"

	"github.com/reaper-ttl/reaper/sweep"
)

// ExplainDescendant explains the entity of the target that something with this key lies below, and says what
// becomes of that with it. Keys are in the store's canonical text, as lists print them. Of several
// entities it is the nearest. It writes nothing.
func ExplainDescendant(
	ctx context.Context, cfg sweep.Config, t sweep.Target, namespace, key string,
) (Explanation, error) {
	above := nearestAbove(t, key)
	if above == "" {
		return Explanation{}, fmt.Errorf("%w: %q does not lie below an entity of the kind %s", ErrUnknownEntity, key, t.Kind)
	}
	x, err := explainKey(ctx, cfg, t, namespace, above)
	if err != nil {
		return x, err
	}
	what := "stays as an orphan when that is deleted"
	switch {
	case !x.Found:
		what = "is an orphan: reaper orphans finds it"
	case t.Descendants.Mode == sweep.DeleteDescendants:
		what = "is deleted before that"
	case t.Descendants.Mode == sweep.RefuseDescendants:
		what = "keeps that from being deleted"
	}
	x.Descendant, x.Why = key, fmt.Sprintf("%s lies below it, and %s. It itself: %s", key, what, x.Why)
	return x, nil
}

// nearestAbove returns the key of the nearest entity of a target that a key lies below; empty if it lies below none.
func nearestAbove(t sweep.Target, key string) string {
	segments := strings.Split(key, "/") // kinds and ids in turn
	for n := (len(segments) - 1) / 2 * 2; n >= 2; n -= 2 {
		above := strings.Join(segments[:n], "/")
		collection := strings.Join(segments[:n-1], "/")
		if segments[n-2] == t.Kind || collection == t.Kind {
			return above
		}
	}
	return ""
}
