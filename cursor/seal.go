package cursor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// SealSchema is the version of seal records that this program writes, and the newest that
// it reads.
const SealSchema = 2

// AllNamespaces stands for every namespace that the store lists.
const AllNamespaces = "*"

// A Seal is the record of the last pass over a whole sealed generation. A pass goes through
// the generation's part of the index, one query for each range that holds anything, past
// its last shard, too, namespace by namespace. It gives a cursor record to each range in
// which it meets an entry. So a range without one, in a covered namespace, was empty when
// the pass began or later, and nobody writes there any more. A namespace that is not
// covered is unread. A Seal is a value.
type Seal struct {
	Target     string
	Generation int
	Opened     time.Time // of the generation; tells it from others of the same number
	Kind       string    // what was read
	Property   string
	Namespaces []string  // the covered ones, in order; or AllNamespaces alone
	Position   string    // of a pass over all namespaces: see Passed
	First      time.Time // when the first pass began, in the store's time
	Began      time.Time // when the last one began
	Done       time.Time // when it was done; zero while it is under way
	Renewed    time.Time // when this was written, in the store's time
	Revision   string    // as in the store; empty for a record not saved yet
}

// SealKey returns the key of a seal's record: target.generation.
func SealKey(target string, number int) string { return fmt.Sprintf("%s.%08d", target, number) }

// Is reports whether the seal belongs to the generation with this number and opening, and
// to this kind and property.
func (s Seal) Is(number int, opened time.Time, kind, property string) bool {
	return s.Generation == number && s.Opened.Equal(opened) && s.Kind == kind && s.Property == property
}

// Covers reports whether a pass that began at an instant or later has read a namespace.
func (s Seal) Covers(namespace string, since time.Time) bool {
	if s.Began.IsZero() || s.Began.Before(since) {
		return false
	}
	if len(s.Namespaces) == 1 && s.Namespaces[0] == AllNamespaces {
		return true
	}
	_, found := slices.BinarySearch(s.Namespaces, namespace)
	return found
}

// Pass returns the seal of a pass over all namespaces that has gone over one more of them.
func (s Seal) Pass(namespace string) Seal {
	s.Position = "@" + namespace // the default one has no name
	return s
}

// Passed reports whether a pass over all namespaces, in order, has gone over this one.
func (s Seal) Passed(namespace string) bool { return s.Position != "" && "@"+namespace <= s.Position }

// LoadSeals reads the seals of a target, by generation. A seal that makes no sense has only
// generation and revision, so that its generation is read again.
func LoadSeals(ctx context.Context, s store.Loader, target string) (map[int]Seal, error) {
	return loadSeals(ctx, s, store.RecordQuery{Sort: store.SealRecord, Target: target})
}

// LoadSeal reads the seal of one generation; the zero Seal if it has none.
func LoadSeal(ctx context.Context, s store.Loader, target string, number int) (Seal, error) {
	all, err := loadSeals(ctx, s, store.RecordQuery{Sort: store.SealRecord, Target: target,
		Keys: []string{SealKey(target, number)}})
	return all[number], err
}

// numberOf returns the generation that the key of a seal names; 0 if it names none.
func numberOf(key string) int {
	number, _ := strconv.Atoi(key[strings.LastIndexByte(key, '.')+1:])
	return number
}

func loadSeals(ctx context.Context, s store.Loader, q store.RecordQuery) (map[int]Seal, error) {
	all := map[int]Seal{}
	err := store.LoadAll(ctx, s, q, func(page store.Records) error {
		for _, rec := range page.List {
			seal, err := decodeSeal(rec)
			if errors.Is(err, ErrNewer) {
				return err
			}
			if err != nil { // the next pass replaces it
				seal = Seal{Target: rec.Target, Generation: numberOf(rec.Key), Revision: rec.Revision}
			}
			all[seal.Generation] = seal
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load seal records of %s: %w", q.Target, err)
	}
	return all, nil
}

// SaveSeal writes a seal if the store still has the revision that it was made from, and
// returns it with its new revision. It fails with store.ErrConflict if somebody else was
// first.
func SaveSeal(ctx context.Context, s store.Store, seal Seal) (Seal, error) {
	next := seal
	next.Revision = store.NewRevision(seal.Revision)
	if err := put(ctx, s, next.encode(), seal.Revision); err != nil {
		return seal, fmt.Errorf("save seal of generation %08d of %s: %w", seal.Generation, seal.Target, err)
	}
	return next, nil
}

// ForgetSeal removes the record of a seal, unless it has changed.
func ForgetSeal(ctx context.Context, s store.Store, seal Seal) error {
	key := SealKey(seal.Target, seal.Generation)
	if _, err := remove(ctx, s, store.SealRecord, key, seal.Target, seal.Revision); err != nil {
		return fmt.Errorf("remove seal of generation %08d of %s: %w", seal.Generation, seal.Target, err)
	}
	return nil
}

func (s Seal) encode() store.Record {
	names := make([]store.Fields, 0, len(s.Namespaces))
	for _, ns := range s.Namespaces {
		names = append(names, store.Fields{"name": ns})
	}
	return store.Record{
		Sort: store.SealRecord, Key: SealKey(s.Target, s.Generation), Target: s.Target, Revision: s.Revision,
		Fields: store.Fields{
			"schema":     int64(SealSchema),
			"generation": int64(s.Generation),
			"opened":     store.FormatTime(s.Opened),
			"kind":       s.Kind,
			"property":   s.Property,
			"namespaces": names,
			"position":   s.Position,
			"first":      store.FormatTime(s.First),
			"began":      store.FormatTime(s.Began),
			"done":       store.FormatTime(s.Done),
			"renewed":    store.FormatTime(s.Renewed),
		},
	}
}

func decodeSeal(rec store.Record) (Seal, error) {
	key := strconv.Quote(rec.Key)
	f := rec.Fields.Reader("seal record " + string(rec.Sort) + " " + key)
	if err := f.Schema(SealSchema, "seal record "+key, ErrNewer); err != nil {
		return Seal{}, err
	}
	s := Seal{Target: rec.Target, Generation: int(f.Int("generation")), Opened: f.Time("opened"), Kind: f.Text("kind"),
		Property: f.Text("property"), Position: f.Text("position"), First: f.Time("first"), Began: f.Time("began"),
		Done: f.Time("done"), Renewed: f.Time("renewed"), Revision: rec.Revision}
	isOne := s.Generation > expirykey.Nursery && s.Generation <= expirykey.MaxGeneration
	if !isOne || SealKey(s.Target, s.Generation) != rec.Key {
		f.Fail("generation", "%d is not that of the key", s.Generation)
	}
	for _, one := range f.List("namespaces") {
		name := one.Reader("namespaces of seal record " + rec.Key)
		s.Namespaces = append(s.Namespaces, name.Text("name"))
		if err := name.Err(); err != nil {
			return Seal{}, err
		}
	}
	return s, f.Err()
}
