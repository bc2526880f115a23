package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// checkStatus says what holds a target, and whether anybody sweeps it.
func (x *exam) checkStatus(ctx context.Context, s *sweep.Snapshot) error {
	t := s.Target
	st, err := inspect.StatusWith(ctx, x.Sweep, t, inspect.Look{All: true})
	switch {
	case err != nil && store.TookTooLong(err) && ctx.Err() == nil:
		return fmt.Errorf("reaper status did not end within its %v", inspect.Within) // --wait would not help
	case err != nil:
		return err
	case st.Err != nil:
		return errors.New(st.Why)
	}
	for _, what := range st.Unread {
		x.skip("status", t.Name, oneLine(what))
	}
	x.judgeVerdict(st)
	if st.Behind != nil && *st.Behind > 0 {
		f := Finding{ID: "behind-cursors", Target: t.Name,
			What: fmt.Sprintf("%d entities are due and lie behind the cursors: they were written after they had expired.",
				*st.Behind),
			Mend: "reaper sweep --apply --from-start --target " + t.Name + " deletes them now"}
		if st.BehindGoneBy != nil {
			f.Evidence = []string{"without that they go by the first sweep after " + st.BehindGoneBy.UTC().Format(time.RFC3339)}
		}
		x.find(f)
	}
	if w := st.WouldTrip; w != nil && st.Held == "" {
		x.find(Finding{ID: "breaker-would-trip", Target: t.Name,
			What: fmt.Sprintf("The breaker would trip at the next reads from the start: %d are late, where %d may be.",
				w.Due, w.Limit),
			Mend: "have the application write the right expiries, if they are live; reaper explain --target " + t.Name +
				" ID shows one"})
	}
	if st.Held == "" && !st.Paused && st.Reason != "" {
		x.find(Finding{ID: "records-mixed", Target: t.Name, What: "Records and entities are not of one time.",
			Evidence: []string{oneLine(st.Reason)}, Mend: "follow the chapter After a restore of docs/operations.md"})
	}
	x.judgePushBack(st)
	for _, r := range st.Ranges {
		if r.Refused {
			return x.findKept(ctx, t, inspect.KeptRefused, "refused", "The store refuses to delete some entities.",
				"delete or repair them by hand: their generation cannot retire before")
		}
	}
	return nil
}

// judgePushBack notes that the store holds back ranges in which something is due. One may be chance.
func (x *exam) judgePushBack(st inspect.TargetStatus) {
	var evidence []string
	for _, r := range st.Ranges {
		if r.ThrottledBy == string(throttle.ReasonPushBack) && r.OldestDue != nil {
			evidence = append(evidence, fmt.Sprintf("range %08d.%s, due since %s", r.Generation, r.Shard,
				r.OldestDue.UTC().Format(time.RFC3339)))
		}
	}
	if len(evidence) < 2 {
		return
	}
	x.find(Finding{ID: "pushed-back", Target: st.Name, Evidence: evidence[:min(len(evidence), examples)],
		What: fmt.Sprintf("The store pushed back on %d ranges in which something is due.", len(evidence)),
		Mend: "look at quotas and at what else uses the database; reaper pace --max N --target " + st.Name +
			" makes room for it"})
}

