package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"
)

// DefaultFile is the targets file that is read, if it exists, unless --config or
// REAPER_CONFIG names another.
const DefaultFile = "reaper.yaml"

// A LogFormat is how log lines look. The empty one leaves it to the command:
// text on a terminal, else JSON.
type LogFormat string

const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// A Config is the configuration of a process, checked and with every default applied.
// The zero Config deletes nothing: Apply is off, MaxDuration lets nothing
// through, and there is neither a store nor a target.
type Config struct {
	Store         Store    // zero where none was named; see RequireStore
	File          string   // the targets file that was read; empty where there was none
	Targets       []Target // in the order of the file; see RequireTargets
	Apply         bool     // delete for real
	Workers       int      // pages processed at the same time in this process, over all targets
	MaxDuration   Limit[time.Duration]
	Schedule      Schedule
	Listen        string // host:port for metrics and health
	UI            string // host:port of the status page; empty if it is off
	Pushgateway   string // URL, empty for none; it may hold a password, so log it redacted
	LogLevel      slog.Level
	LogFormat     LogFormat
	Actor         string // who changes a target; empty if nobody was named
	ShutdownGrace time.Duration
}

// Sources are where Load looks in addition to the environment of the process.
type Sources struct {
	// Flags are the flags that were given, by name without hyphens, with their
	// values. Flags that are not a setting (see Settings) are ignored, so that a
	// command may pass all it has.
	Flags map[string]string

	// DefaultFile replaces the package's DefaultFile. It is read only if no
	// other file is named, and need not exist.
	DefaultFile string

	// Open opens the targets file; nil means os.Open. If the file does not
	// exist, its error must wrap fs.ErrNotExist.
	Open func(name string) (io.ReadCloser, error)
}

// Load reads flags, environment and targets file, each winning over the next,
// and then the defaults. Every error is of type Problems and holds everything
// that is wrong in all three. A missing store or targets file is not an error
// yet, since some commands need neither. Commands that do need them call
// [Config.RequireStore] and [Config.RequireTargets].
//
// The environment is that of the process, since envconfig looks there.
func Load(src Sources) (Config, error) {
	raw, problems := environment()
	raw, more := raw.withFlags(src.Flags)
	problems = append(problems, more...)
	c, more := raw.parse()
	problems = append(problems, more...)

	if err := c.readTargets(src, raw["config"].text); err != nil {
		var inFile Problems
		if !errors.As(err, &inFile) {
			inFile = Problems{{Reason: err.Error()}}
		}
		problems = append(problems, inFile...)
	}
	if err := problems.err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// readTargets reads the targets file, if there is one.
func (c *Config) readTargets(src Sources, named string) error {
	open := src.Open
	if open == nil {
		open = func(name string) (io.ReadCloser, error) { return os.Open(name) }
	}
	name := named
	if name == "" {
		name = src.DefaultFile
	}
	if name == "" {
		name = DefaultFile
	}
	f, err := open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && named == "":
		return nil
	case err != nil:
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err // the message begins with the name anyway
		}
		return Problems{{File: name, Reason: fmt.Sprintf("the targets file cannot be opened: %v", err)}}
	}
	defer f.Close()
	c.Targets, err = ParseTargets(name, f, c.Store.Driver)
	c.File = name
	return err
}

// RequireStore is for commands that work on a store. A missing store is an
// error, not a default: a job that sweeps the wrong, empty store would look
// healthy for ever.
func (c Config) RequireStore() error {
	if !c.Store.IsZero() {
		return nil
	}
	return Problems{{Reason: "no store: set --store or REAPER_STORE to " + storeForms}}
}

// RequireTargets is for commands that work on targets.
func (c Config) RequireTargets() error {
	if len(c.Targets) > 0 {
		return nil
	}
	return Problems{{Reason: "no targets: write a targets file and name it with --config or REAPER_CONFIG, or call it " +
		DefaultFile + "; the shortest one is\n" + indent(strings.TrimSuffix(Example, "\n"))}}
}

// Select returns the targets of the given names, in the order of the file and
// each once; all of them where no name is given.
func (c Config) Select(names []string) ([]Target, error) {
	if len(names) == 0 {
		return c.Targets, nil
	}
	known := make([]string, len(c.Targets))
	for i, t := range c.Targets {
		known[i] = t.Name
	}
	wanted := map[string]bool{}
	for _, n := range names {
		wanted[n] = true
	}
	var chosen []Target
	for _, t := range c.Targets {
		if wanted[t.Name] {
			chosen = append(chosen, t)
			delete(wanted, t.Name)
		}
	}
	var problems Problems
	for _, n := range names { // in the order given, not that of a map
		if wanted[n] {
			delete(wanted, n)
			hint := "no targets are configured"
			if len(known) > 0 {
				hint = didYouMean(n, known)
			}
			problems = append(problems, Problem{What: "--target", Reason: "no target is named " + quote(n) + ": " + hint})
		}
	}
	if err := problems.err(); err != nil {
		return nil, err
	}
	return chosen, nil
}
