package page

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/page/draw"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// cellsOf returns the cells of the next event that has any.
func cellsOf(t *testing.T, next func() string) map[string]draw.LiveCell {
	t.Helper()
	for range 5 {
		var p pulse
		if err := json.Unmarshal([]byte(next()), &p); err != nil {
			t.Fatal(err)
		}
		if len(p.Cells) > 0 {
			return p.Cells
		}
	}
	return nil
}

// The map shows the ranges of this process by its memory: what it holds, what is left there, and that it
// is done, though nobody has read the records again.
func TestOwnRangesAreShownFromMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Pace = throttle.Limits{Start: 1, Max: 1}
		w.fill(80)
		before, err := inspect.Status(t.Context(), w.config(), w.target)
		if err != nil {
			t.Fatal(err)
		}
		cfg := w.page()
		cfg.Source = sayingAlways(before)
		d, stop := w.collect(&cfg, time.Hour)
		defer stop()
		inBubble(t, cfg, func(l *piped, _ func()) {
			conn := l.dial()
			in := follow(t, conn, "sessions")
			work := cellsOf(t, func() string { return nextEvent(in) })
			held := 0
			for id, c := range work {
				if c.InWork && c.Level > 0 {
					held++
				}
				t.Log(id, c.Label)
			}
			if held < 2 { // every other shard has what is due
				t.Errorf("of two ranges in work the page shows %d", held)
			}
			_ = conn.Close()

			time.Sleep(2 * time.Minute) // all that was due is gone, and nobody looks
			if left := d.Own("sessions"); len(left.Ranges) > 0 {
				time.Sleep(2 * time.Second)
			}
			if left := d.Own("sessions"); len(left.Ranges) > 0 {
				t.Errorf("ranges are listed though nothing is left in them: %+v", left)
			}
			conn = l.dial()
			defer conn.Close()
			in = follow(t, conn, "sessions")
			if rest := cellsOf(t, func() string { return nextEvent(in) }); len(rest) > 0 {
				t.Errorf("the records name nobody, and this process works on nothing, but the page changes %v", rest)
			}
		})
	})
}

// A record that names this process as the holder is older than what its memory says.
func TestOwnRangesComeToRest(t *testing.T) {
	now := time.Date(2026, 11, 27, 3, 0, 0, 0, time.UTC)
	due, until := now.Add(-time.Hour), now.Add(time.Minute)
	record := func(shard, owner string) inspect.RangeStatus {
		return inspect.RangeStatus{Generation: 3, Shard: shard, Owner: owner, LeaseUntil: &until, OldestDue: &due,
			ThrottledBy: "ramp"}
	}
	st := inspect.TargetStatus{Name: "sessions", Ranges: []inspect.RangeStatus{
		record("0000", "me"), record("0001", "other"), record("0002", "me"), record("0003", "")}}
	own := func(shard int, inWork bool, oldest time.Time) (o sweep.OwnRange) {
		o.Range.Generation, o.Range.Shard, o.InWork, o.OldestDue = 3, shard, inWork, oldest
		return o
	}
	s := &Server{Config: Config{Now: func() time.Time { return now },
		Own: func(string) sweep.Own {
			return sweep.Own{Owner: "me", Ranges: []sweep.OwnRange{
				own(1, false, due), own(2, false, now.Add(-time.Minute)), own(3, true, time.Time{})}}
		}}}
	got, touched := s.withOwn(st)
	if len(touched) != 3 {
		t.Errorf("touched %v", touched)
	}
	switch r := got.Ranges; {
	case r[0].Owner != "" || r[0].OldestDue != nil:
		t.Errorf("it has come to rest, and nothing is left: %+v", r[0])
	case r[1].Owner != "other" || r[1].OldestDue != st.Ranges[1].OldestDue:
		t.Errorf("it is another process's: %+v", r[1])
	case r[2].Owner != "" || !r[2].OldestDue.Equal(now.Add(-time.Minute)):
		t.Errorf("something is left in it: %+v", r[2])
	case r[3].Owner != "me" || !r[3].OldestDue.Equal(due) || r[3].ThrottledBy != "":
		t.Errorf("it is in work, and its record says what is due: %+v", r[3])
	}
	if st.Ranges[0].Owner != "me" {
		t.Error("the copy that all viewers share has changed")
	}
}
