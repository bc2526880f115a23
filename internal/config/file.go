package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// MaxFile is the most bytes a targets file may have. A file of thousands of
// targets stays far below; anything larger is the wrong file.
const MaxFile = 1 << 20

// Example is the shortest targets file there is.
const Example = `targets:
  - name: sessions
    kind: Session
    property: expiry_key
`

// ParseTargets reads a targets file. The name is for messages only. Rules that
// differ between stores are those of driver d; if d is empty, only the rules that
// all stores share apply. Every error is of type Problems and holds every problem
// that was found, each with its place; with an error no target is returned.
func ParseTargets(name string, r io.Reader, d Driver) ([]Target, error) {
	f := &file{name: name, driver: d}
	targets := f.read(r)
	if len(f.problems) > 0 {
		f.problems.inOrder()
		return nil, f.problems
	}
	return targets, nil
}

// A file collects the problems of one targets file.
type file struct {
	name     string
	driver   Driver
	problems Problems
}

func (f *file) report(line, column int, what, format string, args ...any) {
	f.problems = append(f.problems, Problem{f.name, line, column, what, fmt.Sprintf(format, args...)})
}

// at reports a problem with the value n of a field.
func (f *file) at(n *yaml.Node, what, format string, args ...any) {
	f.report(n.Line, n.Column, what, format, args...)
}

func (f *file) read(r io.Reader) []Target {
	text, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	switch {
	case err != nil:
		f.report(0, 0, "", "read: %v", err)
		return nil
	case len(text) > MaxFile:
		f.report(0, 0, "", "is larger than 1 MiB, which no targets file needs to be: is it the right file?")
		return nil
	}
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	if !f.checkText(text) {
		return nil
	}
	var doc yaml.Node
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err != nil {
		f.report(0, 0, "", "%v", err)
		return nil
	}
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		f.noTargets(1, 1)
		return nil
	case err != nil:
		f.syntax(err)
		return nil
	}
	var second yaml.Node
	switch err := loader.Load(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		f.syntax(err)
	default:
		f.at(&second, "", "a second document begins here: a targets file is one document")
	}
	if len(doc.Content) == 0 {
		f.noTargets(1, 1)
		return nil
	}
	return f.root(doc.Content[0])
}

func (f *file) noTargets(line, column int) {
	f.report(line, column, "", "configures no targets; the shortest file that does is\n%s", indent(Example))
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n    ")
}

// checkText finds errors for which the parser would not name a place.
func (f *file) checkText(text []byte) bool {
	line, column := 1, 1
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			f.report(line, column, "", "is not UTF-8 here")
			return false
		case r == '\n':
			line, column = line+1, 0
		case r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			f.report(line, column, "", "holds the control character %U", r)
			return false
		}
		text = text[size:]
		column++
	}
	return true
}

// syntax reports what the YAML parser says. It stops at its first error, so
// this is the one case in which the rest of the file goes unchecked.
func (f *file) syntax(err error) {
	var one *yaml.LoadError
	var many *yaml.LoadErrors
	switch {
	case errors.As(err, &one):
		f.yamlError(one)
	case errors.As(err, &many):
		for _, e := range many.Errors {
			f.yamlError(e)
		}
	default:
		f.report(0, 0, "", "not YAML: %v", err)
	}
}

func (f *file) yamlError(e *yaml.LoadError) {
	mark, where := e.Mark, ""
	if mark.Line == 0 {
		mark = e.ContextMark
	}
	if e.ContextMsg != "" {
		where = " " + e.ContextMsg
	}
	f.report(mark.Line, mark.Column, "", "not YAML: %s%s", e.Message, where)
}

// root reads the file's only mapping.
func (f *file) root(n *yaml.Node) []Target {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		f.noTargets(1, 1)
		return nil
	}
	var targets []Target
	seen := false
	ok := f.mapping(n, "", []string{"targets"}, func(_, path string, v *yaml.Node) {
		seen = true
		if v.Kind == yaml.ScalarNode && v.Tag == "!!null" || v.Kind == yaml.SequenceNode && len(v.Content) == 0 {
			f.noTargets(v.Line, v.Column)
			return
		}
		targets = f.targets(v, path)
	})
	if ok && !seen && len(f.problems) == 0 {
		f.noTargets(n.Line, n.Column)
	}
	return targets
}

