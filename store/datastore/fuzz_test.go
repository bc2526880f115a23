package datastore

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/store"
)

// FuzzJSON: a value that load takes is stored, dumped and loaded again as the same
// one.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":1.5,"c":[true,null,{"d":"\ud800"}],"":2}`, `[[1]]`, `1e999`, `9223372036854775808`, `-0.0`, `1e6`, `1e-400`, `{"__x__":1}`, `"x" 1`, `{"a":1,"a":2}`, `[{"a":[1]}]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := parseJSON(text)
		if err != nil {
			if !errors.Is(err, store.ErrInvalid) {
				t.Errorf("%s: %v", text, err)
			}
			return
		}
		out := jsonText(v)
		again, err := parseJSON([]byte(out))
		if err != nil || !reflect.DeepEqual(v, again) {
			t.Errorf("%s became %s, and then %s; %v", text, out, jsonText(again), err)
		}
	})
}

// FuzzStoredValue reads a property of any of the client's types. It has a value,
// and valid JSON that represents it. It equals the scanned value only if it is
// well-formed.
func FuzzStoredValue(f *testing.F) {
	for kind := range uint8(12) {
		f.Add(kind, "00000001.0003.20261121T000730.855Z", int64(1_795_219_650_855_000), 1.5, kind+1)
	}
	f.Add(uint8(3), "\xff", int64(math.MinInt64), math.NaN(), uint8(9))
	f.Fuzz(func(t *testing.T, kind uint8, s string, n int64, x float64, inner uint8) {
		v := stored(raw(kind, inner, s, n, x))
		switch v.Type {
		case store.List, store.Other:
			if !json.Valid([]byte(v.Text)) {
				t.Errorf("kind %d, %q, %d, %v is shown as %s", kind, s, n, x, v.Text)
			}
			if same(v, v) {
				t.Errorf("%+v is malformed, and a delete goes through", v)
			}
		case store.Text, store.Instant:
			if !same(v, v) || same(v, store.Value{}) {
				t.Errorf("%+v is not itself", v)
			}
		}
		for _, want := range []store.Type{store.Text, store.Instant} {
			shown := indexed(raw(kind, inner, s, n, x), want)
			if shown.Type == store.Instant && want == store.Text && v.Type != store.Instant {
				t.Errorf("%+v is shown as %+v", v, shown)
			}
		}
		ps := sdk.PropertyList{{Name: "x", Value: raw(kind, inner, s, n, x)}, {Name: targetProperty, Value: "t"}, {Name: revisionProperty, Value: "r"}}
		rec, err := decodeRecord(store.CursorRecord, "k", ps)
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("a record with %v: %v", ps[0].Value, err)
			}
			return
		}
		if _, err := encodeRecord(rec); err != nil {
			t.Errorf("a record with %v cannot be written: %v", ps[0].Value, err)
		}
	})
}

// raw returns a value of one of the client's types.
func raw(kind, inner uint8, s string, n int64, x float64) any {
	switch kind % 12 {
	case 0:
		return nil
	case 1:
		return s
	case 2:
		return n
	case 3:
		return x
	case 4:
		return n%2 == 0
	case 5:
		return time.UnixMicro(n)
	case 6:
		return []byte(s)
	case 7:
		return sdk.NameKey("K", s, sdk.IDKey("P", n, nil))
	case 8:
		return sdk.GeoPoint{Lat: x, Lng: float64(n)}
	case 9:
		if inner%12 == 9 {
			return []any{}
		}
		return []any{raw(inner, inner/12, s, n, x), s}
	case 10:
		if inner%12 >= 9 {
			return &sdk.Entity{}
		}
		return &sdk.Entity{Properties: []sdk.Property{{Name: s, Value: raw(inner, 0, s, n, x)}}}
	}
	return (*sdk.Key)(nil)
}

// FuzzGroups: keys that the client confuses are never in one call, and each is in
// exactly one.
func FuzzGroups(f *testing.F) {
	f.Add("7", int64(7), "a/K,b", "b")
	f.Add("n/K,a", int64(-1), "", "a,n")
	f.Fuzz(func(t *testing.T, a string, n int64, b, namespace string) {
		var keys []*sdk.Key
		for _, name := range []string{a, b, a + b, b + "/K," + a, a + "," + namespace + "/K," + b} {
			for _, parent := range []*sdk.Key{nil, {Kind: "K", Name: "a" + b, Namespace: namespace}, {Kind: "K", ID: n | 1, Namespace: namespace}} {
				k := &sdk.Key{Kind: "K", Name: name, Parent: parent, Namespace: namespace}
				if name == "" {
					k.ID = n | 1
				}
				if !slices.ContainsFunc(keys, k.Equal) {
					keys = append(keys, k)
				}
			}
		}
		seen := make([]int, len(keys))
		for _, group := range groups(keys) {
			texts := map[string]bool{}
			for _, i := range group {
				seen[i]++
				text := string(appendClientText(nil, keys[i]))
				if texts[text] {
					t.Errorf("two keys of one call are called %q", text)
				}
				texts[text] = true
			}
		}
		for i, n := range seen {
			if n != 1 {
				t.Errorf("%v is in %d calls", keys[i], n)
			}
		}
	})
}
