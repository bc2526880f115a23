package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/indexes"
	"github.com/reaper-ttl/reaper/store"
)

func indexesCommand(a *app) *cobra.Command {
	var format, merge string
	cmd := &cobra.Command{
		Use:   "indexes",
		Short: "Print index definitions for the configured targets",
		Long: `Indexes prints the definitions of the indexes that the targets need, and exemptions
from automatic indexes that they do not need. The latter are the descending and the
array index of an expiry key. With the layout sharded-timestamp they are also all
single-field indexes of shard and timestamp. Without those indexes, an entity with only
one of the two fields is in no index, and is not counted as outside all ranges.

It contacts no store and needs no credentials.

  firestore   a complete firestore.indexes.json, for firebase deploy
  datastore   an index.yaml, for gcloud datastore indexes create
  gcloud      the commands for Firestore in native mode

Deploying a firestore.indexes.json may delete indexes that it does not name. --merge
adds the missing definitions to an existing file and prints the result; it keeps
everything else and does not write to the file.`,
		Example: `  reaper indexes --store firestore:my-project > firestore.indexes.json
  reaper indexes --format firestore --merge firestore.indexes.json
  reaper indexes --format datastore --merge index.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return printIndexes(a, cmd, format, merge) },
	}
	a.addTarget(cmd)
	cmd.Flags().StringVar(&format, "format", "", "firestore, datastore or gcloud (default: the format of the store)")
	cmd.Flags().StringVar(&merge, "merge", "", "merge the missing definitions into this file and print it")
	return cmd
}

func printIndexes(a *app, cmd *cobra.Command, format, merge string) error {
	c, log, err := a.load(cmd)
	if err == nil {
		err = c.RequireTargets()
	}
	if err != nil {
		return err
	}
	chosen, err := c.Select(a.targets)
	if err != nil {
		return err
	}
	if format, err = indexFormat(format, c.Store); err != nil {
		return err
	}
	there, err := indexesThere(format, merge)
	if err != nil {
		return err
	}
	targets, all := storeTargets(chosen), storeTargets(c.Targets)
	var text []byte
	var notes []string
	switch format {
	case "firestore":
		text, notes, err = indexes.ForFirestore(all).Of(targets).JSON(there)
	case "datastore":
		text, err = indexes.ForDatastore(all).Of(targets).YAML(there)
	case "gcloud":
		text = []byte(indexes.ForFirestore(all).Of(targets).Gcloud(c.Store.Project, c.Store.Database))
	}
	if err != nil {
		return wrongUsage("--merge: %s: %w", merge, err)
	}
	for _, n := range notes {
		log.Info(n)
	}
	for _, t := range targets {
		if t.ShardProperty != "" && format != "datastore" {
			log.Info(fmt.Sprintf("without single-field indexes, documents with only one of %s and %s are not counted as outside",
				t.ShardProperty, t.Property), "target", t.Name)
		}
	}
	_, err = a.stdout.Write(text)
	return err
}

// indexFormat returns the format that was asked for, or else the store's own. It
// refuses one that does not fit the store.
func indexFormat(format string, s config.Store) (string, error) {
	if format == "" {
		switch s.Driver {
		case config.Firestore, config.Datastore:
			return string(s.Driver), nil
		case config.Embedded:
			return "", wrongUsage("an embedded store makes its own indexes; use --format to print definitions for another store")
		default:
			return "", wrongUsage("no store and no format: set --store, or --format to firestore, datastore or gcloud")
		}
	}
	switch {
	case format != "firestore" && format != "datastore" && format != "gcloud":
		return "", wrongUsage("--format: unknown format %q (want firestore, datastore or gcloud)", format)
	case format == "gcloud" && s.Driver == config.Datastore:
		return "", wrongUsage("--format gcloud is for Firestore in native mode; in Datastore mode: " +
			"reaper indexes --format datastore > index.yaml, and gcloud datastore indexes create index.yaml")
	case format == "datastore" && s.Driver == config.Firestore, format == "firestore" && s.Driver == config.Datastore:
		return "", wrongUsage("--format %s: the store %v is of the other mode", format, s)
	}
	return format, nil
}

// indexesThere reads the file to merge with; nil if none was named.
func indexesThere(format, merge string) ([]byte, error) {
	if merge == "" {
		return nil, nil
	}
	if format == "gcloud" {
		return nil, wrongUsage("--merge works with the formats firestore and datastore only: " +
			"gcloud commands change existing indexes directly")
	}
	there, err := os.ReadFile(merge)
	if err != nil {
		return nil, wrongUsage("--merge: %w", err)
	}
	if len(bytes.TrimSpace(there)) == 0 {
		return nil, wrongUsage("--merge: %s is empty: there is nothing to merge into. "+
			"Redirecting the output into the file itself empties it first: print to another file", merge)
	}
	return there, nil
}

func storeTargets(targets []config.Target) []store.Target {
	list := make([]store.Target, len(targets))
	for i, t := range targets {
		list[i] = t.StoreTarget()
	}
	return list
}
