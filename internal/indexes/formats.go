package indexes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// A jsonIndex is an element of "indexes" in firestore.indexes.json.
type jsonIndex struct {
	CollectionGroup string      `json:"collectionGroup"`
	QueryScope      Scope       `json:"queryScope"`
	APIScope        string      `json:"apiScope,omitempty"`
	Density         string      `json:"density,omitempty"`
	Fields          []jsonField `json:"fields"`
}

type jsonField struct {
	FieldPath   string `json:"fieldPath,omitempty"`
	Order       string `json:"order,omitempty"`
	ArrayConfig string `json:"arrayConfig,omitempty"`
}

// A jsonOverride is an element of "fieldOverrides".
type jsonOverride struct {
	CollectionGroup string       `json:"collectionGroup"`
	FieldPath       string       `json:"fieldPath"`
	Indexes         []jsonSingle `json:"indexes"`
}

type jsonSingle struct {
	Order       string `json:"order,omitempty"`
	ArrayConfig string `json:"arrayConfig,omitempty"`
	QueryScope  Scope  `json:"queryScope"`
}

const (
	ascending  = "ASCENDING"
	descending = "DESCENDING"
	contains   = "CONTAINS"
)

// JSON returns the definitions as a firestore.indexes.json. With the text of a
// file that is there it returns that, with what is missing added: elements that
// it has stay as they are, word for word, and in their order. Notes say, for
// people, what the file leaves switched on that nobody here needs.
func (d Definitions) JSON(merge []byte) (text []byte, notes []string, err error) {
	top := map[string]json.RawMessage{}
	var indexes, overrides []json.RawMessage
	if len(bytes.TrimSpace(merge)) > 0 {
		plain, commented := blankComments(merge)
		if commented {
			notes = append(notes, "the file's comments are not kept: JSON has none")
		}
		if err := decodeJSON(plain, &top); err != nil {
			return nil, nil, err
		}
		for name, list := range map[string]*[]json.RawMessage{"indexes": &indexes, "fieldOverrides": &overrides} {
			if raw, ok := top[name]; ok {
				if err := json.Unmarshal(raw, list); err != nil {
					return nil, nil, fmt.Errorf("%s is no list: %w", name, err)
				}
			}
		}
	}
	known := map[string]bool{}
	for i, raw := range indexes {
		var one jsonIndex
		if err := json.Unmarshal(raw, &one); err != nil || one.CollectionGroup == "" || len(one.Fields) == 0 {
			return nil, nil, fmt.Errorf("indexes[%d] is no index: it needs collectionGroup, queryScope and fields", i)
		}
		known[one.key()] = true
	}
	for _, c := range d.Composites {
		one := jsonIndex{CollectionGroup: c.Collection, QueryScope: c.Scope}
		for _, f := range c.Fields {
			one.Fields = append(one.Fields, jsonField{FieldPath: fieldPath(f), Order: ascending})
		}
		if !known[one.key()] {
			indexes = append(indexes, marshal(one))
		}
	}
	for _, f := range d.Fields {
		if overrides, notes, err = f.mergeInto(overrides, notes); err != nil {
			return nil, nil, err
		}
	}
	top["indexes"], top["fieldOverrides"] = list(indexes), list(overrides)
	return format(top), notes, nil
}

