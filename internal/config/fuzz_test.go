package config

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/store"
)

// checkProblems holds what every error of Load promises.
func checkProblems(t *testing.T, err error) {
	t.Helper()
	var problems Problems
	if !errors.As(err, &problems) || len(problems) == 0 {
		t.Fatalf("the error is a %T: %v", err, err)
	}
	for _, p := range problems {
		if p.Reason == "" || len(p.Error()) > 3000 {
			t.Errorf("a problem says nothing, or too much: %.400q", p.Error())
		}
	}
}

// FuzzSettings gives one setting any text, as a flag and as a variable: both come
// to the same, what passes is within its bounds, and no message shows what
// stood in a variable.
func FuzzSettings(f *testing.F) {
	for i, s := range Settings() {
		f.Add(uint8(i), s.Default)
		f.Add(uint8(i), "")
	}
	for i, text := range []string{"embedded:/var/lib/x", "reaper.yaml", "TRUE", "016", "1d12h", "CRON_TZ=UTC * * * * *", "[::1]:http", "https://user:pw@push/x?y", "warning", "Json", "3601s"} {
		f.Add(uint8(i), text)
	}
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		cleanEnv(t)
		s := Settings()[int(which)%len(Settings())]
		open := files{"reaper.yaml": Example}.open
		c, err := Load(Sources{Flags: map[string]string{s.Flag: text}, Open: open})
		switch {
		case err != nil && s.Flag == "config" && len(text) > 1000: // a file's name is shown, however long
		case err != nil:
			checkProblems(t, err)
		case c.Workers < 1 || c.Workers > maxWorkers, !c.MaxDuration.Unlimited && c.MaxDuration.Most <= 0, c.ShutdownGrace <= 0, c.Schedule.IsZero(), c.Listen == "":
			t.Errorf("--%s %q passes as %+v", s.Flag, text, c)
		}
		if strings.ContainsRune(text, 0) {
			return // no environment holds that
		}
		t.Setenv(s.Env, text)
		d, err2 := Load(Sources{Open: open})
		if (err == nil) != (err2 == nil) || err == nil && d.Schedule.String() != c.Schedule.String() {
			t.Errorf("--%s %q says %v, and %s says %v", s.Flag, text, err, s.Env, err2)
		}
		if s.Flag == "config" {
			return // a file's name is shown
		}
		const secret = "hunter2-4711"
		t.Setenv(s.Env, text+secret)
		if _, err := Load(Sources{Open: open}); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s=%q is shown: %v", s.Env, text+secret, err)
		}
	})
}

// FuzzEnviron has any name in the environment: what looks like ours is refused or
// known, and nothing is refused without a word that is.
func FuzzEnviron(f *testing.F) {
	for _, pair := range []string{"REAPER_WORKRES=4", "REAPER_PORT=tcp://10.0.0.1:80", "REAPER_", "REAPER_\xff=1", "=", "PATH=/bin", "REAPER_APPLY", "reaper_apply=true"} {
		f.Add(pair)
	}
	known := []string{}
	for _, s := range Settings() {
		known = append(known, s.Env)
	}
	f.Fuzz(func(t *testing.T, pair string) {
		name, value, _ := strings.Cut(pair, "=")
		for _, p := range unknownVariables([]string{pair}, known) {
			if !strings.HasPrefix(name, prefix) || p.What != name || !strings.Contains(p.Reason, prefix) {
				t.Errorf("%q: %v", pair, p)
			}
			if len(value) > 40 && !strings.Contains(name, value) && strings.Contains(p.Error(), value) {
				t.Errorf("the value is shown: %v", p)
			}
		}
	})
}

// FuzzStore: a spec that passes prints as one that means the same.
func FuzzStore(f *testing.F) {
	for _, s := range []string{"embedded:a:b", "datastore:example.com:old-project/db1x", "firestore:demo/(default)", "firestore:projects/p1", "datastore:", "embedded:~/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		s, err := ParseStore(spec)
		if err != nil {
			if !s.IsZero() || len(err.Error()) > 600 {
				t.Errorf("%q: %+v and %v", spec, s, err)
			}
			return
		}
		if back, err := ParseStore(s.String()); err != nil || back != s {
			t.Errorf("%q is %+v, which prints as %q and then is %+v, %v", spec, s, s, back, err)
		}
		if s.Driver != Embedded && strings.ContainsAny(s.Project+s.Database, "/ \n\x00") {
			t.Errorf("%q is %+v", spec, s)
		}
	})
}

