package datastore

import (
	"errors"
	"slices"
	"strings"
	"testing"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/store"
)

func TestFormatKey(t *testing.T) {
	user := sdk.IDKey("User", 7, nil)
	for _, c := range []struct {
		key  *sdk.Key
		want string
	}{
		{nil, ""},
		{sdk.NameKey("Session", "s-1842", nil), "Session/s-1842"},
		{sdk.NameKey("Session", "7", nil), "Session/7"},
		{sdk.IDKey("Session", 7, nil), "Session/#7"},
		{sdk.NameKey("Session", "#7", nil), "Session/%237"},
		{sdk.NameKey("Session", "a#7", nil), "Session/a#7"},
		{sdk.NameKey("Session", "a/b%\n\u0085é世", user), "User/#7/Session/a%2Fb%25%0A%C2%85é世"},
		{sdk.NameKey("K/ind", "\xff", nil), "K%2Find/%FF"},
	} {
		got := FormatKey(c.key)
		if got != c.want {
			t.Errorf("FormatKey(%v) = %q, want %q", c.key, got, c.want)
		}
		if c.key == nil {
			continue
		}
		if back, err := ParseKey("", got); err != nil || !back.Equal(c.key) {
			t.Errorf("ParseKey(%q) = %v, %v, want %v", got, back, err, c.key)
		}
	}
}

func TestParseKeyRefuses(t *testing.T) {
	for _, text := range []string{"", "Session", "Session/", "/s", "Session/#", "Session/#0", "Session/#07", "Session/#+7", "Session/#x",
		"Session/%2", "Session/%", "Session/%zz", "Session/%2f", "Session/%41", "a/b/c", "a/b/", "Session/a\nb", "#/#1x"} {
		if k, err := ParseKey("", text); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("ParseKey(%q) = %v, %v, want ErrInvalid", text, k, err)
		}
	}
}

// FuzzKey holds that keys survive their text, and that each has one only.
func FuzzKey(f *testing.F) {
	f.Add("User", "u", int64(0), "Session", "s-1842", int64(0), "ns")
	f.Add("User", "", int64(7), "Session", "#7/%\x00\xff", int64(0), "")
	f.Add("", "", int64(0), "Session", "", int64(-7), "")
	f.Fuzz(func(t *testing.T, kind1, name1 string, id1 int64, kind2, name2 string, id2 int64, namespace string) {
		build := func(kind, name string, id int64, parent *sdk.Key) *sdk.Key {
			if name != "" {
				id = 0
			}
			return &sdk.Key{Kind: kind, Name: name, ID: id, Parent: parent, Namespace: namespace}
		}
		var parent *sdk.Key
		if kind1 != "" && (name1 != "" || id1 != 0) {
			parent = build(kind1, name1, id1, nil)
		}
		key := build(kind2, name2, id2, parent)
		if kind2 == "" || key.Incomplete() {
			return
		}
		text := FormatKey(key)
		back, err := ParseKey(namespace, text)
		if err != nil || !back.Equal(key) {
			t.Fatalf("ParseKey(%q) = %#v, %v, want %#v", text, back, err, key)
		}
		if strings.ContainsAny(text, "\x00\n\x7f") {
			t.Errorf("FormatKey(%#v) = %q holds control characters", key, text)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add("User/#7/Session/%237")
	f.Fuzz(func(t *testing.T, text string) {
		if k, err := ParseKey("ns", text); err == nil && FormatKey(k) != text {
			t.Errorf("FormatKey(ParseKey(%q)) = %q", text, FormatKey(k))
		}
	})
}

func TestGroupsKeepApartWhatTheClientConfuses(t *testing.T) {
	a := sdk.NameKey("K", "a", nil)
	keys := []*sdk.Key{
		sdk.NameKey("K", "7", nil), sdk.IDKey("K", 7, nil),
		sdk.NameKey("K", "b", a), sdk.NameKey("K", "a/K,b", nil),
		sdk.NameKey("K", "c", nil),
	}
	for i, k := range keys {
		for _, o := range keys[:i] {
			if k.Equal(o) {
				t.Fatalf("%v is there twice", k)
			}
		}
	}
	got := groups(keys)
	if want := [][]int{{0, 2, 4}, {1, 3}}; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("groups = %v, want %v", got, want)
	}
	// In a namespace the client appends it to every part.
	outer := &sdk.Key{Kind: "K", Name: "a", Namespace: "n"}
	inner := &sdk.Key{Kind: "K", Name: "b", Namespace: "n", Parent: outer}
	if got := groups([]*sdk.Key{inner, {Kind: "K", Name: "a,n/K,b", Namespace: "n"}}); len(got) != 2 {
		t.Errorf("groups in a namespace = %v, want two", got)
	}
}
