package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kelseyhightower/envconfig"
)

// A Setting can be set by a flag or in the environment.
type Setting struct {
	Flag    string // without hyphens
	Env     string
	Default string // as it would be written; empty without a default, or if it depends on something
	Usage   string // what it does, for --help
}

// Settings lists all settings, in the order of the documentation. Commands
// register the flags that they take from it, so that names, defaults and words
// are the same everywhere. It returns a new slice each time.
func Settings() []Setting {
	return []Setting{
		{"store", "REAPER_STORE", "", "the database: " + storeForms},
		{"config", "REAPER_CONFIG", "", "the targets file (default " + DefaultFile + " if it exists)"},
		{"apply", "REAPER_APPLY", "false", "delete for real; without it nothing is written"},
		{"workers", "REAPER_WORKERS", "16", "pages processed at the same time in this process, over all targets"},
		{"max-duration", "REAPER_MAX_DURATION", unlimited, "stop a sweep in good order after this long"},
		{"schedule", "REAPER_SCHEDULE", "*/5 * * * *", "when sweeps begin: cron, UTC"},
		{"listen", "REAPER_LISTEN", ":9464", "address of /metrics, /healthz and /readyz"},
		{"ui", "REAPER_UI", DefaultUI, "address of the status page, which only shows and has no login; or off"},
		{"pushgateway", "REAPER_PUSHGATEWAY", "", "URL to push metrics to at the end of a sweep"},
		{"log-level", "REAPER_LOG_LEVEL", "info", "debug, info, warn or error"},
		{"log-format", "REAPER_LOG_FORMAT", "", "text or json (default text on a terminal, else json)"},
		{"actor", "REAPER_ACTOR", "", "who does this, for the history (default the credentials' e-mail, or user@host)"},
		{"shutdown-grace", "REAPER_SHUTDOWN_GRACE", "8s", "how long the page in flight may take after a signal"},
	}
}

// A variable holds the unparsed text of an environment variable. Envconfig must not parse
// it: it would read 010 as 8, stop at the first bad value, and print that value.
type variable struct {
	text string
	set  bool
}

// Decode makes a variable an envconfig.Decoder.
func (v *variable) Decode(text string) error {
	*v = variable{text, true}
	return nil
}

// The variables that envconfig looks up, under the prefix REAPER. No field may
// have an envconfig tag: with one it would be looked up without the prefix too,
// and Cloud Run's PORT would become ours.
type variables struct {
	Store         variable
	Config        variable
	Apply         variable
	Workers       variable
	MaxDuration   variable `split_words:"true"`
	Schedule      variable
	Listen        variable
	UI            variable
	Pushgateway   variable
	LogLevel      variable `split_words:"true"`
	LogFormat     variable `split_words:"true"`
	Actor         variable
	ShutdownGrace variable `split_words:"true"`
}

const prefix = "REAPER_"

// kubernetes matches what a cluster injects for Services called reaper or
// reaper-something. It is not meant for us and not taken for a typing error.
var kubernetes = regexp.MustCompile(`^REAPER_(.+_)?(SERVICE_(HOST|PORT.*)|PORT(_.*)?)$`)

// A value that was set, and where it came from.
type given struct {
	text string
	from string // "--workers", "REAPER_WORKERS", or empty for the default
	env  bool   // it came from the environment, and must not be printed
}

// rawSettings are the settings that were set, by flag name.
type rawSettings map[string]given

// environment reads the variables with our prefix.
func environment() (rawSettings, Problems) {
	var vars variables
	if err := envconfig.Process("reaper", &vars); err != nil {
		// Decode never fails, so this is not a user's mistake. The error might
		// still print a value, so it is not passed on.
		return nil, Problems{{Reason: "the environment cannot be read"}}
	}
	byFlag := map[string]variable{
		"store": vars.Store, "config": vars.Config, "apply": vars.Apply, "workers": vars.Workers,
		"max-duration": vars.MaxDuration, "schedule": vars.Schedule, "listen": vars.Listen,
		"ui": vars.UI, "pushgateway": vars.Pushgateway, "log-level": vars.LogLevel, "log-format": vars.LogFormat,
		"actor": vars.Actor, "shutdown-grace": vars.ShutdownGrace,
	}
	raw, known := rawSettings{}, []string{}
	for _, s := range Settings() {
		known = append(known, s.Env)
		if v := byFlag[s.Flag]; v.set {
			raw[s.Flag] = given{v.text, s.Env, true}
		}
	}
	return raw, unknownVariables(os.Environ(), known)
}

// unknownVariables reports variables with our prefix that are not settings: a misspelt one
// would otherwise silently have its default.
func unknownVariables(environ, known []string) Problems {
	var problems Problems
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, prefix) || kubernetes.MatchString(name) {
			continue
		}
		if word, edits := nearest(name, known); edits > 0 {
			problems = append(problems, Problem{What: name, Reason: "unknown variable; the nearest known one is " + word})
		}
	}
	return problems
}

