package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
)

// Bounds of settings. A value beyond them can only be a mistake.
const (
	minRewind = time.Second
	maxRewind = 3650 * 24 * time.Hour // three of them are reckoned back from now
	// A lease is renewed every third of it, and no record is to be written more
	// often than once a second.
	minLease     = 3 * time.Second
	maxLease     = time.Hour
	minSkew      = 100 * time.Millisecond
	maxSkew      = time.Hour
	minStaleness = time.Second
	maxStaleness = time.Hour
	minEvery     = time.Minute
	minSlack     = time.Second
	maxSlack     = 7 * 24 * time.Hour
	maxKeep      = 1000
	maxFloor     = 1_000_000_000
	// A budget remembers 128 windows, and entities of some hours come to be due together after
	// an outage.
	minWindow  = time.Minute
	maxWindow  = 24 * time.Hour
	minLearn   = 24 * time.Hour
	maxLearn   = 90 * 24 * time.Hour
	minRate    = 0.01 // entities/s: one in two minutes; less is as good as stopped
	maxRate    = 1e9
	minHistory = time.Hour
	maxHistory = 100 * 365 * 24 * time.Hour
	minPercent = 0.01 // a rollout divides the ids into 10,000 buckets
	minRoll    = 1 << 20
	maxRoll    = 1 << 30
	// Each delete waits for its object, within the 30 s that a commit may take.
	minRollAfter = 100 * time.Millisecond
	maxRollAfter = 10 * time.Second
	maxSpread    = 365 * 24 * time.Hour
	maxDuration  = time.Duration(math.MaxInt64)
)

// A field is one setting of a target. Its row holds everything about the setting: the
// reading of the targets file, the defaults and the reference all follow the rows.
type field struct {
	path     string // below the target: "lease", or "pace.max" in a section
	fallback string // the default, as it would be written; empty if the field is required
	about    string
	kind

	depends bool   // the default is set once layout and store are known: see complete
	sample  string // what the sample has, if not the default
	absent  bool   // the sample has it as a comment: the sample's layout does not use it
}

// A kind reads the values of a field, and says which are accepted.
type kind struct {
	accepts string
	read    func(r *reader, v *yaml.Node, path string)
}

// nameRule is the rule for names in the reference, next to each field. A paragraph there has
// the rest of the rules.
var nameRule = fmt.Sprintf("1 to %d bytes", MaxName)

