package pace_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/pace"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/throttle"
)

// A setting is the pacing of one target, on a clock of its own.
type setting struct {
	now   time.Time
	local func() time.Time
	*pace.Pacing
}

func newSetting(cfg pace.Config) *setting {
	s := &setting{now: time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)}
	s.local = func() time.Time { return s.now }
	cfg.Page, cfg.Lease, cfg.Owner = 50, 30*time.Second, "one"
	cfg.Clock = storeclock.New(s.local, time.Minute)
	s.Pacing = pace.New(cfg)
	return s
}

// Tokens are void once an operator has changed the limits, of a range or of the target.
func TestGrantsUnderOldOrdersAreVoid(t *testing.T) {
	for name, rec := range map[string]generation.Record{
		"pace of a range":     {PaceMax: generation.Rate{Set: true, PerSecond: 10}},
		"total of the target": {PaceTotal: generation.Rate{Set: true, Unlimited: true}},
	} {
		s := newSetting(pace.Config{Limits: throttle.Limits{Start: 100, Max: 100}, Total: throttle.Limit{PerSecond: 1000}, Dry: true})
		s.RenewShares()
		granted := s.Orders()
		if s.Follow(&plan.View{RecordSent: s.now}); !s.GrantHolds(granted) {
			t.Errorf("%s: a view without a change voids a grant", name)
		}
		s.Follow(&plan.View{RecordSent: s.now.Add(time.Second), Record: rec})
		if s.GrantHolds(granted) {
			t.Errorf("%s: a grant under old orders holds", name)
		}
		changed := s.Orders()
		s.Follow(&plan.View{RecordSent: s.now}) // of a step that began before
		if s.Orders() != changed {
			t.Errorf("%s: an older view has changed the orders", name)
		}
	}
}

// Tokens of a share are void once the share has lapsed.
func TestGrantsOfALapsedShareAreVoid(t *testing.T) {
	s := newSetting(pace.Config{Limits: throttle.Limits{Unlimited: true}, Total: throttle.Limit{PerSecond: 1000}, Dry: true})
	s.RenewShares()
	granted := s.Orders()
	s.now = s.now.Add(14 * time.Second)
	if !s.GrantHolds(granted) {
		t.Error("a grant is void before its share has lapsed")
	}
	if s.now = s.now.Add(time.Second); s.GrantHolds(granted) {
		t.Error("a grant holds after its share has lapsed")
	}
	if s.RenewShares(); !s.GrantHolds(granted) {
		t.Error("a grant is void though its share was renewed")
	}
}

// A process that has read no heartbeats has no share of a total.
func TestNoShareWithoutHeartbeats(t *testing.T) {
	s := newSetting(pace.Config{Limits: throttle.Limits{Unlimited: true}, Total: throttle.Limit{PerSecond: 1000}})
	s.Follow(&plan.View{RecordSent: s.now})
	if s.GrantHolds(s.Orders()) || !s.Divides() {
		t.Error("tokens are granted before anybody knows how many processes divide the total")
	}
}

// A gate allows deletes only by an answer that is recent.
func TestOldAnswerClosesTheGate(t *testing.T) {
	s := newSetting(pace.Config{})
	var closed error
	g := pace.NewGatekeeper(func(context.Context) error { return closed }, s.local, slog.New(slog.DiscardHandler))
	if g.IsOpen() {
		t.Error("open before the first answer")
	}
	if g.Ask(t.Context()); !g.IsOpen() {
		t.Error("closed after an answer that allows deletes")
	}
	if s.now = s.now.Add(7 * time.Second); g.IsOpen() {
		t.Error("open by an answer that is seven seconds old")
	}
	closed = errors.New("maintenance")
	if g.Ask(t.Context()); g.IsOpen() {
		t.Error("open though the answer forbids deletes")
	}
}

// While a generation drains, a part of the pace is kept for carries in each generation that writers still write into:
// carries go where these do.
func TestOwnPartWhileAnotherOpens(t *testing.T) {
	s := newSetting(pace.Config{Limits: throttle.Limits{Start: 100, Max: 100}})
	at := s.now.Add(-time.Hour)
	gens := []generation.Generation{{Number: 1, Opened: at, Closed: at, Draining: at}, {Number: 2, Opened: at, Closed: at},
		{Number: 3, Opened: at}, {Number: 4, Opened: at}}
	for _, c := range []struct {
		drains bool
		want   map[int]float64
	}{{true, map[int]float64{1: 100, 2: 100, 3: 50, 4: 50}}, {false, map[int]float64{1: 100, 2: 100, 3: 100, 4: 100}}} {
		if !c.drains {
			gens[0].Draining = time.Time{}
		}
		s.now = s.now.Add(time.Second)
		s.Follow(&plan.View{RecordSent: s.now, Record: generation.Record{Generations: gens}})
		for n, want := range c.want {
			r := shardquery.Range{Generation: n}
			if got := s.OwnPart(r)(throttle.Limits{Start: 100, Max: 100}); got.Max != want {
				t.Errorf("drains %v, generation %d: %v a second, not %v", c.drains, n, got.Max, want)
			}
		}
	}
}

// Of the steps that wait for a share, some leave their workers to others.
func TestSeats(t *testing.T) {
	var s pace.Seats
	first, second := s.Take(2), s.Take(2)
	if first == nil || second == nil || s.Take(2) != nil {
		t.Fatal("not two of three have a seat")
	}
	first()
	if s.Take(2) == nil {
		t.Error("a seat that was left stays taken")
	}
}
