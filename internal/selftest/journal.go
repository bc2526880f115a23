package selftest

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// loadJournal returns the ids of runs whose time is over, and the store's time.
func loadJournal(ctx context.Context, db Database) (overdue []string, now time.Time, err error) {
	err = store.Retry(ctx, patience, func() error {
		overdue = nil
		return store.LoadAll(ctx, db, store.RecordQuery{Sort: store.WorkerRecord, Target: journal},
			func(page store.Records) error {
				now = page.Now
				for _, r := range page.List {
					id, _ := r.Fields["id"].(string)
					text, _ := r.Fields["until"].(string)
					until, err := time.Parse(store.TimeLayout, text)
					if CheckID(id) == nil && (err != nil || until.Before(page.Now)) {
						overdue = append(overdue, id)
					}
				}
				return nil
			})
	})
	if err != nil {
		return nil, now, fmt.Errorf("look for earlier self-tests: %w", err)
	}
	return overdue, now, nil
}

// register writes down that a run is under way, and until when.
func (s scratch) register(ctx context.Context, db Database, until time.Time) error {
	r := store.Record{Sort: store.WorkerRecord, Key: s.journalKey(), Target: journal, Revision: store.NewRevision(""),
		Fields: store.Fields{"id": s.id, "kind": s.kind(), "until": until.UTC().Format(store.TimeLayout)}}
	if err := store.Retry(ctx, patience, func() error { return db.Save(ctx, r, "") }); err != nil {
		return fmt.Errorf("write down that a self-test is under way: %w", err)
	}
	return nil
}