func (f *file) targets(n *yaml.Node, path string) []Target {
	if !f.sequence(n, path) {
		return nil
	}
	targets := make([]Target, 0, len(n.Content))
	named := map[string]*yaml.Node{}
	owned := newOwners()
	for i, v := range n.Content {
		r := &reader{
			file: f, path: fmt.Sprintf("%s[%d]", path, i), node: v,
			target: newTarget(), values: map[string]*yaml.Node{}, bad: map[string]bool{},
		}
		if !r.read() {
			continue
		}
		if at, ok := r.values["name"]; ok && !r.bad["name"] {
			if first, ok := named[r.target.Name]; ok {
				f.at(at, r.path+".name", "%s is already the name of the target in line %d", quote(r.target.Name), first.Line)
			} else {
				named[r.target.Name] = at
			}
		}
		r.checkOwner(owned)
		targets = append(targets, r.target)
	}
	return targets
}

// mapping calls field for each known key of n, once, and reports the others.
// It says whether n is a mapping at all.
func (f *file) mapping(n *yaml.Node, path string, known []string, field func(name, path string, v *yaml.Node)) bool {
	return f.mappingOf(n, path, known, hint, field)
}

// mappingOf is mapping with its own hint for an unknown field.
func (f *file) mappingOf(
	n *yaml.Node, path string, known []string, hint func(name string, known []string) string,
	field func(name, path string, v *yaml.Node),
) bool {
	if n.Kind != yaml.MappingNode || n.Tag != "!!map" {
		f.wrong(n, path, "a mapping of fields")
		return false
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := k.Value
		switch {
		case k.Tag == "!!merge":
			f.at(k, path, "merge keys (<<) are not supported: write the fields out")
			continue
		case k.Kind != yaml.ScalarNode:
			f.at(k, path, "the name of a field is %s; it must be a word", describe(k))
			continue
		case replacement(join(path, name)) != "":
			f.at(k, join(path, name), "%s", replacement(join(path, name)))
			continue
		case !slices.Contains(known, name):
			f.at(k, path, "unknown field %s: %s", quote(name), hint(name, known))
			continue
		case lines[name] > 0:
			f.at(k, join(path, name), "is set a second time; the first is in line %d", lines[name])
			continue
		}
		lines[name] = k.Line
		field(name, join(path, name), v)
	}
	return true
}

// replacement returns what to write in the place of a field of an earlier version.
func replacement(path string) string {
	for old, text := range replaced {
		if strings.HasSuffix(path, "."+old) {
			return text
		}
	}
	return ""
}

// hint suggests a known field for an unknown one. In a target it also suggests fields of
// the target's sections, which are easily written a level too high.
func hint(name string, known []string) string {
	for _, section := range sections {
		if slices.Contains(known, section.name) && slices.Contains(fieldsOf(section.name), name) {
			return "it belongs in " + section.name
		}
	}
	return didYouMean(name, known)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (f *file) sequence(n *yaml.Node, path string) bool {
	if n.Kind != yaml.SequenceNode || n.Tag != "!!seq" {
		f.wrong(n, path, "a list")
		return false
	}
	return true
}

// describe says what a node is, for "is X; it must be Y".
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias (*" + n.Value + "), which is not supported: write the value out"
	}
	switch {
	case n.Tag == "!!null":
		return "empty"
	case n.Tag == "!!str" && n.Value == "":
		return "an empty text"
	case n.Tag == "!!str":
		return "the text " + quote(n.Value)
	case n.Tag == "!!int", n.Tag == "!!float":
		return "the number " + short(n.Value)
	case n.Tag == "!!bool":
		return "the boolean " + short(n.Value)
	case n.Tag == "!!timestamp":
		return "the date " + short(n.Value)
	}
	return "of the type " + short(n.Tag)
}

// short prints a plain scalar for a message. Quotation marks would make it look like a
// text.
func short(s string) string {
	q := quote(s)
	return strings.Replace(strings.TrimPrefix(q, `"`), `"`, "", 1)
}

// wrong reports that n is not a valid value of its field.
func (f *file) wrong(n *yaml.Node, path, want string) {
	if n.Kind == yaml.AliasNode {
		f.at(n, path, "is %s", describe(n))
		return
	}
	f.at(n, path, "is %s; it must be %s", describe(n), want)
}
