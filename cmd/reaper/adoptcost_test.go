package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/config"
)

func TestReadingText(t *testing.T) {
	for want, c := range map[string]struct {
		driver config.Driver
		adopt.Expectation
	}{
		"how many is not known; each costs a read": {config.Firestore, adopt.Expectation{AtLeast: true}},
		"about 1,000 reads, by round 3": {config.Embedded,
			adopt.Expectation{Entities: 1000, Source: "round 3"}},
		"about 1,000 reads, by round 3; less than $0.01 in us-central1": {config.Datastore,
			adopt.Expectation{Entities: 1000, Source: "round 3"}},
		"at least 50,000,000 reads, by the index of created; $15.00 in us-central1": {config.Firestore,
			adopt.Expectation{Entities: 50_000_000, AtLeast: true, Source: "the index of created"}},
	} {
		if got := readingText(c.driver, c.Expectation); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// Only yes goes on: an empty answer, a closed terminal and anything else do not.
func TestConfirm(t *testing.T) {
	for answer, yes := range map[string]bool{"y\n": true, " YES \n": true, "y": true, "": false, "\n": false, "n\n": false,
		"sure\n": false} {
		var out bytes.Buffer
		c := &console{stdin: strings.NewReader(answer), stderr: &out}
		if err := c.confirm("go on?"); (err == nil) != yes || out.String() != "go on? [y/N] " {
			t.Errorf("%q: %v, %q", answer, err, out.String())
		}
	}
}

// A dry run says in JSON, too, what stamping will cost, and how long it takes.
func TestCostOfAnAdoption(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := newEmbedded(t, strings.ReplaceAll(adoptTarget, "rate: unlimited", "rate: 2"))
	b.must(strings.NewReader(`{"id":"a","data":{"created":"2026-11-01T00:00:00Z"}}`+"\n"+`{"id":"b"}`+"\n"), "load")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sessions"}, `{"reads":2,"writes":1,"seconds":0.5}`},
		{[]string{"sessions", "--rate", "unlimited"}, `{"reads":2,"writes":1,"seconds":null}`},
		{[]string{"sessions", "--apply"}, "null"},
		{[]string{"verify", "sessions"}, "null"},
	} {
		r := b.must(nil, append([]string{"adopt", "--json"}, c.args...)...)
		var res struct {
			Cost json.RawMessage `json:"cost"`
		}
		if err := json.Unmarshal([]byte(r.out), &res); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := json.Compact(&got, res.Cost); err != nil || got.String() != c.want {
			t.Errorf("adopt %q: %s, %v", c.args, &got, err)
		}
	}
}
