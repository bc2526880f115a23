package plan

import (
	"fmt"
	"time"
)

// A Kind is a kind of chore.
type Kind string

// The chores. Those that are due at the same instant begin in this order.
const (
	Life   Kind = "life"   // change the target record as time and configuration require
	Probe  Kind = "probe"  // find generations in use that a new target record does not list
	Seal   Kind = "seal"   // go over a whole sealed generation, to find which ranges hold anything
	Raise  Kind = "raise"  // write the target record in the present schema
	Look   Kind = "look"   // find shards past the last one, find an empty index, count what lies in no range
	Retire Kind = "retire" // end a generation that the last read found empty
	Forget Kind = "forget" // remove records of generations and namespaces that no longer exist
	Audit  Kind = "audit"  // read retired generations, in one namespace
)

// AuditShard takes the place of the shard in the audit's cursor records. There is
// one for each namespace, in generation 0.
const AuditShard = "audit"

// A Chore is work on a target that belongs to no range.
type Chore struct {
	Kind       Kind
	Generation int       // of Seal and Retire
	Namespace  string    // of Audit
	At         time.Time // when it is, or was, due
}

// Key returns the chore without its time, the form in which a [Book] knows it.
func (c Chore) Key() Chore {
	c.At = time.Time{}
	return c
}

// Name returns a name that no other chore of the target has.
func (c Chore) Name() string {
	name := string(c.Kind)
	if c.Generation > 0 {
		name += fmt.Sprintf(" %08d", c.Generation)
	}
	if c.Namespace != "" {
		name += "@" + c.Namespace
	}
	return name
}

const (
	// retryLife is how soon a change of the target record is tried again.
	retryLife = time.Second
	// retryChore is how soon any other chore that is still due after a try is tried again:
	// another process may have been faster, or the store failed.
	retryChore = 30 * time.Second
	// retryLook is how soon an empty index is checked again, so that the warning about
	// it repeats while there is cause, and stops soon afterwards.
	retryLook = time.Minute
)

// A choreList is what is due at an instant, in the order in which it should begin.
type choreList struct {
	tried map[Chore]time.Time
	now   time.Time
	due   []Chore
}

// add adds a chore, unless it was tried less than a time ago.
func (l *choreList) add(retry time.Duration, c Chore) {
	if tried, ok := l.tried[c.Key()]; ok && l.now.Before(tried.Add(retry)) {
		return
	}
	l.due = append(l.due, c)
}
