package config

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		in   string
		want time.Duration
	}{
		{"0", 0}, {"0s", 0}, {"90s", 90 * time.Second}, {"1h30m", 90 * time.Minute}, {"1.5h", 90 * time.Minute}, {"250ms", 250 * time.Millisecond},
		{"1d", day}, {"1825d", 1825 * day}, {"1d12h", 36 * time.Hour}, {"0d1s", time.Second}, {"7d0s", 7 * day}, {"106751d", 106751 * day},
	} {
		got, err := Duration(c.in)
		if err != nil || got != c.want {
			t.Errorf("%q is %v with error %v, want %v", c.in, got, err, c.want)
		}
		if back, err := Duration(FormatDuration(c.want)); err != nil || back != c.want {
			t.Errorf("%v prints as %q, which is %v with error %v", c.want, FormatDuration(c.want), back, err)
		}
	}
	for in, want := range map[string]error{
		"": errEmpty, "60": errNoUnit, "1.5": errNoUnit, "1d12": errNoUnit, "-1s": errNegative, "-1d": errNegative,
		"1.5d": errDurationD, "12h1d": errDurationD, "1d1d": errDurationD, "d": errDuration, "1d-1h": errDuration, "1d+1h": errDuration,
		"+5s": errDuration, ".5s": errDuration, "5 m": errDuration, "5w": errDuration, "1y": errDuration, "10 days": errDuration, "forever": errDuration,
		"unlimited": errDuration, "106752d": errTooLong, "99999999999999999999d": errTooLong, "106751d24h": errTooLong, "1d ": errDuration,
	} {
		if got, err := Duration(in); !errors.Is(err, want) || got != 0 {
			t.Errorf("%q is %v with error %v, want %v", in, got, err, want)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for in, want := range map[time.Duration]string{
		0: "0s", 8 * time.Second: "8s", 90 * time.Second: "1m30s", time.Hour: "1h", 36 * time.Hour: "1d12h", 1825 * 24 * time.Hour: "1825d", 100 * time.Millisecond: "100ms",
	} {
		if got := FormatDuration(in); got != want {
			t.Errorf("%v prints as %q, want %q", in, got, want)
		}
	}
}

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"1d12h", "106751d23h47m16s", "1d1d", "-1d", "0", "1µs", "٣d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := Duration(s)
		if err != nil {
			return
		}
		if d < 0 {
			t.Errorf("%q is %v", s, d)
		}
		if back, err := Duration(FormatDuration(d)); err != nil || back != d {
			t.Errorf("%q is %v, which prints as %q and then is %v, %v", s, d, FormatDuration(d), back, err)
		}
	})
}

