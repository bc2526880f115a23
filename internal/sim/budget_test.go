package sim

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/store"
)

// An hour is held to the limit of the instant at which its count began, if that was lately, and
// to what lies in namespaces, generations and shards that some deployment sweeps.
func TestOpenedHour(t *testing.T) {
	for _, c := range []struct {
		name  string
		swept string
		shard store.Value   // of one of them
		of    int           // the generation of one of them
		began time.Duration // before the hour is opened
		wrong bool
	}{
		{"too much", "eu", store.IntegerValue(7), 2, 0, true},
		{"in a namespace that nobody sweeps", "", store.IntegerValue(7), 0, 0, false},
		{"in a generation that nobody sweeps", "eu", store.IntegerValue(7), 3, 0, false},
		{"in a shard that nobody sweeps", "eu", unlistedShard, 0, 0, false},
		{"by what was learnt as the count began", "eu", store.IntegerValue(7), 0, time.Minute, false},
		{"by what was learnt long ago", "eu", store.IntegerValue(7), 0, 2 * time.Hour, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(Options{Seed: 1})
				defer w.stop()
				rules := breaker.Rules{On: true, Floor: 8, Fraction: 0.01, Window: time.Hour, Learn: 24 * time.Hour}
				w.plan.target.Breaker, w.plan.target.ShardProperty = rules, "shard"
				time.Sleep(100 * time.Hour)
				now := time.Now()
				hour := rules.HourOf(now)
				facts := map[string]*fact{}
				for i := range 9 {
					facts[fmt.Sprint("e", i)] = &fact{expires: hour.Hour.Add(time.Minute), wellFormed: true, inOrder: true,
						withinBounds: true, committed: now.Add(-time.Hour)}
				}
				facts["e0"].shard, facts["e0"].key.generation = c.shard, c.of
				w.oracle.truth = map[place]map[string]*fact{{w.plan.kind("sessions"), "eu"}: facts}
				w.db.records[store.TargetRecord] = map[string]store.Record{"sessions": {Fields: store.Fields{
					"namespaces": []store.Fields{{"name": c.swept}}, "generations": []store.Fields{{"number": int64(2)}}}}}
				was := breaker.Budget{Target: "sessions", Began: now.Add(-99 * time.Hour), Alls: []breaker.All{{N: 30, At: now}},
					// of which one half was usual until a moment ago
					Days: []breaker.Day{{Begin: now.Add(-48*time.Hour + 30*time.Second), Share: 0.5}}}
				time.Sleep(time.Minute)
				is := was
				is.Tallies = []breaker.Tally{{Key: hour, Counted: true, At: time.Now().Add(-c.began)}}
				w.oracle.checkCounted("me", hour.String(), was.Encode(), is.Encode())
				if (w.violation != nil) != c.wrong {
					t.Error(fmt.Sprint("violation: ", w.violation))
				}
			})
		})
	}
}

