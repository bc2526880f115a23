// Package archive keeps whole entities, or their keys, in objects of a bucket before they are deleted, and reads
// them back. [Writer.Keep] returns only after the object that holds the entities is durable and was seen in the
// bucket: so what is deleted afterwards is in the archive, if the process is killed, too.
//
// An object is written once and never changed. After the deletes a manifest is written next to it, which says which
// of its entities were deleted. An object without a manifest is unconfirmed: its entities may have been deleted or
// not. So an archive has all that was deleted, and may have more.
//
// Limits: one object holds entities of one target; a line has at most [MaxLine] bytes. Keep waits for up to
// [Config.RollAfter] and a write. What is written here outlives the entities: how long is up to [Prune], or to a
// lifecycle rule of the bucket.
package archive

import (
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// Schema is the number of the format that this package writes. It reads this and lower ones.
const Schema = 1

// MaxLine is the most bytes that a line of an object may have: far more than the services allow an entity, which
// has up to six times as many bytes in JSON.
const MaxLine = 64 << 20

// The errors that callers tell apart, with errors.Is.
var (
	ErrName     = errors.New("not the name of an object of an archive")
	ErrExists   = errors.New("the object exists, with other contents")
	ErrNotFound = errors.New("no such object")
	ErrNewer    = errors.New("written by a later version of reaper") // of a higher schema
	ErrDamaged  = errors.New("damaged")                              // truncated, changed, or not of this package
	ErrClosed   = errors.New("the archive is closed")
	// ErrChanged comes with ErrDamaged if bytes were changed, instead of cut off at the end: nobody knows which, so
	// that no line of the object is what was written for sure.
	ErrChanged = errors.New("changed since it was written")
)

// A Mode says how much of an entity is kept.
type Mode string

// The modes.
const (
	Keys Mode = "keys" // its key, times and expiry
	Full Mode = "full" // also its data
)

// A Header is the first line of an object, and says whose entities it holds. Fields that this version does not
// know are ignored: a change that must not be ignored raises the schema.
type Header struct {
	Schema   int       `json:"schema"` // set by the writer
	Mode     Mode      `json:"mode"`
	Store    string    `json:"store"` // as datastore:my-project
	Target   string    `json:"target"`
	Kind     string    `json:"kind"`
	Property string    `json:"property"`
	Version  string    `json:"version"` // of the program
	Owner    string    `json:"owner"`   // the process
	Sweep    string    `json:"sweep,omitempty"`
	Created  time.Time `json:"created"` // set by the writer: when the object was begun
}

// A State says what is known of the fate of a line's entity.
type State string

// The states.
const (
	Deleted     State = "deleted"     // it was deleted after it was kept
	Kept        State = "kept"        // this process did not delete it: it changed, or the delete failed
	Unconfirmed State = "unconfirmed" // it may have been deleted
)

// A Line is one entity of an object.
type Line struct {
	Number     int // its place in the object: 1 is the first
	Namespace  string
	store.Copy           // without Data in mode keys
	At         time.Time // when it was kept
	State      State
}

// A Run is lines of an object that follow each other: the number of the first, and how many there are.
type Run [2]int

// A Manifest says what became of the entities of an object. Lines in none of its runs are unconfirmed. Unknown
// fields are ignored, as those of a [Header].
type Manifest struct {
	Schema     int       `json:"schema"`
	Object     string    `json:"object"`
	Generation string    `json:"generation"` // of the object, as the bucket named it
	SHA256     string    `json:"sha256"`     // of the object's bytes
	Size       int64     `json:"size"`
	Lines      int       `json:"lines"`
	Deleted    []Run     `json:"deleted"`
	Kept       []Run     `json:"kept"`
	Written    time.Time `json:"written"`
}
