package generation

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestLife plays the scripts in testdata: commands stand behind ">", and below
// each one what became of the record. Times are since the record's creation.
//
//	policy every=24h ramp=60m staleness=1m slack=10m settle=0 keep=3 shards=16
//	to DURATION       let time pass, with a look every ten minutes, and print each change
//	advance           open the next generation by hand
//	force             the same, though writers are still moving
//	retire NUMBER     nothing is left in it
func TestLife(t *testing.T) {
	files, err := filepath.Glob("testdata/*.life")
	if err != nil || len(files) < 3 {
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

func play(t *testing.T, script string) string {
	t.Helper()
	var out strings.Builder
	p := Policy{}
	r := Record{Target: "sessions", Created: opened, NurseryShards: 16}
	now := opened
	state := func() {
		fmt.Fprintf(&out, "%4dh%02d ", int(now.Sub(opened).Hours()), int(now.Sub(opened).Minutes())%60)
		for i, g := range r.Generations {
			fmt.Fprintf(&out, " %d:%s/%d", g.Number, r.State(i, now, p.Settle), g.Shards)
		}
		out.WriteByte('\n')
	}
	lines := bufio.NewScanner(strings.NewReader(script))
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, ">") {
			if line == "" || strings.HasPrefix(line, "#") {
				out.WriteString(line + "\n")
			}
			continue
		}
		out.WriteString(line + "\n")
		words := strings.Fields(line[1:])
		var err error
		switch words[0] {
		case "policy":
			for _, w := range words[1:] {
				name, value, _ := strings.Cut(w, "=")
				lengths := map[string]*time.Duration{"every": &p.Every, "ramp": &p.Ramp, "staleness": &p.Staleness, "slack": &p.Slack}
				numbers := map[string]*int{"settle": &p.Settle, "keep": &p.Keep, "shards": &p.Shards}
				if d, ok := lengths[name]; ok {
					*d, err = time.ParseDuration(value)
				} else if n, ok := numbers[name]; ok {
					_, err = fmt.Sscan(value, n)
				} else {
					t.Fatalf("%s: what is %s?", line, name)
				}
				if err != nil {
					t.Fatalf("%s: %v", line, err)
				}
			}
			r = r.OpenFirst(p.Shards, now).WithWriterBounds(p)
			continue
		case "to":
			until, err := time.ParseDuration(words[1])
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			before := ""
			for end := opened.Add(until); now.Before(end); {
				now = now.Add(10 * time.Minute)
				r, _ = r.Next(p, now)
				var states []string
				for i, g := range r.Generations {
					states = append(states, fmt.Sprint(g.Number, r.State(i, now, p.Settle)))
				}
				if s := strings.Join(states, " "); s != before {
					state()
					before = s
				}
			}
			continue
		case "advance", "force":
			r, err = r.Advance(p, now, words[0] == "force")
		case "retire":
			var number int
			if _, err := fmt.Sscan(words[1], &number); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			r, err = r.Retire(number, now, p.Settle)
		default:
			t.Fatalf("what is %q?", line)
		}
		if err != nil {
			fmt.Fprintf(&out, "          %v\n", err)
			continue
		}
		state()
	}
	return out.String()
}

func TestSealedWaitsForTheLargestBounds(t *testing.T) {
	p := Policy{Every: time.Hour, Ramp: time.Minute, Staleness: 5 * time.Minute, Slack: 20 * time.Minute, Keep: 9, Shards: 4}
	r := New("a", "A", "p", 4, true, opened).WithWriterBounds(p)
	p.Staleness, p.Slack = time.Minute, time.Minute // somebody may still go by the old ones
	r = r.WithWriterBounds(p)
	if r.Staleness != time.Minute || r.Generations[0].Staleness != 5*time.Minute || r.Generations[0].Slack != 20*time.Minute {
		t.Errorf("after shrinking: %+v", r)
	}
	r, _ = r.Next(p, opened.Add(time.Hour))
	now := opened.Add(time.Hour + time.Minute)
	r, _ = r.Next(p, now)
	if got, want := r.SealedAt(0, 0), now.Add(25*time.Minute+commitDelay); !got.Equal(want) {
		t.Errorf("sealed at %v, want %v", got, want)
	}
	if g := r.Generations[1]; g.Staleness != time.Minute || g.Slack != time.Minute {
		t.Errorf("the new one has the old bounds: %+v", g)
	}
}

