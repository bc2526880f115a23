package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/selftest"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
	"github.com/reaper-ttl/reaper/throttle"
)

// A selftesting is what the flags of selftest say.
type selftesting struct {
	yes          bool
	id, clean    string
	checks, skip []string
	within       string
	guard        bool // this process cleans up after another one; see selftestguard.go
}

func selftestCommand(a *app) *cobra.Command {
	var st selftesting
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Try on your own store what this program relies on",
		Long: `Selftest runs the suite that all of this program's drivers must pass, sweeps as operators make
them, and what the documentation assumes of the service, on a store of yours: a project, an
emulator, or an embedded store. It says which promises the store breaks, with evidence, how
long its calls take, and where it differs from the emulator. docs/selftest.md explains the
report.

It costs less than a cent, and takes about three minutes; at most --within. It writes to the
kinds ReaperSelftest_ID and ReaperSelftest_IDOther alone, which must be empty, and to records
of the target selftest-ID. At its end it deletes what it wrote, also if it is stopped. If it is
killed, a second process deletes it within five minutes; if that is killed, too, --clean ID
does, or the next selftest. It needs no targets file.

Exit codes: 0 if the store kept all promises that could be checked, 1 if it broke one or
something could not be removed, 2 for wrong usage: then nothing was written.`,
		Example: `  reaper selftest --store datastore:my-project --yes
  reaper selftest --store firestore:my-project --yes --json > report.json
  reaper selftest --store datastore:my-project --check sweep --check takeover --yes
  reaper selftest --store datastore:my-project --clean 7k2mxqp4da`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return st.run(a, cmd) },
	}
	a.addJSON(cmd)
	f := cmd.Flags()
	f.BoolVar(&st.yes, "yes", false, "begin without asking")
	f.StringVar(&st.id, "id", "", "the end of the scratch kinds' names (default random)")
	f.StringVar(&st.clean, "clean", "", "delete what the self-test with this id has left, and do nothing else")
	f.StringArrayVar(&st.checks, "check", nil, "make this check alone; may be repeated")
	f.StringArrayVar(&st.skip, "skip", nil, "leave this check out; may be repeated")
	f.StringVar(&st.within, "within", selftest.DefaultWithin.String(), "how long all checks together may take")
	f.BoolVar(&st.guard, "guard", false, "")
	if err := f.MarkHidden("guard"); err != nil {
		panic(err) // the flag is above
	}
	cmd.MarkFlagsMutuallyExclusive("clean", "id")
	cmd.MarkFlagsMutuallyExclusive("clean", "yes")
	return cmd
}

func (st *selftesting) run(a *app, cmd *cobra.Command) (err error) {
	within, err := readPositive("--within", st.within)
	if err != nil {
		return err
	}
	for _, id := range []string{st.id, st.clean} {
		if id == "" {
			continue
		}
		if err := selftest.CheckID(id); err != nil {
			return &exit{exitUsage, err}
		}
	}
	c, log, err := a.load(cmd)
	if err == nil {
		err = c.RequireStore()
	}
	if err != nil {
		return err
	}
	if st.guard { // it works only if the process that it guards dies, whose store it cannot open before
		if st.clean == "" {
			return wrongUsage("--guard needs --clean")
		}
		ignoreSignals()
		if !guardedDies(a.stdin) {
			return nil
		}
	}
	db, err := st.open(cmd.Context(), a, c, log)
	if err != nil {
		return err
	}
	defer db.closeInto(&err)
	s, err := selftestSetup(a, c, db)
	if err != nil {
		return err
	}
	s.ID, s.Within, s.Checks, s.Skip = st.id, within, st.checks, st.skip
	if st.clean != "" {
		s.ID = st.clean
		return cleanSelftest(cmd.Context(), a, s)
	}
	if s.ID == "" {
		s.ID = selftest.NewID()
	}
	return st.test(cmd.Context(), a, s, log)
}

