package sim

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/reaper-ttl/reaper/store"
)

// The oracle tells the first window of a read that was resumed from one that is as short for
// another reason: the read ends there, or the breaker reads from the same instant.
func TestFirstWindowAgain(t *testing.T) {
	const at = "00000001.0000.20000101T0"
	scan := store.Query{After: store.Position{Value: store.TextValue(at + "30000.000Z"), Key: `"e1"`},
		Hi: store.TextValue(at + "30100.000Z")}
	for _, c := range []struct {
		name   string
		cursor string
		change func(*store.Query)
		wrong  bool
	}{
		{"the first window", at + "40000.000Z", func(*store.Query) {}, true},
		{"the last window", at + "40000.000Z", func(q *store.Query) { q.Hi = store.TextValue(at + "40000.000Z") }, false},
		{"up to the cursor", at + "30100.001Z", func(*store.Query) {}, false},
		{"another entity of that instant", at + "40000.000Z", func(q *store.Query) { q.After.Key = "" }, false},
		{"the breaker", at + "40000.000Z", func(q *store.Query) { q.Limit = store.MaxPage }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(Options{Seed: 1})
				defer w.stop()
				w.plan.target.Type = store.Text
				q := scan
				q.Target, q.Limit = store.Target{Kind: w.plan.kind("sessions"), Property: "expiry_key"}, w.plan.target.Page
				q.Lo = store.TextValue("00000001.0000.")
				c.change(&q)
				key := rangeKey(q.Target, q)
				w.db.records[store.CursorRecord] = map[string]store.Record{key: {Fields: store.Fields{
					"owner": "me", "token": int64(7), "position": c.cursor, "rewind_position": at + "30000.000Z",
					"rewind_position_key": `"e1"`, "rewind_window_ms": (512 * firstWindow).Milliseconds()}}}
				w.oracle.scans(&handle{name: "me", holder: "me"}, q)
				if (w.violation != nil) != c.wrong {
					t.Error(fmt.Sprint("violation: ", w.violation))
				}
			})
		})
	}
}

// A process that claims a range whose holder's name somebody has overwritten, or moves its cursor, goes by that
// name. The holder itself gives the range back.
func TestForgedHolder(t *testing.T) {
	const key = "sessions.00000000.0000"
	record := func(owner any, epoch, token int64) store.Record {
		return store.Record{Key: key, Target: "sessions", Fields: store.Fields{"owner": owner, "epoch": epoch, "token": token}}
	}
	for _, c := range []struct {
		name, by string
		is       store.Record
		wrong    bool
	}{
		{"the holder gives it back", "holder", record("", 0, 7), false},
		{"the holder renews it", "holder", record("holder", 4, 7), false},
		{"the holder changes its token", "holder", record("", 0, 8), true},
		{"another one claims it", "other", record("other", 1, 8), false},
		{"another one claims it with its token", "other", record("other", 1, 7), true},
		{"another one moves it", "other", record("", 0, 7), false},
		{"another one changes its token", "other", record("", 0, 8), true},
		{"another one writes a lease of the holder", "other", record("holder", 3, 7), true},
	} {
		for _, forged := range []any{"somebody", int64(-7)} {
			t.Run(fmt.Sprint(c.name, "/", forged), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(Options{Seed: 1})
					defer w.stop()
					w.plan.mode = query
					w.oracle.leases[key] = leaseFact{"sessions", "holder", 3, 7}
					w.oracle.savedCursor(&handle{w: w, name: c.by, holder: c.by}, record(forged, 3, 7), c.is)
					if (w.violation != nil) != c.wrong {
						t.Errorf("violation: %v", w.violation)
					}
				})
			})
		}
	}
}
