// Package facts has the types in which drivers say what only they know of a database: what
// the service's administration says of it, and of the fields of one kind. It imports nothing
// from this project, so that both the drivers and package doctor can.
//
// The invariant is that a zero field means not known, never a default of the service.
package facts

import (
	"errors"
	"time"
)

// ErrEmulated is why an emulator cannot answer.
var ErrEmulated = errors.New("not available on the emulator")

// The modes of a database.
const (
	NativeMode    = "native"
	DatastoreMode = "datastore"
)

// The editions of a database.
const (
	Standard   = "standard"
	Enterprise = "enterprise"
)

// OptimisticWithGroups is the concurrency mode of databases that were made before Firestore.
const OptimisticWithGroups = "optimistic with entity groups"

// A Database is what the service's administration says of a database.
type Database struct {
	Mode        string    `json:"mode"`        // NativeMode or DatastoreMode
	Edition     string    `json:"edition"`     // Standard or Enterprise
	Location    string    `json:"location"`    // such as eur3
	Concurrency string    `json:"concurrency"` // optimistic, pessimistic, or OptimisticWithGroups
	Recovery    *bool     `json:"recovery"`    // point-in-time recovery is on
	Earliest    time.Time `json:"earliest"`    // the earliest version that can be read
	Protected   *bool     `json:"protected"`   // it cannot be deleted before the protection is switched off
	Deleted     time.Time `json:"deleted"`     // when it was deleted; zero for one that exists
}

// A Field is what the administration says of one field of a kind, or collection group, that
// has a policy or indexes of its own.
type Field struct {
	Name string
	TTL  bool // the built-in TTL policy deletes by this field
	// Own says that the field does not have the automatic indexes. Then Ascending and
	// AscendingGroup say which of those it has that queries of one collection, and of a
	// collection group, need.
	Own, Ascending, AscendingGroup bool
}
