package firestore

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/store"
)

// FuzzDocumentKey: what passes as an entity's id is the path of one document, in
// the target's collection, and leads back to that id.
func FuzzDocumentKey(f *testing.F) {
	f.Add("s-1842", int64(0), "", "Session", false)
	f.Add("", int64(7), "users/u1", "sessions", true)
	f.Add("__id7__", int64(0), "users/__id7__", "sessions", true)
	f.Add("..", int64(-1), "a//b", "users/u1/sessions", false)
	f.Add("a/b", int64(0), "a/b/c", "a/b", true)
	f.Add("\xff", int64(0), "__x__/y", "", true)
	d := &DB{database: "projects/p/databases/(default)"}
	f.Fuzz(func(t *testing.T, name string, number int64, parent, kind string, group bool) {
		target := store.Target{Kind: kind, Group: group, Property: "expiry_key"}
		if check(target, "") != nil {
			return
		}
		key, err := d.Key(target, "", store.Entity{Name: name, Number: number, Parent: parent})
		if err != nil {
			if !errors.Is(err, store.ErrInvalid) || key != "" {
				t.Errorf("%q with the error %v", key, err)
			}
			return
		}
		segments := strings.Split(key, "/")
		if len(segments)%2 != 0 {
			t.Fatalf("%q is the path of a collection", key)
		}
		if above, last := splitPath(key); above != kind && !strings.HasSuffix(above, "/"+kind) || last == "" {
			t.Errorf("%q is not in %q", key, kind)
		}
		if back := d.key(d.name(key)); back != key {
			t.Errorf("%q is the document of %q", key, back)
		}
		id, err := d.ID(key)
		if err != nil {
			t.Fatalf("%q has no id: %v", key, err)
		}
		e := d.entity(target, &pb.Document{Name: d.name(key)})
		if e.Name != name || name == "" && e.Number != number || e.Parent != parent || name != "" && id != name {
			t.Errorf("%q %d below %q is %q, and back %+v and %q", name, number, parent, key, e, id)
		}
	})
}

// FuzzID has the id of whatever a position in a cursor record names.
func FuzzID(f *testing.F) {
	for _, s := range []string{"Session/s-1842", "Session/__id7__", "Session/__id99999999999999999999__", "a/b/c/__id-1__", "", "/", "Session/__x__"} {
		f.Add(s)
	}
	d := &DB{database: "projects/p/databases/(default)"}
	f.Fuzz(func(t *testing.T, key string) {
		id, err := d.ID(key)
		if err != nil && !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%q: %v", key, err)
		}
		if err == nil && (id == "" || strings.Contains(id, "/")) {
			t.Errorf("the id of %q is %q", key, id)
		}
	})
}

// FuzzJSON: a value that load takes is stored, dumped and loaded again as the same
// one.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":1.0,"c":[true,null,{"d":"\ud800"}],"":2}`, `[[1]]`, `1e999`, `9223372036854775808`, `-0.0`, `1e6`, `1e-400`, `{"__x__":1}`, `"x" 1`, `{"a":1,"a":2}`, `[{"a":[1]}]`} {
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
		out, err := json.Marshal(jsonValue(v))
		if err != nil {
			t.Fatalf("%s has no form: %v", text, err)
		}
		again, err := parseJSON(out)
		if err != nil || !proto.Equal(v, again) {
			t.Errorf("%s became %s: %v, and then %v; %v", text, out, v, again, err)
		}
	})
}

// FuzzStoredValue reads a field that holds anything the service may hold: it has a
// value, JSON that stands for it, and never one that a delete could take for
// another.
func FuzzStoredValue(f *testing.F) {
	for _, v := range everyType("projects/p/databases/(default)/documents/a/b") {
		wire, err := proto.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	for _, at := range []*timestamppb.Timestamp{{Seconds: math.MaxInt64}, {Seconds: math.MinInt64, Nanos: -1}, {Seconds: -62135596800}, {Nanos: math.MaxInt32}} {
		wire, err := proto.Marshal(&pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: at}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var field pb.Value
		if proto.Unmarshal(wire, &field) != nil {
			return
		}
		v := fromValue(&field)
		switch v.Type {
		case store.List, store.Other:
			if !json.Valid([]byte(v.Text)) {
				t.Errorf("%v is shown as %s", &field, v.Text)
			}
		case store.Text:
			if v.Text != field.GetStringValue() {
				t.Errorf("%v is the text %q", &field, v.Text)
			}
		case store.Instant:
			if v.Time.Location() != time.UTC || v.Time.Nanosecond()%1000 != 0 || v.Time.Before(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)) != field.GetTimestampValue().AsTime().Before(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)) {
				t.Errorf("%v is the instant %v", &field, v.Time)
			}
		}
		if _, err := json.Marshal(jsonValue(&field)); err != nil {
			t.Errorf("%v has no form: %v", &field, err)
		}
		rec, err := decodeRecord(store.CursorRecord, "k", map[string]*pb.Value{"x": &field, targetField: toValue(store.TextValue("t")), revisionField: toValue(store.TextValue("r"))})
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("a record with %v: %v", &field, err)
			}
			return
		}
		if _, err := encodeRecord(rec); err != nil {
			t.Errorf("a record with %v cannot be written: %v", &field, err)
		}
	})
}

// FuzzFieldPath quotes any field's name: it has no path but its own.
func FuzzFieldPath(f *testing.F) {
	f.Add("expiry_key", "`a`.b")
	f.Add(`\`, "\\`")
	f.Add("a.b", "`a.b`")
	f.Fuzz(func(t *testing.T, a, b string) {
		if (a == b) != (fieldPath(a) == fieldPath(b)) {
			t.Errorf("%q and %q have the paths %q and %q", a, b, fieldPath(a), fieldPath(b))
		}
		path := fieldPath(a)
		if quoted, ok := strings.CutPrefix(path, "`"); ok {
			var name bytes.Buffer // as the service reads it
			for i := 0; i < len(quoted)-1; i++ {
				switch quoted[i] {
				case '\\':
					i++
				case '`':
					t.Fatalf("%q ends early in %q", a, path)
				}
				name.WriteByte(quoted[i])
			}
			path = name.String()
		}
		if path != a && utf8.ValidString(a) {
			t.Errorf("the path of %q names %q", a, path)
		}
	})
}
