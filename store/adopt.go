package store

import "context"

// An Adopter is a store whose entities can be given an expiry that they were written
// without, and relieved of it again.
type Adopter interface {
	// Splits returns keys that part the entities of a target and namespace into spans, in
	// the store's own order of keys and each once, at most so many. The spans have about
	// the same size if the store knows its own keys; else they are what a sample showed.
	// None means that the store cannot tell. Keys may be those of entities that do not exist.
	Splits(ctx context.Context, t Target, namespace string, most int) ([]string, error)

	// Walk fills rows with entities in the order of their keys, whether or not they
	// have an expiry, and says whether there may be more. It overwrites what rows held.
	// A page may be short or empty and still have more after it.
	Walk(ctx context.Context, q WalkQuery, rows *Rows) error

	// Look fills rows with the entities that have the given keys, at most MaxPage, in any
	// order. Keys without an entity are left out. After, Until, Next and Limit of the query are
	// ignored.
	Look(ctx context.Context, q WalkQuery, keys []string, rows *Rows) error

	// Restamp gives each entity of the batch the expiry To, or removes its expiry if To is
	// Missing, but only while it still has the row's expiry, source and time of creation.
	// It changes no other property, nor how any of them is indexed, and never creates an
	// entity. It sets the Outcome of each op, which is valid even if it also returns an
	// error. Ops may fail one by one or all together. Restamp starts no write once ctx is
	// done.
	Restamp(ctx context.Context, b *Restamping) error
}

// A WalkQuery asks for entities in the order of their keys.
type WalkQuery struct {
	Target    Target
	Namespace string
	Source    string // a second property to read; may be empty
	After     string // a key; exclusive; empty is before all
	Until     string // a key; inclusive; empty is behind all
	Next      any    // the Next of the page before, if the same query read it; it then replaces After
	Limit     int    // most rows wanted, 1 to MaxPage
}

// A Row is an entity as a walk shows it.
type Row struct {
	Key     string
	Expiry  Value // of the target's property; Missing if the entity has no expiry
	Source  Value // of the query's Source; a List or of type Other if it is neither a text nor an instant
	Created Value // when the entity was created; Missing if the store does not tell
	Ref     any   // for the driver alone
}

// Agrees reports whether two reads of an entity show the same.
func (r Row) Agrees(now Row) bool {
	return r.Expiry.Equal(now.Expiry) && r.Source.Equal(now.Source) && r.Created.Equal(now.Created)
}

// Equal reports whether two values are the same.
func (v Value) Equal(w Value) bool {
	return v.Type == w.Type && v.Text == w.Text && v.Time.Equal(w.Time)
}

// Rows is what one Walk read.
type Rows struct {
	List []Row
	More bool // there may be more rows after the last one
	Next any  // the driver's own cursor behind this page; nil if the next query needs a key
}

// A Restamping is a set of rows of one walk whose expiry is to be set or removed.
type Restamping struct {
	Query WalkQuery // the one that found them
	Ops   []RestampOp
}

// A RestampOp is one row to restamp, and what became of it.
type RestampOp struct {
	Row     Row
	To      Value // Missing: the expiry is removed
	Outcome RestampOutcome
	Now     Row // if Outcome is RowChanged: the entity as it is now
}

// A RestampOutcome is what became of a row that was to be restamped.
type RestampOutcome uint8

const (
	RowUnknown   RestampOutcome = iota // not tried, or nobody knows
	RowRestamped                       // the expiry is To, by this call or by an earlier try of it
	RowGone                            // the entity does not exist any more
	RowChanged                         // the entity changed since the walk; it was left alone
)

// Judge returns what becomes of an op whose entity was read again.
func (o RestampOp) Judge(now Row, exists bool) (outcome RestampOutcome, write bool) {
	switch {
	case !exists:
		return RowGone, false
	case now.Expiry.Equal(o.To) && !o.Row.Expiry.Equal(o.To):
		return RowRestamped, false // by an earlier try, whose reply was lost
	case o.Row.Agrees(now):
		return RowRestamped, true
	}
	return RowChanged, false
}

// Evenly returns at most so many elements of a list, evenly spaced and in order.
func Evenly[T any](list []T, most int) []T {
	if len(list) <= most {
		return list
	}
	out := make([]T, 0, most)
	for i := range most {
		out = append(out, list[(2*i+1)*len(list)/(2*most)])
	}
	return out
}