// mergeInto adds the field's override, or what the one that is there lacks of
// what is needed.
func (f Field) mergeInto(overrides []json.RawMessage, notes []string) ([]json.RawMessage, []string, error) {
	recommended, wanted := f.Singles, f.overrides()
	for i, raw := range overrides {
		var one jsonOverride
		if err := json.Unmarshal(raw, &one); err != nil || one.CollectionGroup == "" || one.FieldPath == "" {
			return nil, nil, fmt.Errorf("fieldOverrides[%d] is no override: it needs collectionGroup, fieldPath and indexes", i)
		}
		var there []Single
		for _, s := range one.Indexes {
			there = append(there, s.single())
		}
		missing := slices.DeleteFunc(slices.Clone(f.Needed), func(s Single) bool { return slices.Contains(there, s) })
		if one.CollectionGroup == f.Collection && one.FieldPath == "*" && f.Automatic {
			// These are what is automatic for the collection's fields.
			recommended, wanted = tidy(append(there, f.Needed...)), len(missing) > 0
		}
		if one.CollectionGroup != f.Collection || canonical(one.FieldPath) != fieldPath(f.Path) {
			continue
		}
		for _, s := range there {
			if !f.Automatic && !slices.Contains(f.Singles, s) {
				notes = append(notes,
					fmt.Sprintf("%s.%s keeps an index that the reaper does not need: %s", f.Collection, f.Path, s))
			}
		}
		if len(missing) == 0 {
			return overrides, notes, nil
		}
		whole, err := extend(raw, missing, fmt.Sprintf("fieldOverrides[%d]", i))
		if err != nil {
			return nil, nil, err
		}
		overrides = slices.Clone(overrides)
		overrides[i] = whole
		return overrides, notes, nil
	}
	if !wanted {
		return overrides, notes, nil
	}
	one := jsonOverride{CollectionGroup: f.Collection, FieldPath: fieldPath(f.Path), Indexes: []jsonSingle{}}
	for _, s := range recommended {
		one.Indexes = append(one.Indexes, s.json())
	}
	return append(overrides, marshal(one)), notes, nil
}

// extend adds indexes to an override that is there, and keeps what we do not
// know, such as a TTL policy.
func extend(override json.RawMessage, by []Single, place string) (json.RawMessage, error) {
	whole := map[string]json.RawMessage{}
	if err := json.Unmarshal(override, &whole); err != nil {
		return nil, fmt.Errorf("%s: %w", place, err)
	}
	var elements []json.RawMessage
	if whole["indexes"] != nil {
		if err := json.Unmarshal(whole["indexes"], &elements); err != nil {
			return nil, fmt.Errorf("%s.indexes: %w", place, err)
		}
	}
	for _, s := range by {
		elements = append(elements, marshal(s.json()))
	}
	whole["indexes"] = list(elements)
	return marshal(whole), nil
}

// key is the same for indexes that are the same: a last field for the name, in
// the direction of the one before, is there in any case.
func (i jsonIndex) key() string {
	fields := slices.Clone(i.Fields)
	for j := range fields {
		fields[j].FieldPath = canonical(fields[j].FieldPath)
	}
	if n := len(fields); n > 1 && fields[n-1].FieldPath == "__name__" && fields[n-1].Order == fields[n-2].Order {
		fields = fields[:n-1]
	}
	scope := i.QueryScope
	if scope == "" {
		scope = Collection
	}
	// What is usual may be left unsaid.
	api, density := strings.TrimPrefix(i.APIScope, "ANY_API"), strings.TrimPrefix(i.Density, "SPARSE_ALL")
	return fmt.Sprintf("%q %q %q %q %+v", i.CollectionGroup, scope, api, density, fields)
}

func (s Single) json() jsonSingle {
	j := jsonSingle{QueryScope: s.Scope}
	switch {
	case s.Array:
		j.ArrayConfig = contains
	case s.Descending:
		j.Order = descending
	default:
		j.Order = ascending
	}
	return j
}

func (j jsonSingle) single() Single {
	s := Single{Array: j.ArrayConfig != "", Descending: j.Order == descending, Scope: j.QueryScope}
	if s.Scope == "" {
		s.Scope = Collection
	}
	return s
}

// String describes the index for people.
func (s Single) String() string {
	j := s.json()
	return strings.ToLower(strings.TrimSpace(j.Order+j.ArrayConfig) + " in scope " + string(s.Scope))
}

var simplePath = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z_0-9]*$`)

// fieldPath returns a field's name as definitions take it, which are paths.
func fieldPath(name string) string {
	if simplePath.MatchString(name) {
		return name
	}
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`").Replace(name) + "`"
}

// canonical returns a path as fieldPath writes it: people leave the quotes away
// where they need not.
func canonical(path string) string {
	if path == "" || strings.ContainsAny(path, ".*`") {
		return path
	}
	return fieldPath(path)
}

// blankComments replaces comments, which Firebase's tools take in this file, by
// spaces, so that places in it stay what they are.
func blankComments(text []byte) (plain []byte, commented bool) {
	plain = slices.Clone(text)
	for _, at := range comment.FindAllIndex(text, -1) {
		if text[at[0]] == '"' {
			continue
		}
		commented = true
		for i := at[0]; i < at[1]; i++ {
			if text[i] != '\n' {
				plain[i] = ' '
			}
		}
	}
	return plain, commented
}

