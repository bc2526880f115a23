package generation

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
	"time"
)

// moveVectors mirrors docs/generation-vectors.json, which writers in other
// languages use.
type moveVectors struct {
	Hashes []struct {
		ID         string `json:"id"`
		Generation int    `json:"generation"`
		Hash       uint32 `json:"hash"`
	} `json:"hashes"`
	Shares []struct {
		Elapsed int64   `json:"elapsed_ms"`
		Ramp    int64   `json:"ramp_ms"`
		Share   float64 `json:"share"`
	} `json:"shares"`
	Stamps []struct {
		ID      string `json:"id"`
		Elapsed int64  `json:"elapsed_ms"` // since generation 2 was opened, with a ramp of an hour
		Stamped int    `json:"generation"`
	} `json:"stamps"`
}

func TestMoveVectors(t *testing.T) {
	const file = "../docs/generation-vectors.json"
	var v moveVectors
	if *update {
		for _, id := range []string{"s-1842", "", "1842", "Grüße", "a/b"} {
			for _, g := range []int{1, 2, 42, 99_999_999} {
				v.Hashes = append(v.Hashes, struct {
					ID         string `json:"id"`
					Generation int    `json:"generation"`
					Hash       uint32 `json:"hash"`
				}{id, g, moveHash(id, g)})
			}
		}
		hour := time.Hour.Milliseconds()
		for _, elapsed := range []int64{-5000, 0, 1, hour / 12, hour / 4, hour / 2, hour * 11 / 12, hour - 1, hour, 2 * hour} {
			v.Shares = append(v.Shares, struct {
				Elapsed int64   `json:"elapsed_ms"`
				Ramp    int64   `json:"ramp_ms"`
				Share   float64 `json:"share"`
			}{elapsed, hour, Share(time.Duration(elapsed)*time.Millisecond, time.Hour)})
		}
		for i := range 12 {
			id, elapsed := fmt.Sprint("s-", i), hour*int64(i+1)/12
			v.Stamps = append(v.Stamps, struct {
				ID      string `json:"id"`
				Elapsed int64  `json:"elapsed_ms"`
				Stamped int    `json:"generation"`
			}{id, elapsed, stampedAfter(id, elapsed)})
		}
		text, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	v = moveVectors{}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Hashes) < 10 || len(v.Shares) < 5 || len(v.Stamps) < 10 {
		t.Fatalf("too few vectors: %+v", v)
	}
	for _, c := range v.Hashes {
		if got := moveHash(c.ID, c.Generation); got != c.Hash {
			t.Errorf("hash of %q and %d: %d, want %d", c.ID, c.Generation, got, c.Hash)
		}
	}
	for _, c := range v.Shares {
		if got := Share(time.Duration(c.Elapsed)*time.Millisecond, time.Duration(c.Ramp)*time.Millisecond); math.Abs(got-c.Share) > 1e-12 {
			t.Errorf("share after %d of %d ms: %v, want %v", c.Elapsed, c.Ramp, got, c.Share)
		}
	}
	for _, c := range v.Stamps {
		if got := stampedAfter(c.ID, c.Elapsed); got != c.Stamped {
			t.Errorf("%s is stamped with generation %d after %d ms, want %d", c.ID, got, c.Elapsed, c.Stamped)
		}
	}
}

func stampedAfter(id string, elapsedMillis int64) int {
	r := Record{Generations: []Generation{{Number: 1, Shards: 4, Opened: opened}, {Number: 2, Shards: 4, Opened: opened, Ramp: time.Hour}}, NurseryShards: 4}
	return r.StamperFor(id, opened.Add(time.Duration(elapsedMillis)*time.Millisecond)).Generation
}
