package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// agesRecords makes the test binary age the records of the target, and end.
const agesRecords = "TEST_BINARY_AGES_RECORDS"

// ageRecords writes what two days of sweeps would have left behind, although the target is
// minutes old: for its first day a breaker only learns, and a range is read from its start once a
// day. The budget record gets an older begin, a learnt day in whose hours at most a twentieth
// expired, a count of all entities, and deletes of entities that had lived for a day. By the
// cursor records each range was last read from its start two days ago. All else is left as real
// processes wrote it. No process may sweep the target meanwhile.
func (b *workdir) ageRecords() {
	b.t.Helper()
	cmd, out, log := b.command(nil)
	cmd.Env = append(cmd.Env, agesRecords+"=1")
	if err := cmd.Run(); err != nil {
		b.t.Fatalf("age the records: %v\n%s%s", err, out, log)
	}
}

// ageTheRecords does it, in a process that has the store of its environment.
func ageTheRecords() (err error) {
	a := &app{console: &console{stdout: io.Discard, stderr: os.Stderr}, now: time.Now}
	cmd := &cobra.Command{}
	cmd.SetContext(context.Background())
	s, err := a.begin(cmd)
	if err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	for _, t := range s.sweep.Targets {
		if err := ageBudget(cmd.Context(), s.db.Store, t); err != nil {
			return fmt.Errorf("budget of %s: %w", t.Name, err)
		}
		if err := ageCursors(cmd.Context(), s.db.Store, t.Name); err != nil {
			return fmt.Errorf("cursors of %s: %w", t.Name, err)
		}
	}
	return nil
}

func ageBudget(ctx context.Context, s store.Store, t sweep.Target) error {
	const day = 24 * time.Hour
	b, err := spend.Load(ctx, s, t.Name)
	if err != nil {
		return err
	}
	all, err := s.(store.Counter).Count(ctx, t.Target, "", store.Span{}, 0)
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	b.Began = now.Add(-2 * day)
	b.Days = []breaker.Day{{Begin: now.Add(-day).Truncate(day), Share: 0.05}}
	b.Alls = []breaker.All{{N: all, At: now.Add(-time.Hour)}}
	b.Lives = []breaker.HourOfLives{{Begin: now.Add(-5 * time.Hour).Truncate(time.Hour),
		Counts: []breaker.LifeCount{{Bucket: breaker.BucketOf(day), N: 500}}}}
	return s.Save(ctx, b.Encode(), b.Revision)
}

func ageCursors(ctx context.Context, s store.Store, target string) error {
	return store.LoadAll(ctx, s, store.RecordQuery{Sort: store.CursorRecord, Target: target}, func(page store.Records) error {
		for _, rec := range page.List {
			was := rec.Revision
			rec.Fields["rewind_done"] = store.FormatTime(time.Now().Add(-48 * time.Hour))
			rec.Revision = store.NewRevision(was)
			if err := s.Save(ctx, rec, was); err != nil {
				return err
			}
		}
		return nil
	})
}
