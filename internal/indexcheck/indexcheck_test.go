package indexcheck_test

import (
	"testing"

	"github.com/reaper-ttl/reaper/internal/indexcheck"
	"github.com/reaper-ttl/reaper/internal/indexes"
	"github.com/reaper-ttl/reaper/store"
)

func TestServes(t *testing.T) {
	d := indexes.ForFirestore([]store.Target{
		{Name: "a", Kind: "Session", Property: "expiry_key", Type: store.Text},
		{Name: "c", Kind: "items", Group: true, Property: "expires", Type: store.Instant},
		{Name: "d", Kind: "Event", Property: "at", ShardProperty: "shard", Type: store.Instant},
		{Name: "g", Kind: "plain", Property: "expires", Type: store.Instant},
	})
	for _, c := range []struct {
		q    indexcheck.Query
		want bool
	}{
		{indexcheck.Query{Collection: "Session", Scope: indexes.Collection, Order: []string{"expiry_key"}}, true},
		{indexcheck.Query{Collection: "Session", Scope: indexes.CollectionGroup, Order: []string{"expiry_key"}}, false},
		{indexcheck.Query{Collection: "items", Scope: indexes.CollectionGroup, Order: []string{"expires"}}, true},
		{indexcheck.Query{Collection: "plain", Scope: indexes.Collection, Order: []string{"expires"}}, true},
		{indexcheck.Query{Collection: "plain", Scope: indexes.CollectionGroup, Order: []string{"expires"}}, false},
		{indexcheck.Query{Collection: "Event", Scope: indexes.Collection, Order: []string{"at"}}, false},
		{indexcheck.Query{Collection: "Event", Scope: indexes.Collection, Equal: []string{"shard"}, Order: []string{"at"}}, true},
		{indexcheck.Query{Collection: "Event", Scope: indexes.Collection, Equal: []string{"at", "shard"}}, true},
		{indexcheck.Query{Collection: "Event", Scope: indexes.Collection, Order: []string{"shard", "at"}}, true},
		{indexcheck.Query{Collection: "Event", Scope: indexes.Collection, Order: []string{"at", "shard"}}, false},
		{indexcheck.Query{Collection: "Event", Scope: indexes.Collection, Equal: []string{"at"}, Order: []string{"shard"}}, false},
		{indexcheck.Query{Collection: "Event", Scope: indexes.Collection, Equal: []string{"user"}, Order: []string{"at"}}, false},
		{indexcheck.Query{Collection: "Other", Scope: indexes.Collection, Equal: []string{"shard"}, Order: []string{"at"}}, false},
		{indexcheck.Query{Collection: "Other", Scope: indexes.CollectionGroup}, true},
	} {
		if got := indexcheck.Serves(d, c.q); got != c.want {
			t.Errorf("%+v: %v", c.q, got)
		}
	}
}
