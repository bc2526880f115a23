package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cleanEnv takes every variable with our prefix out of the environment until
// the test ends.
func cleanEnv(t *testing.T) {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, prefix) {
			t.Setenv(name, "") // so that it is restored
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// files are what Open finds.
type files map[string]string

func (f files) open(name string) (io.ReadCloser, error) {
	text, ok := f[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

func TestZeroConfigDeletesNothing(t *testing.T) {
	var c Config
	if c.Apply || c.MaxDuration.Unlimited || c.MaxDuration.Most > 0 || len(c.Targets) > 0 || !c.Store.IsZero() {
		t.Errorf("the zero Config allows something: %+v", c)
	}
}

func TestSettingDefaults(t *testing.T) {
	cleanEnv(t)
	c, err := Load(Sources{Open: files{}.open})
	if err != nil {
		t.Fatal(err)
	}
	if c.Apply || c.Workers != 16 || !c.MaxDuration.Unlimited || c.Schedule.String() != "*/5 * * * *" || c.Listen != ":9464" || c.UI != "127.0.0.1:9465" ||
		c.Pushgateway != "" || c.LogLevel != slog.LevelInfo || c.LogFormat != "" || c.ShutdownGrace != 8*time.Second ||
		!c.Store.IsZero() || c.File != "" || c.Targets != nil {
		t.Errorf("got %+v", c)
	}
}

func TestPrecedence(t *testing.T) {
	cleanEnv(t)
	open := files{"env.yaml": "targets: [{name: env, kind: A}]", "flag.yaml": "targets: [{name: flag, kind: A}]", DefaultFile: "targets: [{name: default, kind: A}]"}.open

	c, err := Load(Sources{Open: open})
	if err != nil || c.File != DefaultFile || c.Targets[0].Name != "default" {
		t.Fatalf("without anything: file %q, error %v", c.File, err)
	}

	t.Setenv("REAPER_STORE", "embedded:/var/lib/a:b")
	t.Setenv("REAPER_CONFIG", "env.yaml")
	t.Setenv("REAPER_APPLY", "true")
	t.Setenv("REAPER_WORKERS", "4")
	t.Setenv("REAPER_MAX_DURATION", "1d12h")
	t.Setenv("REAPER_SCHEDULE", "@hourly")
	t.Setenv("REAPER_LISTEN", "127.0.0.1:0")
	t.Setenv("REAPER_UI", "off")
	t.Setenv("REAPER_PUSHGATEWAY", "http://push:9091")
	t.Setenv("REAPER_LOG_LEVEL", "debug")
	t.Setenv("REAPER_LOG_FORMAT", "json")
	t.Setenv("REAPER_SHUTDOWN_GRACE", "2s")
	t.Setenv("REAPER_ACTOR", "ann@example.com")
	want := Config{
		Store: Store{Driver: Embedded, Dir: "/var/lib/a:b"}, File: "env.yaml", Apply: true, Workers: 4, MaxDuration: AtMost(36 * time.Hour),
		Listen: "127.0.0.1:0", Pushgateway: "http://push:9091", LogLevel: slog.LevelDebug, LogFormat: LogJSON, ShutdownGrace: 2 * time.Second, Actor: "ann@example.com",
	}
	c, err = Load(Sources{Open: open})
	if err != nil {
		t.Fatal(err)
	}
	if c.Targets[0].Name != "env" || c.Schedule.String() != "@hourly" {
		t.Errorf("targets %v, schedule %v", c.Targets, c.Schedule)
	}
	c.Targets, c.Schedule = nil, Schedule{}
	if fmt.Sprint(c) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}

	c, err = Load(Sources{Open: open, Flags: map[string]string{
		"config": "flag.yaml", "apply": "false", "workers": "2", "max-duration": "unlimited", "store": "datastore:demo-project/db-1", "json": "true",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if c.File != "flag.yaml" || c.Targets[0].Name != "flag" || c.Apply || c.Workers != 2 || !c.MaxDuration.Unlimited || c.Store.Project != "demo-project" {
		t.Errorf("a flag loses: %+v", c)
	}
	if c.LogLevel != slog.LevelDebug {
		t.Error("a flag that was not given wins over the environment")
	}
}

// Every problem of flags, environment and file is reported at once, and no
// value of a variable is repeated.
func TestAllProblemsAtOnce(t *testing.T) {
	cleanEnv(t)
	const secret = "hunter2"
	t.Setenv("REAPER_STORE", secret)
	t.Setenv("REAPER_APPLY", secret)
	t.Setenv("REAPER_WORKERS", "010")
	t.Setenv("REAPER_MAX_DURATION", secret)
	t.Setenv("REAPER_SCHEDULE", secret+" * * * *")
	t.Setenv("REAPER_LISTEN", secret)
	t.Setenv("REAPER_PUSHGATEWAY", "ftp://user:"+secret+"@host")
	t.Setenv("REAPER_LOG_LEVEL", secret)
	t.Setenv("REAPER_LOG_FORMAT", "")
	t.Setenv("REAPER_WROKERS", secret)
	t.Setenv("REAPER_", secret)
	_, err := Load(Sources{
		Flags: map[string]string{"shutdown-grace": "0s", "config": "bad.yaml"},
		Open:  files{"bad.yaml": "targets: [{name: a}]"}.open,
	})
	if err == nil {
		t.Fatal("no error")
	}
	want := []string{
		"REAPER_WROKERS: unknown variable; the nearest known one is REAPER_WORKERS",
		"REAPER_: unknown variable; the nearest known one is REAPER_UI",
		"REAPER_LOG_FORMAT: is set but empty: give it a value, or leave it out",
		"REAPER_STORE: is not a valid store: write embedded:DIR, datastore:PROJECT[/DATABASE] or firestore:PROJECT[/DATABASE]",
		"REAPER_APPLY: is neither true nor false",
		"REAPER_WORKERS: has a leading zero: write it without",
		"REAPER_MAX_DURATION: is not a duration: write a number and a unit (d, h, m, s or ms), as in 15m or 1d12h",
		"REAPER_SCHEDULE: is not a schedule: write five fields (minute, hour, day of month, month, day of week), @hourly, @daily or @every 5m",
		"REAPER_LISTEN: is not a valid address: write HOST:PORT, or :PORT for every interface",
		"REAPER_PUSHGATEWAY: is not a valid URL: write http://HOST[:PORT] or https://HOST[:PORT], without a query",
		"REAPER_LOG_LEVEL: is not one of debug, info, warn, error",
		`--shutdown-grace: "0s" is not between 100ms and 1h`,
		"bad.yaml:1:11: targets[0]: kind is missing",
	}
	got := strings.Split(err.Error(), "\n")
	// The order of unknown variables is that of the environment.
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if strings.Contains(err.Error(), secret) {
		t.Error("a secret is printed")
	}
}

func TestFlagErrorsShowTheValue(t *testing.T) {
	cleanEnv(t)
	_, err := Load(Sources{Open: files{}.open, Flags: map[string]string{"workers": "many", "pushgateway": "user:hunter2@host", "store": ""}})
	want := "--store: is set but empty: give it a value, or leave it out\n" +
		"--workers: \"many\" is not a whole number in plain decimal digits\n" +
		"--pushgateway: is not a valid URL: write http://HOST[:PORT] or https://HOST[:PORT], without a query"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// Schedules that run more often than once a second, and more workers than a process
// can feed, are refused where they stand, with a word on what to do.
func TestTooOftenAndTooMany(t *testing.T) {
	const tooOften = "needs @every followed by whole seconds, at least one: for example @every 5m"
	const tooMany = "is not between 1 and 10000: for more, run several processes"
	for _, c := range []struct{ flag, env, value, want string }{
		{"schedule", "REAPER_SCHEDULE", "@every 999ms", tooOften}, {"schedule", "REAPER_SCHEDULE", "@every 0s", tooOften},
		{"workers", "REAPER_WORKERS", "10001", tooMany}, {"workers", "REAPER_WORKERS", "0", tooMany},
	} {
		cleanEnv(t)
		want := "--" + c.flag + ": " + strconv.Quote(c.value) + " " + c.want
		if _, err := Load(Sources{Open: files{}.open, Flags: map[string]string{c.flag: c.value}}); err == nil || err.Error() != want {
			t.Errorf("got\n%v\nwant\n%s", err, want)
		}
		t.Setenv(c.env, c.value)
		if _, err := Load(Sources{Open: files{}.open}); err == nil || err.Error() != c.env+": "+c.want {
			t.Errorf("got\n%v\nwant\n%s: %s", err, c.env, c.want)
		}
	}
	cleanEnv(t)
	file := files{"a.yaml": "targets:\n- name: a\n  kind: A\n  schedule: '@every 500ms'\n"}
	_, err := Load(Sources{Open: file.open, Flags: map[string]string{"config": "a.yaml"}})
	if want := `a.yaml:4:13: targets[0].schedule: "@every 500ms" ` + tooOften; err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	if c, err := Load(Sources{Open: files{}.open, Flags: map[string]string{"schedule": "@every 1s", "workers": "10000"}}); err != nil || c.Workers != 10_000 {
		t.Errorf("what is just allowed: %+v, %v", c, err)
	}
}

func TestVariablesOfOthers(t *testing.T) {
	cleanEnv(t)
	// What a cluster injects, what Cloud Run sets, and what has no prefix.
	for name, value := range map[string]string{
		"REAPER_PORT": "tcp://10.0.0.1:9464", "REAPER_PORT_9464_TCP_ADDR": "10.0.0.1", "REAPER_SERVICE_HOST": "10.0.0.1",
		"REAPER_SERVICE_PORT": "9464", "REAPER_SERVICE_PORT_METRICS": "9464", "REAPER_WEB_SERVICE_HOST": "10.0.0.1", "REAPER_WEB_PORT": "tcp://x",
		"PORT": "8080", "WORKERS": "99", "STORE": "embedded:/nowhere", "APPLY": "true", "LOG_LEVEL": "error",
	} {
		t.Setenv(name, value)
	}
	c, err := Load(Sources{Open: files{}.open})
	if err != nil {
		t.Fatal(err)
	}
	if c.Workers != 16 || c.Apply || !c.Store.IsZero() || c.LogLevel != slog.LevelInfo {
		t.Errorf("a variable without the prefix was read: %+v", c)
	}
	for _, name := range []string{"REAPER_SERVICEHOST", "REAPER_PORTS", "REAPER_EXPORT"} {
		if kubernetes.MatchString(name) {
			t.Errorf("%s passes for one of Kubernetes'", name)
		}
	}
	t.Setenv("REAPER_PUSHGATEWAY", "") // its default, so no slip
	if _, err := Load(Sources{Open: files{}.open}); err != nil {
		t.Error(err)
	}
}

// Every setting is read from the variable that it names.
func TestSettingsMatchVariables(t *testing.T) {
	for _, s := range Settings() {
		t.Run(s.Env, func(t *testing.T) {
			cleanEnv(t)
			t.Setenv(s.Env, "%nonsense%\n")
			_, err := Load(Sources{Open: files{}.open})
			if err == nil || !strings.Contains(err.Error(), s.Env) && s.Flag != "config" {
				t.Errorf("nonsense in %s gives %v", s.Env, err)
			}
			if want := prefix + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_")); s.Env != want {
				t.Errorf("--%s goes with %s, want %s", s.Flag, s.Env, want)
			}
		})
	}
}

func TestTargetsFileMissing(t *testing.T) {
	cleanEnv(t)
	_, err := Load(Sources{Open: files{}.open, Flags: map[string]string{"config": "nowhere.yaml"}})
	if err == nil || err.Error() != "nowhere.yaml: the targets file cannot be opened: file does not exist" {
		t.Errorf("a file that was named and is missing gives %v", err)
	}
	_, err = Load(Sources{Flags: map[string]string{"config": filepath.Join(t.TempDir(), "x.yaml")}})
	if err == nil || !strings.HasSuffix(err.Error(), "x.yaml: the targets file cannot be opened: no such file or directory") {
		t.Errorf("on disk: %v", err)
	}
	_, err = Load(Sources{Flags: map[string]string{"config": t.TempDir()}})
	if err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory gives %v", err)
	}
	_, err = Load(Sources{Open: files{"other.yaml": ""}.open, DefaultFile: "other.yaml"})
	if err == nil || !strings.HasPrefix(err.Error(), "other.yaml:1:1: configures no targets; the shortest file that does is\n") {
		t.Errorf("an empty default file gives %v", err)
	}
	denied := func(name string) (io.ReadCloser, error) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	_, err = Load(Sources{Open: denied})
	if err == nil || err.Error() != "reaper.yaml: the targets file cannot be opened: permission denied" {
		t.Errorf("a default file that exists but cannot be read gives %v", err)
	}
}

func TestRequire(t *testing.T) {
	var c Config
	for _, err := range []error{c.RequireStore(), c.RequireTargets()} {
		var problems Problems
		if !errors.As(err, &problems) || len(problems) != 1 {
			t.Errorf("got %v", err)
		}
	}
	text := c.RequireTargets().Error()
	_, example, _ := strings.Cut(text, "\n")
	if targets, err := ParseTargets("example", strings.NewReader(example), Datastore); err != nil || len(targets) != 1 {
		t.Errorf("the example in the message is no targets file: %v", err)
	}
	c = Config{Store: Store{Driver: Embedded, Dir: "d"}, Targets: []Target{{Name: "a"}}}
	if err := errors.Join(c.RequireStore(), c.RequireTargets()); err != nil {
		t.Error(err)
	}
}

func TestSelect(t *testing.T) {
	c := Config{Targets: []Target{{Name: "sessions"}, {Name: "orders"}, {Name: "carts"}}}
	names := func(targets []Target) string {
		var all []string
		for _, target := range targets {
			all = append(all, target.Name)
		}
		return strings.Join(all, " ")
	}
	for _, tc := range []struct{ in, want string }{
		{"", "sessions orders carts"}, {"carts sessions carts", "sessions carts"}, {"orders", "orders"},
	} {
		got, err := c.Select(strings.Fields(tc.in))
		if err != nil || names(got) != tc.want {
			t.Errorf("%q selects %q with error %v, want %q", tc.in, names(got), err, tc.want)
		}
	}
	got, err := c.Select([]string{"order", "orders", "zzz", "zzz"})
	want := "--target: no target is named \"order\": did you mean orders?\n" +
		"--target: no target is named \"zzz\": want sessions, orders, carts"
	if err == nil || err.Error() != want || got != nil {
		t.Errorf("got %v and error\n%v\nwant\n%s", got, err, want)
	}
	if _, err := (Config{}).Select([]string{"a"}); err == nil || !strings.Contains(err.Error(), "no targets are configured") {
		t.Errorf("got %v", err)
	}
}
