package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

func explainCommand(a *app) *cobra.Command {
	var namespace, parent string
	var number, descendant bool
	cmd := &cobra.Command{
		Use:   "explain ID",
		Short: "Explain one entity: its expiry, its range, when it is due, and why it still exists",
		Long: `Explain reads one entity and prints when it is due, its range, how far the range's
cursor is, and why the entity exists or does not. It writes nothing.`,
		Example: `  reaper explain --target sessions s-1842
  reaper explain --target sessions --number 1842 --namespace eu
  reaper explain --target items --parent users/u1 i-7
  reaper explain --target users --descendant users/u1/posts/p-3`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case descendant && (number || parent != ""):
				return wrongUsage("--descendant: ID is a whole key, without --number and --parent")
			case descendant:
				return explain(a, cmd, namespace, func(ctx context.Context, c sweep.Config) (inspect.Explanation, error) {
					return inspect.ExplainDescendant(ctx, c, c.Targets[0], namespace, args[0])
				})
			}
			id := store.Entity{Name: args[0], Parent: parent}
			if number {
				n, err := strconv.ParseInt(args[0], 10, 64)
				if err != nil || n <= 0 {
					return wrongUsage("--number: %q is not a positive integer", args[0])
				}
				id.Name, id.Number = "", n
			} else if err := checkName(args[0]); err != nil {
				return &exit{exitUsage, err}
			}
			return explain(a, cmd, namespace, func(ctx context.Context, c sweep.Config) (inspect.Explanation, error) {
				return inspect.Explain(ctx, c, c.Targets[0], namespace, id)
			})
		},
	}
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().BoolVar(&number, "number", false, "ID is a numeric id, not a name")
	cmd.Flags().StringVar(&namespace, "namespace", "", "Datastore: the entity's namespace")
	cmd.Flags().StringVar(&parent, "parent", "",
		"the entity's parent: a document's path, or in Datastore mode a key as dump prints it")
	cmd.Flags().BoolVar(&descendant, "descendant", false,
		"ID is the whole key of something below an entity: explain that, which may take it along")
	return cmd
}

// explain prints what explains an entity of the only target.
func explain(
	a *app, cmd *cobra.Command, namespace string, what func(context.Context, sweep.Config) (inspect.Explanation, error),
) (err error) {
	s, t, err := a.loadTarget(cmd)
	if err != nil {
		return err
	}
	if namespace != "" && s.Store.Driver != config.Datastore {
		return wrongUsage("--namespace: namespaces exist in datastore stores only")
	}
	if err := a.connect(cmd.Context(), s, false); err != nil {
		return err
	}
	defer s.db.closeInto(&err)
	x, err := what(cmd.Context(), s.sweep)
	if errors.Is(err, inspect.ErrUnknownEntity) {
		return &exit{exitUsage, err}
	}
	if err == nil {
		err = addArchived(cmd.Context(), s, t, &x)
	}
	if err != nil {
		return fmt.Errorf("target %s: %w", t.Name, err)
	}
	return s.print(x, func(w io.Writer) error {
		printExplanation(w, s.screen, x, t)
		return nil
	})
}

func printExplanation(w io.Writer, to screen, x inspect.Explanation, t config.Target) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-10s %s\n", name+":", printable(fmt.Sprintf(format, args...)))
	}
	fmt.Fprintf(w, "%s of target %s\n", printable(x.Key), x.Target)
	if x.Namespace != "" {
		line("namespace", "%s", x.Namespace)
	}
	if x.Expiry != "" {
		line("stored", "%s = %s", t.Property, x.Expiry)
	}
	if k, err := expirykey.Parse(x.Expiry); err == nil {
		name := fmt.Sprintf("%08d", k.Generation)
		if k.Generation == expirykey.Nursery {
			name += " (nursery)"
		}
		if x.State != "" {
			name += ", " + x.State
		}
		line("generation", "%s, shard %04d", name, k.Shard)
	}
	if x.Expires != nil {
		line("expires", "%s", x.Expires.Format(time.RFC3339Nano))
	}
	if x.Due != nil && !x.Due.Equal(*x.Expires) {
		line("due", "%s, with the retention of %s", x.Due.Format(time.RFC3339Nano),
			config.FormatDuration(t.Retention))
	}
	if r := x.Range; r != nil {
		line("range", "%s", orDash(r.Shard))
		line("cursor", "%s", orDash(r.Position))
		if r.Swept != nil {
			line("swept", "up to %s", r.Swept.Format(time.RFC3339))
		}
		if r.Owner != "" {
			line("held by", "%s", r.Owner)
		}
		if r.Refused {
			line("refused", "the store refuses to delete or carry entities of this range")
		}
	}
	// On a terminal a sentence takes as many lines as it needs.
	fmt.Fprint(w, to.wrapped(fmt.Sprintf("  %-10s ", x.Verdict+":"), x.Why))
	if x.Held != "" && x.Reason != "" {
		fmt.Fprint(w, to.wrapped(fmt.Sprintf("  %-10s ", "reason:"), x.Reason))
	}
}
