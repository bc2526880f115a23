package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMessages compares what is said about the files in testdata with golden
// files that a person can read.
func TestMessages(t *testing.T) {
	for _, c := range []struct {
		file   string
		driver Driver
	}{
		{"five", Datastore}, {"names", Datastore}, {"ranges", Datastore}, {"rules", Datastore}, {"shape", Datastore},
		{"shared", Datastore}, {"firestore", Firestore}, {"groups", Firestore}, {"adopt", Datastore},
	} {
		t.Run(c.file, func(t *testing.T) {
			in := filepath.Join("testdata", c.file+".yaml")
			f, err := os.Open(in)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			targets, err := ParseTargets(c.file+".yaml", f, c.driver)
			if err == nil || targets != nil {
				t.Fatalf("got %d targets and error %v, want none and problems", len(targets), err)
			}
			got := err.Error() + "\n"
			golden := filepath.Join("testdata", c.file+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("messages differ from %s; got\n%s", golden, got)
			}
		})
	}
}

func TestFiveMistakesHavePlaces(t *testing.T) {
	f, err := os.Open("testdata/five.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = ParseTargets("five.yaml", f, Datastore)
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatalf("error is %T", err)
	}
	want := []string{
		"4:13 targets[0].shards", "5:16 targets[0].retention", "6:12 targets[0].guard",
		"7:11 targets[1].name", "9:5 targets[1]",
	}
	var got []string
	for _, p := range problems {
		got = append(got, fmt.Sprintf("%d:%d %s", p.Line, p.Column, p.What))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var one Problem
	if !errors.As(err, &one) || one.Line != 4 {
		t.Errorf("errors.As finds %v, want the first problem", one)
	}
}

// TestUnreadable holds the files of which nothing can be read but one reason.
func TestUnreadable(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "f.yaml:1:1: configures no targets"},
		{"comment", "# nothing\n", "f.yaml:1:1: configures no targets"},
		{"bom", "\uFEFF", "f.yaml:1:1: configures no targets"},
		{"separator", "---\n", "f.yaml:1:1: configures no targets"},
		{"null", "targets:\n", "f.yaml:1:9: configures no targets"},
		{"no items", "targets: []\n", "f.yaml:1:10: configures no targets"},
		{"no fields", "{}\n", "f.yaml:1:1: configures no targets"},
		{"scalar", "hello\n", `f.yaml:1:1: is the text "hello"; it must be a mapping of fields`},
		{"list", "- a\n", "f.yaml:1:1: is a list; it must be a mapping of fields"},
		{"targets scalar", "targets: 5\n", "f.yaml:1:10: targets: is the number 5; it must be a list"},
		{"syntax", "targets: [\n", "f.yaml:2:1: not YAML: "},
		{"tab", "targets:\n\t- name: x\n", "f.yaml:2:1: not YAML: "},
		{"unknown anchor", "targets: *x\n", "f.yaml:1:10: not YAML: unknown anchor"},
		{"latin-1", "targets:\n  - name: z\xfcrich\n", "f.yaml:2:12: is not UTF-8 here"},
		{"control", "targets:\n  - name: \"a\x01\"\n", "f.yaml:2:13: holds the control character U+0001"},
		{"alias", "a: &a []\ntargets: *a\n", "targets: is an alias (*a), which is not supported"},
		{"cycle", "targets: &a [*a]\n", "targets[0]: is an alias (*a), which is not supported"},
		{"two documents", "targets: [{name: a, kind: A}]\n---\ntargets: []\n", "f.yaml:2:1: a second document begins here"},
		{"two bad documents", "targets: [{name: a, kind: A}]\n---\n]\n", "f.yaml:3:1: not YAML"},
		{"large", strings.Repeat("#\n", MaxFile/2) + "#", "is larger than 1 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			targets, err := ParseTargets("f.yaml", strings.NewReader(c.text), Embedded)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %d targets and error %v, want one with %q", len(targets), err, c.want)
			}
		})
	}
	broken := errors.New("disk on fire")
	_, err := ParseTargets("f.yaml", io.MultiReader(strings.NewReader("targets:\n"), iotest.ErrReader(broken)), Embedded)
	if err == nil || err.Error() != "f.yaml: read: disk on fire" {
		t.Errorf("a reader that fails gives %v", err)
	}
}