// fields are the settings of a target, in the order of the reference.
var fields = []field{
	{path: "name", sample: "sessions", about: "in records, logs and --target; do not change it later",
		kind: text("[a-z][a-z0-9-]{0,62}, unique", func(t *Target) *string { return &t.Name }, TargetName)},
	{path: "kind", sample: "Session", about: "Datastore kind, Firestore collection path, or embedded table",
		kind: text(nameRule, func(t *Target) *string { return &t.Kind }, nil)}, // its rules depend on group
	{path: "group", fallback: "false", about: "Firestore: kind is a collection group",
		kind: boolean(func(t *Target) *bool { return &t.Group })},
	{path: "namespaces", fallback: `[""]`, about: `Datastore: names, or ["*"] for all; "" is the default one`,
		kind: kind{"1 to 100 letters, digits, points, underscores and hyphens, each once", (*reader).namespaces}},
	{path: "layout", fallback: string(layout.All()[0]),
		about: "how entities say when they expire: see docs/layouts.md",
		kind:  oneOf(func(t *Target) *Layout { return &t.Layout }, layout.All()...)},
	{path: "property", fallback: layout.All()[0].DefaultProperty(), depends: true,
		about: "the indexed property; required for the two timestamp layouts",
		kind:  text(nameRule, func(t *Target) *string { return &t.Property }, checkProperty)},
	{path: "single_valued", fallback: "false",
		about: "promise that the property is always one plain text, which saves three quarters of the bill; " +
			"a list, blob or nested map that reads like an expired key is then deleted, too: see docs/costs.md",
		kind: boolean(func(t *Target) *bool { return &t.SingleValued })},
	{path: "shard_property", fallback: defaultShardProperty, depends: true, absent: true,
		about: "layout sharded-timestamp",
		kind:  text(nameRule, func(t *Target) *string { return &t.ShardProperty }, checkProperty)},
	{path: "shard_values", sample: "[0, 1, 2]", absent: true,
		about: "layout sharded-timestamp, and required there: every value that the shard property has",
		kind: kind{fmt.Sprintf("texts of at most %d bytes or whole numbers, each once, at most %d", MaxName, maxShards),
			(*reader).shardValues}},
	{path: "shards", fallback: strconv.Itoa(defaultShards), depends: true,
		about: "of expiry keys: about one per 500 writes/s; a generation keeps the number it was opened with",
		kind:  integer(func(t *Target) *int { return &t.Shards }, 1, maxShards)},
	{path: "retention", fallback: "0s", about: "kept this long past expiry",
		kind: duration(func(t *Target) *time.Duration { return &t.Retention }, 0, maxDuration)},
	{path: "max_age", fallback: "1825d",
		about: "expired longer ago than this is implausible: kept, and counted as suspect",
		kind: longer("retention",
			duration(func(t *Target) *time.Duration { return &t.MaxAge }, time.Millisecond, maxDuration))},
	{path: "rewind", fallback: "24h",
		about: "how often a range is read from its start for what was written behind its cursor; that of an open " +
			"generation waits for the sealing instead, unless every is more than twice this (with settle: 0)",
		kind: duration(func(t *Target) *time.Duration { return &t.Rewind }, minRewind, maxRewind)},
	{path: "overlap", fallback: "10s", about: "a saved cursor stays this far behind the present",
		kind: shorter("rewind", duration(func(t *Target) *time.Duration { return &t.Overlap }, 0, maxDuration))},
	{path: "page", fallback: strconv.Itoa(store.MaxPage), about: "entities per commit",
		kind: integer(func(t *Target) *int { return &t.Page }, 1, store.MaxPage)},
	{path: "guard", fallback: string(store.GuardAuto),
		about: "Datastore: how a delete is made conditional; query needs single_valued and expiry keys: see docs/costs.md",
		kind:  kind{"auto, lookup or query", (*reader).guard}},
	{path: "lease", fallback: "30s", about: "how long a killed process blocks its ranges",
		kind: duration(func(t *Target) *time.Duration { return &t.Lease }, minLease, maxLease)},
	{path: "max_clock_skew", fallback: "10s", about: "refuse to sweep if this machine's clock is off by more",
		kind: duration(func(t *Target) *time.Duration { return &t.MaxClockSkew }, minSkew, maxSkew)},
	{path: "schedule", fallback: `""`, about: "serve: this target's own schedule; empty means --schedule",
		kind: kind{"cron in UTC, or @every with at least 1s, in whole seconds", (*reader).schedule}},

	{path: "generations.every", fallback: "24h", about: "how often a new generation opens",
		kind: duration(func(t *Target) *time.Duration { return &t.Generations.Every }, minEvery, maxDuration)},
	{path: "generations.ramp", fallback: "60m", about: "how long writers take to move; 0s means at once",
		kind: atMost("every", duration(func(t *Target) *time.Duration { return &t.Generations.Ramp }, 0, maxDuration))},
	{path: "generations.staleness", fallback: "1m",
		about: "the oldest copy of the target record that a writer acts on",
		kind: atMost("every",
			duration(func(t *Target) *time.Duration { return &t.Generations.Staleness }, minStaleness, maxStaleness))},
	{path: "generations.slack", fallback: "10m", about: "the longest that a write takes to commit",
		kind: duration(func(t *Target) *time.Duration { return &t.Generations.Slack }, minSlack, maxSlack)},
	{path: "generations.settle", fallback: "0",
		about: "how many later generations must be sealed before one counts as sealed",
		kind:  integer(func(t *Target) *int { return &t.Generations.Settle }, 0, maxKeep)},
	{path: "generations.keep", fallback: "32", about: "live generations in addition to the newest; older ones are drained",
		kind: integer(func(t *Target) *int { return &t.Generations.Keep }, 1, maxKeep)},

	{path: "pace.start", fallback: formatRate(defaultStartPace), depends: true,
		about: "of each range that is new or was idle; at most max, which is the default on the embedded store",
		kind:  rate(func(t *Target) *Limit[float64] { return &t.Pace.Start })},
	{path: "pace.max", fallback: formatRate(defaultMaxPace), depends: true,
		about: "of each range; unlimited on the embedded store",
		kind:  rate(func(t *Target) *Limit[float64] { return &t.Pace.Max })},
	{path: "pace.total", fallback: unlimited, about: "of the target, over all processes",
		kind: rate(func(t *Target) *Limit[float64] { return &t.Pace.Total })},
	{path: "pace.gate", fallback: `""`, about: "a URL or a file that says whether deletes may go on",
		kind: kind{"http://, https://, or a path that begins with / or ./", (*reader).gate}},

	{path: "breaker.floor", fallback: "1000", about: "so many of one window always go",
		kind: integer(func(t *Target) *int { return &t.Breaker.Floor }, 0, maxFloor)},
	{path: "breaker.fraction", fallback: "25%",
		about: "of all entities; more in one window holds the target, unless it was usual before",
		kind:  kind{"above 0% and at most 100%", (*reader).fraction}},
	{path: "breaker.window", fallback: "1h", about: "what expires within one is counted together",
		kind: duration(func(t *Target) *time.Duration { return &t.Breaker.Window }, minWindow, maxWindow)},
	{path: "breaker.learn", fallback: "14d", about: "how far back the usual is learnt",
		kind: duration(func(t *Target) *time.Duration { return &t.Breaker.Learn }, minLearn, maxLearn)},

	{path: "limits.per_hour", fallback: unlimited, about: "most deletes in an hour of the clock, UTC",
		kind: most(func(t *Target) *Limit[int64] { return &t.Limits.PerHour })},
	{path: "limits.per_day", fallback: unlimited, about: "most deletes in a day, UTC",
		kind: most(func(t *Target) *Limit[int64] { return &t.Limits.PerDay })},

	{path: "history.keep", fallback: "90d", about: "how long a record of what was done is kept",
		kind: duration(func(t *Target) *time.Duration { return &t.History.Keep }, minHistory, maxHistory)},

	{path: "descendants.mode", fallback: string(KeepDescendants),
		about: "keep leaves them, delete deletes them first, refuse keeps each entity that has any",
		kind: oneOf(func(t *Target) *DescendantsMode { return &t.Descendants.Mode },
			KeepDescendants, DeleteDescendants, RefuseDescendants)},
	{path: "descendants.max", fallback: "100000", about: "an entity with more below it is kept, and counted as refused",
		kind: integer(func(t *Target) *int { return &t.Descendants.Max }, 1, maxFloor)},

	{path: "archive.mode", fallback: string(NoArchive),
		about: "full keeps whole entities before they are deleted, keys what they were called and when they expired",
		kind:  oneOf(func(t *Target) *ArchiveMode { return &t.Archive.Mode }, NoArchive, KeysArchive, FullArchive)},
	{path: "archive.to", fallback: `""`, about: "where; required unless mode is off",
		kind: kind{"file:///DIRECTORY or gs://BUCKET/PREFIX", (*reader).archiveTo}},
	{path: "archive.roll", fallback: "{size: 16MiB, after: 2s}",
		about: "an object of the archive ends once it has that size before compression, or that age",
		kind: kind{fmt.Sprintf("size: %s to %s, after: %s to %s", formatSize(minRoll), formatSize(maxRoll),
			FormatDuration(minRollAfter), FormatDuration(maxRollAfter)), (*reader).archiveRoll}},
	{path: "archive.keep", fallback: "30d", about: "file://: how long objects are kept; gs:// needs a rule of the bucket",
		kind: duration(func(t *Target) *time.Duration { return &t.Archive.Keep }, minHistory, maxHistory)},

	{path: "adopt.from", sample: "{property: created, plus: 30d}", absent: true,
		about: "when entities without a key expire",
		kind: kind{"{property: NAME}, {property: NAME, plus: DURATION} or {create_time: DURATION}",
			(*reader).adoptFrom}},
	{path: "adopt.spread", fallback: "24h", about: "what has expired already becomes due over this time",
		kind: duration(func(t *Target) *time.Duration { return &t.Adopt.Spread }, 0, maxSpread)},
	{path: "adopt.rate", fallback: "300", about: "keys a second of all processes together",
		kind: rate(func(t *Target) *Limit[float64] { return &t.Adopt.Rate })},
	{path: "adopt.percent", fallback: "100", about: "adopt only this share, chosen by a hash of the id; it may only rise",
		kind: kind{"0.01 to 100", (*reader).adoptPercent}},
}

