package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/reaper-ttl/reaper/internal/page/draw"
)

// A console is where a command prints and asks. Results go to stdout, logs and progress to
// stderr.
type console struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	screen screen // stdout, here or of the process that has sent the command
	json   bool   // --json
}

// An output is stdout, and remembers whether something could not be written: a command whose
// result is lost, as on a full disk, must not look as if all were well.
type output struct {
	w  io.Writer
	mu sync.Mutex

	err error
}

// Write implements [io.Writer].
func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.err = cmp.Or(o.err, err)
	}
	return n, err
}

// failure returns the first error of a write; nil without one.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func (c *console) addJSON(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.json, "json", false, "print one JSON document")
}

// print prints the result of a command: with --json as its one document, else as a text for
// people.
func (c *console) print(result any, text func(w io.Writer) error) error {
	if !c.json {
		return text(c.stdout)
	}
	e := json.NewEncoder(c.stdout)
	e.SetIndent("", "  ")
	return e.Encode(result)
}

// say prints a text for people, unless --json is set.
func (c *console) say(format string, args ...any) {
	if !c.json {
		fmt.Fprintf(c.stdout, format, args...)
	}
}

// confirm asks a person a question. Only yes goes on.
func (c *console) confirm(question string) error {
	fmt.Fprintf(c.stderr, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(c.stdin).ReadString('\n') // nothing to read is no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return wrongUsage("nothing was read: answer y to go on, or give --yes")
}

// onTerminal reports whether stderr is a terminal, where a person may watch the progress.
func (c *console) onTerminal() bool { return isTerminal(c.stderr) }

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// counted prints a count of something for people: 1 key, 2,000 keys.
func counted(n int64, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + more
}

// grouped prints a count for people: 1,234,567.
func grouped(n int64) string { return draw.Count(n) }
