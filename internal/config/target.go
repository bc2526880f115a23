package config

import (
	"fmt"
	"strconv"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
)

// A Layout is how a target's entities say when they expire.
type Layout = layout.Layout

// The layouts by name, for those that tell users of one.
const (
	LayoutGeneration       = layout.Generation
	LayoutSharded          = layout.Sharded
	LayoutShardedTimestamp = layout.ShardedTimestamp
	LayoutTimestamp        = layout.Timestamp
)

// A Target is one kind, collection or table under expiry, with every default
// applied and every value checked.
type Target struct {
	Name          string
	Kind          string // Datastore kind, Firestore collection path, embedded table
	Group         bool   // Firestore: Kind is a collection group
	AllNamespaces bool   // Namespaces was ["*"]
	Namespaces    []string
	Layout        Layout
	Property      string
	SingleValued  bool // the owner promises that Property is always one plain text: never a list, blob or map
	ShardProperty string
	ShardValues   []ShardValue // all of one type, each once
	Shards        int          // 0 where the layout has none of its own

	Retention    time.Duration
	MaxAge       time.Duration // longer than Retention
	Rewind       time.Duration
	Overlap      time.Duration
	Page         int
	Guard        store.Guard
	Lease        time.Duration
	MaxClockSkew time.Duration
	Schedule     Schedule // the zero Schedule means the process's

	Generations Generations
	Pace        Pace
	Breaker     Breaker
	Limits      Limits
	History     History
	Descendants Descendants
	Archive     Archive
	Adopt       Adopt

	written map[string]bool // the fields that stand in the file, as paths below the target
}

// A ShardValue is one value of ShardProperty.
type ShardValue struct {
	Text    string
	Number  int64
	Numeric bool // Number counts, not Text
}

// String returns the value as it is written in the file.
func (v ShardValue) String() string {
	if v.Numeric {
		return strconv.FormatInt(v.Number, 10)
	}
	return v.Text
}

// Generations says how the generations of a target follow each other.
type Generations struct {
	Every     time.Duration // from one generation's opening to the next one's
	Ramp      time.Duration // how long writers take to move over; 0 means that they move at once
	Staleness time.Duration // the oldest copy of the target record that a writer may act on
	Slack     time.Duration // the longest that a write may take to commit
	Settle    int           // how many later generations must be sealed before one counts as sealed
	Keep      int           // generations, in addition to the newest, that nothing is carried out of
}

// Pace bounds how fast entities go, in entities a second.
type Pace struct {
	Start Limit[float64] // per range; at most Max
	Max   Limit[float64] // per range
	Total Limit[float64] // per target, over all workers
	Gate  string         // empty for none
}

// Breaker says when the target is held because too much comes to be due at once.
type Breaker struct {
	Off      bool
	Floor    int           // so many of one hour always go
	Fraction float64       // of all entities, above 0 and at most 1
	Window   time.Duration // the length of an hour of expiry
	Learn    time.Duration // how far back the usual is learnt
}

// Limits are how much may be deleted in an hour and in a day of the clock, in UTC, over all
// processes.
type Limits struct {
	PerHour, PerDay Limit[int64]
}

// History says how long records of what was done are kept.
type History struct {
	Keep time.Duration
}

// Descendants say what becomes of what lies below due entities.
type Descendants struct {
	Mode DescendantsMode
	Max  int // an entity with more below it is kept
}

// A DescendantsMode is what becomes of descendants.
type DescendantsMode string

// The modes.
const (
	KeepDescendants   DescendantsMode = "keep"
	DeleteDescendants DescendantsMode = "delete"
	RefuseDescendants DescendantsMode = "refuse"
)

// Archive says what is kept of entities before they are deleted, and where.
type Archive struct {
	Mode ArchiveMode
	To   string // file:///directory or gs://bucket/prefix
	Roll ArchiveRoll
	Keep time.Duration // of files
}

// An ArchiveRoll says when an object of an archive ends.
type ArchiveRoll struct {
	Size  int64 // bytes before compression
	After time.Duration
}

