package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/config"
)

// archiveReads is how many objects of an archive are read at once.
const archiveReads = 8

// archiveFlags are the flags of the commands that read archives.
type archiveFlags struct{ url, since, until string }

// An archivePlace is where the objects of a target are.
type archivePlace struct {
	target string // empty: all that are there
	url    string
	bucket archive.Bucket
}

func archiveCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "List, verify or show what was kept of entities before they were deleted",
		Long: `An archive has the entities of a target, or their keys, as they were before they were
deleted: see docs/archive.md. List shows its objects, verify reads all of them, and show
prints what is in one. They write nothing, and do not open the store.

Where an archive is says the targets file, or --archive: also for targets that are no
longer in the file.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return wrongUsage("archive: want the subcommand list, verify or show (see reaper archive --help)")
		},
	}
	cmd.AddCommand(archiveListCommand(a), archiveVerifyCommand(a), archiveShowCommand(a))
	return cmd
}

func (f *archiveFlags) add(cmd *cobra.Command, times bool) {
	cmd.Flags().StringVar(&f.url, "archive", "", "file:///DIRECTORY or gs://BUCKET/PREFIX, instead of archive.to of the\n"+
		"targets file")
	if !times {
		return
	}
	cmd.Flags().StringVar(&f.since, "since", "", "only objects that were begun since then: a duration such as 24h, or an "+
		"instant\nsuch as 2026-11-23T00:00:00Z")
	cmd.Flags().StringVar(&f.until, "until", "", "only objects that were begun before then")
}

// span returns the instants of --since and --until; the zero time for one that is not given.
func (f *archiveFlags) span(cmd *cobra.Command, now time.Time) (since, until time.Time, err error) {
	if cmd.Flags().Changed("since") {
		since, err = readPast("--since", f.since, now)
	}
	if cmd.Flags().Changed("until") && err == nil {
		until, err = readPast("--until", f.until, now)
	}
	if err == nil && !until.IsZero() && !since.Before(until) {
		err = wrongUsage("--since %s is not before --until %s", f.since, f.until)
	}
	return since, until, err
}

// places returns the archives that a command is to read: of the named target, or of all.
func (f *archiveFlags) places(a *app, cmd *cobra.Command, names []string) ([]archivePlace, error) {
	if f.url != "" {
		bucket, err := openArchived(cmd.Context(), f.url)
		if err != nil {
			return nil, err
		}
		return []archivePlace{{strings.Join(names, ""), f.url, bucket}}, nil
	}
	c, _, err := a.load(cmd)
	if err == nil {
		err = c.RequireTargets()
	}
	var targets []config.Target
	if err == nil {
		targets, err = c.Select(names)
	}
	if err != nil {
		return nil, err
	}
	var places []archivePlace
	for _, t := range targets {
		if t.Archive.To == "" {
			continue
		}
		bucket, err := openArchived(cmd.Context(), t.Archive.To)
		if err != nil {
			return nil, fmt.Errorf("target %s: %w", t.Name, err)
		}
		places = append(places, archivePlace{t.Name, t.Archive.To, bucket})
	}
	if len(places) == 0 {
		return nil, wrongUsage("no archive: archive.to of the targets file is empty; name one with --archive")
	}
	return places, nil
}

func openArchived(ctx context.Context, url string) (archive.Bucket, error) {
	if err := archive.CheckURL(url); err != nil {
		return nil, &exit{exitUsage, err}
	}
	return archive.OpenBucket(ctx, url)
}

// An archiveResult is what archive list and verify print with --json.
type archiveResult struct {
	Now      time.Time        `json:"now"`
	Archives []archiveListing `json:"archives"`
}

// An archiveListing is what is in the archive of a target.
type archiveListing struct {
	Target  string           `json:"target"` // empty: of all that are in that place
	URL     string           `json:"url"`
	Objects []archivedObject `json:"objects"`
	Bytes   int64            `json:"bytes"` // without manifests
}

// An archivedObject is one object, and what its manifest says.
type archivedObject struct {
	Name        string    `json:"name"`
	At          time.Time `json:"at"`
	Bytes       int64     `json:"bytes"`
	Confirmed   bool      `json:"confirmed"`
	Entities    *int      `json:"entities"` // nil if that is not known without reading it
	Deleted     int       `json:"deleted"`
	Kept        int       `json:"kept"`
	Unconfirmed *int      `json:"unconfirmed"`
	Problem     string    `json:"problem,omitempty"`

	err error
}

func archiveListCommand(a *app) *cobra.Command {
	var f archiveFlags
	cmd := &cobra.Command{
		Use:   "list [TARGET]",
		Short: "Show the objects of an archive, and what became of their entities",
		Long: `List shows the objects of the archive of a target, or of all targets: when each was begun,
how many entities it has, and how many of them were deleted afterwards. An object without
a manifest is unconfirmed: the process was killed before it said so, or still works on it.

List reads the manifests, and no object.`,
		Example: `  reaper archive list
  reaper archive list sessions --since 24h --json
  reaper archive list --archive gs://my-bucket/reaper`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.readArchives(cmd, args, f, readManifest) },
	}
	f.add(cmd, true)
	a.addJSON(cmd)
	return cmd
}

