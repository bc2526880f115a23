package sim

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// An oracle is a plain map of what every entity should be, and the rules. It is told
// of each write as it takes effect, shares no code with the store or with the program,
// and reads expiry keys by itself.
type oracle struct {
	w         *world
	truth     map[place]map[string]*fact
	leases    map[string]leaseFact // by the key of the cursor record
	beats     map[string]beatFact  // by the key of the heartbeat
	closed    map[string]time.Time // by target and generation: when the mark took effect
	retiredAt map[string]time.Time // likewise: when it retired
	adoptedAt map[string]time.Time // likewise: when a probe found it in use
	asked     map[string]time.Time // by target: when somebody took back the mark of the last look around
	overtaken map[string]leaseFact // by cursor record: whose it was, where clocks drift or records are forged
	budgets   map[string]*budgetFact
	listedAt  map[place]time.Time // by kind and namespace: when who lists it last wrote the target record
	skips     []skip              // what edited records pass over
	resumed   map[string]int      // by cursor record: the token of the last claim that read on from a saved place
}

// A fact is what is known of an entity.
type fact struct {
	name         string
	expiry       store.Value
	shard        store.Value
	data         string
	key          expiry    // of a well-formed text
	cursor       string    // the key of the record of its range, once somebody asked; see liesIn
	expires      time.Time // if it is well-formed
	wellFormed   bool      // it is well-formed
	committed    time.Time
	inOrder      bool // committed well before it was due
	withinBounds bool // by a writer that kept to the bounds
	refused      bool // the store refused it for good, for a while
	beyond       bool // in a shard past the last one
	leftBehind   bool // its generation retired, or was last looked for, while nobody swept its namespace
	restored     bool // by a restore that brought it back behind the cursors
}

// An expiry is an expiry key taken apart.
type expiry struct {
	generation, shard int
	expires           time.Time
}

// parse reads an expiry key. It accepts no other text.
func parse(s string) (e expiry, ok bool) {
	if len(s) != 34 {
		return e, false
	}
	if e.expires, ok = parseInstant(s[14:]); !ok {
		return e, false
	}
	for i, c := range s[:14] {
		digit := int(c - '0')
		switch {
		case i == 8 || i == 13:
			if c != '.' {
				return e, false
			}
		case c < '0' || c > '9':
			return e, false
		case i < 8:
			e.generation = e.generation*10 + digit
		default:
			e.shard = e.shard*10 + digit
		}
	}
	return e, true
}

// parseInstant reads an instant as expiry keys have it: 20060102T150405.000Z.
func parseInstant(s string) (at time.Time, ok bool) {
	var n [7]int
	for i, from := range [...]int{0, 4, 6, 9, 11, 13, 16} {
		for _, c := range s[from : from+[...]int{4, 2, 2, 2, 2, 2, 3}[i]] {
			if c < '0' || c > '9' {
				return at, false
			}
			n[i] = n[i]*10 + int(c-'0')
		}
	}
	if s[8] != 'T' || s[15] != '.' || s[19:] != "Z" || n[0] < 1 {
		return at, false
	}
	at = time.Date(n[0], time.Month(n[1]), n[2], n[3], n[4], n[5], n[6]*int(time.Millisecond), time.UTC)
	day := at.Day() == n[2] && int(at.Month()) == n[1] // else there is no such day, or hour, or minute
	return at, day && at.Hour() == n[3] && at.Minute() == n[4] && at.Second() == n[5]
}

func newOracle(w *world) *oracle {
	return &oracle{w: w, truth: map[place]map[string]*fact{}, leases: map[string]leaseFact{}, beats: map[string]beatFact{},
		closed: map[string]time.Time{}, retiredAt: map[string]time.Time{}, adoptedAt: map[string]time.Time{},
		asked: map[string]time.Time{}, budgets: map[string]*budgetFact{}, resumed: map[string]int{},
		overtaken: map[string]leaseFact{}}
}

