package cursor

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// FuzzDecode meddles with two fields of a cursor record: it is refused with a word
// on which, or what was read is written again as it is read then.
func FuzzDecode(f *testing.F) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)
	whole := Cursor{
		ID:       ID{Target: "sessions", Namespace: "eu", Generation: 3, Shard: "0007"},
		Scope:    Scope{Kind: "Session", Property: "expiry_key", Layout: "generation", Opened: at},
		Position: store.Position{Value: store.TextValue("00000003.0007.20261121T000730.855Z"), Key: `"s-1842"`},
		Swept:    at, Deleted: 7, Rate: 500, RateUsed: at, Throttled: "ramp", TargetRevision: 12, Revision: "4-x",
		Rewind: Rewind{Position: store.Position{Value: store.InstantValue(at), Key: "7"}, Began: at, Done: at, Window: time.Minute},
		Stock:  Stock{Next: at, Suspects: true, Refused: true, Emptied: at},
		Lease:  Lease{Owner: "me", Token: 9, Epoch: 3, Released: at},
	}
	base := whole.encode()
	names := slices.Sorted(maps.Keys(base.Fields))
	for i := range names {
		for kind := range uint8(6) {
			f.Add(uint8(i), kind, "2026-11-21T12:00:00.000000Z", int64(-1), uint8(0), uint8(9), "", 1e300)
		}
		f.Add(uint8(i), uint8(0), "", int64(0), uint8(i+1), uint8(1), "0000-01-01T00:00:00,000000Z", 0.0)
		f.Add(uint8(i), uint8(1), "", int64(1<<62), uint8(i+2), uint8(0), "a/%2F\xff", 0.0)
	}
	f.Fuzz(func(t *testing.T, which1, kind1 uint8, text1 string, n int64, which2, kind2 uint8, text2 string, x float64) {
		rec := base
		rec.Fields = maps.Clone(base.Fields)
		storetest.Meddle(rec.Fields, names[int(which1)%len(names)], kind1, text1, n, x)
		storetest.Meddle(rec.Fields, names[int(which2)%len(names)], kind2, text2, n/2, -x)
		ns, ok1 := rec.Fields["namespace"].(string)
		shard, ok2 := rec.Fields["shard"].(string)
		g, ok3 := rec.Fields["generation"].(int64)
		if ok1 && ok2 && ok3 { // so that a record is not refused for its key alone
			rec.Key = ID{Target: rec.Target, Namespace: ns, Generation: int(g), Shard: shard}.Key()
		}
		c, err := decode(rec)
		if err != nil {
			if len(err.Error()) < 20 || !reflect.DeepEqual(c, Cursor{}) {
				t.Errorf("%+v is returned with the error %v", c, err)
			}
			return
		}
		if c.Generation < 0 || c.Deleted < 0 || c.Lease.Token < 0 || c.Lease.Length < 0 || c.Rewind.Window < 0 || !(c.Rate >= 0) {
			t.Errorf("%+v is read as %+v", rec.Fields, c)
		}
		again, err := decode(c.encode())
		if err != nil || again != c {
			t.Errorf("%+v\nis written and read again as %+v; %v", c, again, err)
		}
		for _, values := range []store.Type{store.Text, store.Instant} {
			got := NewTable(c).Get(c.ID, c.Scope, values)
			if v := got.Position.Value.Type; v != store.Missing && v != values {
				t.Errorf("%v for a target of type %d", got.Position, values)
			}
			if got.Lease.Token != c.Lease.Token {
				t.Errorf("the token went from %d to %d", c.Lease.Token, got.Lease.Token)
			}
		}
	})
}

// FuzzKey: no two ranges have one key, and each is a name that every store takes.
func FuzzKey(f *testing.F) {
	f.Add("sessions", "eu", 1, "0003", "sessions", "", 1, "0003@eu")
	f.Add("a.00000001", "", 1, "x", "a", "", 1, "00000001.x")
	f.Add("a", "b%", 0, "\xff", "a", "b%25", 0, "%FF")
	f.Fuzz(func(t *testing.T, target1, ns1 string, g1 int, shard1, target2, ns2 string, g2 int, shard2 string) {
		a, b := ID{target1, ns1, g1, shard1}, ID{target2, ns2, g2, shard2}
		if (a == b) != (a.Key() == b.Key()) {
			t.Errorf("%+v and %+v have the keys %q and %q", a, b, a.Key(), b.Key())
		}
		for _, c := range a.Key() {
			if c <= ' ' || c > '~' || c == '/' {
				t.Errorf("the key %q", a.Key())
			}
		}
	})
}

