package adopt

import (
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// An Outcome is what adoption finds an entity to be, or what became of it.
type Outcome string

// The outcomes of reading an entity.
const (
	Unstamped Outcome = "unstamped" // no key, and the rule gives one
	Keyed     Outcome = "keyed"     // it has a key that agrees with the rule
	Mismatch  Outcome = "mismatch"  // its key is earlier than the rule, later by more than the spread, or there is no rule
	Later     Outcome = "later"     // not in the share that is adopted yet
	Suspect   Outcome = "suspect"   // the rule gives an implausible instant: before the horizon less max_age
	NoSource  Outcome = "no_source" // the rule reads a value that it does not have
	Mistyped  Outcome = "mistyped"  // the rule cannot read the value
	Foreign   Outcome = "foreign"   // the key property holds something else
)

// The outcomes of writing to an entity, in addition to success.
const (
	Gone      Outcome = "gone"      // deleted meanwhile
	Contended Outcome = "contended" // others kept changing it: the next round meets it again
	Overtaken Outcome = "overtaken" // its writer changed it first, and it needs no key of adoption any more
	Refused   Outcome = "refused"   // the store does not accept a key for it, as when it is too large
)

// outcomes are all of them, in the order in which people read them.
var outcomes = []Outcome{Unstamped, Keyed, Mismatch, Later, Suspect, NoSource, Mistyped, Foreign, Gone, Overtaken,
	Contended, Refused}

// A judge decides about entities. It is a value, and reads no clock.
type judge struct {
	target  string
	rule    Rule
	rounds  []Round // the last one counts; those before it gave keys, too
	maxAge  time.Duration
	horizon time.Time // the store's time less the retention
}

func (j judge) round() Round { return j.rounds[len(j.rounds)-1] }

// A judgement is what a judge says of an entity.
type judgement struct {
	outcome Outcome
	why     string
	rule    time.Time // when the entity expires by the rule; zero if that does not fit
	expires time.Time // what its key says or is to say; zero without
}

// An item is an entity that was read, and what was decided about it.
type item struct {
	namespace string
	row       store.Row
	id        string
	judgement

	announced bool // its expiry, so that a repeated write does not announce it again
}

// judge decides about one entity with an id.
func (j judge) judge(row store.Row, id string) judgement {
	at, fits, why := j.rule.expires(row)
	switch key, has, ok := keyOf(row.Expiry); {
	case !ok:
		return judgement{outcome: Foreign, why: "the key property holds " + row.Expiry.String(), rule: at}
	case has && fits != Unstamped && j.rule.CreateTime:
		return judgement{outcome: Keyed, expires: key} // the store does not tell, and no writer can take it away
	case has && fits != Unstamped:
		// An old writer has removed the expiry, say, and left the key: nothing says that the entity has expired.
		return judgement{outcome: Mismatch, expires: key, why: "it has a key, but " + why}
	case has:
		return j.compare(id, at, key)
	}
	switch {
	case fits != Unstamped:
		return judgement{outcome: fits, why: why}
	case at.Before(j.horizon.Add(-j.maxAge)):
		return judgement{outcome: Suspect, rule: at, why: "it would have expired longer ago than max_age"}
	case !j.round().has(j.target, id):
		return judgement{outcome: Later, rule: at}
	}
	return judgement{outcome: Unstamped, rule: at, expires: j.round().instant(j.target, id, at)}
}

// compare decides about an entity that has a key.
func (j judge) compare(id string, rule, key time.Time) judgement {
	d := judgement{outcome: Keyed, rule: rule, expires: key}
	switch {
	case j.gave(id, rule, key) && j.wasPlausible(rule):
	case key.Before(rule):
		d.outcome, d.why = Mismatch, "its key is earlier than the rule"
	case key.After(rule.Add(j.round().Spread + time.Millisecond)):
		// Stores cut instants off at microseconds. A writer that rounds what it has up to
		// milliseconds may be one ahead.
		d.outcome, d.why = Mismatch, "its key is later than the rule, by more than the spread"
	}
	return d
}

// gave reports whether a round gave an entity this instant.
func (j judge) gave(id string, rule, key time.Time) bool {
	return slices.ContainsFunc(j.rounds, func(r Round) bool { return key.Equal(r.instant(j.target, id, rule)) })
}

// wasPlausible reports whether a round gave keys to entities that expire then by the rule. What a
// round spreads does not depend on how long ago that was, and an expiry in the year 1, say,
// stands for "never": the key of before does not agree with it.
func (j judge) wasPlausible(rule time.Time) bool {
	return slices.ContainsFunc(j.rounds, func(r Round) bool {
		return !rule.Before(r.Began.Add(-r.Retention - j.maxAge - clockError))
	})
}

// clockError is by how much the store's time may have been misjudged when a round began.
const clockError = time.Minute

// keyOf returns when the key in an expiry property says that its entity expires. has is
// false without a value; ok is false if the value is not an expiry key.
func keyOf(v store.Value) (expires time.Time, has, ok bool) {
	switch v.Type {
	case store.Missing:
		return expires, false, true
	case store.Text:
		key, err := expirykey.Parse(v.Text)
		return key.Expires, true, err == nil
	}
	return expires, true, false
}
