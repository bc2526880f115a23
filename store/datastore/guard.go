package datastore

import (
	"fmt"
	"slices"
	"strings"

	sdk "cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/store"
)

const (
	// mostGroups is how many entities a transaction may have in a database of the
	// mode optimistic with entity groups: as many as groups, since each entity of a
	// batch may be a group of its own.
	mostGroups = 25

	// groupsMode is what people call that mode.
	groupsMode = `the database is in the concurrency mode "optimistic with entity groups"`
)

// What the service says in that mode, in lower case. The second and third are for
// a query in a transaction that asks for no ancestor, from its old and its new
// front end.
const (
	tooManyGroups    = "too many entity groups"
	ancestorsMissing = "inside transactions must have ancestors"
	ancestorsOnly    = "only ancestor queries are allowed inside transactions"
)

// learnMode returns the error of the contract for a refusal that only a database of
// the mode optimistic with entity groups gives, or nil. It remembers the mode: a
// process that took a database for one by mistake would only read more than needed.
func (d *DB) learnMode(s *status.Status) error {
	if s.Code() != codes.InvalidArgument && s.Code() != codes.FailedPrecondition {
		return nil
	}
	text := strings.ToLower(s.Message())
	switch {
	case strings.Contains(text, tooManyGroups):
		d.hasGroups.Store(true)
		return store.ErrTooLarge
	case strings.Contains(text, ancestorsMissing), strings.Contains(text, ancestorsOnly):
		d.hasGroups.Store(true)
		return store.ErrUnsupported
	}
	return nil
}

// most returns how many entities a transaction may have.
func (d *DB) most() int {
	if d.hasGroups.Load() {
		return mostGroups
	}
	return store.MaxPage
}

// Guard implements [store.Guarder].
func (d *DB) Guard(t store.Target) store.Guarding {
	g := store.Guarding{Guard: store.GuardLookup, Most: d.most()}
	switch {
	case t.Guard == store.GuardLookup:
		g.Why = "guard: lookup"
	case t.Guard == store.GuardQuery:
		g.Guard = store.GuardQuery
	case t.Type != store.Text:
		g.Why = "a query shows timestamps as numbers"
	case !t.SingleValued:
		g.Why = "single_valued is false"
	case d.emulated:
		g.Why = "the emulator blocks parallel range queries in transactions"
	case d.hasGroups.Load():
		g.Why = groupsMode
	default:
		g.Guard = store.GuardQuery
	}
	return g
}

// guardOf returns how the deletes of a batch are made conditional. What is carried, has a premise, or
// is to be archived, is always looked up.
func (d *DB) guardOf(b *store.Batch) (store.Guard, error) {
	t := b.Query.Target
	switch t.Guard {
	case "", store.GuardAuto, store.GuardLookup, store.GuardQuery:
	default:
		return "", fmt.Errorf("%w: there is no guard %q", store.ErrInvalid, t.Guard)
	}
	if t.Guard == store.GuardQuery && (t.Type != store.Text || !t.SingleValued) {
		return "", fmt.Errorf("%w: guard query needs a property that always holds one plain text", store.ErrInvalid)
	}
	carries := slices.ContainsFunc(b.Ops, func(op store.Op) bool { return op.To.Type != store.Missing })
	if carries || b.PremiseProperty() != "" || b.Query.Archive != nil && !b.DryRun {
		return store.GuardLookup, nil
	}
	g := d.Guard(t).Guard
	if g == store.GuardQuery && !b.DryRun && d.hasGroups.Load() {
		return "", store.WithHint(fmt.Errorf("%w: guard query needs range queries in transactions, and %s",
			store.ErrUnsupported, groupsMode), groupsAdvice)
	}
	return g, nil
}

// groupsAdvice is what to do about an explicit guard query in that mode.
const groupsAdvice = "set guard to auto or lookup, or change the mode of the database"

// own returns the queries that ask for the batch's own part of the index, from its
// first entry to its last: what a transaction reads it locks, and entries before and
// behind are none of its business. Entries of one value are asked for by their keys,
// since a query by values would begin with all others of that value, and with the
// tombstones of those that went before. So nearly every batch takes one query. What
// the queries miss is looked up.
func (s *set) own() []place {
	q, ops := spanOf(s.batch.Query), s.batch.Ops
	head, tail := 1, 1
	for head < len(ops) && value(ops[head]) == value(ops[0]) {
		head++
	}
	for tail < len(ops) && value(ops[len(ops)-1-tail]) == value(ops[len(ops)-1]) {
		tail++
	}
	if head == len(ops) {
		return []place{s.byKeys(q, ops)}
	}
	var parts []place
	lo, hi := 0, len(ops)
	if head > 1 || s.batch.Query.After.Value == value(ops[0]) {
		parts, lo = append(parts, s.byKeys(q, ops[:head])), head
	}
	if tail > 1 {
		hi -= tail
	}
	if lo < hi {
		q.Lo, q.Hi = value(ops[lo]), value(ops[hi-1])
		parts = append(parts, place{query: q, from: q.Lo})
	}
	if tail > 1 {
		parts = append(parts, s.byKeys(q, ops[hi:]))
	}
	return parts
}

func value(op store.Op) store.Value { return op.Entry.Value }

// byKeys returns the query for entries of one value, from the first to the last.
func (s *set) byKeys(q store.Query, ops []store.Op) place {
	return place{query: q, from: value(ops[0]), key: s.keyOf(ops[0]), last: s.keyOf(ops[len(ops)-1])}
}

func (s *set) keyOf(op store.Op) *sdk.Key { return s.keys[s.at[op.Entry.Key]] }