// Records are values: what is made of one leaves it as it was.
func TestRecordsAreValues(t *testing.T) {
	p := Policy{Every: time.Hour, Ramp: time.Minute, Staleness: time.Minute, Slack: time.Minute, Keep: 1, Shards: 4}
	r := New("a", "A", "p", 4, true, opened).WithWriterBounds(p)
	r, _ = r.Next(p, opened.Add(time.Hour))
	r, _ = r.Next(p, opened.Add(2*time.Hour))
	was := fmt.Sprintf("%+v", r)
	later := opened.Add(3 * time.Hour)
	r.Next(p, later)
	_, _ = r.Retire(1, later, 0)
	_, _ = r.Advance(p, later, true)
	r.WithWriterBounds(Policy{Staleness: time.Hour})
	if now := fmt.Sprintf("%+v", r); now != was {
		t.Errorf("%s became %s", was, now)
	}
}

func TestNoGenerationAfterTheLast(t *testing.T) {
	r := Record{Target: "a", NurseryShards: 1, Generations: []Generation{{Number: 99_999_999, Shards: 1, Opened: opened}}}
	if _, err := r.Advance(Policy{Shards: 1}, opened.Add(time.Hour), true); err == nil || errors.Is(err, ErrRamping) {
		t.Errorf("advance: %v", err)
	}
	if next, steps := r.Next(Policy{Every: time.Minute, Shards: 1, Keep: 9}, opened.Add(time.Hour)); len(next.Generations) != 1 || len(steps) != 0 {
		t.Errorf("next: %+v, %v", next, steps)
	}
}

// An advance may be forced by a clock that is behind: generations are opened in their
// order anyway, since otherwise nobody could read the record any more.
func TestForcedByAClockThatIsBehind(t *testing.T) {
	r := New("a", "A", "p", 4, true, opened)
	r, err := r.Advance(Policy{Shards: 4}, opened.Add(-time.Minute), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode(r.encode()); err != nil || !r.Generations[1].Opened.Equal(opened) {
		t.Errorf("%+v, %v", r.Generations, err)
	}
}

// What has settled stays so when the later generations that it waited for retire.
func TestSettledStaysSettled(t *testing.T) {
	p := Policy{Every: time.Hour, Ramp: time.Minute, Staleness: time.Minute, Slack: time.Minute, Keep: 9, Shards: 4}
	r := New("a", "A", "p", 4, true, opened).WithWriterBounds(p)
	now := opened
	for range 4 {
		now = now.Add(time.Hour)
		r, _ = r.Next(p, now)
		r, _ = r.Next(p, now.Add(2*time.Minute))
	}
	sealed := r.SealedAt(0, 1)
	if sealed.IsZero() || !sealed.After(r.SealedAt(0, 0)) {
		t.Fatalf("sealed at %v, without waiting at %v", sealed, r.SealedAt(0, 0))
	}
	r, err := r.Retire(2, now.Add(time.Hour), 1)
	if err != nil {
		t.Fatal(err)
	}
	if later := r.SealedAt(0, 1); later.After(sealed) {
		t.Errorf("it was sealed at %v, and is at %v once another one has retired", sealed, later)
	}
	if settled := r.SealedAt(0, 3); settled.IsZero() || !settled.Equal(r.SealedAt(2, 0)) { // the retired one counts
		t.Errorf("three later ones are sealed at %v, %v", settled, r.SealedAt(2, 0))
	}
}

// A generation that drains keeps the next one waiting, unless it is blocked.
func TestBlockedKeepsNoOtherWaiting(t *testing.T) {
	p := Policy{Every: time.Hour, Ramp: time.Minute, Staleness: time.Minute, Slack: time.Minute, Keep: 1, Shards: 4}
	r := New("a", "A", "p", 4, true, opened).WithWriterBounds(p)
	now := opened
	to := func(d time.Duration, blocked ...int) (draining []int) {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(10 * time.Minute)
			r, _ = r.Next(p, now, blocked...)
		}
		for i, g := range r.Generations {
			if r.State(i, now, p.Settle) == Draining {
				draining = append(draining, g.Number)
			}
		}
		return draining
	}
	for _, c := range []struct {
		wait    time.Duration
		blocked []int
		want    string
	}{
		{5 * time.Hour, nil, "[1]"},                           // the others wait
		{time.Hour, []int{7}, "[1]"},                          // another one is blocked
		{10 * time.Minute, []int{1}, "[1 2]"},                 // the next one drains, too
		{time.Hour, []int{1}, "[1 2]"},                        // one at a time
		{10 * time.Minute, []int{1, 2}, "[1 2 3]"},            // and the one after
		{10 * time.Minute, nil, "[1 2 3]"},                    // nothing is taken back
		{10 * time.Minute, []int{2, 3}, "[1 2 3]"},            // the first one drains again
		{10 * time.Minute, []int{1, 2, 3, 4, 5}, "[1 2 3 4]"}, // one more in each step
	} {
		if got := fmt.Sprint(to(c.wait, c.blocked...)); got != c.want {
			t.Errorf("with %v blocked %s drain, want %s", c.blocked, got, c.want)
		}
	}
}

