package store

import (
	"math/rand/v2"
	"testing"
	"time"
)

// What is written and read by hand is what package time would write and read.
func TestInstant(t *testing.T) {
	first, last := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()
	for range 20_000 {
		at := time.Unix(first+rand.Int64N(last-first+1), rand.Int64N(1e9)).In(time.FixedZone("", rand.IntN(7200)-3600))
		if got, want := FormatTime(at), at.UTC().Format(TimeLayout); got != want {
			t.Fatalf("%v is written as %s, want %s", at, got, want)
		}
	}
	for _, at := range []time.Time{time.Unix(last+1, 0), time.Unix(first-1, 0), time.Unix(last*40, 0), time.Unix(-last*2, 0)} {
		if got, want := FormatTime(at), at.UTC().Format(TimeLayout); got != want {
			t.Errorf("%v is written as %s, want %s", at, got, want)
		}
	}
}

func FuzzInstant(f *testing.F) {
	for _, s := range []string{
		TimeLayout, "2026-11-25T02:59:59.123456Z", "2026-02-29T00:00:00.000000Z", "2024-02-29T00:00:00.000000Z",
		"2026-11-25T02:59:59,123456Z", "2026-13-25T02:59:59.123456Z", "2026-00-25T02:59:59.123456Z", "2026-11-00T02:59:59.123456Z",
		"2026-11-31T02:59:59.123456Z", "2026-11-25T24:00:00.000000Z", "2026-11-25T23:60:00.000000Z", "2026-11-25T23:59:60.000000Z",
		"0000-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z", "2026-11-25T02:59:59.12345Z", "2026-11-25T02:59:59.123456+", "",
		"+026-11-25T02:59:59.123456Z", "2026-11-25T02:59:59.1234567Z", "2026-1-25T002:59:59.123456Z",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := time.Parse(TimeLayout, s)
		isStrict := err == nil && want.UTC().Format(TimeLayout) == s
		got, ok := parseInstant(s)
		if ok != isStrict || ok && got != want {
			t.Errorf("%q is read as %v, %v; want %v, %v", s, got, ok, want, err)
		}
	})
}
