package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	docs := flag.String("docs", "../docs", "write scale.md and plots below this directory")
	flag.Parse()
	if err := write(*docs, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1) //nolint:forbidigo // the command ends here
	}
}

// write runs the study, prints its tables, and writes them and the plots below a directory.
func write(docs string, out io.Writer) error {
	s := newStudy()
	s.run()
	tables := s.tables()
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		fmt.Fprintf(out, "%s\n\n%s\n", name, tables[name])
	}
	if err := s.draw(filepath.Join(docs, "plots")); err != nil {
		return err
	}
	return update(filepath.Join(docs, "scale.md"), tables)
}

func update(file string, tables map[string]string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := filled(string(page), tables)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