func archiveVerifyCommand(a *app) *cobra.Command {
	var f archiveFlags
	cmd := &cobra.Command{
		Use:   "verify [TARGET]",
		Short: "Read all objects of an archive, and name those that are damaged",
		Long: `Verify reads the objects of the archive of a target, or of all targets, from the first to
the last line, and compares them with the hashes that they and their manifests have. It
exits with 1 if an object is damaged, cannot be read, or is missing while its manifest is
there, and names it. An object without a manifest is not damaged.`,
		Example: `  reaper archive verify
  reaper archive verify sessions --since 7d`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.readArchives(cmd, args, f, readObject) },
	}
	f.add(cmd, true)
	a.addJSON(cmd)
	return cmd
}

// readArchives calls read for all objects, and prints what they have.
func (a *app) readArchives(
	cmd *cobra.Command, names []string, f archiveFlags, read func(context.Context, archive.Bucket, *archivedObject) error,
) error {
	now := a.now().UTC()
	since, until, err := f.span(cmd, now)
	if err != nil {
		return err
	}
	places, err := f.places(a, cmd, names)
	if err != nil {
		return err
	}
	res := archiveResult{Now: now, Archives: []archiveListing{}}
	var errs []error
	for _, p := range places {
		list, err := listArchive(cmd.Context(), p, since, until, read)
		errs = append(errs, err)
		res.Archives = append(res.Archives, list)
	}
	return errors.Join(a.print(res, func(w io.Writer) error {
		for _, list := range res.Archives {
			printArchive(w, list)
		}
		return nil
	}), errors.Join(errs...))
}

// listArchive lists the objects of a place, each of which is read. The error is of all objects that have one.
func listArchive(
	ctx context.Context, p archivePlace, since, until time.Time,
	read func(context.Context, archive.Bucket, *archivedObject) error,
) (archiveListing, error) {
	list := archiveListing{Target: p.target, URL: p.url, Objects: []archivedObject{}}
	for e, err := range archive.Objects(ctx, p.bucket, p.target, since, until) {
		if err != nil {
			return list, fmt.Errorf("archive of target %s: %w", p.target, err)
		}
		o := archivedObject{Name: e.Name, At: e.At, Bytes: e.Size, Confirmed: e.Confirmed}
		if e.Missing {
			o.err = fmt.Errorf("object %s is missing: only its manifest is there", e.Name)
		}
		list.Objects = append(list.Objects, o)
		list.Bytes += e.Size
	}
	var group errgroup.Group
	group.SetLimit(archiveReads)
	for i := range list.Objects {
		background.Go(&group, func() error {
			if o := &list.Objects[i]; o.err == nil {
				o.err = read(ctx, p.bucket, o)
			}
			return nil
		})
	}
	errs := []error{group.Wait()} // only a panic
	for i := range list.Objects {
		if o := &list.Objects[i]; o.err != nil {
			o.Problem = o.err.Error()
			errs = append(errs, o.err)
		}
	}
	return list, errors.Join(errs...)
}

// readManifest reads what the manifest of an object says.
func readManifest(ctx context.Context, b archive.Bucket, o *archivedObject) error {
	if !o.Confirmed {
		return nil
	}
	m, err := archive.ReadManifest(ctx, b, o.Name)
	if err != nil {
		return err
	}
	o.count(m.Lines, sumRuns(m.Deleted), sumRuns(m.Kept))
	return nil
}

// readObject reads an object to its end.
func readObject(ctx context.Context, b archive.Bucket, o *archivedObject) error {
	counts, n := map[archive.State]int{}, 0
	for l, err := range archive.Read(ctx, b, o.Name) {
		if err != nil {
			return err
		}
		counts[l.State]++
		n++
	}
	o.count(n, counts[archive.Deleted], counts[archive.Kept])
	return nil
}

func (o *archivedObject) count(entities, deleted, kept int) {
	unconfirmed := entities - deleted - kept
	o.Entities, o.Deleted, o.Kept, o.Unconfirmed = &entities, deleted, kept, &unconfirmed
}

func sumRuns(runs []archive.Run) (n int) {
	for _, r := range runs {
		n += r[1]
	}
	return n
}

func printArchive(w io.Writer, list archiveListing) {
	title := list.URL
	if list.Target != "" {
		title = list.Target + " in " + title
	}
	fmt.Fprintf(w, "%s: %s, %s\n", title, counted(int64(len(list.Objects)), "object", "objects"),
		counted(list.Bytes, "byte", "bytes"))
	for _, o := range list.Objects {
		fmt.Fprintf(w, "  %s  %s\n    %s\n", instant(&o.At), o.text(), printable(o.Name))
	}
}

// text says for people what became of the entities of an object.
func (o *archivedObject) text() string {
	switch {
	case o.err != nil:
		return "problem: " + printable(o.Problem)
	case o.Entities == nil:
		return fmt.Sprintf("unconfirmed, %s", counted(o.Bytes, "byte", "bytes"))
	}
	return fmt.Sprintf("%s: %s deleted, %s kept, %s unconfirmed; %s", counted(int64(*o.Entities), "entity", "entities"),
		grouped(int64(o.Deleted)), grouped(int64(o.Kept)), grouped(int64(*o.Unconfirmed)), counted(o.Bytes, "byte", "bytes"))
}