// String returns it as the targets file has it.
func (r ArchiveRoll) String() string {
	return "{size: " + formatSize(r.Size) + ", after: " + FormatDuration(r.After) + "}"
}

// An ArchiveMode is what is kept.
type ArchiveMode string

// The modes.
const (
	NoArchive   ArchiveMode = "off"
	KeysArchive ArchiveMode = "keys"
	FullArchive ArchiveMode = "full"
)

// Adopt says how entities without an expiry key get one.
type Adopt struct {
	From    AdoptFrom // the zero AdoptFrom is no rule
	Spread  time.Duration
	Rate    Limit[float64] // keys a second, of all processes together
	Percent float64        // above 0, at most 100
}

// AdoptFrom says when an entity without an expiry key expires: some time after the value of a
// property, or after it was created.
type AdoptFrom struct {
	Property   string // empty with CreateTime
	CreateTime bool
	Plus       time.Duration
}

// IsZero reports whether there is no rule.
func (f AdoptFrom) IsZero() bool { return f == AdoptFrom{} }

// String returns the rule as the targets file has it. The zero AdoptFrom is an empty text.
func (f AdoptFrom) String() string {
	switch {
	case f.IsZero():
		return ""
	case f.CreateTime:
		return fmt.Sprintf("{create_time: %s}", FormatDuration(f.Plus))
	case f.Plus == 0:
		return fmt.Sprintf("{property: %s}", f.Property)
	}
	return fmt.Sprintf("{property: %s, plus: %s}", f.Property, FormatDuration(f.Plus))
}

const (
	defaultShardProperty = "shard"
	defaultShards        = 16
	defaultMaxPace       = 5000
	defaultStartPace     = 500 // the most that the services recommend for a cold key range
)

// newTarget returns a target as it is before its fields are read. Defaults that depend on
// other fields are filled in by complete.
func newTarget() Target {
	t := defaults()
	t.written = map[string]bool{}
	return t
}

// complete fills in the defaults that depend on the layout, the store or
// another field.
func (t *Target) complete(d Driver) {
	if property := t.Layout.DefaultProperty(); property != "" && !t.written["property"] {
		t.Property = property
	}
	if t.Layout.Uses("shards") && !t.written["shards"] {
		t.Shards = defaultShards
	}
	if t.Layout.Uses("shard_property") && !t.written["shard_property"] {
		t.ShardProperty = defaultShardProperty
	}
	if !t.written["pace.max"] {
		t.Pace.Max = AtMost[float64](defaultMaxPace)
		if d == Embedded {
			t.Pace.Max = NoLimit[float64]()
		}
	}
	if !t.written["pace.start"] {
		t.Pace.Start = defaultStart(t.Pace.Max, d)
	}
}

// defaultStart is the rate at which a range starts by default: the services' recommendation
// for cold ranges or, on the embedded store, the maximum.
func defaultStart(most Limit[float64], d Driver) Limit[float64] {
	start := AtMost[float64](defaultStartPace)
	if d == Embedded || start.Exceeds(most) {
		return most
	}
	return start
}

// StoreTarget returns the part of the target that drivers use.
func (t Target) StoreTarget() store.Target {
	return store.Target{
		Name:          t.Name,
		Kind:          t.Kind,
		Group:         t.Group,
		Property:      t.Property,
		ShardProperty: t.ShardProperty,
		Type:          t.Layout.Form().Type(),
		Guard:         t.Guard,
		SingleValued:  t.SingleValued,
	}
}

// StoreShards returns the values of ShardProperty in the drivers' form.
func (t Target) StoreShards() []store.Value {
	values := make([]store.Value, len(t.ShardValues))
	for i, v := range t.ShardValues {
		if values[i] = store.TextValue(v.Text); v.Numeric {
			values[i] = store.IntegerValue(v.Number)
		}
	}
	return values
}

// maxShards is expirykey's, under a name that the tables below can print.
const maxShards = expirykey.MaxShards