// FuzzDecodeHeartbeat meddles with two fields of a heartbeat: it says what is wrong with
// it and counts as nothing else, or what was read is written again as it is read then.
func FuzzDecodeHeartbeat(f *testing.F) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)
	base := Heartbeat{Target: "sessions", Owner: "host/7/A", Process: "1-X", Epoch: 3, Count: 9, Lease: 30 * time.Second,
		Read: at, Begun: at, Renewed: at, Version: "v1", Revision: "4-x"}.encode()
	names := slices.Sorted(maps.Keys(base.Fields))
	for i := range names {
		for kind := range uint8(6) {
			f.Add(uint8(i), kind, "2026-11-21T12:00:00.000000Z", int64(-1), uint8(0), uint8(9), "", 1e300)
		}
		f.Add(uint8(i), uint8(1), "", int64(1<<62), uint8(i+2), uint8(0), "a/%2F\xff", 0.0)
	}
	f.Fuzz(func(t *testing.T, which1, kind1 uint8, text1 string, n int64, which2, kind2 uint8, text2 string, x float64) {
		rec := base
		rec.Fields = maps.Clone(base.Fields)
		storetest.Meddle(rec.Fields, names[int(which1)%len(names)], kind1, text1, n, x)
		storetest.Meddle(rec.Fields, names[int(which2)%len(names)], kind2, text2, n/2, -x)
		if owner, ok := rec.Fields["owner"].(string); ok { // so that it is not invalid for its key alone
			rec.Key = HeartbeatKey(rec.Target, owner)
		}
		h, err := decodeHeartbeat(rec)
		switch {
		case err != nil:
			if !errors.Is(err, ErrNewer) || h != (Heartbeat{}) {
				t.Errorf("%+v is returned with the error %v", h, err)
			}
		case h.Invalid != nil:
			if h.Epoch != 0 || h.Lease != 0 || h.Key() != rec.Key || len(h.Invalid.Error()) < 20 {
				t.Errorf("%+v", h)
			}
		case h.Epoch < 1 || h.Count < 0 || h.Lease < 0:
			t.Errorf("%+v is read as %+v", rec.Fields, h)
		default:
			if again, err := decodeHeartbeat(h.encode()); err != nil || again != h {
				t.Errorf("%+v\nis written and read again as %+v; %v", h, again, err)
			}
		}
	})
}

// A packed cursor says all that its record says, and a finer one is kept whole.
func TestPack(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)
	id := ID{Target: "sessions", Namespace: "eu", Generation: 3, Shard: "0007"}
	scope := Scope{Kind: "Session", Property: "expiry_key", Layout: "generation", Opened: at}
	full := Cursor{
		ID: id, Scope: scope, Seen: time.Now(), Sent: time.Now(),
		Position: store.Position{Value: store.TextValue("00000003.0007.20261121T000730.855Z"), Key: `"s-1842"`},
		Swept:    at, Deleted: 1 << 62, Rate: 499.7, RateUsed: at, Throttled: "ramp", TargetRevision: 12, Revision: "4-x",
		Rewind: Rewind{Position: store.Position{Value: store.InstantValue(at), Key: "7"}, Began: at, Done: at, Window: time.Minute},
		Stock:  Stock{Next: time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC), Suspects: true, Refused: true, Emptied: at},
		Lease:  Lease{Owner: "me", Token: 9, Epoch: 3, Released: at, Renewals: 5, Length: time.Second},
	}
	for i := range reflect.TypeFor[Cursor]().NumField() { // each field alone, and all of them
		one := Cursor{ID: id}
		reflect.ValueOf(&one).Elem().Field(i).Set(reflect.ValueOf(full).Field(i))
		for _, c := range []Cursor{one, full} {
			if p := Pack(c); p.whole != nil || p.Cursor(c.ID) != c {
				t.Errorf("%+v comes back as %+v", c, p.Cursor(c.ID))
			}
		}
	}
	for _, odd := range []Cursor{
		{ID: id, Swept: at.Add(time.Nanosecond)},
		{ID: id, Position: store.Position{Key: "a key without a value"}},
		{ID: id, Rewind: Rewind{Began: at.Local()}},
	} {
		if p := Pack(odd); p.whole == nil || p.Cursor(id) != odd {
			t.Errorf("%+v comes back as %+v", odd, p.Cursor(id))
		}
	}
	if n := len(Pack(full).text); n > 200 {
		t.Errorf("the fullest cursor takes %d bytes", n)
	}
	if n := len(Pack(Cursor{ID: id, Scope: scope, Position: full.Position, Swept: at, Rewind: Rewind{Done: at}, Revision: "4-x"}).text); n > 96 {
		t.Errorf("a cursor at rest takes %d bytes", n)
	}
}