// open opens the store. A guard of an embedded one waits for the killed process's lock to end.
func (st *selftesting) open(ctx context.Context, a *app, c config.Config, log *slog.Logger) (*database, error) {
	for began := a.now(); ; {
		db, err := a.open(ctx, c.Store, false, log)
		if !st.guard || !errors.Is(err, store.ErrLocked) || a.now().Sub(began) > selftest.CleanWithin {
			return db, err
		}
		if err := throttle.Sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// selftestSetup says what can be tested of a store.
func selftestSetup(a *app, c config.Config, db *database) (selftest.Setup, error) {
	s := selftest.Setup{Spec: c.Store.String(), Now: a.now}
	full, ok := db.Store.(selftest.Database)
	if !ok {
		return s, fmt.Errorf("%w: it lacks a part that the self-test needs", store.ErrUnsupported)
	}
	s.Store = full
	if e, ok := db.Store.(interface{ Endpoint() string }); ok {
		s.Endpoint = e.Endpoint()
	}
	s.Caps = storetest.Caps{Counter: true, Dumper: true, Keyer: true, Adopter: true, TellsGone: true, NumbersFirst: true,
		OrdersByBytes: true}
	switch c.Store.Driver {
	case config.Embedded:
		s.Mode = selftest.Embedded
		s.Caps.Dropper, s.Caps.Steps, s.Caps.ListsInIndex, s.Caps.KeepsLists = true, true, true, true
	case config.Datastore:
		s.Mode = selftest.Datastore
		s.Caps.Guard, s.Caps.KeepsLists, s.Caps.Namespaces = store.GuardLookup, true, []string{"one"}
	case config.Firestore:
		s.Mode = selftest.Native
		s.Caps.ListsApart, s.Caps.BillsEntries = true, true
	}
	return s, nil
}

// test makes the checks, and prints the report.
func (st *selftesting) test(ctx context.Context, a *app, s selftest.Setup, log *slog.Logger) error {
	fmt.Fprint(a.stderr, introduction(s))
	if !st.yes {
		if err := a.confirm("go on?"); err != nil {
			return err
		}
	}
	guard, err := startGuard(s, log)
	if err != nil {
		log.WarnContext(ctx, "cannot start the process that cleans up if this one is killed", "error", err)
	}
	s.Progress = a.selftestProgress(log)
	report, err := selftest.Run(ctx, s)
	guard.dismiss()
	if errors.Is(err, selftest.ErrInUse) || errors.Is(err, selftest.ErrNoCheck) {
		return &exit{exitUsage, err}
	}
	if err != nil {
		return err
	}
	err = a.print(report, func(w io.Writer) error {
		_, err := io.WriteString(w, selftestText(report))
		return err
	})
	if err == nil && report.HasFindings() {
		err = &exit{exitFailed, nil}
	}
	return err
}

func introduction(s selftest.Setup) string {
	cost := "less than $0.01"
	if s.Mode == selftest.Embedded {
		cost = "nothing"
	}
	at := ""
	if s.Endpoint != "" {
		at = " at " + s.Endpoint
	}
	return fmt.Sprintf(`self-test of %s%s
  costs %s, and takes at most %s
  writes to %s%s and %[5]s%[6]sOther, which must be empty, and to records of selftest-%[6]s
  deletes what it wrote within %[7]s of its end, also if it is killed, or by:
  reaper selftest --store %[1]s --clean %[6]s
`, printable(s.Spec), printable(at), cost, config.FormatDuration(s.Within), selftest.KindPrefix, s.ID,
		config.FormatDuration(selftest.CleanWithin))
}

// selftestProgress shows which check is made: on a terminal each, elsewhere one in ten seconds.
func (a *app) selftestProgress(log *slog.Logger) func(string, int, int) {
	const every = 10 * time.Second
	last := a.now()
	return func(name string, number, of int) {
		if a.onTerminal() {
			fmt.Fprintf(a.stderr, "\r\033[K%d of %d: %s", number, of, name)
			if number == of {
				fmt.Fprint(a.stderr, "\r\033[K")
			}
			return
		}
		log.Debug("check", "name", name, "number", number, "of", of)
		if now := a.now(); now.Sub(last) >= every {
			last = now
			log.Info("self-test", "check", name, "number", number, "of", of)
		}
	}
}

func cleanSelftest(ctx context.Context, a *app, s selftest.Setup) error {
	fmt.Fprintf(a.stderr, "deleting what the self-test %s has left, within %s\n", s.ID,
		config.FormatDuration(selftest.CleanWithin))
	done, err := selftest.Clean(ctx, s)
	if err != nil {
		return err
	}
	err = a.print(done, func(w io.Writer) error {
		_, err := io.WriteString(w, cleanedText(done)+"\n")
		return err
	})
	if err == nil && !done.Empty {
		err = &exit{exitFailed, nil}
	}
	return err
}
