package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// mostProblems bounds how many problems are printed: a megabyte of nonsense
// would otherwise scroll away the ones that matter.
const mostProblems = 100

// A Problem is one thing that is wrong with the configuration.
type Problem struct {
	File   string // the targets file; empty for flags and environment
	Line   int    // in File, from 1; 0 if no line can be named
	Column int    // in File, from 1, in characters; 0 if none can be named
	What   string // the field, variable or flag at fault: "targets[0].shards", "REAPER_WORKERS", "--workers"; may be empty
	Reason string // what is wrong and what to write instead
}

// Error returns the problem as "file:line:column: what: reason", leaving out
// what is not known.
func (p Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
			if p.Column > 0 {
				fmt.Fprintf(&b, ":%d", p.Column)
			}
		}
		b.WriteString(": ")
	}
	if p.What != "" {
		b.WriteString(p.What)
		b.WriteString(": ")
	}
	b.WriteString(p.Reason)
	return b.String()
}

// Problems is every problem that was found, those of flags and environment
// before those of the targets file, the latter in the order of the file. It is
// the type of every error that this package's Load and Require functions
// return, so a command can tell wrong configuration from other failures with
// errors.As.
type Problems []Problem

// Error prints one problem a line, and no more than a hundred of them.
func (ps Problems) Error() string {
	lines := make([]string, 0, min(len(ps), mostProblems)+1)
	for i, p := range ps {
		if i == mostProblems {
			lines = append(lines, fmt.Sprintf("and %d more problems", len(ps)-mostProblems))
			break
		}
		lines = append(lines, p.Error())
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.Is and errors.As see each problem.
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

// err returns nil if there is no problem, so that a nil Problems never becomes an error
// that is not nil.
func (ps Problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// inOrder sorts by place. Problems with the same place stay in the order found.
func (ps Problems) inOrder() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// quote prints a value of the file or the command line for a message: enough
// of it to recognise, on one line.
func quote(s string) string {
	const most = 80
	if utf8.RuneCountInString(s) > most {
		return fmt.Sprintf("%q…", string([]rune(s)[:most]))
	}
	return fmt.Sprintf("%q", s)
}

// nearest returns the known word with the fewest edits from s, and their number. Of
// several the first wins.
func nearest(s string, known []string) (word string, edits int) {
	for _, k := range known {
		if n := levenshtein(s, k); word == "" || n < edits {
			word, edits = k, n
		}
	}
	return word, edits
}

// didYouMean is the hint after "unknown": the nearest known word if it is near
// enough to be meant, else all known words.
func didYouMean(s string, known []string) string {
	// Typing errors are at most two edits, or a third of a longer word.
	if word, edits := nearest(s, known); word != "" && edits <= max(2, len(s)/3) {
		return "did you mean " + word + "?"
	}
	return "want " + strings.Join(known, ", ")
}

// levenshtein counts the insertions, deletions and replacements of bytes that turn a into
// b. Bytes suffice, because all known words are ASCII. For a text that is far longer than
// any of them, any large number will do.
func levenshtein(a, b string) int {
	const most = 200
	if len(a) > most {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