// replaced are fields of earlier versions, and what to write in their place.
var replaced = map[string]string{
	"limits.max_deletes": "it is gone, because each sweep began with a fresh allowance: the breaker, which is on by " +
		"default, stops before an event is deleted (breaker.floor, breaker.fraction); for a steady bound write " +
		"per_hour or per_day",
	"limits.max_fraction": "it is gone, because each sweep began with a fresh allowance: write " +
		"breaker: {fraction: 25%}, which holds the target before more than that comes to be due at once",
}

// breakerSection may be the word off in the place of its fields.
const breakerSection, breakerOff = "breaker", "off"

// The sections of a target, and what the reference says about them.
var sections = []struct{ name, about string }{
	{"generations", "layout generation: see docs/generations.md"},
	{"pace", "entities a second: see docs/pace.md"},
	{breakerSection, "or off: holds the target while too much comes to be due at once: see docs/breaker.md"},
	{"limits", "over all processes; used up, the target waits: see docs/pace.md"},
	{"history", "what was done, and by whom: see docs/operations.md"},
	{"descendants", "entities with this ancestor, subcollections below the document: see docs/descendants.md"},
	{"archive", "a copy or a journal of what is deleted: see docs/archive.md"},
	{"adopt", "keys for entities without one: see docs/adopting.md"},
}