// Two targets share no entities on any store, whatever the rest of them says; what only
// looks alike passes.
func TestSharedEntities(t *testing.T) {
	const twice = "targets:\n- {name: a, kind: A, retention: 30d}\n- {name: b, kind: A, shards: 4}\n"
	for _, d := range []Driver{Datastore, Embedded, Firestore, ""} {
		_, err := ParseTargets("f.yaml", strings.NewReader(twice), d)
		var problems Problems
		if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Line != 3 || problems[0].Column != 19 ||
			!strings.Contains(problems[0].Reason, `target "b" and target "a" (line 2, column 19)`) {
			t.Errorf("%s: %v", d, err)
		}
	}
	for _, c := range []struct {
		driver     Driver
		a, b       string
		wantShared bool
	}{
		{Datastore, "kind: A", "kind: A, property: p", false},
		{Datastore, "kind: A", "kind: a", false},
		{Datastore, "kind: A", "kind: A, namespaces: [x]", false},
		{Datastore, "kind: A, namespaces: [x]", "kind: A, namespaces: ['', y]", false},
		{Datastore, "kind: A, namespaces: [x, '']", "kind: A", true},
		{Datastore, "kind: A, namespaces: ['*']", "kind: A", true},
		{Datastore, "kind: A", "kind: A, namespaces: ['*']", true},
		{Datastore, "kind: A, namespaces: ['*']", "kind: A, namespaces: ['*']", true},
		{Datastore, "kind: A, namespaces: ['*']", "kind: B", false},
		{Datastore, "kind: A", "kind: A, property: expiry_key, layout: timestamp", true},
		{Firestore, "kind: a/b/c", "kind: a/d/c", false},
		{Firestore, "kind: a/b/c", "kind: c", false},
		{Firestore, "kind: a/b/c", "kind: c, group: true", true},
		{Firestore, "kind: c, group: true", "kind: a/b/c", true},
		{Firestore, "kind: c, group: true", "kind: c", true},
		{Firestore, "kind: c, group: true", "kind: c, group: true", true},
		{Firestore, "kind: c, group: true", "kind: a/c/d", false},
		{Firestore, "kind: c, group: true", "kind: a/b/c, property: p", false},
		{Firestore, "kind: c, group: true", "kind: a/b/cc", false},
	} {
		text := "targets:\n- {name: a, " + c.a + "}\n- {name: b, " + c.b + "}\n"
		_, err := ParseTargets("f.yaml", strings.NewReader(text), c.driver)
		if shared := err != nil && strings.Contains(err.Error(), "expire the same entities"); shared != c.wantShared || err != nil && !shared {
			t.Errorf("%s: {%s} and {%s}: %v", c.driver, c.a, c.b, err)
		}
	}
}

// A gate that is misspelt is an error, not the name of a file that does not exist: that
// gate would be open. The message does not repeat a password.
func TestGate(t *testing.T) {
	for _, fine := range []string{
		"", "http://gate", "https://gate.internal:8443/may/I?target=sessions", "https://user:secret@gate/", "http://[::1]:80/", "/run/reaper/hold", "./hold", "/",
	} {
		if got := mustOne(t, Firestore, fmt.Sprintf("name: a\nkind: A\npace: {gate: %q}", fine)); got.Pace.Gate != fine {
			t.Errorf("%q is read as %q", fine, got.Pace.Gate)
		}
	}
	for _, bad := range []string{
		"htps://gate", "ftp://gate/", "file:///run/hold", "gate.txt", "gate/hold", "../hold", "~/hold", ".hold", "gate:8080", "HTTPS://gate", "http:/gate", "http:gate",
		"http://", "https:///may/I", "http://:80/", "http://a b/", "http://gate:port/", " /run/hold", "unlimited", "off", "/run/ho\x01ld",
	} {
		_, err := one(t, Firestore, fmt.Sprintf("name: a\nkind: A\npace: {gate: %q}", bad))
		want := fmt.Sprintf("f.yaml:5:18: targets[0].pace.gate: %q is not a valid gate: write an http:// or https:// URL, "+
			"or the path of a file that begins with / or ./", bad)
		if strings.Contains(bad, "\x01") {
			want = fmt.Sprintf("f.yaml:5:18: targets[0].pace.gate: %q holds a control character", bad)
		}
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v", bad, err)
		}
	}
	_, err := one(t, Firestore, "name: a\nkind: A\npace: {gate: 'htps://user:secret@gate/'}")
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "pace.gate: this text is not a valid gate") {
		t.Errorf("a gate with a password: %v", err)
	}
}

