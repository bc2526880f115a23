package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
)

// instants is the form in which dump and stamp print instants.
const instants = "2006-01-02T15:04:05.000Z"

func dumpCommand(a *app) *cobra.Command {
	var typed bool
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print what a target holds, as NDJSON",
		Long: `Dump prints one JSON object per line for each entity, in key order. An object has the
fields that load reads, and "key", the expiry property as stored. Dump reads every
entity, and a cloud database bills each read.

With --typed an object has the whole entity in the encoding of its service, with types
that plain JSON does not tell apart, as an archive has it. load --typed reads that, in
another project, too. Each entity is read twice.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if typed {
				return a.inSession(cmd, dumpTyped)
			}
			return a.inSession(cmd, dump)
		},
	}
	a.addTarget(cmd)
	cmd.Flags().BoolVar(&typed, "typed", false, "print whole entities in the encoding of their service")
	return cmd
}

func dump(ctx context.Context, s *session) error {
	d, ok := s.db.Store.(store.Dumper)
	if !ok {
		return wrongUsage("store %v cannot be dumped", s.Store)
	}
	return s.dumpEach(ctx, func(out *bufio.Writer, t config.Target, namespace string) error {
		for e, err := range d.Dump(ctx, t.StoreTarget(), namespace) {
			if err == nil {
				err = printEntity(out, e, t, len(s.targets) > 1)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// dumpEach calls do for each namespace of each target.
func (s *session) dumpEach(
	ctx context.Context, do func(out *bufio.Writer, t config.Target, namespace string) error,
) (err error) {
	out := bufio.NewWriterSize(s.stdout, 64<<10)
	defer func() {
		if ferr := out.Flush(); err == nil {
			err = ferr
		}
	}()
	for _, t := range s.targets {
		namespaces := t.Namespaces
		if n, ok := s.db.Store.(store.Namespacer); ok && t.AllNamespaces {
			if namespaces, err = n.Namespaces(ctx); err != nil {
				return err
			}
		} else if t.AllNamespaces {
			namespaces = []string{""}
		}
		for _, ns := range namespaces {
			if err := do(out, t, ns); err != nil {
				return fmt.Errorf("dump target %s: %w", t.Name, err)
			}
		}
	}
	return nil
}

func printEntity(out *bufio.Writer, e store.Entity, t config.Target, several bool) error {
	l := line{Namespace: e.Namespace, Parent: e.Parent, Data: e.Data}
	if several {
		l.Target = t.Name
	}
	if e.Name != "" {
		l.ID = quote(e.Name)
	} else {
		l.ID = strconv.AppendInt(nil, e.Number, 10)
	}
	switch e.Shard.Type {
	case store.Text:
		l.Shard = quote(e.Shard.Text)
	case store.Other:
		l.Shard = json.RawMessage(e.Shard.Text)
	}
	if at, err := t.Layout.Form().Expires(e.Expiry); err == nil {
		l.Expires = new(at.Format(instants))
	}
	switch e.Expiry.Type {
	case store.Missing:
	case store.Text:
		l.Key = quote(e.Expiry.Text)
	case store.Instant:
		l.Key = quote(e.Expiry.Time.UTC().Format(time.RFC3339Nano))
	case store.List, store.Other:
		l.Key = json.RawMessage(e.Expiry.Text)
		if !json.Valid(l.Key) {
			l.Key = quote(e.Expiry.Text)
		}
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return enc.Encode(l)
}

// quote returns a string as JSON, whatever bytes it has.
func quote(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("a string does not marshal: %v", err))
	}
	return b
}
