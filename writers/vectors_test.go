package writers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
)

var update = flag.Bool("update", false, "rewrite docs/writer-vectors.json, and its hash in the tests of all languages")

const vectorsFile = "../docs/writer-vectors.json"

// vectorsHash pins the vectors: nobody changes them for one language alone.
const vectorsHash = "51f104959e0ffbfc21448c4ae6522902dd455fde3e1f750771a89e2897259b98"

// pinned are the tests that hold the same hash.
var pinned = []string{
	"vectors_test.go", "node/test/vectors.test.js", "python/tests/test_vectors.py",
	"java/src/test/java/io/github/reaperttl/writer/VectorsTest.java",
}

// vectors mirrors docs/writer-vectors.json. docs/key-format.md describes its lists.
type vectors struct {
	Keys      []keyVector     `json:"keys"`
	BadKeys   []keyVector     `json:"bad_keys"`
	Naive     []string        `json:"naive"`
	Malformed []string        `json:"malformed"`
	Shards    []shardVector   `json:"shards"`
	Nursery   []nurseryVector `json:"nursery"`
	Rollout   []rolloutVector `json:"rollout"`
	Replays   []replay        `json:"replays"`
}

type keyVector struct {
	Generation int    `json:"generation"`
	Shard      int    `json:"shard"`
	Expires    string `json:"expires"`
	Key        string `json:"key,omitempty"`
}

type shardVector struct {
	ID     string `json:"id"`
	Shards int    `json:"shards"`
	Shard  int    `json:"shard"`
}

type nurseryVector struct {
	ID      string `json:"id"`
	Expires string `json:"expires"`
	Shards  int    `json:"shards"`
	Key     string `json:"key"`
}

type rolloutVector struct {
	ID     string `json:"id"`
	Salt   string `json:"salt"`
	Bucket int    `json:"bucket"`
}

// A replay is what a follower meets in the course of time, and what it gives.
type replay struct {
	Name    string `json:"name"`
	Shards  int    `json:"shards"` // the option
	Expires string `json:"expires"`
	Steps   []step `json:"steps"`
}

// A step is a read that answers with a record or null, one that fails, or stamps.
type step struct {
	At     string          `json:"at"`      // the wall clock
	Mono   int64           `json:"mono_ms"` // the monotonic clock
	Took   int64           `json:"took_ms,omitempty"`
	Read   json.RawMessage `json:"read,omitempty"`
	Fails  bool            `json:"fails,omitempty"`
	Stamps []stamp         `json:"stamps,omitempty"`
}

type stamp struct {
	ID  string `json:"id"`
	Key string `json:"key"`
}

func TestVectors(t *testing.T) {
	if *update {
		writeVectors(t)
	}
	text, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != vectorsHash && !*update {
		t.Errorf("%s has the hash %x, this test wants %s", vectorsFile, sum, vectorsHash)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Keys) < 15 || len(v.BadKeys) < 8 || len(v.Malformed) < 30 || len(v.Shards) < 15 ||
		len(v.Nursery) < 5 || len(v.Rollout) < 10 || len(v.Replays) < 10 {
		t.Fatal("too few vectors")
	}
	checkKeys(t, v)
	for _, c := range v.Shards {
		if got := ShardOf(c.ID, c.Shards); got != c.Shard {
			t.Errorf("ShardOf(%q, %d) = %d, want %d", c.ID, c.Shards, got, c.Shard)
		}
	}
	for _, c := range v.Rollout {
		before, in := InRollout(c.ID, c.Salt, float64(c.Bucket)/100), InRollout(c.ID, c.Salt, float64(c.Bucket+1)/100)
		if before || !in {
			t.Errorf("%q, %q: in at %d hundredths %t, at one more %t", c.ID, c.Salt, c.Bucket, before, in)
		}
	}
	for _, r := range v.Replays {
		stamps := 0
		runReplay(t, r, func(s stamp, got string) {
			if stamps++; got != s.Key {
				t.Errorf("replay %q: %q gets %s, want %s", r.Name, s.ID, got, s.Key)
			}
		})
		if stamps == 0 {
			t.Errorf("replay %q has no stamps", r.Name)
		}
	}
}