// checkHold says what holds a target: its breaker, an operator, or its gate.
func (x *exam) checkHold(ctx context.Context, s *sweep.Snapshot) error {
	t, rec := s.Target, s.View.Record
	paused := rec.IsPaused(s.Now())
	if t.IsTripped(rec) {
		paused = rec.IsHeldByOperator(s.Now())
		x.find(Finding{ID: "breaker-open", Target: t.Name, Evidence: []string{oneLine(rec.Trip.Summary())},
			What: "The breaker holds the target: nothing is deleted until a person has looked.",
			Mend: fmt.Sprintf("reaper breaker show %s, then reaper breaker approve %s %s --reason TEXT, or reaper pause "+
				"--target %s --reason TEXT", t.Name, t.Name, rec.Trip.ID, t.Name)})
	}
	if paused {
		f := Finding{ID: "paused", Target: t.Name, What: "The target is paused until somebody resumes it.",
			Mend: "reaper resume --target " + t.Name + ", once the reason for it is gone"}
		if !rec.PausedUntil.IsZero() {
			f.What = "The target is paused until " + rec.PausedUntil.UTC().Format(time.RFC3339) + "."
		}
		for name, text := range map[string]string{"by ": rec.PauseNote.Actor, "because: ": rec.PauseNote.Reason} {
			if text != "" {
				f.Evidence = append(f.Evidence, oneLine(name+text))
			}
		}
		slices.Sort(f.Evidence)
		x.find(f)
	}
	if t.Gate == nil {
		return nil
	}
	if err := t.Gate(ctx); err != nil {
		x.find(Finding{ID: "gate-closed", Target: t.Name, What: "The gate holds the target.",
			Evidence: []string{oneLine(err.Error())},
			Mend:     "ask those who operate the gate; pace.gate in the targets file names it"})
	}
	return nil
}

// judgeVerdict says whether anybody sweeps a target, and in time.
func (x *exam) judgeVerdict(st inspect.TargetStatus) {
	f := Finding{Target: st.Name, Evidence: []string{fmt.Sprintf("%s: %s", st.Verdict, oneLine(st.Why))}}
	if st.Backlog != nil && *st.Backlog > 0 {
		f.Evidence = append(f.Evidence, fmt.Sprintf("%d entities are due", *st.Backlog))
	}
	if st.LateOnes {
		return // behind-cursors says so
	}
	switch st.Verdict {
	case inspect.Failing:
		f.ID, f.What = "not-swept", "Entities are due, and no process sweeps the target any more."
		f.Mend = "look at the job or daemon that should: is it scheduled, does it start, does its log have errors?"
	case inspect.DryRun:
		f.ID, f.What = "never-applied", "Entities are due, and nobody has ever swept the target with --apply."
		f.Mend = "reaper sweep --target " + st.Name + " shows what would go; then add --apply (REAPER_APPLY=true)"
	case inspect.Behind:
		f.ID, f.What = "sweeps-late", "Sweeps do not keep up: something has been due for longer than two ticks."
		f.Mend = "reaper status --target " + st.Name + " shows what holds ranges back; docs/runbook.md has what to do"
	case inspect.Unknown:
		x.skip("status", st.Name, oneLine(st.Why))
	case inspect.Held, inspect.Paused, inspect.Idle, inspect.OK:
	}
	if f.ID != "" {
		x.find(f)
	}
}

// checkBudget says what the breaker of a target cannot do.
func (x *exam) checkBudget(ctx context.Context, s *sweep.Snapshot) error {
	t := s.Target
	if !t.Breaker.On && !t.Limits.Any() {
		return nil
	}
	b, err := s.Budget(ctx)
	switch {
	case err != nil && x.judgeRecords(ctx, t, err):
		return nil
	case err != nil:
		return err
	}
	if until := b.LimitedUntil(t.Limits, s.Now()); !until.IsZero() {
		x.find(Finding{ID: "limit-used-up", Target: t.Name, What: "The limits of the target are used up.",
			Evidence: []string{b.UsedUp(t.Limits, s.Now()) + ", until " + until.UTC().Format(time.RFC3339)},
			Mend:     "wait, raise limits in the targets file, or sweep once with --yes"})
	}
	rules := sweep.BreakerRules(t)
	if !rules.On {
		return nil
	}
	x.judgeLives(t, b, s.Now())
	if b.Uncounted != "" {
		x.find(Finding{ID: "breaker-uncounted", Target: t.Name,
			What:     "The breaker cannot count what is due, so little or nothing goes.",
			Evidence: []string{oneLine(b.Uncounted)},
			Mend:     "reaper breaker show " + t.Name + "; if counts take too long, see docs/breaker.md"})
	} else if why := blindness(b, rules, s.Now()); why != "" {
		x.find(Finding{ID: "breaker-blind", Target: t.Name, What: "The breaker cannot see bursts: " + why + ".",
			Mend: "see docs/breaker.md for fraction and window; a new target's breaker learns for a day"})
	}
	return nil
}