// Two records of one content differ in their revision at most.
func TestEqualContent(t *testing.T) {
	r := New("a", "A", "p", 4, true, opened)
	q := r
	q.Revision = "9-x"
	if !r.EqualContent(q) || !q.EqualContent(r) {
		t.Error("a revision is no content")
	}
	q.Paused = true
	other := r
	other.Target = "b"
	bounds := r.WithWriterBounds(Policy{Staleness: time.Minute})
	if r.EqualContent(q) || r.EqualContent(other) || r.EqualContent(bounds) {
		t.Error("content that differs counts as equal")
	}
	var zero Record
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Record]()) {
		var one Record
		if change(reflect.ValueOf(&one).Elem().FieldByIndex(f.Index)); one.isSame(&zero) != (f.Name == "Revision") {
			t.Errorf("%s: another value counts as the same: %v", f.Name, one.isSame(&zero))
		}
	}
}

// change gives a value, or its first part, another value than zero.
func change(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(opened))
			return
		}
		change(v.Field(0))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1)
	default:
		v.SetInt(7)
	}
}

// The store refuses the keys of dropped generations for good. If the open one is among them, since a
// process opened it without asking, the next one opens above them.
func TestAdoptLeavesTheDropped(t *testing.T) {
	r := New("sessions", "Session", "expiry_key", 4, true, opened)
	for floor, want := range map[int]string{0: "[1]", 1: "[1 2]", 7: "[1 8]"} {
		now := opened.Add(time.Second)
		next, err := r.Adopt(nil, floor, Policy{Shards: 4}, now)
		var numbers []int
		for _, g := range next.Generations {
			numbers = append(numbers, g.Number)
		}
		if got := fmt.Sprint(numbers); err != nil || got != want {
			t.Errorf("dropped up to %d: generations %s, %v, want %s", floor, got, err, want)
		}
		if closed, _ := next.Next(Policy{}, now); len(numbers) == 2 && closed.StamperFor("x", now).Generation != numbers[1] {
			t.Errorf("dropped up to %d: writers stamp %+v", floor, closed.StamperFor("x", now))
		}
	}
}

