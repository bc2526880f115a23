package archive_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/store"
)

// at is a time to the microsecond, which is what the stores have.
var at = time.Date(2026, 11, 26, 18, 26, 4, 123456000, time.UTC)

// archived returns a bucket with one object of n entities, of which every tenth was kept, and the object's name.
func archived(t testing.TB, list []store.Copy, mode archive.Mode) (*memoryBucket, string) {
	b := newMemoryBucket()
	cfg := config(b)
	cfg.Header.Mode = mode
	cfg.RollAfter = 40 * time.Microsecond
	w, err := archive.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.Keep(context.Background(), "ns", list)
	if err != nil {
		t.Fatal(err)
	}
	r.Done(func(key string) archive.State {
		if strings.HasSuffix(key, "9") {
			return archive.Kept
		}
		return archive.Deleted
	})
	if err := w.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, name := range b.names() {
		if !strings.Contains(name, ".done.") {
			return b, name
		}
	}
	t.Fatal("no object was written")
	return nil, ""
}

// Entities come back as they were.
func TestRoundTrip(t *testing.T) {
	list := []store.Copy{
		{Key: "Session/s-1", Data: []byte(`{"a":"<&> ü","b":[1,2.50,1e400]}`), Version: "17", Created: at, Updated: at.Add(1),
			Expiry: store.TextValue("20261101\n\"x\"")},
		{Key: "Session/1", Data: []byte(`{}`), Expiry: store.InstantValue(at)},
		{Key: "Session/2", Data: []byte(`null`), Expiry: store.Value{Type: store.List, Text: `["a",1]`}},
		{Key: "Session/3", Data: []byte(`"x"`), Expiry: store.IntegerValue(-5)},
		{Key: "Session/4", Data: []byte(`[]`), Expiry: store.Value{Type: store.Instant, Time: time.Time{}}},
		{Key: "Session/5", Data: []byte(`[]`), Expiry: store.TextValue("")},
		{Key: "Session/9", Data: []byte(`1`)},
	}
	for _, mode := range []archive.Mode{archive.Full, archive.Keys} {
		b, name := archived(t, list, mode)
		lines, err := read(b, name)
		if err != nil || len(lines) != len(list) {
			t.Fatal(len(lines), err)
		}
		for i, l := range lines {
			want := list[i]
			if mode == archive.Keys {
				want.Data = nil
			}
			if !reflect.DeepEqual(l.Copy, want) {
				t.Errorf("%+v\ncame back as\n%+v", want, l.Copy)
			}
			if state := map[bool]archive.State{true: archive.Kept, false: archive.Deleted}[i == 6]; l.Number != i+1 ||
				l.Namespace != "ns" || l.State != state || l.At.IsZero() {
				t.Errorf("%+v", l)
			}
		}
	}
}