// one parses a single target, given as the lines after its dash.
func one(t *testing.T, d Driver, fields string) (Target, error) {
	t.Helper()
	text := "targets:\n  -\n    " + strings.ReplaceAll(strings.TrimSpace(fields), "\n", "\n    ") + "\n"
	targets, err := ParseTargets("f.yaml", strings.NewReader(text), d)
	if err != nil {
		return Target{}, err
	}
	return targets[0], nil
}

func mustOne(t *testing.T, d Driver, fields string) Target {
	t.Helper()
	target, err := one(t, d, fields)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestDefaults(t *testing.T) {
	target := mustOne(t, Datastore, "name: sessions\nkind: Session")
	day := 24 * time.Hour
	for _, c := range []struct {
		field     string
		got, want any
	}{
		{"layout", target.Layout, LayoutGeneration},
		{"property", target.Property, "expiry_key"},
		{"namespaces", fmt.Sprintf("%q", target.Namespaces), `[""]`},
		{"all namespaces", target.AllNamespaces, false},
		{"group", target.Group, false},
		{"single_valued", target.SingleValued, false},
		{"shard_property", target.ShardProperty, ""},
		{"shards", target.Shards, 16},
		{"retention", target.Retention, time.Duration(0)},
		{"max_age", target.MaxAge, 1825 * day},
		{"rewind", target.Rewind, day},
		{"overlap", target.Overlap, 10 * time.Second},
		{"page", target.Page, 500},
		{"guard", target.Guard, store.GuardAuto},
		{"lease", target.Lease, 30 * time.Second},
		{"max_clock_skew", target.MaxClockSkew, 10 * time.Second},
		{"schedule", target.Schedule.IsZero(), true},
		{"generations", target.Generations, Generations{day, time.Hour, time.Minute, 10 * time.Minute, 0, 32}},
		{"pace", target.Pace, Pace{AtMost(500.0), AtMost(5000.0), NoLimit[float64](), ""}},
		{"breaker", target.Breaker, Breaker{false, 1000, 0.25, time.Hour, 14 * day}},
		{"limits", target.Limits, Limits{NoLimit[int64](), NoLimit[int64]()}},
		{"adopt", target.Adopt, Adopt{AdoptFrom{}, day, AtMost(300.0), 100}},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", c.field, c.got, c.want)
		}
	}
}

