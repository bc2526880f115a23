package plan

import "time"

// Chores lists what is due now, in the order in which it should begin.
func (p *Plan) Chores() []Chore {
	now, record := p.Now(), p.view.Record
	list := choreList{tried: p.book.Tried, now: now}
	if next, _ := Desired(p.rules, record, p.Blocked(), now); !record.EqualContent(next) {
		list.add(retryLife, Chore{Kind: Life, At: now})
	}
	probeDue := record.Probe
	if !probeDue.IsZero() && !now.Before(probeDue) && p.rules.Form.HasGenerations() { // others cannot read the keys
		list.add(retryChore, Chore{Kind: Probe, At: probeDue})
	}
	for _, g := range record.Generations {
		if s := p.Stage(g.Number); s.IsSealed() && p.isPassDue(g.Number, s.Since) {
			list.add(retryChore, Chore{Kind: Seal, Generation: g.Number, At: s.Since})
		}
	}
	if p.view.canRaiseSchema() {
		list.add(retryChore, Chore{Kind: Raise, At: now})
	}
	if at := p.lookDue(); !now.Before(at) {
		list.add(p.lookAgain(), Chore{Kind: Look, At: at})
	}
	for _, g := range record.Generations {
		if s := p.Stage(g.Number); s.Final && !p.Unread(g.Number, s.Since) && probeDue.IsZero() {
			list.add(retryChore, Chore{Kind: Retire, Generation: g.Number, At: s.Since})
		}
	}
	if p.anyForgotten() {
		list.add(retryChore, Chore{Kind: Forget, At: now})
	}
	p.audits.addDue(&list)
	return list.due
}

// lookDue returns when the next look around the ranges is due.
func (p *Plan) lookDue() time.Time {
	isAsked := p.view.Record.Checked.Before(p.rules.ReadSince) &&
		p.book.Tried[Chore{Kind: Look}].Before(p.rules.ReadSince) // a dry run saves nothing
	if p.view.Record.EmptyIndex || isAsked {
		return p.Now()
	}
	return p.view.Record.Checked.Add(Jitter(p.rules.Rewind, p.rules.Target))
}

// lookAgain returns how soon after a look the next one may begin: at once if a probe has found something since.
func (p *Plan) lookAgain() time.Duration {
	probed := p.book.Tried[Chore{Kind: Probe}]
	if p.view.Record.Checked.IsZero() && probed.After(p.book.Tried[Chore{Kind: Look}]) {
		return 0
	}
	return retryLook
}

// isPassDue reports whether a sealed generation needs a pass: none that began at an instant
// or later has covered every namespace that any deployment sweeps.
func (p *Plan) isPassDue(number int, since time.Time) bool {
	_, swept := p.totals.of(number)
	return swept && !p.isCovered(number, since)
}
