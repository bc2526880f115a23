package plan_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestPlan plays the scripts in testdata: commands stand behind ">", and below each
// one what was decided. An instant is a day of November 2026 and a time in UTC, such
// as 21T03:30 or 21T03:30:10.500, or a whole RFC 3339 one.
//
//	target NAME=VALUE...   starts again: the rules, and a record that was created then. Settings are
//	                       layout, shards, every, ramp, staleness, slack, settle, keep, rewind, retention,
//	                       max_age, values and namespaces (separated by commas, - is the default one)
//	now INSTANT            the store's time
//	record NAME=VALUE...   the target record: created, checked, nursery, revision, empty-index
//	generation N ...       one of its generations: shards, opened, ramp, closed, draining; or: gone
//	cursor G.S[@NS] ...    a cursor record: position (or key), swept, rewind-began, rewind-position (a key), rewind-done, next,
//	                       emptied, suspects, refused, held-by, layout, target-revision. What is not named stays;
//	                       NAME= removes it, and gone the record
//	own G.S[@NS] ...       the same, as this process released it after the view was read
//	tried CHORE INSTANT    this process came to the end of the chore then; without an instant, now
//	live                   saves the target record as it is desired
//	plan                   what each range needs, and which chores are due, in their order
//	ranges                 the ranges alone
//	chores                 the chores alone
//	rewinds                when each range is to be read from its start again
//	spans [NS]             what an audit goes over
//	reading G.S[@NS] [KEY] which read finds that key, or one that may be anywhere behind the cursor, and when
//	order CHANCE           the order of first visits
//	first, configured      the target record of a new target, and as the configuration wants it
//	restart N=SHARDS ...   the target record of a target without one, with these generations found in the index;
//	                       floor=N is the last that the store has dropped. It is the record from now on
//	probed N=SHARDS ...    the target record after a probe that found these
//	lineage [missing]      whether the target record can be that of the cursors
func TestPlan(t *testing.T) {
	files, err := filepath.Glob("testdata/*.plan")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s: it went\n%s\nand the file says\n%s(-update rewrites it)", file, got, text)
			}
		})
	}
}