func checkKeys(t *testing.T, v vectors) {
	t.Helper()
	for _, c := range v.Keys {
		k, err := Key(c.Generation, c.Shard, instant(t, c.Expires))
		if err != nil || k.String() != c.Key {
			t.Errorf("Key(%d, %d, %s) = %s, %v, want %s", c.Generation, c.Shard, c.Expires, k, err, c.Key)
		}
		if back, err := Parse(c.Key); err != nil || back != k {
			t.Errorf("Parse(%s) = %v, %v, want %v", c.Key, back, err, k)
		}
	}
	for _, c := range v.BadKeys {
		if k, err := Key(c.Generation, c.Shard, instant(t, c.Expires)); err == nil {
			t.Errorf("Key(%d, %d, %s) = %s, want an error", c.Generation, c.Shard, c.Expires, k)
		}
	}
	for _, s := range v.Naive {
		if at, err := time.Parse(time.RFC3339Nano, s); err == nil {
			t.Errorf("%q is the instant %v, want an error", s, at)
		}
	}
	for _, m := range v.Malformed {
		if k, err := Parse(m); !errors.Is(err, expirykey.ErrMalformed) {
			t.Errorf("Parse(%q) = %v, %v, want ErrMalformed", m, k, err)
		}
	}
	for _, c := range v.Nursery {
		if k, err := NurseryKey(c.ID, instant(t, c.Expires), c.Shards); err != nil || k.String() != c.Key {
			t.Errorf("NurseryKey(%q, %s, %d) = %s, %v, want %s", c.ID, c.Expires, c.Shards, k, err, c.Key)
		}
	}
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// runReplay gives each stamp of a replay, and the key that a follower gives then.
//
// No time.Time of Go's holds a wall and a monotonic reading that differ at will. If they
// differ in a replay, the clock shows the larger one alone, or a wall that was set back:
// that is all that counts then.
func runReplay(t *testing.T, r replay, each func(s stamp, got string)) {
	t.Helper()
	start := instant(t, r.Steps[0].At)
	began := time.Now()
	began = began.Add(start.Sub(began)) // the wall of the replay, with a monotonic reading
	clock := func(wall time.Time, mono int64) time.Time {
		elapsed := time.Duration(mono-r.Steps[0].Mono) * time.Millisecond
		if passed := wall.Sub(start); passed > elapsed || passed < 0 {
			return wall
		}
		return began.Add(elapsed)
	}
	var now time.Time
	var current step
	f := newFollower(func(context.Context) (map[string]any, error) {
		took := time.Duration(current.Took) * time.Millisecond
		now = clock(instant(t, current.At).Add(took), current.Mono+current.Took)
		if current.Fails {
			return nil, errors.New("the database does not answer")
		}
		return fieldsOf(t, current.Read), nil
	}, Options{Shards: r.Shards, Now: func() time.Time { return now }})
	expires := instant(t, r.Expires)
	for _, current = range r.Steps {
		now = clock(instant(t, current.At), current.Mono)
		if current.Read != nil || current.Fails {
			_ = f.Refresh(t.Context()) // what it makes of the record shows in the stamps
		}
		for _, s := range current.Stamps {
			k, err := f.Key(s.ID, expires)
			if err != nil {
				t.Errorf("replay %q: %q: %v", r.Name, s.ID, err)
			}
			each(s, k.String())
		}
	}
}

// fieldsOf decodes a record as a client of the database would.
func fieldsOf(t *testing.T, raw json.RawMessage) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var fields map[string]any
	if err := d.Decode(&fields); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return integers(t, fields).(map[string]any)
}

func integers(t *testing.T, v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, err := v.Float64()
		if err != nil {
			t.Fatal(err)
		}
		return f
	case map[string]any:
		for name, value := range v {
			v[name] = integers(t, value)
		}
	case []any:
		for i := range v {
			v[i] = integers(t, v[i])
		}
	}
	return v
}

