package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/restore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A restoreResult is what restore prints with --json.
type restoreResult struct {
	Store   string `json:"store"`
	Archive string `json:"archive"`
	restore.Result
	Cost *restoreCost `json:"cost"` // nil but after a complete dry run

	abandons bool // it was told to give up another one
}

// A restoreCost is what a run with --apply costs that finds the same.
type restoreCost struct {
	Reads   int64    `json:"reads"`
	Writes  int64    `json:"writes"`
	Dollars float64  `json:"dollars"` // in us-central1
	Seconds *float64 `json:"seconds"` // at the rate; nil if that is unlimited
}

// restoreFlags are the flags of restore.
type restoreFlags struct {
	sweeps, ids          []string
	since, until         string
	from, archive, rate  string
	expireIn, spread     string
	keepExpiry, noExpiry bool
	otherDatabase        bool
	abandon              bool
	order                switchOrder
}

func restoreCommand(a *app) *cobra.Command {
	var f restoreFlags
	cmd := &cobra.Command{
		Use:   "restore TARGET",
		Short: "Insert what was archived before it was deleted",
		Long: `Restore inserts entities of a target that sweeps have archived and deleted: those of a
sweep, those that were archived in a span of time, or those with an id, with what lies
below them. The flags may be combined, and then all of them must fit.

Without --apply it writes nothing, and says how many entities it would restore, how many
exist already, when they would expire, and what that costs. With --apply it needs --reason.

It only inserts: what exists stays as it is. Of several copies of an entity the newest
counts. Entities that were archived by a process that was killed before it could say
whether it deleted them (unconfirmed) are restored, too, if they do not exist. Parents come
before what lies below them. Each entity is read back right after it was inserted. A
restore that was killed goes on with the same command, without --abandon; until then
another one needs --abandon. Only one of a target goes on at a time, and none while the
target is paused or its breaker is open.

One of three flags says when they expire from now on: --expire-in, --keep-expiry, which is
refused if any of them would be due at once, or --no-expiry. The breaker is told of the new
expiries, so that they are no burst for it.

An archive of keys has no contents. --from pitr takes those from the point-in-time recovery
of the database, as of the last whole minute before the delete, for up to seven days. What
was not yet as the archive says by then is left out, and named.`,
		Example: `  reaper restore sessions --sweep 3.20261121T000730.855Z.4mzqk2x7ab --expire-in 7d
  reaper restore sessions --since 24h --expire-in 7d --spread 24h --apply --reason "wrong retention"
  reaper restore sessions --id s-1842 --no-expiry --apply --reason "ticket 4711"
  reaper restore sessions --since 2h --from pitr --expire-in 7d --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runRestore(a, cmd, args, f) },
	}
	addApply(cmd.Flags(), "insert")
	addSettings(cmd.Flags(), "shutdown-grace", "actor")
	a.addTarget(cmd)
	a.addJSON(cmd)
	flags := cmd.Flags()
	flags.StringArrayVar(&f.sweeps, "sweep", nil, "what this sweep has archived, by its id in history --json; repeatable")
	flags.StringVar(&f.since, "since", "", "what was archived since then: a duration such as 24h, or an instant")
	flags.StringVar(&f.until, "until", "", "what was archived before then, likewise (default: now)")
	flags.StringArrayVar(&f.ids, "id", nil, "the entity with this id, or key, and what lies below; repeatable")
	flags.StringVar(&f.from, "from", string(restore.FromArchive), "where contents come from: archive, or pitr")
	flags.StringVar(&f.archive, "archive", "", "the archive, file:///... or gs://... (default: archive.to of the\n"+
		"targets file)")
	flags.StringVar(&f.expireIn, "expire-in", "", "they expire so long after the restore began, such as 7d")
	flags.StringVar(&f.spread, "spread", "", "with --expire-in: and up to so much later, evenly spread")
	flags.BoolVar(&f.keepExpiry, "keep-expiry", false, "they expire when they did before")
	flags.BoolVar(&f.noExpiry, "no-expiry", false, "they never expire")
	flags.StringVar(&f.rate, "rate", "", "entities a second, or unlimited (default: pace of the target)")
	flags.BoolVar(&f.otherDatabase, "other-database", false, "the archive may be of another project or database")
	flags.BoolVar(&f.abandon, "abandon", false, "give up a restore of the target that was not finished, and begin another")
	flags.StringVar(&f.order.reason, "reason", "", "why, in one line of at most 1,000 bytes, for the history")
	return cmd
}

// check refuses flags that do not go together.
func (f restoreFlags) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	expiries := 0
	for _, flag := range []string{"expire-in", "keep-expiry", "no-expiry"} {
		if given(flag) {
			expiries++
		}
	}
	switch {
	case !given("sweep") && !given("since") && !given("until") && !given("id"):
		return wrongUsage("say what is to be restored: --sweep, --since, --until or --id")
	case expiries != 1 || given("keep-expiry") && !f.keepExpiry || given("no-expiry") && !f.noExpiry:
		return wrongUsage("say when it is to expire: one of --expire-in, --keep-expiry and --no-expiry")
	case given("spread") && !given("expire-in"):
		return wrongUsage("--spread needs --expire-in")
	case f.from != string(restore.FromArchive) && f.from != string(restore.FromPITR):
		return wrongUsage("--from: unknown source %q (want archive or pitr)", f.from)
	case cmd.Flags().Lookup("apply").Value.String() == "true" && !given("reason"):
		return wrongUsage("--reason is missing: say why this comes back, for the history of the target")
	}
	return f.order.check(cmd, false)
}

// expiry returns when what is restored expires.
func (f restoreFlags) expiry() (e restore.Expiry, err error) {
	e = restore.Expiry{Keep: f.keepExpiry, Never: f.noExpiry}
	if f.expireIn != "" {
		if e.In, err = readPositive("--expire-in", f.expireIn); err != nil {
			return e, err
		}
	}
	if f.spread != "" {
		if e.Spread, err = config.Spread(f.spread); err != nil {
			return e, wrongUsage("--spread: %v", err)
		}
	}
	if !e.Keep && !e.Never && e.In == 0 {
		return e, wrongUsage("--expire-in is empty: write a duration such as 7d")
	}
	return e, nil
}

// pick returns which lines of the archive are meant.
func (f restoreFlags) pick(cmd *cobra.Command, now time.Time) (p restore.Selection, err error) {
	p = restore.Selection{Sweeps: f.sweeps, IDs: f.ids}
	for _, list := range [][]string{f.sweeps, f.ids} {
		for _, text := range list {
			if text == "" {
				return p, wrongUsage("--sweep and --id need a text that is not empty")
			}
		}
	}
	if cmd.Flags().Changed("since") {
		if p.Since, err = readPast("--since", f.since, now); err != nil {
			return p, err
		}
	}
	if cmd.Flags().Changed("until") {
		if p.Until, err = readPast("--until", f.until, now); err != nil {
			return p, err
		}
	}
	// Where one counts from now, and the other does not, the record of a restore that goes on says what the span was.
	if !p.Until.IsZero() && !p.Since.Before(p.Until) && isInstant(f.since) == isInstant(f.until) {
		return p, wrongUsage("--since is not before --until")
	}
	return p, nil
}

func isInstant(text string) bool {
	_, err := time.Parse(time.RFC3339, text)
	return err == nil
}

// words returns the order in words: the same words continue a restore that was killed.
func (f restoreFlags) words() string {
	var b strings.Builder
	add := func(flag, value string) {
		if value != "" {
			fmt.Fprintf(&b, " --%s %s", flag, quoteShell(value))
		}
	}
	for _, id := range f.sweeps {
		add("sweep", id)
	}
	add("since", f.since)
	add("until", f.until)
	for _, id := range f.ids {
		add("id", id)
	}
	add("from", f.from)
	add("expire-in", f.expireIn)
	add("spread", f.spread)
	if f.keepExpiry {
		b.WriteString(" --keep-expiry")
	}
	if f.noExpiry {
		b.WriteString(" --no-expiry")
	}
	add("archive", f.archive)
	return b.String()[1:]
}

// config returns what the flags ask for, but for store, target and archive.
func (f restoreFlags) config(cmd *cobra.Command, s *session) (cfg restore.Config, err error) {
	if err := f.check(cmd); err != nil {
		return cfg, err
	}
	cfg = restore.Config{From: restore.Source(f.from), Reason: f.order.reason, Order: f.words(),
		Abandon: f.abandon, Progress: new(restore.Progress)}
	if cfg.Expiry, err = f.expiry(); err != nil {
		return cfg, err
	}
	if cfg.Pick, err = f.pick(cmd, time.Now()); err != nil {
		return cfg, err
	}
	if !f.otherDatabase {
		cfg.Database = s.Store.String()
	}
	return cfg, nil
}

// paced returns how many entities may be restored a second: as many as the target's pace lets go.
func (f restoreFlags) paced(s *session) (throttle.Limits, error) {
	if f.rate == "" {
		return s.sweep.Targets[0].Pace, nil
	}
	rate, err := config.Rate(f.rate)
	if err != nil {
		return throttle.Limits{}, wrongUsage("--rate: %v", err)
	}
	return throttle.Limits{Start: min(coldRate, rate.Most), Max: rate.Most, Unlimited: rate.Unlimited}, nil
}

func runRestore(a *app, cmd *cobra.Command, args []string, f restoreFlags) (err error) {
	if len(args) == 1 {
		a.targets = append(a.targets, args[0])
	}
	s, err := a.loadTargets(cmd)
	if err != nil {
		return err
	}
	if len(s.targets) != 1 {
		return wrongUsage("restore works on one target: name it")
	}
	t := s.targets[0]
	if f.archive == "" {
		f.archive = t.Archive.To
	}
	if f.archive == "" {
		return wrongUsage("target %s has no archive: name one with --archive", t.Name)
	}
	cfg, err := f.config(cmd, s)
	if err != nil {
		return err
	}
	if err := archive.CheckURL(f.archive); err != nil {
		return wrongUsage("--archive: %v", err)
	}
	if err := a.connect(cmd.Context(), s, false); err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	warning, err := checkAdoptions(cmd.Context(), s, t, cfg.Expiry)
	if err != nil {
		return err
	}
	if cfg.Rate, err = f.paced(s); err != nil {
		return err
	}
	if cfg.Bucket, err = archive.OpenBucket(cmd.Context(), f.archive); err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	cfg.Sweep, cfg.Target = s.sweep, s.sweep.Targets[0]
	for _, other := range s.Targets { // what was archived with an entity may be of any kind
		if other.Name != t.Name {
			cfg.Others = append(cfg.Others, sweepTarget(other))
		}
	}
	if !t.Breaker.Off {
		cfg.Announce = announcer(s)
	}
	done := showRestore(cmd.Context(), s, cfg)
	res, err := restore.Run(cmd.Context(), cfg)
	done()
	if warning != "" {
		res.Warnings = append(res.Warnings, warning)
	}
	return reportRestore(s, cfg, f.archive, res, err)
}

// checkAdoptions refuses to take the expiry from entities that are being adopted, be it for another target of the kind:
// they would get one again, by the rule of the adoption. It warns of a new expiry where that rule goes by another one.
func checkAdoptions(ctx context.Context, s *session, t config.Target, e restore.Expiry) (warning string, err error) {
	for _, one := range s.Targets {
		if e.Keep || one.Kind != t.Kind || one.StoreTarget().Type != store.Text {
			continue
		}
		rec, exists, err := loadAdoption(ctx, s.db.Store, one.Name)
		isNew := one.Name == t.Name || rec.Rule.Property == t.Property // the key, or what the rule gives, and not both
		switch {
		case err != nil:
			return "", err
		case !exists || rec.Phase != adopt.Stamping && rec.Phase != adopt.Dual:
		case e.Never:
			err := wrongUsage("--no-expiry: target %s is being adopted, which gives entities without an expiry one by its rule",
				one.Name)
			return "", store.WithHint(err, "end the adoption first, or give them their own expiry again: --keep-expiry")
		case isNew && !rec.Rule.CreateTime:
			warning = fmt.Sprintf("target %s is being adopted, and its rule disagrees with --expire-in: sweeps keep what comes "+
				"back as mismatch, and adopt finish counts it as left", one.Name)
		}
	}
	return warning, nil
}

// reportRestore prints what became of a run, and returns its error as that of the command.
func reportRestore(s *session, cfg restore.Config, url string, res restore.Result, err error) error {
	unfit := unfitRestore(err)
	switch {
	case unfit != nil && res.Restored == 0 && res.BadObjects == 0:
		return unfit
	case unfit != nil && res.Restored == 0: // what is damaged may be the cause
		err = unfit
	case errors.Is(err, restore.ErrOtherTarget): // it came to be so meanwhile
		err = store.WithHint(err, otherTargetHint)
	}
	out := restoreResult{s.Store.String(), url, res, costOfRestore(cfg, res), cfg.Abandon}
	err = errors.Join(s.print(out, func(w io.Writer) error {
		printRestore(w, out)
		return nil
	}), err)
	if err == nil && res.Tripped {
		return &exit{exitBreaker, errTripped}
	}
	return err
}

const otherTargetHint = "restore changes the property of its own target alone: stop what sweeps by the other one, " +
	"restore with a\n  targets file without it, and give the other property a new value before it is swept again"

// unfitRestore returns an error of usage, with advice, if the order does not fit; else nil.
func unfitRestore(err error) error {
	for _, c := range []struct {
		err  error
		hint string
	}{
		{restore.ErrUnsupported, ""},
		{restore.ErrOtherKind, "name the target whose kind this is, or another archive"},
		{restore.ErrOtherDatabase, "--other-database allows that"},
		{restore.ErrKeysOnly, "--from pitr takes the contents from point-in-time recovery, for up to seven days"},
		{restore.ErrOtherTarget, otherTargetHint},
		{restore.ErrDue, "give them another expiry: --expire-in 7d, or --no-expiry; with --abandon if that replaces a\n  " +
			"restore that was not finished"},
		{restore.ErrNothing, "check the archive, the sweep's id, the times and the ids; the command of the one that was\n  " +
			"not finished gives it up with --abandon"},
		{restore.ErrSpan, "a duration counts back from now: give two instants, or two durations"},
		{restore.ErrTooMany, "restore it in parts, the latest first: --since and --until"},
		{restore.ErrUnfinished, "the same command goes on with it, without --abandon, which gives it up"},
		{store.ErrUnsupported, "--from archive needs no point-in-time recovery"},
	} {
		if errors.Is(err, c.err) {
			return store.WithHint(&exit{exitUsage, err}, c.hint)
		}
	}
	if errors.Is(err, restore.ErrBusy) {
		return store.WithHint(err, "wait for its end, or stop it; one that was killed is taken over after one lease")
	}
	return nil
}

// costOfRestore returns what it costs to insert what a dry run found; nil for any other run.
func costOfRestore(cfg restore.Config, res restore.Result) *restoreCost {
	if res.Apply || !res.Complete {
		return nil
	}
	n := res.Restorable - res.Exist - res.NotFound - res.Refused
	c := &restoreCost{Reads: res.Restorable + n, Writes: n} // what exists is looked for, the rest is read back
	if cfg.From == restore.FromPITR {
		c.Reads += res.Restorable
	}
	c.Dollars = float64(c.Reads)*dollarsPer(forecast.Reads) + float64(c.Writes)*dollarsPer(forecast.Writes)
	if !cfg.Rate.Unlimited && cfg.Rate.Max > 0 {
		seconds := float64(res.Restorable) / cfg.Rate.Max
		c.Seconds = &seconds
	}
	return c
}

// showRestore shows how far a run has come, as watchSweep does for a sweep.
func showRestore(ctx context.Context, s *session, cfg restore.Config) (done func()) {
	p, target := cfg.Progress, cfg.Target.Name
	if s.onTerminal() {
		return drawProgress(s.stderr, func() string { return "restoring " + target }, "entities", &p.EntitiesDone,
			&p.Entities)
	}
	return every(logEvery, func() {
		s.log.InfoContext(ctx, "restoring", slog.String("target", target), slog.Bool("apply", cfg.Sweep.Apply),
			slog.Int64("objects", p.ObjectsRead.Load()), slog.Int64("entities", p.Entities.Load()),
			slog.Int64("done", p.EntitiesDone.Load()), slog.Int64("restored", p.Restored.Load()))
	})
}
