package main

import (
	"encoding/json"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/store"
)

func TestDemo(t *testing.T) {
	b := newWorkdir(t, oneTarget)
	b.env = []string{"REAPER_STORE=embedded:must-not-matter"}
	r := b.must(nil, "demo", "--entities", "5000", "--json")
	var res demoResult
	if err := json.Unmarshal([]byte(r.out), &res); err != nil {
		t.Fatalf("stdout is not one JSON document: %v\n%s", err, r.out)
	}
	if res.Deleted != 2500 || res.Verified != 2500 || res.Comparison.Plain.Deleted != 2500 || res.Comparison.Reaper.Deleted != 2500 {
		t.Errorf("result: %+v", res)
	}
	plain, ours := res.Comparison.Plain.Stepped, res.Comparison.Reaper.Stepped
	if last := len(plain) - 1; plain[last] <= plain[0] {
		t.Errorf("the plain collector steps over %v: it should grow", plain)
	}
	if slices.Max(ours) > 100 {
		t.Errorf("ours steps over %v", ours)
	}
	text := b.must(nil, "demo", "--entities", "1000").out
	for _, want := range []string{"500 expired sessions are gone, 500 live ones are all there", "plain collector", "last tenth"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
}

func TestDemoKeepsItsDirectory(t *testing.T) {
	b := newWorkdir(t, oneTarget)
	b.must(nil, "demo", "--entities", "1000", "--dir", "kept")
	b.dir = filepath.Join(b.dir, "kept") // with the targets file that the demo left there
	b.env = []string{"REAPER_STORE=embedded:store"}
	if got := b.dumped(); len(got) != 500 {
		t.Errorf("%d entities left", len(got))
	}
	if st := b.status(); st.LastSweep == nil {
		t.Errorf("status: %+v", st)
	}
	b.dir = filepath.Dir(b.dir)
	if r := b.run(nil, "demo", "--dir", "kept"); r.code != exitUsage || !strings.Contains(r.log, "is not empty") {
		t.Errorf("exit code %d: %s", r.code, r.log)
	}
}

func TestDemoRefuses(t *testing.T) {
	b := newWorkdir(t, oneTarget)
	for _, args := range [][]string{
		{"--entities", "999"}, {"--entities", "5000001"}, {"--entities", "many"}, {"--dir", "reaper.yaml"}, {"--store", "embedded:x"},
	} {
		if r := b.run(nil, append([]string{"demo"}, args...)...); r.code != exitUsage || r.out != "" {
			t.Errorf("%v: exit code %d, stdout %q", args, r.code, r.out)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "reaper-demo-*")); len(left) > 0 {
		t.Logf("temporary directories, perhaps of others: %v", left)
	}
}

// The verification finds each possible kind of mistake.
func TestVerifyDemo(t *testing.T) {
	entities := func(names ...string) iter.Seq2[store.Entity, error] {
		return func(yield func(store.Entity, error) bool) {
			for _, n := range names {
				if n == "error" {
					yield(store.Entity{}, errors.New("cannot read"))
					return
				}
				if !yield(store.Entity{Name: n}, nil) {
					return
				}
			}
		}
	}
	if n, err := verifyDemo(entities(demoName(1), demoName(3), demoName(5)), 6); n != 3 || err != nil {
		t.Errorf("all is well: %d, %v", n, err)
	}
	for want, left := range map[string][]string{
		"still there":  {demoName(1), demoName(2), demoName(3), demoName(5)},
		"is gone":      {demoName(1), demoName(5)},
		"twice":        {demoName(1), demoName(3), demoName(3), demoName(5)},
		"nobody wrote": {demoName(1), demoName(3), demoName(5), "session-7"},
		"cannot read":  {demoName(1), "error"},
	} {
		if _, err := verifyDemo(entities(left...), 6); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", left, err, want)
		}
	}
}