// judge fills in what follows from the expiry.
func (o *oracle) judge(at place, f *fact) {
	t := o.w.plan.target
	f.wellFormed, f.key, f.expires, f.cursor = false, expiry{}, time.Time{}, ""
	switch {
	case f.expiry.Type != t.Type:
	case t.Type == store.Instant:
		f.wellFormed, f.expires = true, f.expiry.Time
	default:
		f.key, f.wellFormed = parse(f.expiry.Text)
		f.expires = f.key.expires
	}
	f.committed, f.leftBehind = time.Now(), false
	if r := o.w.targets[o.w.plan.named(at.kind)]; t.Type == store.Text {
		shards := r.nursery
		if f.key.generation > 0 {
			shards = r.generations[f.key.generation].shards
		}
		f.beyond = f.key.shard >= shards || o.w.isLost(o.w.plan.named(at.kind))
	}
	f.inOrder = f.wellFormed &&
		f.expires.Add(o.w.plan.shortest()+t.Overlap).After(f.committed.Add(o.w.plan.lag+time.Millisecond))
}

// wrote is told of a write by an application.
func (o *oracle) wrote(at place, r row, withinBounds bool) {
	f := &fact{name: r.key, expiry: r.expiry, shard: r.shard, data: r.data, withinBounds: withinBounds,
		refused: o.w.waits(stem{at, r.key})}
	o.judge(at, f)
	if o.truth[at] == nil {
		o.truth[at] = map[string]*fact{}
	}
	o.truth[at][r.key] = f
	if withinBounds && f.wellFormed && f.key.generation > 0 {
		o.sealed(at, f)
	}
}

// sealed holds what L4 rests on: where the program takes a generation for sealed, no
// writer that keeps to the bounds can commit any more.
func (o *oracle) sealed(at place, f *fact) {
	target := o.w.plan.named(at.kind)
	r, _, err := generation.Load(context.Background(), peek{w: o.w}, target)
	if err != nil {
		return
	}
	live := false
	for i, g := range r.Generations {
		if g.Number == f.key.generation {
			live = true
			if s := r.State(i, time.Now(), o.w.policy.Policy.Settle); s == generation.Sealed || s == generation.Draining {
				o.w.violate("L4", "generation %d counts as %s, and a writer within the bounds commits %s@%s: %s",
					g.Number, s, f.name, at.namespace, f.expiry.Text)
			}
		}
	}
	if _, former := o.w.formerly(target, f.key.generation); !live && !former {
		o.w.violate("L4", "generation %d has retired, and a writer within the bounds commits %s@%s: %s",
			f.key.generation, f.name, at.namespace, f.expiry.Text)
	}
}

// A peek reads records as they are. The caller holds the world's lock.
type peek struct {
	store.Store
	w *world
}

func (p peek) Load(_ context.Context, q store.RecordQuery) (store.Records, error) {
	return p.w.db.load(q), nil
}

func (o *oracle) removed(at place, key string) { delete(o.truth[at], key) }

// deleted holds S1, S3 and S4 as a delete takes effect, of a process with such a target.
func (o *oracle) deleted(by string, t sweep.Target, at place, key string) {
	f := o.truth[at][key]
	now := time.Now()
	switch {
	case f == nil:
		o.w.violate("S1", "%s deleted %s, which nobody has written", by, key)
	case f.expiry.Type == store.Missing:
		o.w.violate("S1", "%s deleted %s, which never expires", by, key)
	case !f.wellFormed:
		o.w.violate("S4", "%s deleted %s, whose expiry is malformed: %v", by, key, f.expiry)
	case f.expires.Add(t.Retention).After(now):
		o.w.violate("S1", "%s deleted %s, which expires %v from now and is kept %v longer: %v",
			by, key, f.expires.Sub(now), t.Retention, f.expiry)
	case f.expires.Before(o.w.began.Add(-t.MaxAge - t.Retention)):
		o.w.violate("S4", "%s deleted %s, which is suspect: %v", by, key, f.expiry)
	case t.Type == store.Text && o.w.outside(f.key.generation):
		o.w.violate("S1", "%s deleted %s, whose generation does not exist: %v", by, key, f.expiry)
	}
	delete(o.truth[at], key)
	o.w.count("deleted")
}

