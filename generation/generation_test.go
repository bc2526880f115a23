package generation

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

var opened = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

func ExampleStamper() {
	expires := time.Date(2026, 11, 21, 0, 7, 30, 855_000_000, time.UTC)

	current := Stamper{Generation: 1, Shards: 16} // as the target record says
	key, err := current.Name("s-1842", expires)
	fmt.Println(key, err)

	nursery := Stamper{Shards: 16} // a writer that knows nothing is still collected
	key, err = nursery.Number(1842, expires)
	fmt.Println(key, err)
	// Output:
	// 00000001.0006.20261121T000730.855Z <nil>
	// 00000000.0014.20261121T000730.855Z <nil>
}

func TestRecordRoundTrip(t *testing.T) {
	r := New("sessions", "Session", "expiry_key", 16, true, opened)
	r.NurseryShards, r.Checked, r.Outside, r.EmptyIndex = 64, opened.Add(time.Hour), 7, true
	r.Revision = "3-x"
	r.Paused, r.PausedUntil = true, opened.Add(2*time.Hour)
	r.PauseNote = Note{Actor: "ann@desk", At: opened.Add(time.Hour), Reason: "a migration; ask Ann"}
	r.PaceNote = Note{Actor: "bob@desk", At: opened, Reason: "a sale"}
	back, err := decode(r.encode())
	if err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("decode(encode) = %+v, %v, want %+v", back, err, r)
	}
}

// A record that an older program has written is read as it was, and one that an older
// program reads keeps what that knows of: a pause with an end is a pause.
func TestRecordWithoutNotes(t *testing.T) {
	r := New("sessions", "Session", "expiry_key", 16, true, opened)
	r.Paused = true
	old := r.encode()
	for _, name := range []string{"paused_until", "pause_by", "pause_at", "pause_reason", "pace_by", "pace_at", "pace_reason"} {
		if _, ok := old.Fields[name]; !ok {
			t.Errorf("no field %s", name)
		}
		delete(old.Fields, name)
	}
	back, err := decode(old)
	if err != nil || !reflect.DeepEqual(back, r) || !back.IsPaused(opened.Add(1e6*time.Hour)) {
		t.Errorf("an old record is %+v, %v, want %+v", back, err, r)
	}
	r.PausedUntil = opened.Add(time.Hour)
	if got := r.encode().Fields; got["paused"] != true || got["schema"] != int64(Schema) {
		t.Errorf("an old program reads %v", got)
	}
}

// A pause with an end is over from that instant on.
func TestPauseEnds(t *testing.T) {
	r := New("sessions", "Session", "expiry_key", 16, true, opened)
	r.PausedUntil = opened.Add(time.Hour)
	if r.IsPaused(opened) {
		t.Error("it is not paused: only an end is there")
	}
	r.Paused = true
	if !r.IsPaused(opened) || !r.IsPaused(r.PausedUntil.Add(-1)) || r.IsPaused(r.PausedUntil) {
		t.Errorf("a pause that ends at %v is over too early or too late", r.PausedUntil)
	}
}

func TestStamperFollowsTheNewestGeneration(t *testing.T) {
	if got := New("a", "A", "p", 8, false, opened).Stamper(); got != (Stamper{0, 8}) {
		t.Errorf("sharded layout stamps %+v", got)
	}
	r := New("a", "A", "p", 8, true, opened)
	r.Generations = append(r.Generations, Generation{Number: 2, Shards: 64, Opened: opened})
	if got := r.Stamper(); got != (Stamper{2, 64}) {
		t.Errorf("stamps %+v, want generation 2 of 64 shards", got)
	}
	if got := r.OpenFirst(99, opened); !reflect.DeepEqual(got, r) {
		t.Errorf("OpenFirst changed %+v to %+v", r, got)
	}
}

func TestStamperRefuses(t *testing.T) {
	for _, n := range []int{-1, 0, 10_001} {
		if k, err := (Stamper{Shards: n}).Name("x", opened); err == nil {
			t.Errorf("%d shards stamp %v", n, k)
		}
		if k, err := (Stamper{Shards: n}).Number(1, opened); err == nil {
			t.Errorf("%d shards stamp %v", n, k)
		}
	}
}

func TestDecodeRefusesNonsense(t *testing.T) {
	for _, c := range []struct {
		field string
		value any
		want  string
	}{
		{"schema", int64(3), "newer"},
		{"schema", "1", "schema"},
		{"schema", int64(0), "schema"},
		{"created", "yesterday", "created"},
		{"created", "", "created"},
		{"nursery_shards", int64(0), "nursery_shards"},
		{"nursery_shards", int64(10_001), "nursery_shards"},
		{"generations", "none", "generations"},
		{"generations", []store.Fields{{"number": int64(0), "shards": int64(1), "opened": store.FormatTime(opened)}}, "generations[0]: field number"},
		{"generations", []store.Fields{{"number": int64(1), "shards": int64(0), "opened": store.FormatTime(opened)}}, "generations[0]: field shards"},
		{"generations", []store.Fields{{"number": int64(1), "shards": int64(1)}}, "generations[0]: field opened"},
		{"generations", []store.Fields{
			{"number": int64(2), "shards": int64(1), "opened": store.FormatTime(opened)},
			{"number": int64(2), "shards": int64(1), "opened": store.FormatTime(opened)},
		}, "generations[1]: field number"},
		{"generations", []store.Fields{
			{"number": int64(1), "shards": int64(1), "opened": store.FormatTime(opened)},
			{"number": int64(2), "shards": int64(1), "opened": store.FormatTime(opened.Add(-time.Second))},
		}, "generations[1]: field opened"},
		{"generations", []store.Fields{{"number": int64(1), "shards": int64(1), "opened": store.FormatTime(opened), "closed": store.FormatTime(opened)}}, "generations[0]: field closed"},
		{"generations", []store.Fields{{"number": int64(1), "shards": int64(1), "opened": store.FormatTime(opened), "draining": store.FormatTime(opened)}}, "generations[0]: field draining"},
		{"generations", []store.Fields{{"number": int64(1), "shards": int64(1), "opened": store.FormatTime(opened), "ramp_ms": int64(-1)}}, "generations[0]: field ramp_ms"},
		{"staleness_ms", int64(-5), "staleness_ms"},
		{"slack_ms", "ten minutes", "slack_ms"},
		{"paused", "yes", "paused"},
		{"pace_max", "fast", "pace_max"},
		{"pace_max", "-1", "pace_max"},
		{"pace_total", "0", "pace_total"},
		{"pace_total", int64(5), "pace_total"},
	} {
		rec := New("sessions", "Session", "expiry_key", 16, true, opened).encode()
		rec.Fields[c.field] = c.value
		if r, err := decode(rec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s = %v: decode = %+v, %v, want an error about %q", c.field, c.value, r, err, c.want)
		}
	}
	rec := New("sessions", "Session", "expiry_key", 16, true, opened).encode()
	rec.Fields["schema"] = int64(Schema + 1)
	if _, err := decode(rec); !errors.Is(err, ErrNewer) {
		t.Errorf("newer schema: %v does not wrap ErrNewer", err)
	}
}
