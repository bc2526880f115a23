package sim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A Mutation is a deliberate bug.
type Mutation struct {
	Name, What string
	File       string // that it changes, from the root of the repository
	Changes    []Change
}

// A Change is a piece of text that stands in the file once, and what takes its place.
type Change struct{ Old, New string }

// Mutations reads all mutations of a directory, in the order of their names. Each is a
// text of this form, with any number of changes:
//
//	what is wrong
//	file: sweep/range.go
//	<<<<
//	what stands there
//	====
//	what stands there instead
//	>>>>
func Mutations(dir string) ([]Mutation, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("no mutations in %s: %w", dir, err)
	}
	var list []Mutation
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		m, err := parseMutation(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		m.Name = strings.TrimSuffix(filepath.Base(name), ".txt")
		list = append(list, m)
	}
	return list, nil
}

func parseMutation(text string) (m Mutation, err error) {
	head, rest, _ := strings.Cut(text, "<<<<\n")
	what, file, ok := strings.Cut(head, "file: ")
	if !ok {
		return m, fmt.Errorf("it names no file")
	}
	m.What, m.File = strings.Join(strings.Fields(what), " "), strings.TrimSpace(file)
	for rest != "" {
		before, after, ok := strings.Cut(rest, "====\n")
		instead, next, end := strings.Cut(after, ">>>>\n")
		if !ok || !end {
			return m, fmt.Errorf("a change has no end")
		}
		m.Changes = append(m.Changes, Change{before, instead})
		_, rest, _ = strings.Cut(next, "<<<<\n")
	}
	if len(m.Changes) == 0 {
		return m, fmt.Errorf("it changes nothing")
	}
	return m, nil
}

// Apply returns the text of the file with the bug in it.
func (m Mutation) Apply(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, m.File))
	if err != nil {
		return "", err
	}
	mutant := string(text)
	for _, c := range m.Changes {
		if n := strings.Count(mutant, c.Old); n != 1 {
			return "", fmt.Errorf("mutation %s no longer fits: this text stands %d times in %s, not once:\n%s",
				m.Name, n, m.File, c.Old)
		}
		mutant = strings.Replace(mutant, c.Old, c.New, 1)
	}
	return mutant, nil
}

// Overlay writes the changed file, and what go build -overlay wants to be told, into a
// directory for such things.
func (m Mutation) Overlay(root, work string) (name string, err error) {
	mutant, err := m.Apply(root)
	if err != nil {
		return "", err
	}
	at, err := filepath.Abs(filepath.Join(root, m.File))
	if err != nil {
		return "", err
	}
	file := filepath.Join(work, m.Name+".go.txt")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {at: file}})
	if err != nil {
		return "", err
	}
	name = filepath.Join(work, m.Name+".json")
	if err := os.WriteFile(file, []byte(mutant), 0o600); err != nil {
		return "", err
	}
	return name, os.WriteFile(name, replace, 0o600)
}
