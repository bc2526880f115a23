package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// oneLine joins the lines of a text, and cuts one that is too long for people.
func oneLine(text string) string {
	const longest = 400
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > longest {
		text = string(runes[:longest-1]) + "…"
	}
	return text
}

func orElse(text, other string) string { return cmp.Or(text, other) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// quoted lists texts in quotation marks.
func quoted(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(out, ", ")
}

// nearest returns the word that has the fewest edits from a text, case aside, if it is near
// enough to be meant: two edits, or a third of a longer text.
func nearest(text string, words []string) string {
	best, fewest := "", max(2, len(text)/3)+1
	for _, w := range words {
		if n := edits(strings.ToLower(text), strings.ToLower(w)); n < fewest && w != text {
			best, fewest = w, n
		}
	}
	return best
}

// edits counts the insertions, deletions and replacements of bytes that turn a into b. Texts
// that are far longer than any kind of a person's have any large number.
func edits(a, b string) int {
	const most = 200
	if len(a) > most || len(b) > most {
		return most
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