// carried holds S2 as a carry takes effect. Late is how long ago its stamp was made,
// at most.
func (o *oracle) carried(by string, target string, at place, key string, to store.Value, late time.Duration) {
	f := o.truth[at][key]
	k, ok := parse(to.Text)
	switch {
	case f == nil || !f.wellFormed:
		o.w.violate("S2", "%s carried %s, which has no well-formed expiry", by, key)
		return
	case to.Type != store.Text || !ok:
		o.w.violate("S2", "%s carried %s to %v, which is malformed", by, key, to)
		return
	case !k.expires.Equal(f.expires):
		o.w.violate("S2", "%s carried %s from %v to %v: it expires at another time", by, key, f.expiry.Text, to.Text)
	}
	kept := late <= o.w.slackOf(target) // else the carry broke the bound of all writers
	o.landed(by, target, key, k, kept)
	o.w.count("carried")
	f.expiry, f.withinBounds = to, kept
	o.judge(at, f)
}

// landed checks where a carry came down: in a generation that is open, and in the
// shard that its number of shards makes of the name.
func (o *oracle) landed(by, target, key string, k expiry, kept bool) {
	rec, ok := o.w.record(target)
	if !ok {
		return
	}
	if k.generation == 0 {
		o.w.count("to the nursery")
		if k.shard >= max(1, rec.nursery, o.w.formerNursery(target)) {
			o.w.violate("S2", "%s carried %s to shard %d of the nursery, which has %d shards", by, key, k.shard, rec.nursery)
		}
		return
	}
	g, live := rec.generations[k.generation]
	old, former := o.w.formerly(target, k.generation)
	switch {
	case !kept:
	case former && k.shard == hash(key)%old.shards:
		o.w.count("carried by a lost record")
	case !live:
		o.w.violate("S2", "%s carried %s to generation %d, which is not live", by, key, k.generation)
	case k.shard != hash(key)%g.shards:
		o.w.violate("S2", "%s carried %s to shard %d of generation %d, which has %d shards: it should be %d",
			by, key, k.shard, k.generation, g.shards, hash(key)%g.shards)
	case !o.open(target, k.generation):
		o.w.violate("S2", "%s carried %s to generation %d, which was closed long ago", by, key, k.generation)
	}
}

// open reports whether a writer that keeps to the bounds may commit to a generation.
func (o *oracle) open(target string, generation int) bool {
	at, closed := o.closed[fmt.Sprint(target, generation)]
	return !closed || time.Since(at) <= o.w.stalenessOf(target)+o.w.slackOf(target)
}

// hash is what shards are taken from: FNV-1a (32 bit) of the name.
func hash(key string) int {
	h := uint32(2166136261)
	for _, c := range []byte(strings.Trim(key, `"`)) {
		h = (h ^ uint32(c)) * 16777619
	}
	return int(h)
}

// retired holds L4 as a generation retires: of the namespaces that a deployment was known to
// sweep by then. The audit finds what is left in others.
func (o *oracle) retired(by, kind string, generation int, swept map[string]bool) {
	for at, facts := range o.truth {
		for key, f := range facts {
			isSwept := swept[at.namespace] || swept["*"]
			switch {
			case at.kind != kind || !f.wellFormed || f.key.generation != generation || !f.withinBounds:
			case isSwept:
				o.w.violate("L4", "%s retired generation %d with %s@%s in it: %s, committed %v ago",
					by, generation, key, at.namespace, f.expiry.Text, time.Since(f.committed))
			default:
				f.leftBehind = true
				o.w.count(o.w.leftBehind(at.namespace))
			}
		}
	}
	o.w.count("retired")
}
