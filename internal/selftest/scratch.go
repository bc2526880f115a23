package selftest

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/reaper-ttl/reaper/store"
)

const (
	// KindPrefix begins the names of all scratch kinds. The id of the run follows.
	KindPrefix = "ReaperSelftest_"
	// markProperty is the property by which an entity is known to be a run's.
	markProperty = "reaper_selftest"
	// journal is the target of the records that say which runs are under way. No targets file
	// can have a target of this name.
	journal = "Selftest"
)

var idForm = regexp.MustCompile(`^[a-z0-9]{4,20}$`)

// NewID returns a random id.
func NewID() string { return strings.ToLower(rand.Text())[:10] }

// CheckID returns what is wrong with an id.
func CheckID(id string) error {
	if !idForm.MatchString(id) {
		return fmt.Errorf("%q is not the id of a self-test: want 4 to 20 small letters and digits", id)
	}
	return nil
}

// A scratch is where a run may write.
type scratch struct{ id string }

// kind is the kind of the run; suite cases use a second one, too.
func (s scratch) kind() string { return KindPrefix + s.id }

func (s scratch) kinds() []string { return []string{s.kind(), s.kind() + "Other"} }

// target is the name of the targets that records belong to.
func (s scratch) target() string { return "selftest-" + s.id }

func (s scratch) targets() []string { return []string{s.target(), s.target() + "-x"} }

// namespace is the one that suite cases write to, where there are any.
func (s scratch) namespace() string { return s.kind() }

func (s scratch) namespaces(has bool) []string {
	if has {
		return []string{"", s.namespace()}
	}
	return []string{""}
}

// storeTarget is a target that shows all entities of a kind.
func (s scratch) storeTarget(kind string) store.Target {
	return store.Target{Name: s.target(), Kind: kind, Property: "expiry_key", Type: store.Text, Guard: store.GuardLookup}
}

func (s scratch) ownsKind(kind string) bool { return slices.Contains(s.kinds(), kind) }

func (s scratch) ownsRecord(r store.Record) bool {
	if r.Target == journal {
		return r.Key == s.journalKey()
	}
	return slices.Contains(s.targets(), r.Target)
}

// whoseTarget returns an error if one of the records is that of a user's own target, which happens
// to have the name of a run's: it sweeps another kind.
func (s scratch) whoseTarget(got store.Records) error {
	for _, r := range got.List {
		if kind, ok := r.Fields["kind"].(string); ok && r.Sort == store.TargetRecord && !s.ownsKind(kind) {
			return fmt.Errorf("%w: the target %s sweeps the kind %s, so its records are no self-test's", ErrInUse,
				r.Target, kind)
		}
	}
	return nil
}

func (s scratch) journalKey() string { return journal + "@" + s.id }

// sorts are all sorts of records that a run may leave.
var sorts = []store.RecordSort{store.TargetRecord, store.CursorRecord, store.SweepRecord, store.WorkerRecord,
	store.SealRecord, store.BudgetRecord, store.AdoptRecord, store.RestoreRecord}
