package expirykey_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
)

func ExampleNew() {
	expires := time.Date(2026, 11, 21, 0, 7, 30, 854_000_001, time.UTC)
	shard := expirykey.ShardOfName("s-1842", 16)
	key, err := expirykey.New(42, shard, expires)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(key)
	// Output: 00000042.0006.20261121T000730.855Z
}

func ExampleParse() {
	key, err := expirykey.Parse("00000042.0007.20261121T000730.855Z")
	fmt.Println(key.Generation, key.Shard, key.Expires, err)
	_, err = expirykey.Parse("00000042.0007.20260230T000000.000Z")
	fmt.Println(err)
	// Output:
	// 42 7 2026-11-21 00:07:30.855 +0000 UTC <nil>
	// malformed expiry key "00000042.0007.20260230T000000.000Z": the date does not exist
}

// vectors mirrors docs/key-vectors.json, which writers in other languages use.
type vectors struct {
	Keys []struct {
		Generation int    `json:"generation"`
		Shard      int    `json:"shard"`
		Expires    string `json:"expires"`
		Key        string `json:"key"`
	} `json:"keys"`
	Shards []struct {
		Name   *string `json:"name"`
		Number *string `json:"number"`
		Shards int     `json:"shards"`
		Shard  int     `json:"shard"`
	} `json:"shards"`
	Malformed []string `json:"malformed"`
}

func TestVectors(t *testing.T) {
	raw, err := os.ReadFile("../docs/key-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Keys) < 8 || len(v.Shards) < 8 || len(v.Malformed) < 20 {
		t.Fatalf("too few vectors: %d keys, %d shards, %d malformed", len(v.Keys), len(v.Shards), len(v.Malformed))
	}
	for _, k := range v.Keys {
		at, err := time.Parse(time.RFC3339Nano, k.Expires)
		if err != nil {
			t.Fatal(err)
		}
		key, err := expirykey.New(k.Generation, k.Shard, at)
		if err != nil {
			t.Errorf("New(%d, %d, %s): %v", k.Generation, k.Shard, k.Expires, err)
			continue
		}
		if key.String() != k.Key {
			t.Errorf("New(%d, %d, %s) = %s, want %s", k.Generation, k.Shard, k.Expires, key, k.Key)
		}
		if back, err := expirykey.Parse(k.Key); err != nil || back != key {
			t.Errorf("Parse(%s) = %v, %v, want %v", k.Key, back, err, key)
		}
	}
	for _, s := range v.Shards {
		var got int
		var want uint32
		switch {
		case s.Name != nil:
			got = expirykey.ShardOfName(*s.Name, s.Shards)
			want = reference(*s.Name)
		case s.Number != nil:
			number, err := strconv.ParseInt(*s.Number, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			got = expirykey.ShardOfNumber(number, s.Shards)
			want = reference(*s.Number)
		}
		if got != s.Shard || got != int(want%uint32(s.Shards)) {
			t.Errorf("shard of %v/%v among %d = %d, the file says %d, hash/fnv %d", s.Name, s.Number, s.Shards, got, s.Shard, want%uint32(s.Shards))
		}
	}
	for _, m := range v.Malformed {
		if k, err := expirykey.Parse(m); !errors.Is(err, expirykey.ErrMalformed) {
			t.Errorf("Parse(%q) = %v, %v, want ErrMalformed", m, k, err)
		}
	}
}

// Readers in any language must get each number as it stands in the files: many parsers of
// JSON, that of JavaScript among them, have floating-point numbers alone.
func TestVectorsAreReadExactly(t *testing.T) {
	for _, name := range []string{"key-vectors.json", "generation-vectors.json"} {
		raw, err := os.ReadFile("../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		numbers := 0
		for d := json.NewDecoder(bytes.NewReader(raw)); ; {
			d.UseNumber()
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			n, ok := token.(json.Number)
			if !ok {
				continue
			}
			numbers++
			if whole, err := n.Int64(); err == nil && (whole > 1<<53 || whole < -1<<53) || err != nil && !strings.Contains(n.String(), ".") {
				t.Errorf("%s holds the number %s, which not every reader has exactly: make it a text", name, n)
			}
		}
		if numbers < 20 {
			t.Errorf("%s holds %d numbers", name, numbers)
		}
	}
}

func reference(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}

func TestNewRefuses(t *testing.T) {
	ok := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	end := time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC)
	for _, c := range []struct {
		generation, shard int
		at                time.Time
		want              string
	}{
		{-1, 0, ok, "generation -1"},
		{expirykey.MaxGeneration + 1, 0, ok, "generation 100000000"},
		{0, -1, ok, "shard -1"},
		{0, 10_000, ok, "shard 10000"},
		{0, 0, end.Add(1), "year 10000"}, // rounds up, out of the format
		{0, 0, time.Date(0, 12, 31, 0, 0, 0, 0, time.UTC), "year 0"},
	} {
		if k, err := expirykey.New(c.generation, c.shard, c.at); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%d, %d, %v) = %v, %v, want an error about %q", c.generation, c.shard, c.at, k, err, c.want)
		}
	}
	if k, err := expirykey.New(0, 0, end); err != nil || k.String() != "00000000.0000.99991231T235959.999Z" {
		t.Errorf("end of 9999: %v, %v", k, err)
	}
}

