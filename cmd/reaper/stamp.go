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

func (a *app) stampCommand() *cobra.Command {
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
			return a.stamp(cmd, args[0], args[1], s, fromFlags)
		},
	}
	a.addTarget(cmd)
	a.addJSON(cmd)
	cmd.Flags().IntVar(&gen, "generation", expirykey.Nursery, "generation of the key; contacts no store")
	cmd.Flags().IntVar(&shards, "shards", 16, "number of shards of that generation; contacts no store")
	return cmd
}

func (a *app) stamp(cmd *cobra.Command, id, instant string, s generation.Stamper, fromFlags bool) error {
	if err := checkName(id); err != nil {
		return &exit{exitUsage, err}
	}
	expires, err := a.parseInstant(instant)
	if err != nil {
		return err
	}
	if !fromFlags {
		if s, err = a.currentStamper(cmd, s, id); err != nil {
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
func (a *app) parseInstant(s string) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return at, nil
	}
	d, err := config.Duration(s)
	if err != nil {
		return time.Time{}, wrongUsage("%q is neither an instant such as 2026-11-21T00:07:30.855Z "+
			"nor a time from now such as 7d", s)
	}
	return a.now().Add(d), nil
}

// currentStamper returns the stamper that the target record prescribes for an entity at
// present. Without a store it returns that of the nursery.
func (a *app) currentStamper(cmd *cobra.Command, nursery generation.Stamper, id string) (
	s generation.Stamper, err error) {
	c, _, err := a.load(cmd)
	if err != nil {
		return s, err
	}
	if c.Store.IsZero() && len(a.targets) == 0 {
		return nursery, nil
	}
	c, targets, log, err := a.loadTargets(cmd)
	if err != nil {
		return s, err
	}
	if len(targets) != 1 {
		return s, wrongUsage("stamp needs exactly one target: name it with --target")
	}
	if !targets[0].Layout.Form().HasGenerations() {
		return s, wrongUsage("target %s has the layout %s: its entities carry a timestamp in %s, not an expiry key",
			targets[0].Name, targets[0].Layout, targets[0].Property)
	}
	db, err := a.open(cmd.Context(), c.Store, false, log)
	if err != nil {
		return s, err
	}
	defer db.closeInto(&err)
	rec, now, err := generation.Load(cmd.Context(), db.Store, targets[0].Name)
	if errors.Is(err, generation.ErrMissing) { // a writer that does not know the generation stamps the nursery
		return generation.Stamper{Shards: targets[0].Shards}, nil
	}
	if err != nil {
		return s, err
	}
	return rec.StamperFor(id, now), nil
}