// writeVectors computes what the inputs in inputs_test.go give, writes one vector a
// line, and pins the hash in all languages.
func writeVectors(t *testing.T) {
	t.Helper()
	v := inputs()
	whole := func(id string) string { return strings.NewReplacer("<d800>", "\uFFFD", "<dc00>", "\uFFFD").Replace(id) }
	for i := range v.Keys {
		k, err := Key(v.Keys[i].Generation, v.Keys[i].Shard, instant(t, v.Keys[i].Expires))
		if err != nil {
			t.Fatal(err)
		}
		v.Keys[i].Key = k.String()
	}
	for i, c := range v.Shards {
		v.Shards[i].Shard = ShardOf(whole(c.ID), c.Shards)
	}
	for i, c := range v.Nursery {
		k, err := NurseryKey(whole(c.ID), instant(t, c.Expires), c.Shards)
		if err != nil {
			t.Fatal(err)
		}
		v.Nursery[i].Key = k.String()
	}
	for i, c := range v.Rollout {
		for !InRollout(whole(c.ID), c.Salt, float64(v.Rollout[i].Bucket+1)/100) {
			v.Rollout[i].Bucket++
		}
	}
	for i, r := range v.Replays {
		r.Steps = nil
		for _, s := range v.Replays[i].Steps {
			stamps := make([]stamp, len(s.Stamps))
			for j := range stamps {
				stamps[j].ID = whole(s.Stamps[j].ID)
			}
			s.Stamps = stamps
			r.Steps = append(r.Steps, s)
		}
		var keys []string
		runReplay(t, r, func(_ stamp, got string) { keys = append(keys, got) })
		for _, s := range v.Replays[i].Steps {
			for j := range s.Stamps {
				s.Stamps[j].Key, keys = keys[0], keys[1:]
			}
		}
	}
	text := []byte(render(t, v))
	if err := os.WriteFile(vectorsFile, text, 0o644); err != nil {
		t.Fatal(err)
	}
	pin(t, text)
}

func render(t *testing.T, v vectors) string {
	t.Helper()
	line := func(one any) string {
		var out bytes.Buffer
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(false)
		if err := e.Encode(one); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out.String())
	}
	var out strings.Builder
	out.WriteString("{\n" + `"comment": "Test vectors for writers in all languages; docs/key-format.md describes them."`)
	list := func(name string, n int, one func(i int) any) {
		fmt.Fprintf(&out, ",\n%q: [\n", name)
		for i := range n {
			out.WriteString("  " + line(one(i)))
			if i < n-1 {
				out.WriteByte(',')
			}
			out.WriteByte('\n')
		}
		out.WriteByte(']')
	}
	list("keys", len(v.Keys), func(i int) any { return v.Keys[i] })
	list("bad_keys", len(v.BadKeys), func(i int) any { return v.BadKeys[i] })
	list("naive", len(v.Naive), func(i int) any { return v.Naive[i] })
	list("malformed", len(v.Malformed), func(i int) any { return v.Malformed[i] })
	list("shards", len(v.Shards), func(i int) any { return v.Shards[i] })
	list("nursery", len(v.Nursery), func(i int) any { return v.Nursery[i] })
	list("rollout", len(v.Rollout), func(i int) any { return v.Rollout[i] })
	list("replays", len(v.Replays), func(i int) any { return v.Replays[i] })
	out.WriteString("\n}\n")
	// Go cannot hold half a surrogate pair in a text, but JSON can.
	return strings.NewReplacer("<d800>", `\ud800`, "<dc00>", `\udc00`).Replace(out.String())
}

func pin(t *testing.T, text []byte) {
	t.Helper()
	sum := sha256.Sum256(text)
	hash := regexp.MustCompile(`(?i)(hash["' =]+)[0-9a-f]{64}`)
	for _, file := range pinned {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !hash.Match(source) {
			t.Errorf("%s pins no hash of the vectors", file)
		}
		source = hash.ReplaceAll(source, []byte("${1}"+hex.EncodeToString(sum[:])))
		if err := os.WriteFile(file, source, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// The file is pinned in every language, and to one hash.
func TestVectorsArePinnedEverywhere(t *testing.T) {
	for _, file := range pinned {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(source, []byte(vectorsHash)) && !*update {
			t.Errorf("%s does not hold the hash of the vectors, %s", file, vectorsHash)
		}
	}
	if math.MaxInt64/int64(time.Millisecond) != 9_223_372_036_854 {
		t.Error("the bound of milliseconds in node, python and java is wrong")
	}
}
