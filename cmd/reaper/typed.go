package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
)

// A typedStore is a store that dumps and loads whole entities in its service's own encoding.
type typedStore interface {
	store.Store
	store.Archiver
	store.Adopter
	store.Keyer
}

// typed returns the store of a session as a typedStore, and its only target.
func (s *session) typed() (typedStore, error) {
	d, ok := s.db.Store.(typedStore)
	if !ok {
		return nil, wrongUsage("--typed: store %v has no encoding of its own", s.Store)
	}
	return d, d.Archives(s.targets[0].StoreTarget())
}

// dumpTyped prints whole entities, as lines of an archive.
func dumpTyped(ctx context.Context, s *session) error {
	if len(s.targets) != 1 {
		return wrongUsage("dump --typed needs exactly one target: name it with --target")
	}
	d, err := s.typed()
	if err != nil {
		return err
	}
	return s.dumpEach(ctx, func(out *bufio.Writer, t config.Target, namespace string) error {
		return dumpTypedIn(ctx, d, t, namespace, s.now(), out)
	})
}

// dumpTypedIn prints the entities of one namespace: their keys first, page by page, then what they hold.
func dumpTypedIn(
	ctx context.Context, d typedStore, t config.Target, namespace string, now time.Time, out io.Writer,
) error {
	q := store.WalkQuery{Target: t.StoreTarget(), Namespace: namespace, Limit: store.MaxPage}
	var rows store.Rows
	var text []byte
	for more := true; more; {
		if err := store.Retry(ctx, time.Minute, func() error { return d.Walk(ctx, q, &rows) }); err != nil {
			return err
		}
		var keys []string
		for _, r := range rows.List {
			keys = append(keys, r.Key)
			q.After = r.Key
		}
		for q.Next, more = rows.Next, rows.More; len(keys) > 0; {
			var list []store.Copy
			err := store.Retry(ctx, time.Minute, func() (err error) {
				list, err = d.Fetch(ctx, q.Target, namespace, keys, time.Time{})
				return err
			})
			if err != nil {
				return err
			}
			for keys = keys[len(list):]; len(list) > 0; list = list[1:] {
				if list[0].Data == nil {
					continue // it has gone meanwhile
				}
				if text, err = archive.AppendLine(text[:0], namespace, list[0], now); err != nil {
					return err
				}
				if _, err := out.Write(text); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// A typedResult is what load --typed prints.
type typedResult struct {
	Store    string   `json:"store"`
	Target   string   `json:"target"`
	Complete bool     `json:"complete"` // the input was read to its end
	Written  int64    `json:"written"`
	Existed  int64    `json:"existed"`  // and was left as it was
	Stripped []string `json:"stripped"` // what the store did not take back, of the first entities
}

func (r typedResult) print(w io.Writer) error {
	fmt.Fprintf(w, "%s: wrote %s, %s existed and stay as they are%s\n", r.Target,
		counted(r.Written, "entity", "entities"), grouped(r.Existed), unlessComplete(r.Complete))
	for _, text := range r.Stripped {
		fmt.Fprintf(w, "%s: %s\n", r.Target, text)
	}
	return nil
}

// mostStripped is how many entities load --typed names of which something was left out.
const mostStripped = 10

// A typedLoader inserts whole entities in batches of one namespace.
type typedLoader struct {
	store     typedStore
	target    config.Target
	writer    layoutWriter
	res       typedResult
	namespace string
	list      []store.Insertion
	lines     []typedLine // of the list
	weight    int
}

// A typedLine is a line whose entity is to be inserted.
type typedLine struct {
	number  int
	expires *time.Time // nil if the copy's expiry stays
}

// loadTyped writes what dumpTyped has printed, and overwrites nothing.
func loadTyped(a *app, cmd *cobra.Command) (err error) {
	s, t, err := a.loadTarget(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if err := a.connect(ctx, s, true); err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	d, err := s.typed()
	if err != nil {
		return err
	}
	writer, _, stop, err := stampingWriter(ctx, s, t)
	if err != nil {
		return err
	}
	defer stop()
	l := &typedLoader{store: d, target: t, writer: writer,
		res: typedResult{Store: s.Store.String(), Target: t.Name, Stripped: []string{}}}
	lines := newLineReader(readUntil(ctx, s.stdin))
	lines.most = archive.MaxLine
	if err := l.run(ctx, lines); err != nil {
		code := exitFailed
		if bad := (*badLine)(nil); errors.As(err, &bad) {
			code = exitUsage
		}
		return &exit{code, fmt.Errorf("%w; %s entities were written before", err, grouped(l.res.Written))}
	}
	return s.print(l.res, l.res.print)
}

func (l *typedLoader) run(ctx context.Context, r *lineReader) error {
	for {
		text, err := r.next()
		switch {
		case ctx.Err() != nil:
			return l.flush(context.WithoutCancel(ctx))
		case errors.Is(err, io.EOF):
			l.res.Complete = true
			return l.flush(ctx)
		case errors.Is(err, errLongLine):
			return errors.Join(l.flush(ctx), &badLine{r.number, err})
		case err != nil:
			return errors.Join(l.flush(ctx), err)
		case len(text) == 0:
			continue
		}
		line, err := l.parse(text)
		if err != nil {
			return errors.Join(l.flush(ctx), &badLine{r.number, err})
		}
		if !l.fits(line) {
			if err := l.flush(ctx); err != nil {
				return err
			}
		}
		l.add(line, r.number)
	}
}

// parse reads a line.
func (l *typedLoader) parse(text []byte) (archive.Line, error) {
	line, err := archive.ParseLine(text)
	if err != nil {
		return line, fmt.Errorf("it is not a line of dump --typed: %w", err)
	}
	if !l.target.AllNamespaces && !slices.Contains(l.target.Namespaces, line.Namespace) {
		return line, fmt.Errorf("namespace: %q is not one of the target's", line.Namespace)
	}
	return line, nil
}

// fits reports whether the batch can take the entity of a line.
func (l *typedLoader) fits(line archive.Line) bool {
	twice := slices.ContainsFunc(l.list, func(i store.Insertion) bool { return i.Key == line.Key })
	isFull := len(l.list) == store.MaxPage || l.weight+len(line.Data) > store.CopyBytes
	return !twice && !isFull && line.Namespace == l.namespace
}

// add puts the entity of a line into the batch.
func (l *typedLoader) add(line archive.Line, number int) {
	l.namespace, l.weight = line.Namespace, l.weight+len(line.Data)
	in, from := store.Insertion{Copy: line.Copy}, typedLine{number: number}
	if at, err := l.target.Layout.Form().Expires(line.Expiry); err == nil {
		from.expires = &at
	} else {
		in.AsIs = true // it has no expiry, or none that this layout can read: it comes as it was
	}
	l.list, l.lines = append(l.list, in), append(l.lines, from)
}

// flush inserts the batch. If the store refuses it for what may be the fault of one entity, what is before that one
// is inserted, and the error names its line.
func (l *typedLoader) flush(ctx context.Context) error {
	for most := len(l.list); len(l.list) > 0; {
		n := min(most, len(l.list))
		switch err := l.insert(ctx, l.list[:n]); {
		case err == nil:
		case !store.MayBeOfOneEntity(err):
			return err
		case n == 1:
			return fmt.Errorf("line %d: %w", l.lines[0].number, err)
		default:
			most = n / 2
			continue
		}
		left, lines := l.list[:0], l.lines[:0]
		for i, in := range l.list {
			switch in.Outcome {
			case store.Inserted:
				l.res.Written++
				if in.Stripped != "" && len(l.res.Stripped) < mostStripped {
					l.res.Stripped = append(l.res.Stripped, in.Key+": "+in.Stripped)
				}
			case store.Kept:
				l.res.Existed++
			default:
				left, lines = append(left, in), append(lines, l.lines[i])
			}
		}
		if len(left) == len(l.list) {
			return fmt.Errorf("%w: the store inserts none of %d entities", store.ErrFailed, n)
		}
		l.list, l.lines = left, lines
	}
	l.weight = 0
	return nil
}

// insert makes one call. Expiries are stamped as late as this, as another process's would be.
func (l *typedLoader) insert(ctx context.Context, list []store.Insertion) error {
	for i := range list {
		if err := l.stamp(&list[i], l.lines[i].expires); err != nil {
			return err
		}
	}
	return write(ctx, func(ctx context.Context) error {
		return l.store.Insert(ctx, l.target.StoreTarget(), l.namespace, list)
	})
}

func (l *typedLoader) stamp(in *store.Insertion, expires *time.Time) error {
	if in.AsIs {
		return nil
	}
	id, err := l.store.ID(in.Key)
	if err != nil {
		return err
	}
	// The shard property is in the data: it stays.
	e := store.Entity{Name: id, Shard: store.TextValue(id)}
	if err := l.writer.write(&e, expires); err != nil {
		return err
	}
	in.To = e.Expiry
	return nil
}
