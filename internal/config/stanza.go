package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// stanzaFields are the settings that say which entities a target deletes, and when, in the
// order of the reference.
var stanzaFields = []string{"name", "kind", "group", "namespaces", "layout", "property", "single_valued", "shards",
	"retention", "max_age"}

// Stanza returns a target as an entry of the targets file, for people to copy: its name,
// kind, layout and property, and what the file says of the other settings that decide what
// is deleted. A comment stands for the settings that it leaves out, but for those of an
// adoption.
func (t Target) Stanza() string {
	values := map[string]string{"name": t.Name, "kind": plainText(t.Kind), "group": strconv.FormatBool(t.Group),
		"namespaces": t.namespaceList(), "layout": string(t.Layout), "property": plainText(t.Property),
		"single_valued": strconv.FormatBool(t.SingleValued), "shards": strconv.Itoa(t.Shards),
		"retention": FormatDuration(t.Retention), "max_age": FormatDuration(t.MaxAge)}
	always := []string{"name", "kind", "layout", "property"}
	var b strings.Builder
	for _, path := range stanzaFields {
		if slices.Contains(always, path) || t.written[path] {
			fmt.Fprintf(&b, "    %s: %s\n", path, values[path])
		}
	}
	for path := range maps.Keys(t.written) {
		if !slices.Contains(stanzaFields, path) && !strings.HasPrefix(path, "adopt") {
			b.WriteString("    # and its other settings, as they are\n")
			break
		}
	}
	return "  - " + strings.TrimPrefix(b.String(), "    ")
}

func (t Target) namespaceList() string {
	if t.AllNamespaces {
		return `["*"]`
	}
	list := make([]string, len(t.Namespaces))
	for i, one := range t.Namespaces {
		list[i] = strconv.Quote(one)
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// plain are texts that YAML reads as they are; true and the like are told apart below.
var plain = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// plainText returns a text as YAML reads it, in quotes if need be.
func plainText(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		return strconv.Quote(s)
	}
	if plain.MatchString(s) {
		return s
	}
	return strconv.QuoteToGraphic(s)
}
