package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/config"
)

// A stampResult is what stamp --json prints.
type stampResult struct {
	Key        string `json:"key"`
	Generation int    `json:"generation"`
	Shard      int    `json:"shard"`
	Expires    string `json:"expires"`
}

func stampCommand(a *app) *cobra.Command {
	var gen, shards int
	cmd := &cobra.Command{
		Use:   "stamp ID INSTANT",
		Short: "Print the expiry key for an id and an instant",
		Long: `Stamp prints the expiry key of an entity. ID is its name or numeric id. INSTANT is when
it expires: an instant (RFC 3339) or a time from now (36h, 7d).

With a store it reads the current generation and its shards from the target record; a
target without a record uses the nursery. Without a store, or with --generation or
--shards, it contacts no store: the key is then in the given generation. The default is
the nursery, generation 0, to which any writer may write.`,
		Example: `  reaper stamp s-1842 2026-11-21T00:07:30.855Z
  reaper stamp --generation 3 --shards 64 1842 7d
  reaper stamp --store datastore:my-project --target sessions s-1842 7d`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := generation.Stamper{Generation: gen, Shards: shards}
			fromFlags := cmd.Flags().Changed("generation") || cmd.Flags().Changed("shards")
			return stamp(a, cmd, args[0], args[1], s, fromFlags)
		},
	}
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().IntVar(&gen, "generation", expirykey.Nursery, "generation of the key; contacts no store")
	cmd.Flags().IntVar(&shards, "shards", 16, "number of shards of that generation; contacts no store")
	return cmd
}

func stamp(a *app, cmd *cobra.Command, id, instant string, s generation.Stamper, fromFlags bool) error {
	if err := checkName(id); err != nil {
		return &exit{exitUsage, err}
	}
	expires, err := parseInstant(instant, a.now())
	if err != nil {
		return err
	}
	if !fromFlags {
		if s, err = currentStamper(a, cmd, s, id); err != nil {
			return err
		}
	}
	// The hash of a numeric id is the hash of its digits, so Name works for both.
	key, err := s.Name(id, expires)
	if err != nil {
		return &exit{exitUsage, err}
	}
	res := stampResult{key.String(), key.Generation, key.Shard, key.Expires.Format(instants)}
	return a.print(res, func(w io.Writer) error {
		fmt.Fprintln(w, key)
		return nil
	})
}

// parseInstant reads an instant, or a time from now.
func parseInstant(s string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return at, nil
	}
	d, err := config.Duration(s)
	if err != nil {
		return time.Time{}, wrongUsage("%q is neither an instant such as 2026-11-21T00:07:30.855Z "+
			"nor a time from now such as 7d", s)
	}
	return now.Add(d), nil
}

// currentStamper returns the stamper that the target record prescribes for an entity at
// present. Without a store it returns that of the nursery.
func currentStamper(a *app, cmd *cobra.Command, nursery generation.Stamper, id string) (
	current generation.Stamper, err error) {
	c, log, err := a.load(cmd)
	if err != nil {
		return current, err
	}
	if c.Store.IsZero() && len(a.targets) == 0 {
		return nursery, nil
	}
	s, err := a.withTargets(c, log)
	if err != nil {
		return current, err
	}
	t, err := s.onlyTarget(cmd)
	if err != nil {
		return current, err
	}
	if !t.Layout.Form().HasGenerations() {
		return current, wrongUsage("target %s has the layout %s: its entities carry a timestamp in %s, not an expiry key",
			t.Name, t.Layout, t.Property)
	}
	if err := a.connect(cmd.Context(), s, false); err != nil {
		return current, err
	}
	defer s.db.closeInto(&err)
	rec, now, err := generation.Load(cmd.Context(), s.db.Store, t.Name)
	if errors.Is(err, generation.ErrMissing) { // a writer that does not know the generation stamps the nursery
		return generation.Stamper{Shards: t.Shards}, nil
	}
	if err != nil {
		return current, err
	}
	return rec.StamperFor(id, now), nil
}
