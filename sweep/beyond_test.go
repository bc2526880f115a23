package sweep_test

import (
	"fmt"
	"testing"
	"time"
)

// A longer retention leaves cursors beyond the horizon, and a read from the start ends at the
// horizon. What lies between was perhaps written behind the cursor: it goes once it is due, and does
// not wait for the read after that.
func TestReadFromTheStartEndsBeforeTheCursor(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Retention, w.target.Rewind = 0, 24*time.Hour
		w.begin()
		for i := range 20 { // in each shard
			w.put(0, 4, fmt.Sprint("due-", i), time.Now().Add(-time.Minute))
		}
		w.sweep()
		w.put(0, 4, "straggler", time.Now().Add(-time.Minute))
		w.target.Retention = 27 * time.Hour
		time.Sleep(25 * time.Hour)
		w.sweep()
		w.wantLeft("straggler")
		time.Sleep(3 * time.Hour)
		w.sweep()
		w.wantLeft()
	})
}

// A generation does not retire with what its ranges' cursors have passed by a shorter retention, or
// since somebody has moved them by hand: each read of a sealed range goes on to the range's end.
func TestSealedRangeIsReadToItsEnd(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.begin()
		for i := range 20 { // in each shard
			w.put(1, 4, fmt.Sprint("due-", i), time.Now().Add(-time.Minute))
		}
		w.sweep()
		w.put(1, 4, "straggler", time.Now().Add(-time.Minute))
		w.target.Retention = 100 * time.Hour
		for range 8 {
			time.Sleep(61 * time.Minute)
			w.sweep()
		}
		record := w.record()
		if n := record.Generations[0].Number; n != 1 {
			t.Errorf("generation 1 has retired with an entity in it: the first live one is %d", n)
		}
	})
}