// The contract's own example, with its defaults written out, must mean the
// same as leaving them out.
func TestWrittenDefaultsAreDefaults(t *testing.T) {
	plain := mustOne(t, Datastore, "name: sessions\nkind: Session")
	written := mustOne(t, Datastore, `
name: sessions
kind: Session
group: false
namespaces: [""]
layout: generation
property: expiry_key
single_valued: false
shards: 16
retention: 0s
max_age: 1825d
rewind: 24h
overlap: 10s
page: 500
guard: auto
lease: 30s
max_clock_skew: 10s
schedule: ""
generations: {every: 24h, ramp: 60m, staleness: 1m, slack: 10m, settle: 0, keep: 32}
pace: {start: 500, max: 5000, total: unlimited, gate: ""}
breaker: {floor: 1000, fraction: 25%, window: 1h, learn: 14d}
limits: {per_hour: unlimited, per_day: unlimited}
adopt: {spread: 24h, rate: 300, percent: 100}`)
	plain.written, written.written = nil, nil
	if got, want := fmt.Sprintf("%+v", written), fmt.Sprintf("%+v", plain); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPaceDefaults(t *testing.T) {
	for _, c := range []struct {
		driver     Driver
		pace       string
		start, max string
	}{
		{Datastore, "{}", "500", "5000"},
		{Datastore, "{max: 100}", "100", "100"},
		{Datastore, "{max: 0.5}", "0.5", "0.5"},
		{Datastore, "{max: unlimited}", "500", "unlimited"},
		{Datastore, "{start: unlimited, max: unlimited}", "unlimited", "unlimited"},
		{Datastore, "{start: 5000}", "5000", "5000"},
		{"", "{}", "500", "5000"},
		{Embedded, "{}", "unlimited", "unlimited"},
		{Embedded, "{max: 5000}", "5000", "5000"},
		{Embedded, "{start: 10}", "10", "unlimited"},
	} {
		p := mustOne(t, c.driver, "name: a\nkind: A\npace: "+c.pace).Pace
		if p.Start.String() != c.start || p.Max.String() != c.max {
			t.Errorf("%s %s: start %v and max %v, want %s and %s", c.driver, c.pace, p.Start, p.Max, c.start, c.max)
		}
	}
}

func TestOtherLayouts(t *testing.T) {
	words := mustOne(t, Firestore, "name: a\nkind: users/u1/sessions\nlayout: sharded-timestamp\nproperty: at\nshard_values: [x, 'y', \"3\", '']")
	if got := fmt.Sprint(words.ShardValues); got != "[x y 3 ]" || words.ShardValues[2].Numeric || words.ShardProperty != "shard" {
		t.Errorf("shard values %s of %q", got, words.ShardProperty)
	}
	if words.Shards != 0 {
		t.Errorf("a layout without shards of its own has %d", words.Shards)
	}
	numbers := mustOne(t, Datastore, "name: a\nkind: A\nlayout: sharded-timestamp\nproperty: at\nshard_property: s\nshard_values: [0, -1, 9223372036854775807]")
	if got := fmt.Sprint(numbers.ShardValues); got != "[0 -1 9223372036854775807]" || !numbers.ShardValues[1].Numeric {
		t.Errorf("shard values %s", got)
	}
	plain := mustOne(t, Firestore, "name: a\nkind: sessions\ngroup: true\nlayout: timestamp\nproperty: at")
	if st := plain.StoreTarget(); st.Type != store.Instant || !st.Group || st.Property != "at" || st.Name != "a" {
		t.Errorf("store target %+v", st)
	}
	sharded := mustOne(t, Embedded, "name: a\nkind: A\nlayout: sharded\nshards: 9999")
	if st := sharded.StoreTarget(); st.Type != store.Text || sharded.Shards != 9999 {
		t.Errorf("%d shards, store target %+v", sharded.Shards, st)
	}
	all := mustOne(t, Datastore, "name: a\nkind: A\nnamespaces: ['*']")
	if !all.AllNamespaces || len(all.Namespaces) > 0 {
		t.Errorf("all namespaces: %v %q", all.AllNamespaces, all.Namespaces)
	}
}

func TestShardValueBounds(t *testing.T) {
	values := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%d,", i)
		}
		return "name: a\nkind: A\nlayout: sharded-timestamp\nproperty: at\nshard_values: [" + b.String() + "]"
	}
	if got := mustOne(t, Datastore, values(9999)); len(got.ShardValues) != 9999 {
		t.Errorf("%d values, want 9999", len(got.ShardValues))
	}
	if _, err := one(t, Datastore, values(10000)); err == nil || !strings.Contains(err.Error(), "has 10000 values; there may be at most 9999") {
		t.Errorf("10,000 values give %v", err)
	}
	if _, err := one(t, Datastore, "name: a\nkind: A\nlayout: sharded-timestamp\nproperty: at\nshard_values: [9223372036854775808]"); err == nil {
		t.Error("a number of 65 bits passes")
	}
}

func TestNameBounds(t *testing.T) {
	long := strings.Repeat("é", MaxName/2)
	if got := mustOne(t, Datastore, "name: a\nkind: "+long); got.Kind != long {
		t.Error("a kind of 1,500 bytes is changed")
	}
	for _, bad := range []string{long + "x", ".", "..", "__a__", "____", `"a\tb"`, `"a\u0085b"`, "a/b"} {
		if _, err := one(t, Datastore, "name: a\nkind: "+bad); err == nil {
			t.Errorf("the kind %.20s passes", bad)
		}
	}
	for _, fine := range []string{"__a", "a__", "...", "Ünïcode", "会话", "with space"} {
		mustOne(t, Datastore, "name: a\nkind: "+fine)
	}
	for _, bad := range []string{"a.b", "'a[0'", "'a]'", "'*'", "'`a'", "a/b", "__a__"} {
		if _, err := one(t, Datastore, "name: a\nkind: A\nproperty: "+bad); err == nil {
			t.Errorf("the property %s passes", bad)
		}
	}
	mustOne(t, Datastore, "name: "+"a"+strings.Repeat("9", 62)+"\nkind: A")
	if _, err := one(t, Datastore, "name: "+"a"+strings.Repeat("9", 63)+"\nkind: A"); err == nil {
		t.Error("a target's name of 64 letters passes")
	}
	if _, err := one(t, Datastore, "name: a\nkind: A\nnamespaces: ["+strings.Repeat("n", 101)+"]"); err == nil {
		t.Error("a namespace of 101 letters passes")
	}
	mustOne(t, "", "name: a\nkind: users/u1/sessions") // no store, no rule that only some have
}

