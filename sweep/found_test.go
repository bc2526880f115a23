package sweep

import (
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// alone returns the configuration of a process that sweeps one target, with expiry keys.
func alone(s store.Store) (cfg Config, target Target) {
	target = Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour,
		Overlap: 10 * time.Second, Page: 50, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second,
		Pace: throttle.Limits{Unlimited: true},
	}
	return Config{Store: s, Apply: true, Owner: "a", Now: time.Now, Workers: 2,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}.withDefaults(), target
}

// foundShard returns a site whose target has something in a shard past the last one of its generation.
func foundShard(t *testing.T, s *modelstore.Store) *site.Site {
	t.Helper()
	cfg, target := alone(s)
	c := newSite(&cfg, &target)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	k, err := expirykey.New(1, 7, time.Now())
	if err == nil {
		err = s.Put(t.Context(), target.Target, "", []store.Entity{{Name: "e", Expiry: store.TextValue(k.String())}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A shard gets its record after a plan was made, and before the search by that plan. The
// plan does not count what is in it, so a generation must not retire by this plan.
func TestShardThatAnotherProcessHasJustFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := foundShard(t, modelstore.New(time.Now))
		before := plan.New(c.Rules, c.Viewer.View(), plan.Book{}, c.Clock.Now())
		for _, found := range []string{"by this process", "by another one"} {
			if added, err := chore.DiscoverShards(t.Context(), c, before, 1); !added || err != nil {
				t.Errorf("%s: %v, %v", found, added, err)
			}
		}
		if added, err := chore.DiscoverShards(t.Context(), c, before.With(c.Viewer.View()), 1); added || err != nil {
			t.Errorf("by a plan that knows it: %v, %v", added, err)
		}
	})
}

// A shard is found whose record somebody has removed. This process remembers that record, but it is not there to
// be moved, and only a record keeps the shard from being forgotten.
func TestShardWhoseRecordWasRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		c := foundShard(t, s)
		id := c.Rules.ID(shardquery.Range{Generation: 1, Shard: 7})
		remembered := cursor.Cursor{ID: id, Scope: c.Rules.Scope, Revision: "6-GESCE2WWLDA5", Position: store.Position{
			Value: store.TextValue("00000001.0007.99991231T235959.999Z")}, Lease: cursor.Lease{Owner: "gone", Epoch: 3}}
		p := plan.New(c.Rules, c.Viewer.View(), plan.Book{Own: map[cursor.ID]cursor.Packed{id: cursor.Pack(remembered)}},
			c.Clock.Now())
		if added, err := chore.DiscoverShards(t.Context(), c, p, 1); !added || err != nil {
			t.Errorf("%v, %v", added, err)
		}
		cur, known := c.Viewer.View().Cursors.At(id)
		if !known || cur.Position.Value.Type != store.Missing || cur.Lease.Owner != "" {
			t.Errorf("its record exists: %v; %+v", known, cur)
		}
	})
}