func TestNumbers(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "16": 16, "-3": -3, "9223372036854775807": math.MaxInt64, "99999999999999999999": math.MaxInt64, "-99999999999999999999": math.MinInt64,
	} {
		if got, err := parseInt(in); err != nil || got != want {
			t.Errorf("%q is %d with error %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "010", "0x10", "0b1", "0o7", "1_000", "+1", "1.0", "1e3", " 1", "--1", "-", "-01", "٣"} {
		if got, err := parseInt(in); err == nil {
			t.Errorf("%q passes for the integer %d", in, got)
		}
	}
	for in, want := range map[string]float64{"0.5": 0.5, "500": 500, "-1": -1, "0": 0} {
		if got, err := parseNumber(in); err != nil || got != want {
			t.Errorf("%q is %v with error %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", ".5", "5.", "1e3", "NaN", ".inf", "0x1p4", "00.5", "1_0"} {
		if got, err := parseNumber(in); err == nil {
			t.Errorf("%q passes for the number %v", in, got)
		}
	}
	for _, in := range []string{"", "1", "0", "yes", "on", "True", "TRUE", "t"} {
		if got, err := parseBool(in); err == nil {
			t.Errorf("%q passes for %v", in, got)
		}
	}
}

func TestLimit(t *testing.T) {
	one, two, none := AtMost(1.0), AtMost(2.0), NoLimit[float64]()
	for _, c := range []struct {
		a, b Limit[float64]
		want bool
	}{{one, two, false}, {two, one, true}, {one, one, false}, {none, two, true}, {two, none, false}, {none, none, false}} {
		if got := c.a.Exceeds(c.b); got != c.want {
			t.Errorf("%v exceeds %v: %v, want %v", c.a, c.b, got, c.want)
		}
	}
	if s := AtMost(36*time.Hour).String() + " " + AtMost[int64](7).String() + " " + AtMost(1e6).String() + " " + none.String(); s != "1d12h 7 1000000 unlimited" {
		t.Error(s)
	}
}

func TestSchedule(t *testing.T) {
	at := time.Date(2026, 11, 21, 0, 7, 30, 0, time.FixedZone("CET", 3600))
	for in, want := range map[string]string{
		"*/5 * * * *": "2026-11-20T23:10:00Z", "0 0 * * *": "2026-11-21T00:00:00Z", " @hourly ": "2026-11-21T00:00:00Z", "*/60 * * * *": "2026-11-21T00:00:00Z",
		"@every 90s": "2026-11-20T23:09:00Z", "@every 1d": "2026-11-21T23:07:30Z", "0 0 29 2 *": "2028-02-29T00:00:00Z", "0 12 * JAN MON-FRI": "2027-01-01T12:00:00Z",
	} {
		s, err := ParseSchedule(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		if got := s.Next(at).Format(time.RFC3339); got != want || s.String() != strings.TrimSpace(in) {
			t.Errorf("%q runs at %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]error{
		"": errEmpty, "  ": errEmpty, "TZ=UTC": errScheduleZone, "CRON_TZ=": errScheduleZone, "CRON_TZ=UTC * * * * *": errScheduleZone,
		"TZ=Europe/Berlin 0 2 * * *": errScheduleZone, "@every -5m": errScheduleEvery, "@every 500ms": errScheduleEvery, "@every 1500ms": errScheduleEvery,
		"@every": errScheduleEvery, "@every 5": errScheduleEvery, "@every 0s": errScheduleEvery, "@reboot": errScheduleFields, "*/90 * * * *": errScheduleStep,
		"* */25 * * *": errScheduleStep, "0,5-50/61 * * * *": errScheduleStep, "*/0 * * * *": errScheduleFields, "* * 31 2 *": errScheduleNever,
		"* * * *": errScheduleFields, "0 * * * * *": errScheduleFields, "60 * * * *": errScheduleFields, "5m": errScheduleFields, "*/x * * * *": errScheduleFields,
	} {
		if s, err := ParseSchedule(in); !errors.Is(err, want) || !s.IsZero() {
			t.Errorf("%q: got error %v, want %v", in, err, want)
		}
	}
	if !(Schedule{}).Next(at).IsZero() {
		t.Error("the zero schedule runs")
	}
}

func FuzzSchedule(f *testing.F) {
	for _, s := range []string{"*/5 * * * *", "@every 5m", "TZ=", "@", "1-2/3,4 * ? JAN SUN"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sch, err := ParseSchedule(s)
		if err != nil {
			return
		}
		at := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
		if next := sch.Next(at); !next.After(at) {
			t.Errorf("%q runs at %v after %v", s, next, at)
		}
	})
}

func TestParseStore(t *testing.T) {
	for in, want := range map[string]Store{
		"embedded:/var/lib/reaper":               {Driver: Embedded, Dir: "/var/lib/reaper"},
		"embedded:a:b":                           {Driver: Embedded, Dir: "a:b"},
		"embedded:.":                             {Driver: Embedded, Dir: "."},
		"datastore:my-project":                   {Driver: Datastore, Project: "my-project"},
		"datastore:my-project/sessions-db":       {Driver: Datastore, Project: "my-project", Database: "sessions-db"},
		"datastore:example.com:old-project/db1x": {Driver: Datastore, Project: "example.com:old-project", Database: "db1x"},
		"firestore:demo":                         {Driver: Firestore, Project: "demo"},
	} {
		got, err := ParseStore(in)
		if err != nil || got != want {
			t.Errorf("%q is %+v with error %v, want %+v", in, got, err, want)
		}
		if got.String() != in {
			t.Errorf("%q prints as %q", in, got)
		}
	}
	if got, err := ParseStore("firestore:demo/(default)"); err != nil || got.Database != "" {
		t.Errorf("(default) is %+v with error %v", got, err)
	}
	for in, want := range map[string]error{
		"": errEmpty, "/var/lib/reaper": errStoreForm, "Datastore:p1": errStoreForm, "sqlite:x": errStoreForm, ":": errStoreForm, "embedded": errStoreForm,
		"embedded:": errStoreDir, "embedded: ": errStoreDir, "embedded:~": errStoreTilde, "embedded:~/x": errStoreTilde, "embedded:a\x00b": errStoreNul,
		"datastore:": errStoreProject, "datastore:/db": errStoreProject, "datastore:My-Project": errStoreProject, "datastore:123456": errStoreProject,
		"datastore:a b": errStoreProject, "datastore:project-": errStoreProject, "firestore:projects/p1": errDatabase, "datastore:demo/": errDatabase,
		"datastore:demo/abc": errDatabase, "datastore:demo/a/b": errDatabase, "datastore:demo/Db-1": errDatabase,
		"datastore:demo/a2345678-1234-1234-1234-123456789012": errDatabase,
	} {
		if got, err := ParseStore(in); !errors.Is(err, want) || !got.IsZero() {
			t.Errorf("%q is %+v with error %v, want %v", in, got, err, want)
		}
	}
}

func TestNearest(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"shrads", "shards", 2}, {"keep", "kepe", 2}, {"kitten", "sitting", 3}, {"same", "same", 0}} {
		if got := levenshtein(c.a, c.b); got != c.want {
			t.Errorf("%q to %q takes %d edits, want %d", c.a, c.b, got, c.want)
		}
	}
}
