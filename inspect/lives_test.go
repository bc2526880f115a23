package inspect_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
)

func (w *world) save(rec generation.Record) {
	w.t.Helper()
	if _, err := generation.Save(w.t.Context(), w.s, rec); err != nil {
		w.t.Fatal(err)
	}
}

// The forecast of a generation comes true.
func TestLives(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		if lives := w.lives(); len(lives) != 0 {
			t.Errorf("before anybody came: %+v", lives)
		}
		w.target.Policy = hourly
		w.sweep()
		w.put(1, 4, "survivor", time.Now().Add(100*time.Hour))
		lives := w.lives()
		if len(lives) != 2 || lives[0].Number != 1 || lives[1].Number != 0 {
			t.Fatalf("at first: %+v", lives)
		}
		if *lives[0].Left != 1 || *lives[1].Left != 0 {
			t.Errorf("%d and %d are left", *lives[0].Left, *lives[1].Left)
		}
		if lives[1].Drains != nil || lives[1].Retires != nil || lives[0].Drains == nil || lives[0].Retires == nil {
			t.Fatalf("at first: %+v", lives)
		}
		first := lives[0]
		w.sweepFor(90 * time.Minute)
		if life := w.lives()[0]; life.State != "sealed" || life.NextDue == nil || !life.Drains.Equal(*first.Drains) {
			t.Errorf("once it is sealed: %+v; it was %+v", life, first)
		}
		for w.lives()[0].Number == 1 {
			w.sweep()
			time.Sleep(time.Minute)
			if time.Since(*first.Retires) > time.Hour {
				t.Fatalf("generation 1 should have retired at %v: %+v", first.Retires, w.lives())
			}
		}
		// A carried entity must also be removed from its old generation, which the forecast leaves out.
		if late := time.Since(*first.Retires); late > 15*time.Minute || late < -time.Hour {
			t.Errorf("it retired %v after the instant that was foretold", late)
		}
	})
}

// A forecast does not exceed what JSON and time.Duration can hold: a due time is at most the
// end of the year 9999, and a drain in more than 292 years is not known.
func TestLivesFarAhead(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.target.Retention = 48 * time.Hour
		w.sweep()
		w.put(1, 4, "last", time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC))
		w.sweepFor(2 * time.Hour)
		lives := w.lives()
		if _, err := json.Marshal(lives); err != nil || lives[0].NextDue == nil || lives[0].NextDue.Year() != 9999 {
			t.Errorf("%+v, %v", lives, err)
		}
		if _, err := json.Marshal(w.status()); err != nil {
			t.Error(err)
		}
		w.target.Policy.Every, w.target.Policy.Keep = 36500*24*time.Hour, 32
		if life := w.lives()[0]; life.Drains != nil || life.Retires != nil {
			t.Errorf("after 3,300 years it drains at %v and retires at %v", life.Drains, life.Retires)
		}
	})
}

// A generation that is empty says since when, and when it retires.
func TestLivesOfAnEmptyGeneration(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.target.Policy.Slack = 20 * time.Minute
		w.sweep()
		w.sweepFor(100 * time.Minute)
		life := w.lives()[0]
		if life.Number != 1 || life.State != "sealed" || life.Emptied == nil || life.Retires == nil ||
			life.Retires.Sub(*life.Emptied) != w.target.Policy.Slack || life.Drains != nil {
			t.Errorf("%+v", life)
		}
	})
}

// Entities that the store refuses to delete or carry keep their generation alive.
func TestLivesOfWhatIsRefused(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.target.Policy.Keep = 30
		w.sweep()
		w.put(1, 4, "survivor", time.Now().Add(100*time.Hour))
		w.sweepFor(90 * time.Minute)
		if life := w.lives()[0]; life.Refused || life.Retires == nil {
			t.Errorf("%+v", life)
		}
		w.edit(cursor.ID{Target: "sessions", Generation: 1, Shard: "0002"}, func(c *cursor.Cursor) {
			c.Stock.Refused, c.Stock.Emptied = true, time.Time{}
		})
		if life := w.lives()[0]; !life.Refused || life.Retires != nil || life.Drains == nil {
			t.Errorf("%+v", life)
		}
		refused := 0
		for _, r := range w.status().Ranges {
			if r.Refused {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("status shows %d ranges with it", refused)
		}
	})
}