// A line is what encoding/json makes of it, and comes back as it was.
func FuzzLine(f *testing.F) {
	f.Add("Session/s-1", "ns", "17", "2026", `{"a": "<&> \u2028\n ü", "b":[1,2.50]}`, int64(1795717564123456), uint8(store.Text))
	f.Add("Session/\"\\\x7f\n\u2028<&>ü", "", "", "", `1`, int64(0), uint8(store.Missing))
	f.Add(`"s\\-"1`, `"`, `\`, "~ <&>", `{"a":"\""}`, int64(1), uint8(store.Text))
	f.Add("k", "", "", "", `{`, int64(0), uint8(77))
	f.Fuzz(func(t *testing.T, key, namespace, version, text, data string, micros int64, kind uint8) {
		c := store.Copy{Key: key, Version: version, Data: []byte(data), Expiry: store.Value{Type: store.Type(kind), Text: text}}
		if micros > 0 {
			c.Updated = time.UnixMicro(micros).UTC()
			c.Expiry.Time = c.Updated
		}
		got, err := archive.AppendLine([]byte("before\n"), namespace, c, at)
		if err != nil {
			if string(got) != "before\n" {
				t.Errorf("%q after %v", got, err)
			}
			return
		}
		got = bytes.TrimPrefix(got, []byte("before\n"))
		var want bytes.Buffer
		to := json.NewEncoder(&want)
		to.SetEscapeHTML(false)
		like := lineOf(c, namespace)
		if err := to.Encode(like); err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%q, not %q: %v", got, want.Bytes(), err)
		}
		l, err := archive.ParseLine(got)
		if c.Data = like.Data; err != nil || l.Namespace != namespace || !l.At.Equal(at) || l.Key != key || l.Version != version ||
			l.Expiry != c.Expiry || !l.Updated.Equal(c.Updated) {
			t.Errorf("%+v came back as %+v: %v", c, l, err)
		}
	})
}

// A likeLine is a line as the format has it.
type likeLine struct {
	Key       string          `json:"key"`
	Namespace string          `json:"namespace"`
	Version   string          `json:"version,omitempty"`
	Created   time.Time       `json:"created,omitzero"`
	Updated   time.Time       `json:"updated,omitzero"`
	Expiry    any             `json:"expiry,omitempty"`
	At        time.Time       `json:"at"`
	Data      json.RawMessage `json:"data,omitempty"`
}

func lineOf(c store.Copy, namespace string) likeLine {
	l := likeLine{Key: c.Key, Namespace: namespace, Version: c.Version, Created: c.Created, Updated: c.Updated, At: at, Data: c.Data}
	if c.Expiry != (store.Value{}) {
		l.Expiry = struct {
			Type string    `json:"type"`
			Text string    `json:"text,omitempty"`
			Time time.Time `json:"time,omitzero"`
		}{[]string{"missing", "text", "instant", "list", "other"}[c.Expiry.Type], c.Expiry.Text, c.Expiry.Time}
	}
	return l
}

func TestHeader(t *testing.T) {
	b, name := archived(t, copies(0, 1), archive.Full)
	r, err := archive.OpenObject(t.Context(), b, name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := r.Header()
	want := header
	want.Schema, want.Created = archive.Schema, got.Created
	if got != want || got.Created.IsZero() || r.Manifest() == nil || r.Manifest().Lines != 1 {
		t.Errorf("%+v, manifest %+v", got, r.Manifest())
	}
	for _, bad := range []string{"", "x", "../x", strings.Replace(name, ".ndjson", ".done.ndjson", 1)} {
		if _, err := archive.OpenObject(t.Context(), b, bad); err == nil {
			t.Errorf("%q was opened", bad)
		}
	}
	missing := strings.Replace(name, "sessions/2", "sessions/3", 1)
	if _, err := archive.OpenObject(t.Context(), b, missing); !errors.Is(err, archive.ErrNotFound) {
		t.Error(err)
	}
}

// An object of 20,000 lines reads back, and costs little.
func TestManyLines(t *testing.T) {
	b, name := archived(t, copies(0, 20_000), archive.Full)
	lines, err := read(b, name)
	if err != nil || len(lines) != 20_000 || lines[19_999].Key != "Session/s-019999" || lines[19_998].State != archive.Deleted {
		t.Fatal(len(lines), err)
	}
	t.Logf("%d bytes for 20,000 entities", len(b.objects[name]))
}

// unpack and pack change the text of an object.
func unpack(t testing.TB, data []byte) []byte {
	d, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	text, err := d.DecodeAll(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func pack(t testing.TB, text []byte) []byte {
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	return e.EncodeAll(text, nil)
}

// What is not as it was written yields what can be read, and says what is wrong.
func TestDamage(t *testing.T) {
	for name, c := range map[string]struct {
		change func(text []byte) []byte
		lines  int
		err    error
		says   string
	}{
		"no last line": {func(x []byte) []byte { return x[:bytes.LastIndexByte(x[:len(x)-1], '\n')+1] }, 50, archive.ErrDamaged,
			"line 51 and all behind it are missing"},
		"half a line": {func(x []byte) []byte { return x[:bytes.Index(x, []byte("s-000030"))] }, 30, archive.ErrDamaged,
			"line 31 and all behind it are missing"},
		"changed":  {func(x []byte) []byte { return bytes.Replace(x, []byte("u-7\""), []byte("u-8\""), 1) }, 50, archive.ErrChanged, "changed since it was written"},
		"not JSON": {func(x []byte) []byte { return bytes.Replace(x, []byte(`{"key":"Session/s-000003"`), []byte("{"), 1) }, 3, archive.ErrDamaged, "line 4 cannot be read"},
		"line less": {func(x []byte) []byte {
			i := bytes.IndexByte(x, '\n') + 1
			return append(x[:i:i], x[i+bytes.IndexByte(x[i:], '\n')+1:]...)
		}, 49, archive.ErrDamaged, "49 lines instead of 50"},
		"more":             {func(x []byte) []byte { return append(x, 'x') }, 50, archive.ErrDamaged, "there is more"},
		"header":           {func(x []byte) []byte { return x[1:] }, 0, archive.ErrDamaged, "header cannot be read"},
		"nothing":          {func([]byte) []byte { return nil }, 0, archive.ErrDamaged, "header cannot be read"},
		"schema":           {func(x []byte) []byte { return bytes.Replace(x, []byte(`"schema":1`), []byte(`"schema":2`), 1) }, 0, archive.ErrNewer, "schema is 2, and this version reads up to 1"},
		"unknown mode":     {func(x []byte) []byte { return bytes.Replace(x, []byte(`"full"`), []byte(`"half"`), 1) }, 0, archive.ErrDamaged, "half"},
		"unknown expiry":   {func(x []byte) []byte { return bytes.Replace(x, []byte(`"text"`), []byte(`"date"`), 1) }, 0, archive.ErrDamaged, `unknown type "date"`},
		"lines of no data": {func(x []byte) []byte { return bytes.Replace(x, []byte(`"data"`), []byte(`"dato"`), 1) }, 0, archive.ErrDamaged, "no data"},
	} {
		t.Run(name, func(t *testing.T) {
			b, object := archived(t, copies(0, 50), archive.Full)
			b.objects[object] = pack(t, c.change(unpack(t, b.objects[object])))
			lines, err := read(b, object)
			if len(lines) != c.lines || !errors.Is(err, c.err) || !strings.Contains(fmt.Sprint(err), c.says) ||
				!strings.Contains(fmt.Sprint(err), object) {
				t.Errorf("%d lines, %v; want %d, %q", len(lines), err, c.lines, c.says)
			}
		})
	}
}

// An object that was replaced by one with the same lines is not the one of the manifest.
func TestReplaced(t *testing.T) {
	b, name := archived(t, copies(0, 50), archive.Full)
	text := unpack(t, b.objects[name])
	b.objects[name] = append(pack(t, text[:100]), pack(t, text[100:])...)
	if lines, err := read(b, name); len(lines) != 50 || !errors.Is(err, archive.ErrDamaged) ||
		!strings.Contains(err.Error(), "its manifest is of an object with 50 lines") {
		t.Errorf("%d lines, %v", len(lines), err)
	}
}

// Each changed byte and each truncation of the file is noticed, and none panics.
func TestEachByte(t *testing.T) {
	b, name := archived(t, copies(0, 20), archive.Full)
	whole := b.objects[name]
	for i := range whole {
		for what, data := range map[string][]byte{"truncated": whole[:i], "changed": bytes.Clone(whole)} {
			if what == "changed" {
				data[i] ^= 0x41
			}
			b.objects[name] = data
			if _, err := read(b, name); err == nil {
				t.Errorf("%s at %d, and nobody notices", what, i)
			}
		}
	}
}

// A failingBucket ends each read of an object, or of a manifest, with an error after so many bytes.
type failingBucket struct {
	*memoryBucket
	manifest bool // fail for manifests, instead of objects
	after    int64
	err      error
}

func (b *failingBucket) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	in, err := b.memoryBucket.Open(ctx, name)
	if err != nil || strings.Contains(name, ".done.") != b.manifest {
		return in, err
	}
	return io.NopCloser(io.MultiReader(io.LimitReader(in, b.after), iotest.ErrReader(b.err))), nil
}

// A bucket that fails while an object is read says nothing of the object: restores must not skip it as if it were
// damaged.
func TestFailedRead(t *testing.T) {
	good, name := archived(t, copies(0, 50), archive.Full)
	manifest := strings.Replace(name, ".ndjson", ".done.ndjson", 1)
	for _, what := range []string{name, manifest} {
		for _, failure := range []error{errFault, context.Canceled, io.ErrUnexpectedEOF} {
			for after := range len(good.objects[what]) + 1 {
				b := &failingBucket{good, what == manifest, int64(after), failure}
				_, err := read(b, name)
				if !errors.Is(err, failure) || !strings.Contains(err.Error(), what) || errors.Is(err, archive.ErrDamaged) ||
					errors.Is(err, archive.ErrChanged) {
					t.Fatalf("after %d bytes of %s: %v, want %v alone", after, what, err, failure)
				}
			}
		}
	}
}

// Manifests that make no sense leave the lines unconfirmed, and are reported.
func TestManifestDamage(t *testing.T) {
	for what, change := range map[string]func(*archive.Manifest){
		"overlap":  func(m *archive.Manifest) { m.Kept = []archive.Run{{1, 3}} },
		"order":    func(m *archive.Manifest) { m.Deleted = []archive.Run{{5, 1}, {2, 1}} },
		"beyond":   func(m *archive.Manifest) { m.Deleted = []archive.Run{{1, 21}} },
		"overflow": func(m *archive.Manifest) { m.Kept = []archive.Run{{2, 1<<63 - 1}} },
		"zero":     func(m *archive.Manifest) { m.Kept = []archive.Run{{0, 1}} },
		"other":    func(m *archive.Manifest) { m.Object = "x" },
		"schema":   func(m *archive.Manifest) { m.Schema = 2 },
		"hash":     func(m *archive.Manifest) { m.SHA256 = "00" },
		"no lines": func(m *archive.Manifest) { m.Lines = 19 },
	} {
		b, name := archived(t, copies(0, 20), archive.Full)
		m, err := archive.ReadManifest(t.Context(), b, name)
		if err != nil {
			t.Fatal(err)
		}
		change(m)
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b.objects[strings.Replace(name, ".ndjson", ".done.ndjson", 1)] = pack(t, text)
		if lines, err := read(b, name); err == nil || len(lines) != 20 {
			t.Errorf("%s: %d lines, %v", what, len(lines), err)
		}
	}
}

// Objects lists by time, with what is known of manifests, and skips what is not of an archive.
func TestObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBucket()
		cfg := config(b)
		begun := time.Now()
		w := open(t, cfg)
		for i := range 4 {
			r, err := w.Keep(t.Context(), "", copies(i, 1))
			if err != nil {
				t.Fatal(err)
			}
			if i != 1 {
				r.Done(all(archive.Deleted))
			}
			time.Sleep(time.Hour - 50*time.Millisecond)
		}
		closeWriter(t, w)
		names := objects(t, b)
		b.objects["sessions/notes.txt"] = nil
		b.objects["other/2026/01/01/000000.000-00-1.ndjson.zst"] = nil
		delete(b.objects, names[3].Name)
		var got []string
		for e, err := range archive.Objects(t.Context(), b, "sessions", begun.Add(time.Hour), time.Time{}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(e.At.Sub(begun), e.Confirmed, e.Missing))
		}
		if want := "1h0m0s false false, 2h0m0s true false, 3h0m0s true true"; strings.Join(got, ", ") != want {
			t.Errorf("%q, want %q", got, want)
		}
		count := func(target string, since, until time.Time) (n int) {
			for _, err := range archive.Objects(t.Context(), b, target, since, until) {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			return n
		}
		if n := count("sessions", time.Time{}, begun.Add(2*time.Hour)); n != 2 {
			t.Errorf("%d until then", n)
		}
		if n := count("", time.Time{}, time.Time{}); n != 5 {
			t.Errorf("%d of all targets", n)
		}
	})
}

// Whatever the bytes are, reading ends, and without a panic.
func FuzzRead(f *testing.F) {
	b, name := archived(f, copies(0, 3), archive.Full)
	manifest := strings.Replace(name, ".ndjson", ".done.ndjson", 1)
	f.Add(unpack(f, b.objects[name]), unpack(f, b.objects[manifest]), true)
	f.Add(b.objects[name], b.objects[manifest], false)
	f.Add([]byte("{\"schema\":1,\"mode\":\"keys\"}\n{\"end\":{}}\n"), []byte(`{"schema":1,"lines":-1,"deleted":[[1,2]]}`), true)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd}, []byte{}, false)
	f.Fuzz(func(t *testing.T, object, done []byte, packs bool) {
		if packs {
			object, done = pack(t, object), pack(t, done)
		}
		b := newMemoryBucket()
		b.objects[name], b.objects[manifest] = object, done
		_, _ = read(b, name)
	})
}