// A message about a long value is not as long as the value, and a file full of
// mistakes does not give a page for each.
func TestMessagesAreBounded(t *testing.T) {
	_, err := one(t, Datastore, "name: "+strings.Repeat("x", 100_000)+"\nkind: A")
	if err == nil || len(err.Error()) > 400 {
		t.Errorf("the message has %d bytes", len(err.Error()))
	}
	_, err = ParseTargets("f.yaml", strings.NewReader("targets:\n"+strings.Repeat("- 1\n", 5000)), Datastore)
	if lines := strings.Count(err.Error(), "\n") + 1; lines != mostProblems+1 || !strings.HasSuffix(err.Error(), "and 4900 more problems") {
		t.Errorf("%d lines, the last of them %q", lines, err.Error()[strings.LastIndex(err.Error(), "\n"):])
	}
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != 5000 {
		t.Errorf("%d problems, want 5000", len(problems))
	}
}

func FuzzParseTargets(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal("no seeds: ", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "datastore")
		f.Add(string(text), "")
	}
	f.Add(Example, "embedded")
	f.Add("targets: [{name: a, kind: A, <<: *a}]", "firestore")
	f.Fuzz(func(t *testing.T, text, driver string) {
		targets, err := ParseTargets("f.yaml", strings.NewReader(text), Driver(driver))
		var problems Problems
		if err != nil && !errors.As(err, &problems) {
			t.Fatalf("the error is a %T", err)
		}
		if (err == nil) != (len(targets) > 0) || err != nil && targets != nil {
			t.Fatalf("%d targets and error %v", len(targets), err)
		}
		for _, target := range targets { // what passes keeps the promises that the sweep relies on
			switch {
			case !targetName.MatchString(target.Name), target.Kind == "", target.Property == "":
				t.Errorf("a name is missing: %+v", target)
			case target.Layout.Uses("shards") != (target.Shards > 0), target.Shards > maxShards:
				t.Errorf("layout %s with %d shards", target.Layout, target.Shards)
			case target.Page < 1, target.Page > store.MaxPage, target.Lease < minLease, target.Rewind <= target.Overlap, target.MaxAge <= target.Retention:
				t.Errorf("out of bounds: %+v", target)
			case target.Pace.Start.Exceeds(target.Pace.Max), !target.Pace.Max.Unlimited && target.Pace.Max.Most <= 0:
				t.Errorf("pace %+v", target.Pace)
			case target.Guard == store.GuardQuery && (!target.SingleValued || Driver(driver) == Datastore && !target.Layout.Uses("shards")):
				t.Errorf("guard query for %+v", target)
			case target.AllNamespaces == (len(target.Namespaces) > 0):
				t.Errorf("namespaces %v %q", target.AllNamespaces, target.Namespaces)
			}
		}
	})
}

func TestBreaker(t *testing.T) {
	if off := mustOne(t, Datastore, "name: a\nkind: A\nbreaker: off").Breaker; !off.Off {
		t.Errorf("off reads as %+v", off)
	}
	b := mustOne(t, Datastore, "name: a\nkind: A\nbreaker: {floor: 0, fraction: 0.5%, window: 10m}").Breaker
	if b.Off || b.Floor != 0 || b.Fraction != 0.005 || b.Window != 10*time.Minute || b.Learn != 14*24*time.Hour {
		t.Errorf("read as %+v", b)
	}
	for text, want := range map[string]string{
		"false":            "must be a mapping of fields, or off",
		"none":             "must be a mapping of fields, or off",
		"{floor: -1}":      "not between 0 and",
		"{fraction: 0.25}": "percentage",
		"{fraction: 25}":   "percentage",
		"{fraction: 101%}": "at most 100%",
		"{fraction: 0%}":   "above 0%",
		"{window: 1s}":     "not between 1m and 1d",
		"{learn: 1h}":      "not between 1d and 90d",
		"{flor: 5}":        "did you mean floor?",
	} {
		_, err := one(t, Datastore, "name: a\nkind: A\nbreaker: "+text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
