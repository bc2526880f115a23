package inspect

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// chapter is where operators read what to do after a restore.
const chapter = "see After a restore in docs/operations.md"

const (
	// mostProbed bounds the namespaces that a status probes for keys which do not go with the records.
	mostProbed = 16
	// probePatience bounds the tries at one such query.
	probePatience = time.Second
)

// mixed says how records and entities show that they are not of one time, as after a restore of
// only one of them, or of an older copy of both while writers went on; empty if nothing shows it.
// Keys in retired generations are looked for only on request: such a query steps over the
// tombstones of all that was deleted there.
func mixed(ctx context.Context, s *sweep.Snapshot, from store.Store, retired bool) (string, error) {
	if why := aheadOfTime(s); why != "" {
		return why + "; " + chapter, nil
	}
	if s.Missing || !s.Target.Layout.Form().HasGenerations() || len(s.View.Record.Generations) == 0 {
		return "", nil
	}
	live := []int{expirykey.Nursery}
	for _, g := range s.View.Record.Generations {
		live = append(live, g.Number)
	}
	slices.Sort(live)
	newest := live[len(live)-1]
	for id := range s.View.Cursors.IDs() {
		if id.Generation > newest && id.Generation <= shardquery.LastBelieved {
			return fmt.Sprintf("the target record is older than other records: it ends with generation %08d, "+
				"and cursor record %q is of a later one; %s", newest, id.Key(), chapter), nil
		}
	}
	key, err := firstBetween(ctx, s, from, newest+1, shardquery.LastBelieved)
	if key != "" {
		return fmt.Sprintf("the records are older than the entities: the target record ends with generation %08d, "+
			"and the index has the key %s; %s", newest, key, chapter), nil
	}
	for i := 1; i < len(live) && retired && err == nil && key == ""; i++ {
		key, err = firstBetween(ctx, s, from, live[i-1]+1, live[i]-1)
	}
	if key != "" {
		return fmt.Sprintf("entities are older than the records: the index has the key %s of a generation that has retired. "+
			"Somebody has put back an old copy, or written late; %s", key, chapter), nil
	}
	return "", err
}

// firstBetween returns the first key of some generations, in any of the namespaces.
func firstBetween(ctx context.Context, s *sweep.Snapshot, from store.Store, first, last int) (string, error) {
	if first > last {
		return "", nil
	}
	lo, _ := expirykey.GenerationRange(first)
	_, hi := expirykey.GenerationRange(last)
	for _, ns := range s.View.Namespaces[:min(mostProbed, len(s.View.Namespaces))] {
		q := store.Query{Target: s.Target.Target, Namespace: ns, Lo: store.TextValue(lo), Hi: store.TextValue(hi)}
		e, ok, err := shardquery.First(ctx, from, q, probePatience)
		if err != nil || ok {
			return e.Position().Value.Text, err
		}
	}
	return "", nil
}

// aheadOfTime says which record was written later than now, by the store's clock: the store, or
// its clock, went back, and the records did not.
func aheadOfTime(s *sweep.Snapshot) string {
	limit := s.Now().Add(max(s.Target.MaxClockSkew, time.Minute))
	text := func(what string, at time.Time) string {
		return fmt.Sprintf("a record is of a time to come: %s says %s, and the store's time is %s", what, instantText(at),
			instantText(s.Now()))
	}
	if at := s.View.Record.Created; at.After(limit) {
		return text("the target record", at)
	}
	for _, g := range s.View.Record.Generations {
		if at := laterOf(g.Opened, g.Closed); at.After(limit) {
			return text(fmt.Sprintf("generation %08d in the target record", g.Number), at)
		}
	}
	for _, h := range s.Heartbeats() {
		if h.Renewed.After(limit) {
			return text(fmt.Sprintf("heartbeat %q", cursor.HeartbeatKey(s.Target.Name, h.Owner)), h.Renewed)
		}
	}
	for _, c := range s.View.Cursors.All() {
		if at := laterOf(c.Swept.Add(s.Target.Retention), c.Lease.Released); at.After(limit) {
			return text(fmt.Sprintf("cursor record %q", c.Key()), at)
		}
	}
	return ""
}
