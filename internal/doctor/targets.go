package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// checkOverlaps looks for targets that delete the same entities by different properties. Two
// targets with one property are refused with the configuration.
func (x *exam) checkOverlaps() {
	byID := map[string][]sweep.Target{}
	for _, t := range x.All {
		id := t.Kind[strings.LastIndexByte(t.Kind, '/')+1:]
		for _, other := range byID[id] {
			if !share(t, other) {
				continue
			}
			x.find(Finding{ID: "targets-overlap", Target: t.Name,
				What: fmt.Sprintf("The targets %s and %s delete the same entities of %s, by %s and by %s.",
					other.Name, t.Name, t.Kind, other.Property, t.Property),
				Evidence: []string{"the earlier of the two expiries decides"},
				Mend:     "remove one of them from the targets file, unless its entities are being adopted by the other"})
		}
		byID[id] = append(byID[id], t)
	}
}

// share reports whether two targets of kinds with the same last segment have entities in common.
func share(a, b sweep.Target) bool {
	if !a.Group && !b.Group && a.Kind != b.Kind {
		return false
	}
	all := slices.Contains(a.Namespaces, "*") || slices.Contains(b.Namespaces, "*")
	return all || len(a.Namespaces) == 0 || len(b.Namespaces) == 0 ||
		slices.ContainsFunc(a.Namespaces, func(ns string) bool { return slices.Contains(b.Namespaces, ns) })
}

// A targetLister is a store that lists the targets of which it has records.
type targetLister interface {
	RecordedTargets(ctx context.Context, most int) ([]string, error)
}

const (
	// mostRecorded bounds how many names of targets are read, and mostRead how many records of those
	// that nobody configures.
	mostRecorded = 500
	mostRead     = 50
)

