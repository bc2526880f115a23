package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A loadResult is what load --json prints.
type loadResult struct {
	Store    string `json:"store"`
	Target   string `json:"target"`
	Complete bool   `json:"complete"` // the input was read to its end
	Written  int64  `json:"written"`
	Skipped  int64  `json:"skipped"`
}

func loadCommand(a *app) *cobra.Command {
	var skipBad, typed bool
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Write entities from NDJSON on stdin, stamped like those of an application",
		Long: `Load reads one JSON object per line and writes it as an entity in the target's layout,
with an expiry key or with a timestamp:

  {"id": "s-1842", "expires": "2026-11-21T00:07:30.855Z", "data": {"user": "u7"}}

id is a string or a positive integer. Without expires an entity never expires. data is
optional. With the layout sharded-timestamp, shard is one of the target's shard_values
(default: chosen by a hash of the id). In a collection group, parent is the path of the
parent document (default: none, for a collection at the root).

A bad line stops the load and is reported with its number; earlier lines stay written.
A key that appears twice in an object makes a line bad, too.
A signal stops the load: the lines read so far are written, the rest of the input is not.
If the directory of an embedded store is empty or missing, load creates the store.

With --typed it reads what dump --typed has printed. It stamps the same instants again,
and leaves alone what exists.`,
		Example: `  reaper load --store embedded:./data --target sessions < sessions.ndjson`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case typed && skipBad:
				return wrongUsage("--skip-bad is not for --typed: its lines were written by a program")
			case typed:
				return loadTyped(a, cmd)
			}
			return loadEntities(a, cmd, skipBad)
		},
	}
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().BoolVar(&skipBad, "skip-bad", false, "count and skip bad lines")
	cmd.Flags().BoolVar(&typed, "typed", false, "read whole entities, as dump --typed prints them")
	return cmd
}

