package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// filled returns a page with its tables replaced: each stands between two marks that name it.
func filled(page string, tables map[string]string) (string, error) {
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		open, end := "<!-- table "+name+" -->\n", "<!-- end "+name+" -->"
		before, rest, found := strings.Cut(page, open)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			return "", fmt.Errorf("the page has no marks of table %q", name)
		}
		page = before + open + "\n" + tables[name] + "\n" + end + after
	}
	return page, nil
}