// A record shows that one before it is lost by what it found, not by what it opened since: a
// record of its own needs to wait for its own writers alone.
func TestContinuesALostRecord(t *testing.T) {
	short := Policy{Shards: 4, Staleness: time.Second, Slack: time.Second}
	later := opened.Add(time.Minute)
	own := New("sessions", "Session", "expiry_key", 4, true, opened).WithWriterBounds(short)
	advanced, err := own.Advance(short, later, true)
	if err != nil {
		t.Fatal(err)
	}
	adopt := func(r Record, now time.Time, floor int, used ...Generation) Record {
		t.Helper()
		next, err := r.Adopt(used, floor, short, now)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	blank := New("sessions", "Session", "expiry_key", 4, false, opened)
	for name, c := range map[string]struct {
		r    Record
		want bool
	}{
		"its own":                         {own, false},
		"its own, advanced":               {advanced, false},
		"nothing found":                   {adopt(blank, opened, 0), false},
		"nothing found by a second probe": {adopt(advanced, later, 0), false},
		"the first generation found":      {adopt(blank, opened, 0, Generation{Number: 1, Shards: 4}), true},
		"a later generation found":        {adopt(blank, opened, 0, Generation{Number: 7, Shards: 4}), true},
		"found by a second probe":         {adopt(own, later, 0, Generation{Number: 7, Shards: 4}), true},
		"dropped generations":             {adopt(blank, opened, 7), true},
	} {
		if got := c.r.IsContinued(); got != c.want {
			t.Errorf("%s: continues a lost record: %t, want %t", name, got, c.want)
		}
		if wait := c.r.ProbeLater(short).Probe.Sub(opened); (wait > DefaultStaleness) != c.want {
			t.Errorf("%s: probes %s after its beginning", name, wait)
		}
	}
}

// Where a record listed none, its writers may still go by one that is lost: what is in use is looked for once
// more. Where it listed some, that was done.
func TestAdoptAsksForAnotherProbe(t *testing.T) {
	now := time.Date(2026, 10, 27, 0, 0, 0, 0, time.UTC)
	none := New("sessions", "Session", "expiry_key", 4, false, now.Add(-time.Hour))
	first, err := none.Adopt(nil, 0, Policy{Shards: 4}, now)
	if wait := first.Probe.Sub(now); err != nil || wait < DefaultStaleness+DefaultSlack || wait > 2*DefaultSlack {
		t.Errorf("probes after %s, %v", wait, err)
	}
	if second, err := first.Adopt(nil, 0, Policy{Shards: 4}, now); err != nil || !second.Probe.IsZero() {
		t.Errorf("probes once more at %v, %v", second.Probe, err)
	}
}

// What was adopted wants a look around.
func TestAdoptAsksForALook(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	before := Record{Checked: now, NurseryShards: 1,
		Generations: []Generation{{Number: 7, Shards: 1, Opened: now}}}
	same, err := before.Adopt([]Generation{{Number: 7, Shards: 1}, {Number: 0, Shards: 3}}, 0, Policy{}, now)
	if err != nil || !same.Checked.Equal(now) || same.NurseryShards != 3 {
		t.Errorf("nothing new: %+v, %v", same, err)
	}
	more, err := before.Adopt([]Generation{{Number: 5, Shards: 1}}, 0, Policy{}, now)
	if err != nil || !more.Checked.IsZero() {
		t.Errorf("generation 5 was found: %+v, %v", more, err)
	}
}

// Nothing that was found around the ranges of one layout says anything of another one.
func TestAnotherLayoutAsksForALook(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	r := Record{Checked: now, Outside: 3}
	if same := r.SweptAs("generation", 0).SweptAs("generation", time.Hour); !same.Checked.Equal(now) || same.Outside != 3 {
		t.Errorf("in the same layout: %+v", same)
	}
	if other := r.SweptAs("generation", 0).SweptAs("sharded", 0); !other.Checked.IsZero() || other.Outside != 0 {
		t.Errorf("in another layout: %+v", other)
	}
}