// blindness says why a breaker would let a burst pass; it is empty if it would not.
func blindness(b breaker.Budget, r breaker.Rules, now time.Time) string {
	switch {
	case b.Began.IsZero():
		return ""
	case r.Fraction >= 1:
		return "its fraction is 100%"
	case b.IsBlind(r, now):
		return "lives are shorter than its window"
	}
	return ""
}

// findKept notes that entities are kept for a reason, with a few ids.
func (x *exam) findKept(ctx context.Context, t sweep.Target, kept inspect.Kept, id, what, mend string) error {
	list, err := inspect.ListKept(ctx, x.Sweep, t, kept, examples)
	if err != nil || len(list.Entities) == 0 {
		return err
	}
	x.find(Finding{ID: id, Target: t.Name, What: what, Evidence: evidenceOf(list),
		Mend: fmt.Sprintf("reaper list --kept %s --target %s names more; %s", kept, t.Name, mend)})
	return nil
}

// evidenceOf names the entities of a list.
func evidenceOf(list inspect.KeptList) (lines []string) {
	for _, e := range list.Entities {
		where := ""
		if e.Namespace != "" {
			where = " in namespace " + e.Namespace
		}
		lines = append(lines, oneLine(fmt.Sprintf("%s%s: %s (%s)", e.ID, where, e.Value, e.Type)))
	}
	return lines
}

func (x *exam) checkMalformed(ctx context.Context, s *sweep.Snapshot) error {
	return x.findKept(ctx, s.Target, inspect.KeptMalformed, "malformed",
		"Entities have an expiry that cannot be read: they are kept.", "correct the writer, and write them again")
}

func (x *exam) checkSuspect(ctx context.Context, s *sweep.Snapshot) error {
	return x.findKept(ctx, s.Target, inspect.KeptSuspect, "suspect",
		fmt.Sprintf("Entities expired longer than max_age (%v) ago, which is implausible: they are kept.", s.Target.MaxAge),
		"correct their expiry, or raise max_age if it is right")
}

// checkOutside counts the entities that carry the property and lie in no range.
func (x *exam) checkOutside(ctx context.Context, s *sweep.Snapshot) error {
	t := s.Target
	n, ok := s.CountOutside(ctx)
	switch {
	case !ok && ctx.Err() != nil:
		return ctx.Err()
	case !ok:
		return errors.New("what lies outside all ranges could not be counted")
	case n == 0:
		return nil
	}
	list, err := inspect.OutsideExamples(ctx, x.Sweep, t, examples)
	if err != nil { // the count is evidence enough
		list.Entities = nil
	}
	x.find(Finding{ID: "outside", Target: t.Name, Evidence: evidenceOf(list),
		What: fmt.Sprintf("%d entities carry %s and lie in no range: no sweep reads them.", n, t.Property),
		Mend: "reaper list --kept outside --target " + t.Name + " names them; correct the writer, and write them again"})
	return nil
}

