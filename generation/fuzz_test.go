package generation

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// FuzzDecode meddles with one field of a target record and one of a generation in
// it: it is refused with a word on which, or it makes sense, is written again as
// it is read then, and has a life.
func FuzzDecode(f *testing.F) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	whole := Record{
		Target: "sessions", Created: at, Kind: "Session", Property: "expiry_key", NurseryShards: 16, Staleness: time.Minute, Slack: time.Hour,
		Paused: true, PausedUntil: at.Add(time.Hour), PauseNote: Note{"ann@desk", at, "why"}, PaceNote: Note{"bob@desk", at, ""}, PaceMax: Rate{Set: true, PerSecond: 0.5}, PaceTotal: Rate{Set: true, Unlimited: true}, Checked: at, Outside: 3, EmptyIndex: true, Probe: at, Revision: "4-x",
		Generations: []Generation{
			{Number: 2, Shards: 4, Opened: at, Closed: at.Add(time.Hour), Draining: at.Add(2 * time.Hour), Staleness: time.Minute, Slack: time.Minute},
			{Number: 3, Shards: 8, Opened: at.Add(time.Hour), Ramp: time.Hour, Closed: at.Add(3 * time.Hour)},
			{Number: 7, Shards: 9999, Opened: at.Add(3 * time.Hour), Ramp: time.Minute},
		},
	}
	base := whole.encode()
	list := base.Fields["generations"].([]store.Fields)
	names, inner := slices.Sorted(maps.Keys(base.Fields)), slices.Sorted(maps.Keys(list[0]))
	for i := range names {
		for kind := range uint8(7) {
			f.Add(uint8(i), kind, "2026-11-21T13:00:00.000000Z", int64(-1), uint8(0), uint8(i), uint8(9), "", 1e300)
			f.Add(uint8(i), uint8(9), "", int64(10_001), kind, uint8(i), kind, "2026-11-21T11:00:00.000000Z", 0.5)
		}
		f.Add(uint8(i), uint8(0), "unlimited", int64(0), uint8(1), uint8(i), uint8(1), "", 0.0)
		f.Add(uint8(i), uint8(0), "1e999", int64(math.MaxInt64), uint8(1), uint8(i), uint8(1), "", 0.0)
	}
	f.Fuzz(func(t *testing.T, which1, kind1 uint8, text1 string, n int64, which, which2, kind2 uint8, text2 string, x float64) {
		rec := base
		rec.Fields = maps.Clone(base.Fields)
		copied := slices.Clone(list)
		if which%4 == 3 { // none at all
			copied = nil
		} else {
			copied[which%4] = maps.Clone(copied[which%4])
			storetest.Meddle(copied[which%4], inner[int(which2)%len(inner)], kind2, text2, n, -x)
		}
		rec.Fields["generations"] = copied
		storetest.Meddle(rec.Fields, names[int(which1)%len(names)], kind1, text1, n, x)
		r, err := decode(rec)
		if err != nil {
			if len(err.Error()) < 20 || !reflect.DeepEqual(r, Record{}) {
				t.Errorf("%+v is returned with the error %v", r, err)
			}
			return
		}
		for i, g := range r.Generations {
			if g.Number < First || g.Number > expirykey.MaxGeneration || g.Shards < 1 || g.Shards > expirykey.MaxShard+1 || g.Ramp < 0 || g.Staleness < 0 || g.Slack < 0 ||
				i > 0 && g.Number <= r.Generations[i-1].Number || i == len(r.Generations)-1 && !g.Closed.IsZero() {
				t.Errorf("generation %+v is taken", g)
			}
		}
		if r.PaceMax.Set && !r.PaceMax.Unlimited && !(r.PaceMax.PerSecond > 0 && !math.IsInf(r.PaceMax.PerSecond, 0)) || r.NurseryShards < 0 || r.NurseryShards > expirykey.MaxShard+1 {
			t.Errorf("%+v is taken", r)
		}
		again, err := decode(r.encode())
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%+v\nis written and read again as %+v; %v", r, again, err)
		}
		live(t, r)
	})
}

// live asks a record everything that a sweep and a writer ask it, at instants
// around its own.
func live(t *testing.T, r Record) {
	t.Helper()
	for _, now := range []time.Time{{}, r.Created, r.Created.Add(90 * time.Minute), r.Created.AddDate(1, 0, 0), r.Created.AddDate(9000, 0, 0)} {
		for _, g := range r.Live() {
			if g.Shards < 1 {
				t.Fatalf("a generation without shards: %+v", g)
			}
		}
		for i := range r.Generations {
			_ = fmt.Sprint(r.State(i, now, 1))
		}
		if r.NurseryShards == 0 {
			continue // timestamps are in no generation
		}
		if _, err := r.StamperFor("s-1842", now).Name("s-1842", r.Created); err != nil && r.Created.Year() >= 1 && r.Created.Year() < 9999 {
			t.Errorf("nobody can stamp at %v: %v", now, err)
		}
		next, _ := r.Next(Policy{Every: time.Hour, Ramp: time.Minute, Staleness: time.Minute, Slack: time.Minute, Keep: 1, Shards: 4}, now)
		if len(next.Generations) < len(r.Generations) {
			t.Errorf("at %v %d generations became %d", now, len(r.Generations), len(next.Generations))
		}
	}
}