// withFlags overrides the values of the environment by those of the flags.
func (raw rawSettings) withFlags(flags map[string]string) (rawSettings, Problems) {
	merged := rawSettings{}
	var problems Problems
	for _, s := range Settings() {
		value, ok := raw[s.Flag]
		if text, given1 := flags[s.Flag]; given1 {
			value, ok = given{text, "--" + s.Flag, false}, true
		}
		switch {
		case !ok:
			value = given{text: s.Default}
		case value.text == "" && s.Flag == "pushgateway": // its default is empty too
		case value.text == "":
			problems = append(problems, Problem{What: value.from, Reason: "is set but empty: give it a value, or leave it out"})
			value = given{text: s.Default}
		}
		merged[s.Flag] = value
	}
	return merged, problems
}

// parse turns texts into values, and reports those that do not parse.
func (raw rawSettings) parse() (Config, Problems) {
	var c Config
	var problems Problems
	set := func(flag string, parse func(text string) error) {
		value := raw[flag]
		if value.text == "" {
			return
		}
		if err := parse(value.text); err != nil {
			reason := err.Error()
			if !value.env && flag != "pushgateway" {
				reason = quote(value.text) + " " + reason
			}
			problems = append(problems, Problem{What: value.from, Reason: reason})
		}
	}
	set("store", func(s string) (err error) { c.Store, err = parseStore(s); return err })
	set("apply", func(s string) (err error) { c.Apply, err = parseBool(s); return err })
	set("workers", func(s string) (err error) { c.Workers, err = parseWorkers(s); return err })
	set("max-duration", func(s string) (err error) { c.MaxDuration, err = parseMaxDuration(s); return err })
	set("schedule", func(s string) (err error) { c.Schedule, err = parseSchedule(s); return err })
	set("listen", func(s string) (err error) { c.Listen, err = s, checkListen(s); return err })
	set("ui", func(s string) (err error) { c.UI, err = parseUI(s); return err })
	set("pushgateway", func(s string) (err error) { c.Pushgateway, err = s, checkURL(s); return err })
	set("log-level", func(s string) (err error) { c.LogLevel, err = parseLevel(s); return err })
	set("log-format", func(s string) (err error) { c.LogFormat, err = parseFormat(s); return err })
	set("actor", func(s string) (err error) { c.Actor, err = s, checkActor(s); return err })
	set("shutdown-grace", func(s string) (err error) { c.ShutdownGrace, err = parseGrace(s); return err })
	return c, problems
}

// maxWorkers bounds what one process holds in memory and asks of the store at
// once: ten thousand pages of 500 entities are gigabytes.
const maxWorkers = 10_000

func parseWorkers(s string) (int, error) {
	n, err := parseInt(s)
	if err != nil {
		return 0, err
	}
	if n < 1 || n > maxWorkers {
		return 0, fmt.Errorf("is not between 1 and %d: for more, run several processes", maxWorkers)
	}
	return int(n), nil
}

func parseMaxDuration(s string) (Limit[time.Duration], error) {
	if s == unlimited {
		return NoLimit[time.Duration](), nil
	}
	d, err := parseDuration(s)
	if err == nil && d == 0 {
		err = errors.New(`must be positive, or "unlimited"`)
	}
	return AtMost(d), err
}

func parseGrace(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	if err == nil && (d < 100*time.Millisecond || d > time.Hour) {
		err = errors.New("is not between 100ms and 1h")
	}
	return d, err
}

func checkListen(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		var n int64
		if n, err = parseInt(port); err == nil && n >= 0 && n <= 65535 {
			return nil
		}
	}
	return errors.New("is not a valid address: write HOST:PORT, or :PORT for every interface")
}

// DefaultUI is where the status page is unless somebody says otherwise: it has no login, so only
// this machine reaches it.
const DefaultUI = "127.0.0.1:9465"

// parseUI reads the address of the status page; empty stands for none.
func parseUI(s string) (string, error) {
	if s == "off" {
		return "", nil
	}
	if checkListen(s) != nil {
		return "", errors.New(`is not a valid address: write HOST:PORT, :PORT for every interface, or "off"`)
	}
	return s, nil
}

func checkURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" ||
		u.RawQuery != "" || u.Fragment != "" {
		return errors.New("is not a valid URL: write http://HOST[:PORT] or https://HOST[:PORT], without a query")
	}
	return nil
}

// maxActor is the length of the longest e-mail address.
const maxActor = 320

func checkActor(s string) error {
	if len(s) > maxActor || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return fmt.Errorf("is not one line of UTF-8 text of at most %d bytes", maxActor)
	}
	return nil
}

func parseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, errors.New("is not one of debug, info, warn, error")
}

func parseFormat(s string) (LogFormat, error) {
	switch f := LogFormat(s); f {
	case LogText, LogJSON:
		return f, nil
	}
	return "", errors.New("is neither text nor json")
}
