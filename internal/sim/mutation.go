package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Mutation is a deliberate bug.
type Mutation struct {
	Name, What string
	Lives      []string // features of the lives that can show it, where most cannot
	Files      []MutatedFile
}

// A MutatedFile is a source file that a mutation changes.
type MutatedFile struct {
	Path    string // from the root of the repository
	Changes []Change
}

// A Change is a piece of text that stands in the file once, and what takes its place.
type Change struct{ Old, New string }

// Mutations reads all mutations of a directory, in the order of their names. Each is a
// text of this form, with any number of changes to any number of files, and perhaps without lives:
//
//	what is wrong
//	lives: restamp, trips
//	file: internal/engine/visit/range.go
//	<<<<
//	what stands there
//	====
//	what stands there instead
//	>>>>
//	file: cursor/claim.go
//	<<<<
//	...
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
	what, _, _ := strings.Cut(text, "file: ")
	what, lives, _ := strings.Cut(what, "lives: ")
	m.What = strings.Join(strings.Fields(what), " ")
	for f := range strings.SplitSeq(strings.TrimSpace(lives), ",") {
		if f = strings.TrimSpace(f); f == "" {
			continue
		}
		m.Lives = append(m.Lives, f)
		if !IsOfSome(f) {
			return m, fmt.Errorf("lives cannot be made to have %q", f)
		}
	}
	for rest := text; rest != ""; {
		head, block, begins := strings.Cut(rest, "<<<<\n")
		if _, path, ok := strings.Cut(head, "file: "); ok {
			m.Files = append(m.Files, MutatedFile{Path: strings.TrimSpace(path)})
		}
		if !begins {
			break
		}
		if len(m.Files) == 0 {
			return m, errors.New("it names no file")
		}
		before, after, ok := strings.Cut(block, "====\n")
		instead, next, end := strings.Cut(after, ">>>>\n")
		if !ok || !end {
			return m, errors.New("a change has no end")
		}
		f := &m.Files[len(m.Files)-1]
		f.Changes = append(f.Changes, Change{before, instead})
		rest = next
	}
	isEmpty := func(f MutatedFile) bool { return len(f.Changes) == 0 }
	if len(m.Files) == 0 || slices.ContainsFunc(m.Files, isEmpty) {
		return m, errors.New("it changes nothing")
	}
	return m, nil
}

// Apply returns the text of the file with the bug in it.
func (f MutatedFile) Apply(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, f.Path))
	if err != nil {
		return "", err
	}
	mutant := string(text)
	for _, c := range f.Changes {
		if n := strings.Count(mutant, c.Old); n != 1 {
			return "", fmt.Errorf("it no longer fits: this text stands %d times in %s, not once:\n%s", n, f.Path, c.Old)
		}
		mutant = strings.Replace(mutant, c.Old, c.New, 1)
	}
	return mutant, nil
}

// Overlay writes the changed files, and what go build -overlay wants to be told, into a
// directory for such things.
func (m Mutation) Overlay(root, work string) (name string, err error) {
	replace := map[string]string{}
	for i, f := range m.Files {
		mutant, err := f.Apply(root)
		if err != nil {
			return "", fmt.Errorf("mutation %s: %w", m.Name, err)
		}
		at, err := filepath.Abs(filepath.Join(root, f.Path))
		if err != nil {
			return "", err
		}
		replace[at] = filepath.Join(work, fmt.Sprintf("%s.%d.go.txt", m.Name, i))
		if err := os.WriteFile(replace[at], []byte(mutant), 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	name = filepath.Join(work, m.Name+".json")
	return name, os.WriteFile(name, list, 0o600)
}
