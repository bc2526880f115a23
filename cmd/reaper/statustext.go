package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/throttle"
)

// mostListed is how many ranges, and how many workers, a status lists without --all.
const mostListed = 5

// render returns the text of a status.
func (to screen) render(res statusResult, all bool) []byte {
	var b bytes.Buffer
	for i, t := range res.Targets {
		if i > 0 {
			fmt.Fprintln(&b)
		}
		v := statusText{screen: to, out: &b, t: t, now: res.Now, all: all}
		v.print()
	}
	return to.cut(b.Bytes())
}

// cut cuts lines that are too long for the screen.
func (to screen) cut(text []byte) []byte {
	if to.width == 0 {
		return text
	}
	var b bytes.Buffer
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, " \n")
		if runes := []rune(line); len(runes) > to.width {
			line = string(runes[:to.width-1]) + "…"
		}
		b.WriteString(line + "\n")
	}
	return b.Bytes()
}

// wrapped returns a text after a label, in lines that fit on the screen.
func (to screen) wrapped(label, text string) string {
	const narrowest = 20
	text = printable(text)
	indent := strings.Repeat(" ", utf8.RuneCountInString(label))
	var b strings.Builder
	line, room := label, max(narrowest, to.width-len(indent))
	used := 0
	for word := range strings.FieldsSeq(text) {
		for to.width > 0 && used > 0 && used+1+utf8.RuneCountInString(word) > room ||
			to.width > 0 && used == 0 && utf8.RuneCountInString(word) > room {
			if used == 0 { // one word that is longer than a line
				runes := []rune(word)
				line, word = line+string(runes[:room]), string(runes[room:])
			}
			b.WriteString(line + "\n")
			line, used = indent, 0
		}
		if used > 0 {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+utf8.RuneCountInString(word)
	}
	b.WriteString(line + "\n")
	return b.String()
}

// A statusText prints the status of one target.
type statusText struct {
	screen
	out io.Writer
	t   inspect.TargetStatus
	now time.Time
	all bool
}

func (v *statusText) print() {
	fmt.Fprint(v.out, v.wrapped(v.t.Name+": ", string(v.t.Verdict)+", "+v.t.Why))
	if v.t.Reason != "" {
		v.line("reason", "%s", v.t.Reason)
	}
	if v.t.Breaker != "" {
		v.line("breaker", "%s", v.t.Breaker)
	}
	if v.t.Err == nil {
		v.printDue()
		v.printWorkers()
		v.printGroups()
		v.printRanges()
	}
	v.printAdoption()
	for _, what := range v.t.Unread {
		v.line("not read", "%s", what)
	}
}

// line prints one line with a label, or several if it is long.
func (v *statusText) line(label, format string, args ...any) {
	fmt.Fprint(v.out, v.wrapped(fmt.Sprintf("  %-13s", label), fmt.Sprintf(format, args...)))
}

// ago shows a past instant and how long ago it was; or none, if t is nil.
func (v *statusText) ago(t *time.Time, none string) string {
	if t == nil {
		return none
	}
	return fmt.Sprintf("%s (%s ago)", instant(t), inspect.Age(v.now.Sub(*t)))
}

// printAdoption prints how far the adoption of entities has come, if there is one.
func (v *statusText) printAdoption() {
	if by := v.t.SupersededBy; by != "" {
		v.line("superseded", "the adoption of %s is finished: remove this target from the targets file", by)
	}
	a := v.t.Adoption
	if a == nil {
		return
	}
	names := map[adopt.Phase]string{adopt.Stamping: "stamping", adopt.Dual: "dual", adopt.Undoing: "undoing",
		adopt.Finished: "finished"}
	v.line("adoption", "%s by %s, %v%%: round %d, %d of %d parts, %s keys", names[a.Phase], a.Rule, a.Percent, a.Round,
		a.PartsDone, a.Parts, grouped(a.Written))
	if a.Unstamped > 0 || a.Mismatch > 0 {
		v.line("", "%s left without a key, %s with one that disagrees with the rule", grouped(a.Unstamped),
			grouped(a.Mismatch))
	}
}

// printDue prints how much is due, and when it will be gone.
func (v *statusText) printDue() {
	t := &v.t
	unread := "not known"
	none := "nothing is due"
	if t.OldestDue == nil && t.SweptTo == nil && len(t.Ranges) > 0 {
		none = unread
	}
	v.line("oldest due", "%s", v.ago(t.OldestDue, none))
	if len(t.Ranges) == 0 {
		return // nobody has loaded or swept it yet
	}
	v.line("swept up to", "%s", v.ago(t.SweptTo, unread))
	switch {
	case t.Backlog == nil:
		v.line("backlog", "%s", unread)
	case t.AtLeast:
		v.line("backlog", "at least %s", grouped(*t.Backlog))
	case t.GoneAt != nil:
		v.line("backlog", "%s, gone in %s", grouped(*t.Backlog), inspect.Age(t.GoneAt.Sub(v.now)))
	default:
		v.line("backlog", "%s", grouped(*t.Backlog))
	}
	v.printBehind()
	v.line("rate now", "%s", rateText(t.Rate, t.Unlimited))
	var deleted int64
	for _, r := range t.Ranges {
		deleted += r.Deleted
	}
	v.line("deleted", "%s since the records began", grouped(deleted))
}

// printBehind prints how much of the backlog lies behind the cursors, if anything, and by when it is deleted.
func (v *statusText) printBehind() {
	t := &v.t
	switch {
	case t.Behind == nil:
		v.line("behind", "not known")
		return
	case *t.Behind == 0:
		return
	}
	count := grouped(*t.Behind)
	if t.BehindAtLeast {
		count = "at least " + count
	}
	switch {
	case t.BehindGoneBy == nil:
		count += ", gone once their generation is sealed"
	case t.BehindGoneBy.After(v.now):
		count += fmt.Sprintf(", gone by the first sweep after %s (in %s)", instant(t.BehindGoneBy),
			inspect.Age(t.BehindGoneBy.Sub(v.now)))
	default:
		count += ", gone by the next sweep"
	}
	if t.BehindCounted != nil && v.now.Sub(*t.BehindCounted) > time.Minute {
		count += fmt.Sprintf("; counted %s ago", inspect.Age(v.now.Sub(*t.BehindCounted)))
	}
	v.line("behind", "%s", count)
}

func rateText(perSecond float64, unlimited bool) string {
	if unlimited {
		return "unlimited"
	}
	return fmt.Sprintf("%.4g/s", perSecond)
}

// printWorkers prints who works on the target.
func (v *statusText) printWorkers() {
	switch {
	case len(v.t.Ranges) == 0:
		return
	case v.t.Workers == nil:
		v.line("workers", "not known")
	case len(v.t.Workers) == 0:
		v.line("workers", "nobody is at work now")
	}
	for i, w := range v.t.Workers {
		label := "workers"
		if i > 0 {
			label = ""
		}
		if i == mostListed && !v.all {
			v.line(label, "and %d more (--all lists them)", len(v.t.Workers)-i)
			return
		}
		v.line(label, "%s: %d ranges, seen %s ago, version %s", w.Owner, w.Ranges,
			inspect.Age(v.now.Sub(w.Seen)), orDash(w.Version))
		if w.Why != "" {
			v.line("", "it deletes nothing: %s", w.Why)
		}
	}
}

// A group is the ranges of one generation, or all of a target that has none.
type group struct {
	ranges, due, held int
	deleted           int64
	refused           bool
}

// printGroups prints the ranges of each generation together.
func (v *statusText) printGroups() {
	if len(v.t.Ranges) == 0 {
		return
	}
	groups := map[int]*group{}
	for _, r := range v.t.Ranges {
		g := groups[r.Generation]
		if g == nil {
			g = &group{}
			groups[r.Generation] = g
		}
		g.ranges++
		g.deleted += r.Deleted
		g.refused = g.refused || r.Refused
		if r.OldestDue != nil {
			g.due++
		}
		if r.Owner != "" {
			g.held++
		}
	}
	w := tabwriter.NewWriter(v.out, 0, 0, 2, ' ', 0)
	counts := func(g *group) string {
		return fmt.Sprintf("%d\t%d\t%d\t%s", g.ranges, g.due, g.held, grouped(g.deleted))
	}
	if len(v.t.Generations) == 0 { // a layout with timestamps
		fmt.Fprintf(w, "  ranges\tdue\theld\tdeleted\n")
		for _, g := range groups {
			fmt.Fprintf(w, "  %s\n", counts(g))
		}
	} else {
		fmt.Fprintf(w, "  generation\tstate\topened\tranges\tdue\theld\tdeleted\n")
	}
	for _, g := range v.t.Generations {
		name := fmt.Sprintf("%08d", g.Number)
		if g.Number == expirykey.Nursery {
			name = "nursery"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", name, g.State, instant(&g.Opened), counts(cmp.Or(groups[g.Number], &group{})))
	}
	_ = w.Flush() // into memory
	for _, g := range v.t.Generations {
		if s := groups[g.Number]; s != nil && s.refused {
			v.line("refused", "the store refuses to delete or carry entities of generation %08d", g.Number)
		}
	}
}

// printRanges prints the ranges in which something has been due for the longest, or all of
// them.
func (v *statusText) printRanges() {
	list := slices.Clone(v.t.Ranges)
	if !v.all {
		list = slices.DeleteFunc(list, func(r inspect.RangeStatus) bool { return r.OldestDue == nil })
		slices.SortStableFunc(list, func(a, b inspect.RangeStatus) int { return a.OldestDue.Compare(*b.OldestDue) })
	}
	more := 0
	if !v.all && len(list) > mostListed {
		list, more = list[:mostListed], len(list)-mostListed
	}
	if len(list) == 0 {
		return
	}
	w := tabwriter.NewWriter(v.out, 0, 0, 2, ' ', 0)
	if v.all {
		fmt.Fprintln(w, "  range\tdue for\tposition\theld back\theld by\trate\tdeleted")
	} else {
		fmt.Fprintln(w, "  range\tdue for\trate\theld back\theld by")
	}
	for _, r := range list {
		rate := rateText(0, true)
		if r.Rate != nil {
			rate = rateText(*r.Rate, false)
		}
		name, due := v.nameOf(r), "-"
		if r.OldestDue != nil {
			due = inspect.Age(v.now.Sub(*r.OldestDue))
		}
		by, owner := printable(orDash(r.ThrottledBy)), printable(orDash(r.Owner))
		if by == string(throttle.ReasonBreaker) && v.t.Held != by {
			by = "counting" // as breaker show says: it is closed
		}
		if v.all {
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, due, printable(orDash(positionIn(r))), by, owner, rate,
				grouped(r.Deleted))
		} else {
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\n", name, due, rate, by, owner)
		}
	}
	_ = w.Flush()
	if more > 0 {
		fmt.Fprintf(v.out, "  and %d more ranges in which something is due (--all lists all ranges)\n", more)
	}
}

// nameOf names a range: by generation and shard, and its namespace if that is not the
// default one.
func (v *statusText) nameOf(r inspect.RangeStatus) string {
	name := fmt.Sprintf("%08d.%s", r.Generation, r.Shard)
	if len(v.t.Generations) == 0 {
		name = orDash(r.Shard)
	}
	if r.Namespace != "" {
		name += "@" + printable(r.Namespace)
	}
	return name
}

// positionIn shows a cursor without generation and shard, which the name of its range has.
func positionIn(r inspect.RangeStatus) string {
	return strings.TrimPrefix(r.Position, fmt.Sprintf("%08d.%s.", r.Generation, r.Shard))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