func text(accepts string, at func(*Target) *string, check func(string) error) kind {
	return kind{accepts, func(r *reader, v *yaml.Node, path string) { r.text(v, path, at(&r.target), check) }}
}

func most(at func(*Target) *Limit[int64]) kind {
	return kind{"at least 1, or unlimited", func(r *reader, v *yaml.Node, path string) { r.most(v, path, at(&r.target)) }}
}

func boolean(at func(*Target) *bool) kind {
	return kind{"", func(r *reader, v *yaml.Node, path string) { r.boolean(v, path, at(&r.target)) }}
}

func oneOf[T ~string](at func(*Target) *T, all ...T) kind {
	words := make([]string, len(all))
	for i, w := range all {
		words[i] = string(w)
	}
	return kind{strings.Join(words, ", "), func(r *reader, v *yaml.Node, path string) {
		choice(r, v, path, at(&r.target), all...)
	}}
}

func integer(at func(*Target) *int, least, most int) kind {
	return kind{fmt.Sprintf("%d to %d", least, most), func(r *reader, v *yaml.Node, path string) {
		r.integer(v, path, at(&r.target), least, most)
	}}
}

func duration(at func(*Target) *time.Duration, least, most time.Duration) kind {
	accepts := FormatDuration(least) + " to " + FormatDuration(most)
	switch {
	case least == 0 && most == maxDuration:
		accepts = ""
	case most == maxDuration:
		accepts = "at least " + FormatDuration(least)
	}
	return kind{accepts, func(r *reader, v *yaml.Node, path string) { r.duration(v, path, at(&r.target), least, most) }}
}

func rate(at func(*Target) *Limit[float64]) kind {
	accepts := formatRate(minRate) + " to " + formatRate(maxRate) + ", or unlimited"
	return kind{accepts, func(r *reader, v *yaml.Node, path string) {
		r.rate(v, path, at(&r.target))
	}}
}

// These add a rule between two fields to the reference; checkLengths checks it.
func longer(than string, k kind) kind  { return k.and("longer than " + than) }
func shorter(than string, k kind) kind { return k.and("shorter than " + than) }
func atMost(what string, k kind) kind  { return k.and("at most " + what) }

func (k kind) and(rule string) kind {
	if k.accepts != "" {
		rule = k.accepts + ", and " + rule
	}
	k.accepts = rule
	return k
}

func formatRate(perSecond float64) string { return AtMost(perSecond).String() }

// fieldAt returns the row of a path; nil if no field has that path.
func fieldAt(path string) *field {
	for i := range fields {
		if fields[i].path == path {
			return &fields[i]
		}
	}
	return nil
}

// fieldsOf lists the names of the fields of a section. For "", the target itself, it also
// lists the sections.
func fieldsOf(section string) (names []string) {
	for _, f := range fields {
		if in, name, ok := strings.Cut(f.path, "."); ok && in == section {
			names = append(names, name)
		} else if !ok && section == "" {
			names = append(names, f.path)
		}
	}
	if section == "" {
		for _, s := range sections {
			names = append(names, s.name)
		}
	}
	return names
}

// defaults returns a target in which every field has its default, except those that depend
// on layout or store.
var defaults = sync.OnceValue(func() Target {
	r := &reader{file: &file{name: "default"}}
	for _, f := range fields {
		if f.fallback == "" || f.depends {
			continue
		}
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(f.fallback), &doc); err != nil {
			panic(fmt.Sprintf("the default of %s: %v", f.path, err))
		}
		f.read(r, doc.Content[0], f.path)
	}
	if len(r.problems) > 0 {
		panic(r.problems)
	}
	return r.target
})

// Sample returns a targets file with every field, its default, and the values it accepts.
func Sample() string {
	var b strings.Builder
	b.WriteString("targets:\n")
	section, indentation := "", "  - "
	for _, f := range fields {
		in, name, ok := strings.Cut(f.path, ".")
		if !ok {
			in, name = "", f.path
		}
		for _, s := range sections {
			if in != section && in == s.name {
				fmt.Fprintf(&b, "    %-30s# %s\n", s.name+":", s.about)
				section, indentation = in, "      "
			}
		}
		value := f.fallback
		if f.sample != "" {
			value = f.sample
		}
		line := indentation + name + ": " + value
		if indentation == "  - " {
			indentation = "    "
		}
		if f.absent {
			line = strings.Replace(line, name, "# "+name, 1)
		}
		about := f.about
		if f.accepts != "" {
			about += " (" + f.accepts + ")"
		}
		fmt.Fprintf(&b, "%-33s # %s\n", line, about)
	}
	return b.String()
}
