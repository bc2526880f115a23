package store

import (
	"context"
	"errors"
	"slices"
)

// The errors that callers tell apart, with errors.Is. A driver maps its
// service's codes to them, once, and also wraps the service's own error.
var (
	ErrPushback     = errors.New("the store pushes back")       // a quota or rate limit
	ErrUnavailable  = errors.New("the store is unavailable")    // try again; a write may have happened
	ErrDeadline     = errors.New("the store took too long")     // likewise
	ErrContention   = errors.New("contention")                  // a transaction lost; nothing was written
	ErrTooLarge     = errors.New("too large for one request")   // try with fewer entries
	ErrDenied       = errors.New("access denied")               // credentials or permissions
	ErrNotFound     = errors.New("no such project or database") // or it is of another mode
	ErrMissingIndex = errors.New("a query needs an index")      // composite, or exempted
	ErrUnsupported  = errors.New("the database cannot do this") // not in the mode that it is in
	ErrInvalid      = errors.New("the store refuses this")      // a bug, or a name against its rules
	ErrConflict     = errors.New("changed by somebody else")    // compare-and-set, or Drop
	ErrCorrupt      = errors.New("not an intact store of ours") // embedded: damaged, foreign or newer
	ErrLocked       = errors.New("in use by another process")   // embedded
	ErrFailed       = errors.New("the store failed")            // disk full, write error, a code not listed here
)

// A trait is something that callers must know of a failure to go on rightly.
type trait uint8

const (
	transient trait = 1 << iota // the same call may succeed a little later
	late                        // the call took too long
	unsure                      // a write that failed so may have taken effect
	lasting                     // it may be the fault of one entity alone, and stays
	foreign                     // not an error of this package: a driver still has to say which one it is
)

// A failure is one way in which a store fails. This is all that the program knows of it: what
// retries, metrics and people need comes from here. Another error belongs into this table, not
// into a comparison elsewhere.
type failure struct {
	err    error // its text is the sentence for people
	label  string
	traits trait
	hint   string // what to check; empty if the sentence says enough
}

const (
	hintNetwork = "check that the endpoint can be reached from here: network, proxy, and the *_EMULATOR_HOST variables"
	hintRole    = "check the credentials and their role: reaper needs to read, write and delete entities of the " +
		"targets, and to create its own records"
	hintDatabase = "check the project and the database in --store, and that the database is in the mode that --store names"
	hintLocked   = "stop the process that has the store open, or ask that one"
	hintIndex    = "reaper indexes prints the definitions that the targets need"
)

// failures has a row for each error above. An error that wraps several of them has the label of
// the first one, and the traits of all.
var failures = []failure{
	{ErrPushback, "pushback", transient, ""},
	{ErrUnavailable, "unavailable", transient | unsure, hintNetwork},
	{ErrDeadline, "deadline", transient | late | unsure, hintNetwork},
	// That of a context is the limit that a caller has set for a single try.
	{context.DeadlineExceeded, "deadline", transient | late | unsure | foreign, hintNetwork},
	{ErrContention, "contention", transient, ""},
	{ErrTooLarge, "too_large", lasting, ""},
	{ErrDenied, "denied", 0, hintRole},
	{ErrNotFound, "not_found", 0, hintDatabase},
	{ErrMissingIndex, "missing_index", 0, hintIndex},
	{ErrUnsupported, "unsupported", 0, ""},
	{ErrInvalid, "invalid", lasting, ""},
	{ErrConflict, "conflict", 0, ""},
	{ErrCorrupt, "corrupt", 0, ""},
	{ErrLocked, "locked", 0, hintLocked},
	{ErrFailed, "failed", lasting, ""},
}

// LabelOther is the label of an error that wraps none of this package's.
const LabelOther = "other"

// Label names the kind of an error in metrics.
func Label(err error) string {
	for _, f := range failures {
		if errors.Is(err, f.err) {
			return f.label
		}
	}
	return LabelOther
}

// Labels returns all that [Label] may return but [LabelOther].
func Labels() []string {
	var all []string
	for _, f := range failures {
		if !slices.Contains(all, f.label) {
			all = append(all, f.label)
		}
	}
	return all
}

// IsMapped reports whether an error already wraps one of this package's.
func IsMapped(err error) bool {
	return slices.ContainsFunc(failures, func(f failure) bool {
		return f.traits&foreign == 0 && errors.Is(err, f.err)
	})
}

// Transient reports whether the call that returned err may succeed when it is
// simply made again a little later. A context's deadline counts: it is the one
// that a caller has set for a single try.
func Transient(err error) bool { return has(err, transient) }

// TookTooLong reports whether a call failed because it took too long: one that asks for
// less may succeed.
func TookTooLong(err error) bool { return has(err, late) }

// MayHaveHappened reports whether a write that failed so may have taken effect, be it in an
// earlier try.
func MayHaveHappened(err error) bool {
	var earlier *doubtful
	return has(err, unsure) || errors.As(err, &earlier)
}

// doubtful is the error of a write of which an earlier try may have taken effect.
type doubtful struct{ error }

func (d *doubtful) Unwrap() error { return d.error }

// InDoubt returns an error that says the same, and for which [MayHaveHappened] is true: what
// failed now is one more try of a write that may have taken effect before.
func InDoubt(err error) error {
	if err == nil || MayHaveHappened(err) {
		return err
	}
	return &doubtful{err}
}

// MayBeOfOneEntity reports whether an error may be that of one entity alone, and stays if the
// call is repeated.
func MayBeOfOneEntity(err error) bool { return has(err, lasting) }

func has(err error, t trait) bool {
	return slices.ContainsFunc(failures, func(f failure) bool { return f.traits&t != 0 && errors.Is(err, f.err) })
}

// hinted is an error that knows what to do about it.
type hinted struct {
	error

	hint string
}

func (h *hinted) Unwrap() error { return h.error }

// Hint is the advice. It is no part of the error's text, so that logs hold what happened and
// a terminal also shows what to do.
func (h *hinted) Hint() string { return h.hint }

// WithHint returns an error that says the same, and for which [Hints] has this advice.
func WithHint(err error, hint string) error {
	if err == nil {
		return nil
	}
	return &hinted{err, hint}
}

// Hints returns what to do about an error, each advice once. An advice that was given with the
// error stands for the general one of its kind.
func Hints(err error) (all []string) {
	add := func(hint string) {
		if hint != "" && !slices.Contains(all, hint) {
			all = append(all, hint)
		}
	}
	var walk func(error)
	walk = func(err error) {
		switch e := any(err).(type) { // what this error itself is, not what it wraps
		case nil:
		case interface{ Hint() string }:
			add(e.Hint())
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				walk(one)
			}
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		default:
			add(hintOf(err))
		}
	}
	walk(err)
	return all
}

// hintOf returns the general advice for an error that wraps no other.
func hintOf(err error) string {
	for _, f := range failures {
		if errors.Is(err, f.err) {
			return f.hint
		}
	}
	return ""
}