// FuzzRate: a rate that passes is above nothing, and prints as itself.
func FuzzRate(f *testing.F) {
	for _, s := range []string{"200", "0.5", "unlimited", "0", "-1", "1e3", "NaN", "99999999999999999999", "007", "0.0000000001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Rate(s)
		if err != nil {
			return
		}
		if !r.Unlimited && !(r.Most >= minRate && r.Most <= maxRate) {
			t.Errorf("%q is %v", s, r)
		}
		if back, err := Rate(r.String()); err != nil || back != r {
			t.Errorf("%q is %v, which prints as %q and then is %v, %v", s, r, r, back, err)
		}
	})
}

// FuzzNames holds names against what the stores take: whatever passes is a name
// that each of them stores as it is.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"Session", "users/u1/sessions", "users/u1", "__key__", "__\n__", ".", "a.b", "`", "\xff", strings.Repeat("é", 751), "a//b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, d := range []Driver{Embedded, Datastore, Firestore, ""} {
			for _, group := range []bool{false, true} {
				if checkKind(s, d, group) != nil {
					continue
				}
				segments := strings.Split(s, "/")
				if group && len(segments) > 1 || d == Firestore && len(segments)%2 == 0 || (d == Datastore || d == Embedded) && len(segments) > 1 {
					t.Errorf("%s: kind %q passes, group %v", d, s, group)
				}
				for _, segment := range segments {
					if segment == "" || len(segment) > MaxName || !utf8.ValidString(segment) || segment == "." || segment == ".." {
						t.Errorf("%s: kind %q passes", d, s)
					}
				}
			}
		}
		if checkProperty(s) == nil && strings.ContainsAny(s, ".[]*`/\x00") {
			t.Errorf("property %q passes", s)
		}
		if checkNamespace(s) == nil && (len(s) > 100 || strings.ContainsAny(s, " /\n\x00")) {
			t.Errorf("namespace %q passes", s)
		}
	})
}

// FuzzTargetFields puts any text where one field of a target's value stands, which
// random bytes seldom do: no field's parser is without its bounds.
func FuzzTargetFields(f *testing.F) {
	fields := fieldsOf("")
	for _, s := range sections {
		for _, field := range fieldsOf(s.name) {
			fields = append(fields, s.name+"."+field)
		}
	}
	for i := range fields {
		for _, text := range []string{"7", "1d", "[1, 2]", "-1", "true", "unlimited", "sharded-timestamp", "{}", "0x10", "99999999999999999999", "'a'"} {
			f.Add(uint8(i), text, "datastore")
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, text, driver string) {
		field, rest := fields[int(which)%len(fields)], ""
		if section, inner, ok := strings.Cut(field, "."); ok {
			field, rest = section, inner
		}
		if field == "name" || field == "kind" {
			return // it would stand there twice
		}
		if d := Driver(driver); d != "" && d != Embedded && d != Datastore && d != Firestore {
			return
		}
		line := "  " + field + ": " + text + "\n"
		if rest != "" {
			line = "  " + field + ": {" + rest + ": " + text + "}\n"
		}
		targets, err := ParseTargets("f.yaml", strings.NewReader("targets:\n- name: a\n  kind: A\n"+line), Driver(driver))
		if err != nil {
			checkProblems(t, err)
			return
		}
		for _, target := range targets {
			switch {
			case target.Page < 1, target.Page > store.MaxPage, target.Lease < minLease, target.Rewind <= target.Overlap, target.MaxAge <= target.Retention, target.Retention < 0,
				target.Overlap < 0, target.MaxClockSkew < 0, target.Shards > maxShards, target.Layout.Uses("shards") != (target.Shards > 0):
				t.Errorf("%s passes as %+v", line, target)
			case target.Pace.Start.Exceeds(target.Pace.Max), !target.Pace.Max.Unlimited && target.Pace.Max.Most <= 0, !target.Pace.Total.Unlimited && target.Pace.Total.Most <= 0:
				t.Errorf("%s passes as pace %+v", line, target.Pace)
			case target.Generations.Every < 0, target.Generations.Ramp < 0, target.Generations.Staleness < 0, target.Generations.Slack < 0, target.Generations.Settle < 0, target.Generations.Keep < 0:
				t.Errorf("%s passes as %+v", line, target.Generations)
			case target.Pace.Gate != "" && !strings.HasPrefix(target.Pace.Gate, "/") && !strings.HasPrefix(target.Pace.Gate, "./") &&
				!strings.HasPrefix(target.Pace.Gate, "http://") && !strings.HasPrefix(target.Pace.Gate, "https://"):
				t.Errorf("%s passes as gate %q", line, target.Pace.Gate)
			case !target.Limits.PerHour.Unlimited && target.Limits.PerHour.Most < 1, !target.Limits.PerDay.Unlimited && target.Limits.PerDay.Most < 1:
				t.Errorf("%s passes as %+v", line, target.Limits)
			}
		}
	})
}
