package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reaper-ttl/reaper/archive"
)

// A shownObject is what archive show --json prints.
type shownObject struct {
	Object    string          `json:"object"`
	Header    archive.Header  `json:"header"`
	Confirmed bool            `json:"confirmed"`
	Entities  []shownArchived `json:"entities"`
}

// A shownArchived is one entity of an object.
type shownArchived struct {
	Line      int             `json:"line"`
	State     archive.State   `json:"state"`
	At        time.Time       `json:"at"`
	Namespace string          `json:"namespace"`
	Key       string          `json:"key"`
	Expiry    string          `json:"expiry"`
	Created   time.Time       `json:"created,omitzero"`
	Updated   time.Time       `json:"updated,omitzero"`
	Version   string          `json:"version,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
}

func archiveShowCommand(a *app) *cobra.Command {
	var f archiveFlags
	var id string
	cmd := &cobra.Command{
		Use:   "show OBJECT",
		Short: "Print the entities of an object of an archive",
		Long: `Show prints the entities of an object, as archive list names it: for each its line, what
became of it, its key and expiry, and its data if the archive has whole entities. Of a
damaged object it prints what can be read, and exits with 1.`,
		Example: `  reaper archive show sessions/2026/11/26/182604.123-0123abcd-0007.ndjson.zst
  reaper archive show sessions/2026/11/26/182604.123-0123abcd-0007.ndjson.zst --id s-1842 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, _, _ := strings.Cut(args[0], "/")
			places, err := f.places(a, cmd, []string{target})
			if err != nil {
				return err
			}
			return a.showObject(cmd.Context(), places[0].bucket, args[0], id)
		},
	}
	f.add(cmd, false)
	a.addJSON(cmd)
	cmd.Flags().StringVar(&id, "id", "", "only entities with this key, or whose key ends in this id")
	return cmd
}

// showObject prints the entities of an object; of a damaged one those that can be read.
func (a *app) showObject(ctx context.Context, b archive.Bucket, object, id string) error {
	r, err := archive.OpenObject(ctx, b, object)
	if errors.Is(err, archive.ErrName) {
		return wrongUsage("%v: archive list prints them", err)
	}
	if err != nil {
		return err
	}
	defer r.Close()
	p := &objectPrinter{w: a.stdout, json: a.json, header: r.Header()}
	if err := p.begin(object, r.Manifest() != nil); err != nil {
		return err
	}
	for l, lerr := range r.Lines() {
		if err = lerr; err == nil && (id == "" || l.Key == id || strings.HasSuffix(l.Key, "/"+id)) {
			err = p.entity(shownArchived{l.Number, l.State, l.At, l.Namespace, l.Key, l.Expiry.String(), l.Created,
				l.Updated, l.Version, l.Data})
		}
		if err != nil {
			break
		}
	}
	return errors.Join(p.end(), err)
}

// An objectPrinter prints an object while it is read: nobody waits for the whole of it, and it need not fit in memory.
type objectPrinter struct {
	w      io.Writer
	json   bool
	header archive.Header
	n      int // entities so far
}

// emptyList ends a shownObject without entities.
const emptyList = "]\n}"

func (p *objectPrinter) begin(object string, confirmed bool) error {
	if !p.json {
		return nil
	}
	text, err := json.MarshalIndent(shownObject{object, p.header, confirmed, []shownArchived{}}, "", "  ")
	if err == nil {
		_, err = p.w.Write(bytes.TrimSuffix(text, []byte(emptyList)))
	}
	return err
}

func (p *objectPrinter) entity(e shownArchived) error {
	if !p.json {
		return p.entityText(e)
	}
	text, err := json.MarshalIndent(e, "    ", "  ")
	if err != nil {
		return err
	}
	comma := ","
	if p.n++; p.n == 1 {
		comma = ""
	}
	_, err = fmt.Fprintf(p.w, "%s\n    %s", comma, text)
	return err
}

func (p *objectPrinter) entityText(e shownArchived) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%d  %s  %s", e.Line, e.State, printable(e.Key))
	if e.Namespace != "" {
		fmt.Fprintf(&text, ", namespace %s", printable(e.Namespace))
	}
	fmt.Fprintf(&text, "\n    kept %s, %s = %s\n", instant(&e.At), printable(p.header.Property),
		shortened(printable(e.Expiry)))
	if len(e.Data) > 0 {
		fmt.Fprintf(&text, "    %s\n", printable(string(e.Data)))
	}
	_, err := p.w.Write(text.Bytes())
	return err
}

func (p *objectPrinter) end() error {
	if !p.json {
		return nil
	}
	indent := ""
	if p.n > 0 {
		indent = "\n  "
	}
	_, err := fmt.Fprintln(p.w, indent+emptyList)
	return err
}