// comment matches comments, and strings, in which there are none.
var comment = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*(?s:.*?)\*/`)

// decodeJSON says where a text that is no JSON object goes wrong.
func decodeJSON(text []byte, into *map[string]json.RawMessage) error {
	err := json.Unmarshal(text, into)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		before := text[:min(int(syntax.Offset), len(text))]
		line := 1 + bytes.Count(before, []byte("\n"))
		return fmt.Errorf("line %d: %w", line, err)
	}
	if err == nil && *into == nil {
		err = errors.New("it is null")
	}
	if err == nil {
		err = onlyOnce(text)
	}
	if err != nil {
		return fmt.Errorf("it is no object with indexes and fieldOverrides: %w", err)
	}
	return nil
}

// onlyOnce refuses an object with two members of one name, of which a decoder
// drops one.
func onlyOnce(object []byte) error {
	seen := map[json.Token]bool{}
	d := json.NewDecoder(bytes.NewReader(object))
	_, err := d.Token()
	for err == nil && d.More() {
		var name json.Token
		var value json.RawMessage
		if name, err = d.Token(); err == nil {
			err = d.Decode(&value)
		}
		if seen[name] {
			return fmt.Errorf("%q stands in it twice", name)
		}
		seen[name] = true
	}
	return err
}

func marshal(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // nothing here has a type that does not marshal
	}
	return bytes.TrimSpace(b.Bytes())
}

func list(elements []json.RawMessage) json.RawMessage {
	if elements == nil {
		elements = []json.RawMessage{}
	}
	return marshal(elements)
}

// format prints an object with the two known lists first.
func format(top map[string]json.RawMessage) []byte {
	names := slices.Sorted(maps.Keys(top))
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	var compact, out bytes.Buffer
	compact.WriteByte('{')
	for i, name := range names {
		if i > 0 {
			compact.WriteByte(',')
		}
		compact.Write(marshal(name))
		compact.WriteByte(':')
		compact.Write(top[name])
	}
	compact.WriteByte('}')
	if err := json.Indent(&out, compact.Bytes(), "", "  "); err != nil {
		panic(err) // every part of it was decoded or marshalled here
	}
	out.WriteByte('\n')
	return out.Bytes()
}

func rank(name string) int {
	if i := slices.Index([]string{"indexes", "fieldOverrides"}, name); i >= 0 {
		return i
	}
	return 2
}

// A yamlIndex is an element of "indexes" in index.yaml. A property without a
// direction is ascending.
type yamlIndex struct {
	Kind       string         `yaml:"kind"`
	Ancestor   any            `yaml:"ancestor,omitempty"` // true, yes, no, false
	Properties []yamlProperty `yaml:"properties"`
}

type yamlProperty struct {
	Name      string `yaml:"name"`
	Direction string `yaml:"direction,omitempty"`
}

const yamlHead = `# Composite indexes for Firestore in Datastore mode. Indexes of single properties
# need no definition: a writer excludes a property from them entity by entity. The
# expiry property, and a shard property, must not be excluded.
`

// YAML returns the definitions as an index.yaml. With the text of a file that is
// there it returns that, comments included, with what is missing added at its
// end.
func (d Definitions) YAML(merge []byte) ([]byte, error) {
	if len(bytes.TrimSpace(merge)) == 0 {
		merge = []byte(yamlHead + "indexes: []\n")
	}
	doc, err := loadYAML(merge)
	if errors.Is(err, io.EOF) { // nothing but comments
		merge = append(bytes.TrimRight(merge, "\n"), "\nindexes: []\n"...)
		doc, err = loadYAML(merge)
	}
	if err != nil {
		return nil, err
	}
	elements, err := yamlIndexes(doc.Content[0])
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, n := range elements.Content {
		var one yamlIndex
		if err := n.Decode(&one); err != nil || one.Kind == "" || len(one.Properties) == 0 {
			return nil, fmt.Errorf("line %d: it is no index: it needs kind and properties", n.Line)
		}
		known[one.key()] = true
	}
	added := false
	for _, c := range d.Composites {
		one := yamlIndex{Kind: c.Collection}
		for _, f := range c.Fields {
			one.Properties = append(one.Properties, yamlProperty{Name: f})
		}
		if known[one.key()] {
			continue
		}
		var n yaml.Node
		if err := n.Encode(one); err != nil {
			return nil, err
		}
		elements.Content = append(elements.Content, &n)
		elements.Style = 0 // not on one line, as an empty list is
		added = true
	}
	if !added {
		return append(bytes.TrimRight(merge, "\n"), '\n'), nil
	}
	var out bytes.Buffer
	dumper, err := yaml.NewDumper(&out, yaml.WithIndent(2))
	if err == nil {
		err = dumper.Dump(&doc)
	}
	if err == nil {
		err = dumper.Close()
	}
	return out.Bytes(), err
}

// loadYAML returns the text's first document. It fails with io.EOF where there is
// none.
func loadYAML(text []byte) (doc yaml.Node, err error) {
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err == nil {
		err = loader.Load(&doc)
	}
	if err == nil && len(doc.Content) == 0 {
		err = io.EOF
	}
	if err == nil {
		if more := loader.Load(new(yaml.Node)); !errors.Is(more, io.EOF) {
			err = errors.New("it has more than one document")
		}
	}
	return doc, err
}

// yamlIndexes returns the list of indexes of a document.
func yamlIndexes(top *yaml.Node) (*yaml.Node, error) {
	if top.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: it is no mapping with indexes", top.Line)
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		if v := top.Content[i+1]; top.Content[i].Value == "indexes" {
			switch {
			case v.Kind == yaml.ScalarNode && v.Tag == "!!null":
				*v = yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
			case v.Kind != yaml.SequenceNode:
				return nil, fmt.Errorf("line %d: indexes is no list", v.Line)
			}
			return v, nil
		}
	}
	v := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	top.Content = append(top.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "indexes"}, v)
	return v, nil
}

func (i yamlIndex) key() string {
	key := fmt.Sprintf("%q", i.Kind)
	if a := fmt.Sprint(i.Ancestor); a == "true" || a == "yes" {
		key += " ancestor"
	}
	for _, p := range i.Properties {
		key += fmt.Sprintf(" %q", p.Name)
		if strings.HasPrefix(p.Direction, "desc") { // or in full
			key += " desc"
		}
	}
	return key
}

// Gcloud returns the commands that make the indexes of Firestore in native mode.
// Project and database may be empty.
func (d Definitions) Gcloud(project, database string) string {
	where := ""
	if project != "" {
		where += " --project=" + quote(project)
	}
	if database != "" {
		where += " --database=" + quote(database)
	}
	var b strings.Builder
	for _, c := range d.Composites {
		fmt.Fprintf(&b, "gcloud firestore indexes composite create%s --collection-group=%s --query-scope=%s",
			where, quote(c.Collection),
			strings.ReplaceAll(strings.ToLower(string(c.Scope)), "_", "-"))
		for _, f := range c.Fields {
			config := "field-path=" + fieldPath(f) + ",order=ascending"
			if !simplePath.MatchString(f) { // then another separator is announced, one that no name has
				config = "^*^field-path=" + fieldPath(f) + "*order=ascending"
			}
			b.WriteString(" --field-config=" + quote(config))
		}
		b.WriteByte('\n')
	}
	for _, f := range d.Fields {
		if !f.overrides() {
			continue
		}
		if slices.ContainsFunc(f.Singles, func(s Single) bool { return s.Scope == CollectionGroup }) {
			fmt.Fprintf(&b, "# %s of %s: gcloud cannot make single-field indexes of collection groups. Use\n"+
				"# reaper indexes --format firestore, and firebase deploy --only firestore:indexes\n", f.Path, f.Collection)
			continue
		}
		fmt.Fprintf(&b, "gcloud firestore indexes fields update %s%s --collection-group=%s",
			quote(fieldPath(f.Path)), where, quote(f.Collection))
		for _, s := range f.Singles {
			switch {
			case s.Array:
				b.WriteString(" --index=array-config=contains")
			case s.Descending:
				b.WriteString(" --index=order=descending")
			default:
				b.WriteString(" --index=order=ascending")
			}
		}
		if len(f.Singles) == 0 {
			b.WriteString(" --disable-indexes")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

var bareWord = regexp.MustCompile(`^[A-Za-z0-9_=,./:-]+$`)

// quote protects a word from the shell.
func quote(s string) string {
	if bareWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