// Before what was due at first was counted nobody reserves anything, by the target record. Where targets
// files overlap, a process goes by its own count while the record is of the other file: if it has counted
// whole ranges, and found no more than the floor.
func TestReservesByOwnCount(t *testing.T) {
	const outside = "00000000.0001/"
	for _, c := range []struct {
		name     string
		overlaps bool
		layout   string   // of the record
		from     []string // of each count
		due      int64    // by each count
		wrong    bool
	}{
		{"it has counted", true, "sharded", []string{"00000000.0000.19990101T000000.000Z"}, 8, false},
		{"it has counted too much", true, "sharded",
			[]string{"00000000.0000.19990101T000000.000Z", "00000000.0001.19990101T000000.000Z"}, 5, true},
		{"it has counted again", true, "sharded",
			[]string{"00000000.0000.19990101T000000.000Z", "00000000.0000.19990101T000000.000Z"}, 5, false},
		{"it has counted nothing", true, "sharded", nil, 0, true},
		{"it has counted what lies outside of ranges", true, "sharded", []string{outside}, 0, true},
		{"it has counted an hour", true, "sharded", []string{"00000000.0000.20000101T000000.000Z"}, 0, true},
		{"the record is of its own file", true, "generation", []string{"00000000.0000.19990101T000000.000Z"}, 0, true},
		{"there is no other file", false, "sharded", []string{"00000000.0000.19990101T000000.000Z"}, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(Options{Seed: 1})
				defer w.stop()
				time.Sleep(time.Hour)
				w.plan.target.Breaker = breaker.Rules{On: true, Floor: 8, Fraction: 0.01, Window: time.Hour, Learn: 24 * time.Hour}
				w.plan.overlap = nil
				if c.overlaps {
					w.plan.overlap = &overlap{what: "layout"}
				}
				h := &handle{w: w, name: "me"}
				h.file.Layout, h.file.Property = "generation", "expires"
				w.db.records[store.TargetRecord] = map[string]store.Record{"sessions": {Fields: store.Fields{
					"layout": c.layout, "property": "expires"}}}
				for _, from := range c.from {
					s := store.Span{From: store.Point{Value: store.TextValue(from)},
						To: store.Point{Value: store.TextValue(from[:len("00000000.0000")] + ".20000101T010000.000Z")}}
					h.ground.of("sessions").counts("", s, c.due)
				}
				was := breaker.Budget{Target: "sessions", Began: time.Now()}
				is := was
				is.Tallies = []breaker.Tally{{Key: w.plan.target.Breaker.HourOf(time.Now()), Granted: 2, At: time.Now()}}
				w.oracle.savedBudget(h, was.Encode(), is.Encode())
				if (w.violation != nil) != c.wrong {
					t.Error(fmt.Sprint("violation: ", w.violation))
				}
			})
		})
	}
}

// An hour may be counted with as much left as before, which looks like one of which a part has come to be due.
// What it has taught holds for the hours after it, also once one of these has taught more.
func TestCountThatLooksLikeARefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{Seed: 1})
		defer w.stop()
		rules := breaker.Rules{On: true, Floor: 3, Fraction: 0.01, Window: time.Hour, Learn: 24 * time.Hour}
		w.plan.target.Breaker = rules
		time.Sleep(100 * time.Hour)
		h := &handle{name: "me"}
		first, second := rules.HourOf(time.Now()), rules.HourOf(time.Now().Add(time.Hour))
		day := time.Now().Truncate(24 * time.Hour)
		firstStep, secondStep := breaker.Step{Hour: first.Hour, Share: 0.4}, breaker.Step{Hour: second.Hour, Share: 0.6}
		began := breaker.Budget{Target: "sessions", Began: time.Now().Add(-99 * time.Hour),
			Alls:    []breaker.All{{N: 10, At: time.Now()}},
			Tallies: []breaker.Tally{{Key: first, Counted: true, Granted: 3, Coming: 1, At: time.Now()}}}
		counted := began
		counted.Tallies = []breaker.Tally{{Key: first, Counted: true, Granted: 3, Open: 1, At: time.Now()}}
		counted.Days = []breaker.Day{{Begin: day, Share: 0.4, Steps: []breaker.Step{firstStep}}}
		w.oracle.savedBudget(h, began.Encode(), counted.Encode())

		time.Sleep(time.Hour)
		next := counted
		next.Alls = []breaker.All{{N: 10, At: time.Now()}}
		next.Tallies = append(slices.Clone(counted.Tallies), breaker.Tally{Key: second, Counted: true, Done: 6, At: time.Now()})
		next.Days = []breaker.Day{{Begin: day, Share: 0.6, Steps: []breaker.Step{firstStep, secondStep}}}
		w.oracle.savedBudget(h, counted.Encode(), next.Encode())
		again := next
		again.Tallies = append(slices.Clone(counted.Tallies), breaker.Tally{Key: second, Counted: true, Done: 6, Open: 3,
			At: time.Now()})
		w.oracle.savedBudget(h, next.Encode(), again.Encode())
		if w.violation != nil {
			t.Error(w.violation)
		}
	})
}