func TestRangesTouchButDoNotOverlap(t *testing.T) {
	for _, c := range []struct{ generation, shard int }{{0, 0}, {1, 15}, {42, 9_998}, {expirykey.MaxGeneration, expirykey.MaxShard}} {
		lo, hi := expirykey.Range(c.generation, c.shard)
		glo, ghi := expirykey.GenerationRange(c.generation)
		first := must(t, c.generation, c.shard, time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))
		last := must(t, c.generation, c.shard, time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC))
		if lo > first || last >= hi || lo < glo || hi > ghi {
			t.Errorf("range [%q, %q) of generation [%q, %q) does not hold %q to %q", lo, hi, glo, ghi, first, last)
		}
		if c.shard < expirykey.MaxShard {
			if next, _ := expirykey.Range(c.generation, c.shard+1); hi > next {
				t.Errorf("range up to %q overlaps the next from %q", hi, next)
			}
		}
	}
}

func must(t *testing.T, generation, shard int, at time.Time) string {
	t.Helper()
	k, err := expirykey.New(generation, shard, at)
	if err != nil {
		t.Fatal(err)
	}
	return k.String()
}

func TestUpTo(t *testing.T) {
	horizon := time.Date(2026, 11, 21, 0, 7, 30, 855_999_999, time.UTC)
	got, ok := expirykey.UpTo(1, 7, horizon)
	if want := "00000001.0007.20261121T000730.855Z"; !ok || got != want {
		t.Errorf("UpTo = %q, %v, want %q", got, ok, want)
	}
	if got, ok := expirykey.UpTo(1, 7, time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)); ok {
		t.Errorf("UpTo of year 0 = %q, want none", got)
	}
	if got, _ := expirykey.UpTo(1, 7, time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)); got != "00000001.0007.99991231T235959.999Z" {
		t.Errorf("UpTo of year 12000 = %q", got)
	}
}

func TestNextShard(t *testing.T) {
	for _, c := range []struct {
		s    string
		want int
		ok   bool
	}{
		{"00000001.0007.20261121T000730.855Z", 8, true},
		{"00000001.0007/", 8, true},
		{"00000001.", 0, true},
		{"00000001.0x", 1000, true},
		{"00000001.9999.2", 10_000, false},
		{"00000001/", 10_000, false},
	} {
		if got, ok := expirykey.NextShard(1, c.s); got != c.want || ok != c.ok {
			t.Errorf("NextShard(1, %q) = %d, %v, want %d, %v", c.s, got, ok, c.want, c.ok)
		}
	}
}

func TestAllocations(t *testing.T) {
	key, _ := expirykey.Parse("00000042.0007.20261121T000730.855Z")
	buf := make([]byte, 0, expirykey.Len)
	if n := testing.AllocsPerRun(100, func() {
		buf = key.Append(buf[:0])
		if _, err := expirykey.Parse("00000042.0007.20261121T000730.855Z"); err != nil {
			t.Error(err)
		}
		expirykey.ShardOfName("s-1842", 16)
		expirykey.ShardOfNumber(1842, 16)
	}); n != 0 {
		t.Errorf("%v allocations per encode, parse and hash, want 0", n)
	}
}

// FuzzParse holds that whatever parses prints as it was.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "00000042.0007.20261121T000730.855Z", "00000042.0007.20240229T235960.000Z", strings.Repeat("0", 34)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := expirykey.Parse(s)
		if err != nil {
			if !errors.Is(err, expirykey.ErrMalformed) {
				t.Errorf("Parse(%q): %v does not wrap ErrMalformed", s, err)
			}
			return
		}
		if k.String() != s {
			t.Errorf("Parse(%q).String() = %q", s, k)
		}
	})
}

// FuzzNew holds that what New makes parses as it was, and that string order is
// key order.
func FuzzNew(f *testing.F) {
	f.Add(0, 0, int64(0), int64(0), 42, 7, int64(1_795_219_650), int64(854_000_001))
	f.Fuzz(func(t *testing.T, g1, s1 int, sec1, ns1 int64, g2, s2 int, sec2, ns2 int64) {
		a, err1 := expirykey.New(g1, s1, time.Unix(sec1, ns1%1e9))
		b, err2 := expirykey.New(g2, s2, time.Unix(sec2, ns2%1e9))
		if err1 != nil || err2 != nil {
			return
		}
		if a.Expires.Before(time.Unix(sec1, ns1%1e9)) {
			t.Errorf("%v expires before %v: rounded down", a, time.Unix(sec1, ns1%1e9))
		}
		for _, k := range []expirykey.Key{a, b} {
			if back, err := expirykey.Parse(k.String()); err != nil || back != k {
				t.Errorf("Parse(%q) = %+v, %v, want %+v", k, back, err, k)
			}
		}
		if (a.String() < b.String()) != less(a, b) {
			t.Errorf("%q < %q is %v, but not as keys", a, b, a.String() < b.String())
		}
		if lo, hi := expirykey.Range(a.Generation, a.Shard); a.String() < lo || a.String() >= hi {
			t.Errorf("%q is not in its range [%q, %q)", a, lo, hi)
		}
		if last, ok := expirykey.UpTo(a.Generation, a.Shard, b.Expires); !ok || (a.String() <= last) != !a.Expires.After(b.Expires) {
			t.Errorf("%q <= %q does not say whether %v is by %v", a, last, a.Expires, b.Expires)
		}
	})
}

func less(a, b expirykey.Key) bool {
	if a.Generation != b.Generation {
		return a.Generation < b.Generation
	}
	if a.Shard != b.Shard {
		return a.Shard < b.Shard
	}
	return a.Expires.Before(b.Expires)
}
