package restore

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// An expirer is a store that tells what the properties of archived entities hold.
type expirer interface {
	// ExpiryOf returns what the property of target t holds in a copy that was archived for the target from; Missing if
	// the entity is not of t's kind. Of a copy without Data nothing is known but its Expiry.
	ExpiryOf(c store.Copy, from, t store.Target) (store.Value, error)
}

// expiry returns when a copy expired; ok is false if it never did. What is of another kind has no expiry of the
// target's, whatever a property of that name holds.
func (j *job) expiry(c store.Copy) (at time.Time, ok bool) {
	at, ok = expiresOf(c.Expiry)
	if !ok || j.expirer == nil {
		return at, ok
	}
	v, err := j.expirer.ExpiryOf(store.Copy{Key: c.Key, Expiry: c.Expiry}, j.Target.Target, j.Target.Target)
	return at, err == nil && v.Type != store.Missing
}

// deletedBy returns which of the other targets would delete a copy at once, from 1 on, by its own property, which a
// restore leaves as it was archived; 0 if none would. What cannot be read is left to the insert, which refuses it.
func (j *job) deletedBy(namespace string, c store.Copy, now time.Time) (other int) {
	if j.expirer == nil || c.Data == nil {
		return 0
	}
	own := j.Target.Target
	_, isOwn := j.expiry(c)
	for i, t := range j.Others {
		if isOwn && t.Property == own.Property || !sweeps(t, namespace) { // its own property gets the new expiry
			continue
		}
		v, err := j.expirer.ExpiryOf(c, own, t.Target)
		if err != nil {
			return 0
		}
		at, ok := expiresOf(v)
		horizon := now.Add(-t.Retention)
		if ok && v.Type == t.Type && !at.After(horizon) && !at.Before(horizon.Add(-t.MaxAge)) { // before that it is suspect
			return i + 1
		}
	}
	return 0
}

// sweeps reports whether a target sweeps a namespace.
func sweeps(t sweep.Target, namespace string) bool {
	if len(t.Namespaces) == 0 {
		return namespace == ""
	}
	return slices.Contains(t.Namespaces, namespace) || slices.Contains(t.Namespaces, "*")
}

// checkOthers refuses items that another target would delete at once.
func (r *run) checkOthers(items []item) error {
	now := r.switches.StoreAtMost()
	for _, one := range items {
		if other := r.job.deletedBy(one.namespace, one.Copy, now); other > 0 {
			t := r.job.Others[other-1]
			return fmt.Errorf("%w: %s, by property %s of target %s", ErrOtherTarget, one.Key, t.Property, t.Name)
		}
	}
	return nil
}

// others counts the entities of a plan that other targets would delete at once, and says so.
func (p *planner) others(chosen []candidate) string {
	counts := make([]int, len(p.job.Others)+1)
	for _, c := range chosen {
		counts[c.other]++
	}
	var texts []string
	for i, t := range p.job.Others {
		if n := counts[i+1]; n > 0 {
			texts = append(texts, fmt.Sprintf("%d of %d by property %s of target %s", n, len(chosen), t.Property, t.Name))
		}
	}
	return strings.Join(texts, ", ")
}
