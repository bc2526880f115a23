package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/engine/pace"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// An app is what the commands share.
type app struct {
	*console
	now     func() time.Time
	targets []string // --target
	quiet   bool     // the command only reads: where the store is goes to the debug log

	file     string        // the targets file; empty if none was read
	fileText *bytes.Buffer // what it holds
	locked   string        // the directory of a store that another process has open
	served   *served       // the request of another process; nil for what this one was started for
}

// commonSettings are the settings that every command takes.
var commonSettings = []string{"store", "config", "log-level", "log-format"}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "reaper",
		Short: "Expiry garbage collection for Google Firestore",
		Long: `Reaper deletes expired entities from Firestore, in native and in Datastore mode,
or from an embedded store. It resumes where it stopped, paces its deletes per key range,
and deletes nothing without --apply.

Exit codes: 0 done, also when stopped in good order; 1 something failed, the rest
was done; 2 wrong usage or configuration, nothing was touched; 3 stopped before
the end, with --fail-incomplete; 4 the breaker of a target is open, and nothing failed.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	addSettings(root.PersistentFlags(), commonSettings...)
	root.AddCommand(demoCommand(a), sweepCommand(a), serveCommand(a), statusCommand(a), loadCommand(a),
		dumpCommand(a), stampCommand(a), explainCommand(a), listCommand(a), historyCommand(a), generationCommand(a),
		auditCommand(a), adoptCommand(a), orphansCommand(a), archiveCommand(a), restoreCommand(a), pauseCommand(a),
		resumeCommand(a), paceCommand(a), breakerCommand(a), planCommand(a), doctorCommand(a), selftestCommand(a),
		pageCommand(a),
		indexesCommand(a), versionCommand(a.console),
		&cobra.Command{Use: "targets-file", Short: "Every field of the targets file, with its default",
			Long: config.Sample()})
	a.markFailures(root)
	return root
}

// readers are the commands that only read, by their words.
var readers = []string{"status", "explain", "list", "history", "dump", "breaker show", "generation list", "doctor",
	"plan", "page"}

// markFailures makes the errors of all commands below tell failures from wrong
// usage, and has those answered elsewhere whose store another process has open.
func (a *app) markFailures(parent *cobra.Command) {
	for _, c := range parent.Commands() {
		a.markFailures(c)
		if c.RunE != nil {
			run := c.RunE
			c.RunE = func(cmd *cobra.Command, args []string) error {
				a.quiet = slices.Contains(readers, strings.Join(wordsOf(cmd), " "))
				err := run(cmd, args)
				if errors.Is(err, store.ErrLocked) {
					err = a.delegate(cmd, err)
				}
				return failed(err)
			}
		}
	}
}

// addSettings registers flags for settings of package config, which has their names,
// defaults and descriptions, and checks their values.
func addSettings(flags *pflag.FlagSet, names ...string) {
	for _, s := range config.Settings() {
		for _, name := range names {
			if s.Flag != name {
				continue
			}
			f := flags.VarPF(&text{}, name, "", fmt.Sprintf("%s (%s)", s.Usage, s.Env))
			f.DefValue = s.Default
			if s.Flag == "apply" {
				f.NoOptDefVal = "true"
			}
		}
	}
}

// applyAlone annotates a flag --apply that alone decides.
const applyAlone = "alone"

// addApply registers --apply for a command that does something only by this flag: REAPER_APPLY is for
// sweeps, and who looks around where they run must not change anything.
func addApply(flags *pflag.FlagSet, does string) {
	addSettings(flags, "apply")
	f := flags.Lookup("apply")
	f.Usage = does + "; without it nothing is written, whatever REAPER_APPLY says"
	f.Annotations = map[string][]string{applyAlone: {}}
}

// isAlone reports whether the environment has no say in what a flag is.
func isAlone(f *pflag.Flag) bool {
	_, alone := f.Annotations[applyAlone]
	return alone
}

// A text is a flag whose value package config reads.
type text struct{ value string }

func (t *text) String() string     { return t.value }
func (t *text) Set(s string) error { t.value = s; return nil }
func (t *text) Type() string       { return "value" }

func (a *app) addTarget(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&a.targets, "target", nil, "name of a target; may be repeated (default all)")
}

// load reads the configuration for a command.
func (a *app) load(cmd *cobra.Command) (config.Config, *slog.Logger, error) {
	given := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			given[f.Name] = f.Value.String()
		} else if isAlone(f) {
			given[f.Name] = f.DefValue
		}
	})
	c, err := config.Load(config.Sources{Flags: given, Open: a.openFile})
	if err != nil {
		return c, nil, err
	}
	return c, newLogger(a.stderr, c), nil
}

// loadTargets reads the configuration of a command that works on targets. Their store is not
// open yet.
func (a *app) loadTargets(cmd *cobra.Command) (*session, error) {
	c, log, err := a.load(cmd)
	if err != nil {
		return nil, err
	}
	return a.withTargets(c, log)
}

// withTargets returns a session with the targets of a configuration that has been loaded.
func (a *app) withTargets(c config.Config, log *slog.Logger) (*session, error) {
	err := c.RequireStore()
	if err == nil {
		err = c.RequireTargets()
	}
	if err != nil {
		return nil, err
	}
	s := &session{console: a.console, Config: c, log: log}
	s.targets, err = c.Select(a.targets)
	return s, err
}

// loadTarget reads the configuration of a command that works on exactly one target.
func (a *app) loadTarget(cmd *cobra.Command) (*session, config.Target, error) {
	s, err := a.loadTargets(cmd)
	if err != nil {
		return nil, config.Target{}, err
	}
	t, err := s.onlyTarget(cmd)
	return s, t, err
}

// onlyTarget returns the target of a command that has one.
func (s *session) onlyTarget(cmd *cobra.Command) (config.Target, error) {
	if len(s.targets) != 1 {
		return config.Target{}, wrongUsage("%s needs exactly one target: name it with --target", cmd.Name())
	}
	return s.targets[0], nil
}

// connect opens the store of a session, which must be closed. With create it creates an
// embedded one that does not exist.
func (a *app) connect(ctx context.Context, s *session, create bool) (err error) {
	if s.db, err = a.open(ctx, s.Store, create, s.log); err != nil {
		return err
	}
	s.sweep = sweepConfig(s, a.now)
	return nil
}

// begin reads the configuration and opens the store.
func (a *app) begin(cmd *cobra.Command) (*session, error) {
	s, err := a.loadTargets(cmd)
	if err == nil {
		err = a.connect(cmd.Context(), s, false)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// inSession calls do while the store of a command is open.
func (a *app) inSession(cmd *cobra.Command, do func(context.Context, *session) error) (err error) {
	s, err := a.begin(cmd)
	if err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	return do(cmd.Context(), s)
}

// A database is an open store.
type database struct {
	store.Store
	close func() error
}

// open opens the store of the configuration. With create it creates an embedded one that
// does not exist.
func (a *app) open(ctx context.Context, s config.Store, create bool, log *slog.Logger) (*database, error) {
	switch s.Driver {
	case config.Embedded:
		if a.served != nil {
			return &database{a.served.db, func() error { return nil }}, nil
		}
		db, err := embedded.Open(s.Dir, embedded.Options{Now: a.now, Create: create, Logger: log})
		if err == nil {
			return &database{db, db.Close}, nil
		}
		if errors.Is(err, store.ErrLocked) {
			a.locked = s.Dir
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, store.WithHint(&exit{exitUsage, missingStore(s.Dir)},
				"reaper load --store "+s.String()+" creates one")
		}
		if errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrInvalid) {
			return nil, &exit{exitUsage, err}
		}
		return nil, err
	case config.Datastore:
		db, err := datastore.Open(ctx, datastore.Options{Project: s.Project, Database: s.Database})
		if err != nil {
			return nil, err
		}
		a.logStore(ctx, log, s, db.Endpoint())
		return &database{db, db.Close}, nil
	case config.Firestore:
		db, err := firestore.Open(ctx, firestore.Options{Project: s.Project, Database: s.Database})
		if err != nil {
			return nil, err
		}
		a.logStore(ctx, log, s, db.Endpoint())
		return &database{db, db.Close}, nil
	}
	return nil, wrongUsage("no store: set --store or REAPER_STORE")
}

// logStore says where calls go: the variable of an emulator may send them elsewhere. Somebody who
// only looks is not told each time.
func (a *app) logStore(ctx context.Context, log *slog.Logger, s config.Store, endpoint string) {
	level := slog.LevelInfo
	if a.quiet {
		level = slog.LevelDebug
	}
	log.Log(ctx, level, "store", "store", s.String(), "endpoint", endpoint)
}

// A missingStore is the error for a directory without an embedded store.
type missingStore string

func (m missingStore) Error() string { return "there is no embedded store in " + string(m) }
func (m missingStore) Unwrap() error { return fs.ErrNotExist }

// sweepTarget converts a target of the configuration for package sweep.
func sweepTarget(t config.Target) sweep.Target {
	namespaces := t.Namespaces
	if t.AllNamespaces {
		namespaces = []string{"*"}
	}
	return sweep.Target{
		Target: t.StoreTarget(), Layout: t.Layout, Generations: t.Layout.HasSuccession(),
		ShardValues: t.StoreShards(), Namespaces: namespaces, Shards: t.Shards, Retention: t.Retention,
		MaxAge: t.MaxAge, Rewind: t.Rewind, Overlap: t.Overlap, Page: t.Page, Lease: t.Lease, MaxClockSkew: t.MaxClockSkew,
		Policy: generation.Policy{Every: t.Generations.Every, Ramp: t.Generations.Ramp, Staleness: t.Generations.Staleness,
			Slack: t.Generations.Slack, Settle: t.Generations.Settle, Keep: t.Generations.Keep, Shards: t.Shards},
		Pace:  throttle.Limits{Start: t.Pace.Start.Most, Max: t.Pace.Max.Most, Unlimited: t.Pace.Max.Unlimited},
		Total: throttle.Limit{PerSecond: t.Pace.Total.Most, Unlimited: t.Pace.Total.Unlimited},
		Gate:  pace.OpenGate(t.Pace.Gate),

		Breaker: breakerRules(t),
		Limits:  breaker.Limits{PerHour: orZero(t.Limits.PerHour), PerDay: orZero(t.Limits.PerDay)},
	}
}

// descendants says what becomes of what lies below the due entities of a target. Of what is any target's own,
// nothing goes but by its own expiry.
func descendants(t config.Target, all []config.Target) sweep.Descendants {
	if t.Descendants.Mode == config.KeepDescendants {
		return sweep.Descendants{}
	}
	is := sweep.Descendants{Mode: sweep.DescendantsMode(t.Descendants.Mode), Max: int64(t.Descendants.Max)}
	for _, other := range all {
		is.Owners = append(is.Owners, other.StoreTarget())
	}
	return is
}

// orZero returns the value of a limit, or 0 if it is unlimited.
func orZero[T int64 | float64](l config.Limit[T]) T {
	if l.Unlimited {
		return 0
	}
	return l.Most
}
