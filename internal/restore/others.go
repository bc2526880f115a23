package restore

import (
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
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
// restore leaves as it was archived; 0 if none would.
func (j *job) deletedBy(c store.Copy, now time.Time) (other int, err error) {
	if j.expirer == nil || c.Data == nil {
		return 0, nil
	}
	own := j.Target.Target
	_, isOwn := j.expiry(c)
	for i, t := range j.Others {
		if isOwn && t.Property == own.Property { // it gets the new expiry
			continue
		}
		v, err := j.expirer.ExpiryOf(c, own, t.Target)
		if err != nil {
			return 0, fmt.Errorf("read the expiry of %s by target %s: %w", c.Key, t.Name, err)
		}
		if at, ok := expiresOf(v); ok && v.Type == t.Type && !at.After(now.Add(-t.Retention)) {
			return i + 1, nil
		}
	}
	return 0, nil
}

// checkOthers refuses items that another target would delete at once.
func (r *run) checkOthers(items []item) error {
	now := r.switches.StoreNow()
	for _, one := range items {
		other, err := r.job.deletedBy(one.Copy, now)
		if err != nil {
			return err
		}
		if other > 0 {
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