// checkLives looks for entities that live longer than generations do before their survivors are
// carried, which costs a write each. It looks in the newest generation, and in the one before it,
// which has more to show just after an advance.
func (x *exam) checkLives(ctx context.Context, s *sweep.Snapshot) error {
	t := s.Target
	policy, live := t.Rules().Policy, s.View.Record.Generations
	if !t.Layout.Form().HasGenerations() || s.New || policy.Every <= 0 || len(live) == 0 || policy.Keep <= 0 {
		return nil
	}
	most := time.Duration(policy.Keep) * policy.Every
	if most/policy.Every != time.Duration(policy.Keep) {
		return nil // longer than any life
	}
	var found []store.Entry
	longest := time.Duration(0)
	for _, g := range live[max(0, len(live)-2):] {
		written := s.Now() // at the latest
		if !g.Closed.IsZero() {
			written = g.Closed.Add(g.Staleness + g.Slack)
		}
		for _, r := range s.Plan.Ranges() {
			if r.Generation != g.Number {
				continue
			}
			e, life, err := x.longestLife(ctx, t, r, written, max(most, longest))
			if err != nil {
				return err
			}
			if life > 0 {
				found, longest = append(found, e), life
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.Reverse(found)
	var evidence []string
	for _, e := range found[:min(len(found), examples)] {
		evidence = append(evidence, fmt.Sprintf("%s has %s", e.Key, e.Value))
	}
	days := int(math.Ceil(longest.Hours() / 24))
	x.find(Finding{ID: "life-too-long", Target: t.Name,
		What: fmt.Sprintf("Entities live longer than %v (generations.keep x every): each is carried, which costs a write.",
			most),
		Evidence: append(evidence, fmt.Sprintf("the longest life that was seen is about %d days", days)),
		Mend:     mendLongLife(longest, policy.Every)})
	return nil
}

// forever is a life by which an application means never: nothing is planned to expire in another century.
const forever = 20 * 365 * 24 * time.Hour

// mendLongLife says what to set for such lives.
func mendLongLife(longest, every time.Duration) string {
	longer, keep := forecast.Keeping(longest, every)
	switch {
	case longest > forever:
		return "what never expires needs no key: have the application leave it away"
	case longer != every:
		return fmt.Sprintf("write generations: {every: %.0fh, keep: %d} in the targets file, if such lives are meant",
			longer.Hours(), keep)
	}
	return fmt.Sprintf("write generations.keep: %d in the targets file, or a longer every, if such lives are meant", keep)
}

// longestLife looks in a range for an entity that was written at an instant or before, and lives for
// longer than most. It returns one that lives for nearly as long as any in the range, and how long
// at least; zero if none lives for longer than most. The index is read upwards only: it doubles the
// life until nothing lives longer, then halves the rest a few times.
func (x *exam) longestLife(
	ctx context.Context, t sweep.Target, r shardquery.Range, written time.Time, most time.Duration,
) (found store.Entry, life time.Duration, err error) {
	const steps = 4 // to a sixteenth of the last doubling
	above := func(life time.Duration) (ok bool, err error) {
		lo, hi := r.At(written.Add(life)).Value, r.At(lastInstant).Value
		if written.Add(life).After(lastInstant) || lo.Compare(hi) >= 0 {
			return false, nil
		}
		var page store.Page
		q := store.Query{Target: t.Target, Namespace: r.Namespace, Lo: lo, Hi: hi, Limit: 1}
		if err := x.Sweep.Store.Scan(ctx, q, &page); err != nil || len(page.Entries) == 0 {
			return false, err
		}
		found = page.Entries[0]
		return true, nil
	}
	ok, err := above(most)
	if !ok || err != nil {
		return found, 0, err
	}
	low, high := most, most
	for high < longestSought {
		high *= 2
		if ok, err = above(high); err != nil {
			return found, 0, err
		} else if !ok {
			break
		}
		low = high
	}
	for range steps {
		middle := low + (high-low)/2
		if ok, err = above(middle); err != nil {
			return found, 0, err
		} else if ok {
			low = middle
		} else {
			high = middle
		}
	}
	if at, err := t.Layout.Form().Expires(found.Value); err == nil {
		low = max(low, at.Sub(written))
	}
	return found, low, nil
}

// longestSought is as long as any life is sought: those beyond are mistakes, or meant for ever.
const longestSought = 100 * 365 * 24 * time.Hour

// lastInstant is the end of all expiries.
var lastInstant = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