// checkUnconfigured looks for records of targets that the configuration does not have.
func (x *exam) checkUnconfigured(ctx context.Context, l targetLister) error {
	names, err := l.RecordedTargets(ctx, mostRecorded+1) // one more shows that there are more
	if err != nil {
		return err
	}
	if len(names) > mostRecorded {
		names = names[:mostRecorded]
		x.skip("target records", "", fmt.Sprintf("only the first %d targets that have records were looked at", mostRecorded))
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return slices.ContainsFunc(x.All, func(t sweep.Target) bool { return t.Name == name })
	})
	if len(names) > mostRead {
		x.skip("target records", "", fmt.Sprintf("of %d targets that have records and are not configured only the first %d "+
			"were looked at", len(names), mostRead))
		names = names[:mostRead]
	}
	for _, name := range names {
		err := x.judgeUnconfigured(ctx, name)
		if errors.Is(err, store.ErrCorrupt) { // it says nothing of the other targets
			x.findUndecodable(name, err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *exam) judgeUnconfigured(ctx context.Context, name string) error {
	rec, now, err := generation.Load(ctx, x.Sweep.Store, name)
	switch {
	case errors.Is(err, generation.ErrMissing):
		return nil
	case errors.Is(err, generation.ErrNewer):
		return nil // somebody has a newer program, and configures it
	case errors.Is(err, store.ErrCorrupt), err != nil && !isOfRecord(ctx, err):
		return err
	case err != nil:
		x.find(Finding{ID: "record-malformed", Target: name,
			What:     "The record of a target that nobody here configures makes no sense.",
			Evidence: []string{oneLine(err.Error())}, Mend: mendRecord(name)})
		return nil
	}
	beats, _, err := cursor.LoadHeartbeats(ctx, x.Sweep.Store, name, nil, x.Sweep.Now)
	if err != nil {
		return err
	}
	evidence := []string{fmt.Sprintf("record of %s, kind %s, property %s", rec.Created.UTC().Format(time.DateOnly),
		rec.Kind, rec.Property)}
	live := liveOf(beats, now)
	for _, h := range live[:min(len(live), examples)] {
		evidence = append(evidence, "swept at present by "+h.Owner)
	}
	for _, t := range x.All {
		if t.Kind != rec.Kind || t.Property != rec.Property {
			continue
		}
		f := Finding{ID: "target-renamed", Target: t.Name, Evidence: evidence,
			What: fmt.Sprintf("The store knows the entities of this target under the name %s, too.", name),
			Mend: "give it its old name, or, once no process uses that one, " + mendUnused("target-renamed", name)}
		if len(live) > 0 {
			f.ID = "target-swept-twice"
			f.What = fmt.Sprintf("Other processes sweep the entities of this target under the name %s.", name)
			f.Mend = "configure it once: breaker, limits, pauses and pace of the two names do not know each other"
		}
		x.find(f)
		return nil
	}
	if len(live) == 0 {
		x.find(Finding{ID: "target-unconfigured", Target: name, Evidence: evidence,
			What: "The store has records of a target that is not in this targets file, and no process sweeps it.",
			Mend: "add the target again, or, once its entities need no expiry any more, " +
				mendUnused("target-unconfigured", name)})
	}
	return nil
}

// checkAdoption looks at the records of adoptions.
func (x *exam) checkAdoption(ctx context.Context, t sweep.Target) error {
	_, _, _, err := adopt.Load(ctx, x.Sweep.Store, t.Name)
	if errors.Is(err, store.ErrCorrupt) { // other faults of it are found with the status
		return err
	}
	return x.checkSuperseded(ctx, t)
}

// checkSuperseded looks for a target whose entities were adopted by another one.
func (x *exam) checkSuperseded(ctx context.Context, t sweep.Target) error {
	var others []string
	for _, o := range x.All {
		if o.Kind == t.Kind && o.Group == t.Group && o.Name != t.Name && o.Type == store.Text {
			others = append(others, o.Name)
		}
	}
	if len(others) == 0 {
		return nil
	}
	by, err := adopt.SupersededBy(ctx, x.Sweep.Store, t.Target, others)
	if err != nil || by == "" {
		return err
	}
	x.find(Finding{ID: "target-superseded", Target: t.Name,
		What: fmt.Sprintf("The adoption of its entities by the target %s is finished.", by),
		Mend: "remove " + t.Name + " from the targets file"})
	return nil
}

// A kindLister is a store that lists its kinds.
type kindLister interface {
	Kinds(ctx context.Context, most int) ([]string, error)
}

const (
	mostKinds      = 1000
	mostNamespaces = 32 // that are asked for one entity each
)

// findEmpty says why a kind may hold no entity: none was written yet, or it is another one.
func (x *exam) findEmpty(ctx context.Context, t sweep.Target, namespaces []string) error {
	if mayHold, err := x.findElsewhere(ctx, t, namespaces); err != nil || mayHold {
		return err
	}
	if l, ok := x.Sweep.Store.(kindLister); ok && !strings.Contains(t.Kind, "/") {
		known, err := l.Kinds(ctx, mostKinds+1) // one more shows that there are more
		switch {
		case err != nil:
			x.skip("kinds", t.Name, x.why(err))
		case len(known) > mostKinds:
			known = known[:mostKinds]
			x.skip("kinds", t.Name, fmt.Sprintf("only the first %d kinds were looked at", mostKinds))
		}
		known = slices.DeleteFunc(known, func(k string) bool { return strings.HasPrefix(k, "Reaper") })
		if near := nearest(t.Kind, known); near != "" && !slices.Contains(known, t.Kind) {
			x.find(Finding{ID: "kind-misspelt", Target: t.Name,
				What:     fmt.Sprintf("The kind %s holds no entity, and %s does.", t.Kind, near),
				Evidence: []string{"kinds in the store: " + strings.Join(known[:min(len(known), mostNames)], ", ")},
				Mend:     fmt.Sprintf("write kind: %s in the targets file, if that is meant", near)})
			return nil
		}
	}
	x.find(Finding{ID: "kind-empty", Target: t.Name, What: fmt.Sprintf("The kind %s holds no entity.", t.Kind),
		Mend: "check kind and namespaces in the targets file, if entities were written already"})
	return nil
}

// findElsewhere looks for entities in the namespaces that a target does not have. It reports whether the kind
// holds some there, or may hold some: then nothing more can be said of it.
func (x *exam) findElsewhere(ctx context.Context, t sweep.Target, namespaces []string) (mayHold bool, err error) {
	n, lists := x.Sweep.Store.(store.Namespacer)
	counter, counts := x.Sweep.Store.(store.Counter)
	if !lists || !counts {
		return false, nil
	}
	every, err := n.Namespaces(ctx)
	if err != nil && !errors.Is(err, store.ErrInvalid) { // Google's emulator does not know such queries
		return false, err
	}
	others := slices.DeleteFunc(slices.Clone(every), func(ns string) bool { return slices.Contains(namespaces, ns) })
	read, all := x.firstOf(t, others, "other namespaces")
	for _, ns := range read {
		if holds, err := counter.Holds(ctx, t.Target, ns); err != nil {
			return false, err
		} else if holds {
			x.find(Finding{ID: "namespace-left-out", Target: t.Name,
				What:     fmt.Sprintf("The kind %s holds entities, but in none of the namespaces of this target.", t.Kind),
				Evidence: []string{fmt.Sprintf("namespace %q holds some; the target has %s", ns, quoted(namespaces))},
				Mend:     fmt.Sprintf(`add %q to namespaces, or write namespaces: ["*"]`, ns)})
			return true, nil
		}
	}
	return !all, nil
}

// mostNames bounds how many names one line of evidence has.
const mostNames = 12

// mendRecord is what to do about the record of a target that nobody configures, if it cannot be used.
func mendRecord(name string) string {
	return fmt.Sprintf("configure the target, to rebuild the record; or remove the %s record %s, if nobody uses it",
		store.TargetRecord, name)
}

// mendUnused is how the records of a target go that nobody uses.
func mendUnused(id, name string) string {
	return fmt.Sprintf("reaper doctor --repair %s --name %s, which says what goes, and with --apply removes it", id, name)
}
