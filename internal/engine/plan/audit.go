package plan

import (
	"iter"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
)

// AuditEvery is how often a round over retired generations begins.
const AuditEvery = 24 * time.Hour

// NextAudit returns when the next round of an audit is due.
func NextAudit(c cursor.Cursor) time.Time { return c.Rewind.Done.Add(Jitter(AuditEvery, c.Key())) }

// A KeySpan is a span of keys, [From, To), in which there should be no entity.
type KeySpan struct {
	From, To    string
	First, Last int // generations
}

// Has reports whether the span has keys of this generation.
func (s KeySpan) Has(number int) bool { return s.First <= number && number <= s.Last }

// retired returns the span of generations that have retired; ok is false if there are
// none between the two numbers.
func retired(first, last int) (span KeySpan, ok bool) {
	if first > last {
		return span, false
	}
	from, _ := expirykey.GenerationRange(first)
	_, to := expirykey.GenerationRange(last)
	return KeySpan{from, to, first, last}, true
}

// beforeSurvivors returns the span before the first survivor of a range in a sealed
// generation. Ok is false if the range's own reads handle that span, or if its record does
// not say yet where the survivors begin.
func beforeSurvivors(r shardquery.Range, c cursor.Cursor, s Stage) (span KeySpan, ok bool) {
	if c.Rewind.Done.Before(s.Sealed) || rereads(c, s) || c.Stock == (cursor.Stock{}) {
		return span, false
	}
	from, to := expirykey.Range(r.Generation, r.Shard)
	if !c.Stock.Next.IsZero() {
		to = r.At(c.Stock.Next).Value.Text
	}
	return KeySpan{from, to, r.Generation, r.Generation}, true
}

// rereads reports whether the range itself is read from its start again and again: for what the store
// has refused or, until the generation is drained, for suspects. After that only the part is read in
// which these are.
func rereads(c cursor.Cursor, s Stage) bool { return c.Stock.Refused || c.Stock.Suspects && !s.Drain }

// The audits of a target are one for each namespace. They know what each has to read, and when.
type audits struct {
	ranges  *rangeSet
	records *records
	stages  stages
	due     []auditDue // by namespace; nil before the first Chores. The next plan takes it over
}

// An auditDue says when the audit of a namespace is due.
type auditDue struct {
	at       time.Time
	underWay bool
	work     auditWork
}

// An auditWork says whether an audit has any span to read.
type auditWork uint8

const (
	unknownWork auditWork = iota
	hasWork
	noWork
)

// AuditSpans lists the spans that should be empty, in the order of keys: retired
// generations and, in the ranges of sealed ones, what lies before the first survivor.
func (a *audits) AuditSpans(namespace string) []KeySpan { return slices.Collect(a.spans(namespace)) }

func (a *audits) spans(namespace string) iter.Seq[KeySpan] {
	return func(yield func(KeySpan) bool) {
		next := generation.First
		for _, g := range a.records.view.Record.Generations {
			if span, ok := retired(next, g.Number-1); ok && !yield(span) {
				return
			}
			next = g.Number + 1
			s := a.stages.Stage(g.Number)
			if !s.IsSealed() {
				continue
			}
			for _, r := range a.ranges.rangesOf(namespace, g.Number) {
				if span, ok := beforeSurvivors(r, a.records.Cursor(r), s); ok && !yield(span) {
					return
				}
			}
		}
	}
}

// findWork finds out whether an audit has any span to read.
func (a *audits) findWork(namespace string) auditWork {
	for range a.spans(namespace) {
		return hasWork
	}
	return noWork
}

// addDue adds the audits that are due and have something to read.
func (a *audits) addDue(list *choreList) {
	if !a.ranges.form.HasGenerations() || len(a.records.view.Record.Generations) == 0 {
		return
	}
	if a.due == nil {
		for _, ns := range a.ranges.names {
			a.due = append(a.due, a.dueIn(ns))
		}
	}
	for i, ns := range a.ranges.names {
		due := &a.due[i]
		at := due.at
		if due.underWay {
			at = list.now // it resumes
		}
		if due.work == noWork || list.now.Before(at) {
			continue
		}
		if due.work == unknownWork { // remembered until a cursor of the namespace, or a stage, changes
			due.work = a.findWork(ns)
		}
		if due.work == hasWork {
			list.add(retryChore, Chore{Kind: Audit, Namespace: ns, At: at})
		}
	}
}

func (a *audits) dueIn(namespace string) auditDue {
	c := a.records.AuditCursor(namespace)
	return auditDue{at: NextAudit(c), underWay: !c.Rewind.Began.IsZero()}
}

// change takes in a changed cursor. It reports whether that is the cursor of an audit itself.
func (a *audits) change(id cursor.ID) bool {
	i, ok := a.ranges.index[id.Namespace]
	if !ok || id != a.records.rules.auditID(id.Namespace) || a.due == nil {
		return false
	}
	a.due[i] = a.dueIn(id.Namespace)
	return true
}

// changeRange takes in the changed cursor of a range.
func (a *audits) changeRange(r shardquery.Range) {
	s := a.stages.Stage(r.Generation)
	if a.due == nil || !s.IsSealed() {
		return
	}
	due := &a.due[a.ranges.index[r.Namespace]]
	if _, ok := beforeSurvivors(r, a.records.Cursor(r), s); ok {
		due.work = hasWork
	} else if due.work == hasWork {
		due.work = unknownWork // another range has to be asked
	}
}
