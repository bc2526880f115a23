package adopt

import (
	"context"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A Comparer tells sweeps which due entities have a key that disagrees with the rule of
// their adoption, from its first key on until it is finished. Old writers extend an entity
// without its key, and new ones may compute keys wrongly: neither must delete a live entity.
// Set the fields before the first use; it is safe for concurrent use.
type Comparer struct {
	Store  store.Store // that implements store.Adopter and store.Keyer
	Target sweep.Target
	Now    func() time.Time

	mu     sync.Mutex
	record Record
	exists bool
	sent   time.Time // when the record was read, on this process's clock
}

// recordFor is how long a Comparer goes by a record: as long as sweeps go by that of a target. It
// goes by the lack of one for missingFor, and an adoption writes its first key after that: a sweep
// that meets a key knows of the adoption.
const (
	recordFor  = 15 * time.Second
	missingFor = 5 * time.Second
)

// Compare implements [sweep.Comparer]. It reads the record at most every few seconds and,
// during an adoption, each entity that it is asked about.
func (c *Comparer) Compare(
	ctx context.Context, namespace string, due []store.Entry,
) (sweep.Comparison, error) {
	rec, exists, err := c.adoption(ctx)
	if err != nil || !exists || rec.Phase == Finished {
		return sweep.Comparison{}, err
	}
	found := sweep.Comparison{Active: true, Kept: map[string]bool{}, Premises: map[string]store.Premise{}}
	if len(due) == 0 {
		return found, nil
	}
	j := judge{target: c.Target.Name, rule: rec.Rule, rounds: rec.Rounds, maxAge: c.Target.MaxAge}
	keyer, adopter := c.Store.(store.Keyer), c.Store.(store.Adopter)
	keys := make([]string, len(due))
	for i, e := range due {
		keys[i] = e.Key
	}
	q := store.WalkQuery{Target: c.Target.Target, Namespace: namespace, Source: rec.Rule.Property}
	var rows store.Rows
	if err := adopter.Look(ctx, q, keys, &rows); err != nil {
		return sweep.Comparison{}, err
	}
	for _, key := range keys { // also of what is gone: it may come back
		found.Premises[key] = store.Premise{Property: q.Source}
	}
	for _, row := range rows.List {
		id, err := keyer.ID(row.Key)
		if err != nil {
			return sweep.Comparison{}, err
		}
		if j.judge(row, id).outcome == Mismatch {
			found.Kept[row.Key] = true
		}
		found.Premises[row.Key] = store.Premise{Property: q.Source, Value: row.Source}
	}
	return found, nil
}

// adoption returns the record of the adoption, read not long ago.
func (c *Comparer) adoption(ctx context.Context) (Record, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := recordFor
	if !c.exists {
		most = missingFor
	}
	if now := c.Now(); c.sent.IsZero() || storeclock.Age(now, c.sent) >= most {
		rec, _, exists, err := Load(ctx, c.Store, c.Target.Name)
		if err != nil {
			return Record{}, false, err
		}
		c.record, c.exists, c.sent = rec, exists, now
	}
	return c.record, c.exists, nil
}