func loadEntities(a *app, cmd *cobra.Command, skipBad bool) (err error) {
	s, t, err := a.loadTarget(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if err := a.connect(ctx, s, true); err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	w, ok := s.db.Store.(store.Writer)
	if !ok {
		return wrongUsage("store %v cannot be loaded", s.Store)
	}
	writer, rec, stop, err := stampingWriter(ctx, s, t)
	if err != nil {
		return err
	}
	defer stop()
	l := &loader{now: s.now, store: w, target: t, writer: writer,
		native: s.Store.Driver == config.Firestore, skipBad: skipBad, log: s.log,
		res: loadResult{Store: s.Store.String(), Target: t.Name}}
	if s.onTerminal() {
		l.bar = newBar(s.stderr, "loading", "entities")
	}
	err = l.run(ctx, newLineReader(readUntil(ctx, s.stdin)))
	if l.bar != nil {
		_ = l.bar.Clear()
	}
	if f, ok := s.db.Store.(interface{ Flush() error }); ok && err == nil {
		err = f.Flush()
	}
	if err != nil {
		code := exitFailed
		if bad := (*badLine)(nil); errors.As(err, &bad) {
			code = exitUsage
		}
		return &exit{code, fmt.Errorf("%w; %s entities were written before", err, grouped(l.res.Written))}
	}
	if l.expired > 0 && !rec.Checked.IsZero() {
		s.log.Warn("expired entities were written: behind a cursor they wait for a rewind or their generation's sealing",
			"entities", l.expired, "rewind", config.FormatDuration(t.Rewind))
	}
	return s.print(l.res, l.res.print)
}

func (r loadResult) print(w io.Writer) error {
	fmt.Fprintf(w, "%s: wrote %s, skipped %s%s\n", r.Target, counted(r.Written, "entity", "entities"),
		counted(r.Skipped, "line", "lines"), unlessComplete(r.Complete))
	return nil
}

// unlessComplete is what the result of a load says last.
func unlessComplete(complete bool) string {
	if complete {
		return ""
	}
	return "; stopped: the rest of the input is not written"
}

// stampingWriter makes sure that a target, the only one of a session, has a record, and returns a writer that
// stamps by it until stop is called.
func stampingWriter(
	ctx context.Context, s *session, t config.Target,
) (w layoutWriter, rec generation.Record, stop func(), err error) {
	if rec, _, err = sweep.EnsureRecord(ctx, s.sweep, s.sweep.Targets[0]); err != nil {
		return w, rec, nil, err
	}
	follower, stop, err := follow(ctx, s, t)
	if err != nil {
		return w, rec, nil, err
	}
	return layoutWriter{sweepTarget(t), follower.Stamper}, rec, stop, nil
}

// follow starts a follower of a target's record, which runs until stop is called: a long
// load outlives a copy of the record, and perhaps a generation.
func follow(ctx context.Context, s *session, t config.Target) (f *generation.Follower, stop func(), err error) {
	f = &generation.Follower{Store: s.db.Store, Target: t.Name, Shards: max(1, t.Shards), Now: s.now, Log: s.log}
	if err := f.Refresh(ctx); err != nil {
		return nil, nil, err
	}
	following, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { f.Run(following); close(done) }()
	return f, func() { cancel(); <-done }, nil
}

// mostWeight is the most that a batch may weigh, unless it is a single entity. The
// services take requests of 10 MiB, but their emulators refuse those above 4 MiB, with an
// error that looks like a quota that is used up.
const mostWeight = 3 << 20

// A loader writes lines in batches of one commit.
type loader struct {
	now     func() time.Time
	store   store.Writer
	target  config.Target
	writer  layoutWriter
	native  bool // entities are documents of Firestore in native mode
	skipBad bool
	log     *slog.Logger
	bar     *progressbar.ProgressBar
	res     loadResult
	expired int64 // entities that had expired before they were written
	batch   batch
}

// A batch is what one commit is to write.
type batch struct {
	entities  []store.Entity
	expires   []*time.Time   // of the entities
	lines     map[string]int // of the entities
	weight    int
	namespace string
}

// add adds the entity of a line. One commit takes an entity once.
func (b *batch) add(e store.Entity, expires *time.Time, weight, number int) error {
	id := fmt.Sprintf("%q %q %d", e.Parent, e.Name, e.Number)
	if first, ok := b.lines[id]; ok {
		return fmt.Errorf("id: line %d has the same one, and one commit takes an entity once", first)
	}
	if b.lines == nil {
		b.lines = map[string]int{}
	}
	b.lines[id] = number
	b.weight += weight
	b.entities, b.expires = append(b.entities, e), append(b.expires, expires)
	return nil
}

func (b *batch) clear() {
	b.entities, b.expires, b.weight = b.entities[:0], b.expires[:0], 0
	clear(b.lines)
}

func (l *loader) run(ctx context.Context, r *lineReader) error {
	last := l.now()
	for {
		text, err := r.next()
		if ctx.Err() != nil {
			return l.flush(context.WithoutCancel(ctx))
		}
		if errors.Is(err, io.EOF) {
			if l.res.Complete = true; r.number == 1 {
				l.log.Warn("the input is empty")
			}
			return l.flush(ctx)
		}
		if err == nil && len(text) == 0 {
			continue
		}
		if err == nil {
			err = l.add(ctx, text, r.number)
		} else if !errors.Is(err, errLongLine) {
			return errors.Join(err, l.flush(ctx))
		} else {
			err = &badLine{r.number, err}
		}
		if bad := (*badLine)(nil); errors.As(err, &bad) {
			if l.skipBad {
				l.res.Skipped++
				l.log.Warn("bad line skipped", "line", bad.number, "error", bad.err)
				continue
			}
			if err := l.flush(ctx); err != nil {
				return err
			}
			return store.WithHint(bad, "--skip-bad counts and skips bad lines")
		}
		if err != nil {
			return err
		}
		if l.bar == nil && l.now().Sub(last) >= logEvery {
			last = l.now()
			l.log.Info("loading", "written", l.res.Written)
		}
	}
}

// A badLine is a line of the input that cannot be written.
type badLine struct {
	number int
	err    error
}

func (b *badLine) Error() string { return fmt.Sprintf("line %d: %v", b.number, b.err) }

// add stamps the entity of one line and puts it into the batch.
func (l *loader) add(ctx context.Context, text []byte, number int) error {
	e, err := parseLine(text, l.target)
	if err != nil {
		return &badLine{number, err}
	}
	if !l.target.AllNamespaces && !slices.Contains(l.target.Namespaces, e.namespace) {
		return &badLine{number, fmt.Errorf("namespace: %q is not one of the target's", e.namespace)}
	}
	if e.parent != "" && !(l.native && l.target.Group) {
		return &badLine{number, errors.New("parent: only documents of a collection group can be loaded below others")}
	}
	if l.native {
		if err := e.checkDocument(); err != nil {
			return &badLine{number, err}
		}
	}
	if e.shard.Type != store.Missing && !slices.Contains(l.writer.target.ShardValues, e.shard) {
		return &badLine{number, fmt.Errorf("shard: %s is not one of the target's shard_values", e.shard.Text)}
	}
	se := store.Entity{Name: e.name, Number: e.number, Parent: e.parent, Shard: e.shard, Data: e.data}
	if err := l.writer.write(&se, e.expires); err != nil {
		return &badLine{number, fmt.Errorf("expires: %w", err)}
	}
	if e.expires != nil && !e.expires.After(l.now()) {
		l.expired++
	}
	if b := &l.batch; len(b.entities) == store.MaxPage || b.weight+e.weight > mostWeight || e.namespace != b.namespace {
		if err := l.flush(ctx); err != nil {
			return err
		}
		b.namespace = e.namespace
	}
	if err := l.batch.add(se, e.expires, e.weight, number); err != nil {
		return &badLine{number, err}
	}
	return nil
}

// most returns how many entities one commit may have.
func (l *loader) most() int {
	if g, ok := l.store.(store.Guarder); ok {
		return g.Guard(l.target.StoreTarget()).Most
	}
	return store.MaxPage
}

// put stamps and writes a part of the batch. It stamps as late as this because the input may
// pause for longer than a stamp is valid.
func (l *loader) put(ctx context.Context, from, to int) error {
	for i := from; i < to; i++ {
		if err := l.writer.write(&l.batch.entities[i], l.batch.expires[i]); err != nil {
			return err
		}
	}
	return l.store.Put(ctx, l.target.StoreTarget(), l.batch.namespace, l.batch.entities[from:to])
}

// writesWithin bounds one call of a write of load, and for how long a call that may succeed is repeated.
const writesWithin = time.Minute

// write makes a write. A call that has begun ends although ctx does, so that it is known what is written.
func write(ctx context.Context, call func(context.Context) error) error {
	return store.Retry(ctx, writesWithin, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writesWithin)
		defer cancel()
		return call(ctx)
	})
}

// flush writes the batch.
func (l *loader) flush(ctx context.Context) error {
	all := len(l.batch.entities)
	if all == 0 {
		return nil
	}
	fits := all
	for from := 0; from < all; {
		to := min(from+min(fits, l.most()), all)
		err := write(ctx, func(ctx context.Context) error { return l.put(ctx, from, to) })
		switch {
		case errors.Is(err, store.ErrTooLarge) && l.most() < to-from:
			continue // the driver has learned how many the database takes
		case errors.Is(err, store.ErrTooLarge) && to-from > 1:
			fits = (to - from) / 2
			continue
		}
		if err != nil {
			return fmt.Errorf("write %d entities: %w", to-from, err)
		}
		l.res.Written += int64(to - from)
		from = to
	}
	l.batch.clear()
	if l.bar != nil {
		_ = l.bar.Set64(l.res.Written)
	}
	return nil
}
