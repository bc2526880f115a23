package indexes_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/reaper-ttl/reaper/internal/indexes"
	"github.com/reaper-ttl/reaper/store"
)

var targets = []store.Target{
	{Name: "a", Kind: "Session", Property: "expiry_key", Type: store.Text},
	{Name: "b", Kind: "users/u1/items", Property: "expires", Type: store.Instant},
	{Name: "c", Kind: "items", Group: true, Property: "expires", Type: store.Instant},
	{Name: "d", Kind: "Event", Property: "at", ShardProperty: "shard", Type: store.Instant},
	{Name: "e", Kind: "Event", Group: true, Property: "at", ShardProperty: "shard", Type: store.Instant},
	{Name: "f", Kind: "things", Group: true, Property: "expiry-key", Type: store.Text},
	{Name: "g", Kind: "plain", Property: "expires", Type: store.Instant},
}

// The documented format of firestore.indexes.json, all of it.
type file struct {
	Indexes []struct {
		CollectionGroup string `json:"collectionGroup"`
		QueryScope      string `json:"queryScope"`
		Density         string `json:"density"`
		Fields          []struct {
			FieldPath    string `json:"fieldPath"`
			Order        string `json:"order"`
			ArrayConfig  string `json:"arrayConfig"`
			VectorConfig any    `json:"vectorConfig"`
		} `json:"fields"`
	} `json:"indexes"`
	FieldOverrides []struct {
		CollectionGroup string `json:"collectionGroup"`
		FieldPath       string `json:"fieldPath"`
		TTL             bool   `json:"ttl"`
		Indexes         []struct {
			Order       string `json:"order"`
			ArrayConfig string `json:"arrayConfig"`
			QueryScope  string `json:"queryScope"`
		} `json:"indexes"`
	} `json:"fieldOverrides"`
}

func strictly(t *testing.T, text []byte) (f file) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return f
}

func ExampleDefinitions_JSON() {
	text, _, _ := indexes.ForFirestore([]store.Target{{Kind: "Event", Property: "at", ShardProperty: "shard", Type: store.Instant}}).JSON(nil)
	var compact bytes.Buffer
	_ = json.Compact(&compact, text)
	os.Stdout.Write(compact.Bytes())
	// Output:
	// {"indexes":[{"collectionGroup":"Event","queryScope":"COLLECTION","fields":[{"fieldPath":"shard","order":"ASCENDING"},{"fieldPath":"at","order":"ASCENDING"}]}],"fieldOverrides":[{"collectionGroup":"Event","fieldPath":"at","indexes":[]},{"collectionGroup":"Event","fieldPath":"shard","indexes":[]}]}
}

func TestJSON(t *testing.T) {
	text, notes, err := indexes.ForFirestore(targets).JSON(nil)
	if err != nil || len(notes) > 0 {
		t.Fatal(err, notes)
	}
	f := strictly(t, text)
	var got []string
	for _, i := range f.Indexes {
		got = append(got, fmt.Sprint(i.CollectionGroup, " ", i.QueryScope, " ", i.Fields))
	}
	for _, o := range f.FieldOverrides {
		got = append(got, fmt.Sprint(o.CollectionGroup, ".", o.FieldPath, " ", o.Indexes))
	}
	want := []string{
		"Event COLLECTION [{shard ASCENDING  <nil>} {at ASCENDING  <nil>}]",
		"Event COLLECTION_GROUP [{shard ASCENDING  <nil>} {at ASCENDING  <nil>}]",
		"Event.at []",
		"Event.shard []",
		"Session.expiry_key [{ASCENDING  COLLECTION}]",
		"items.expires [{ASCENDING  COLLECTION} {DESCENDING  COLLECTION} { CONTAINS COLLECTION} {ASCENDING  COLLECTION_GROUP}]",
		"things.`expiry-key` [{ASCENDING  COLLECTION} {ASCENDING  COLLECTION_GROUP}]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// What the file has stays, word for word; what it lacks is added once.
func TestMergeJSON(t *testing.T) {
	mine := `{
  "comment": {"kept": true},
  "indexes": [
    {"collectionGroup": "posts", "queryScope": "COLLECTION", "density": "SPARSE_ALL", "fields": [{"fieldPath": "a", "arrayConfig": "CONTAINS"}, {"fieldPath": "v", "vectorConfig": {"dimension": 3, "flat": {}}}]},
    {"collectionGroup": "Event", "queryScope": "COLLECTION", "fields": [{"fieldPath": "shard", "order": "ASCENDING"}, {"fieldPath": "at", "order": "ASCENDING"}, {"fieldPath": "__name__", "order": "ASCENDING"}]}
  ],
  "fieldOverrides": [
    {"collectionGroup": "Session", "fieldPath": "expiry_key", "ttl": true, "indexes": [{"order": "DESCENDING", "queryScope": "COLLECTION"}]},
    {"collectionGroup": "Event", "fieldPath": "at", "indexes": []}
  ]
}`
	defs := indexes.ForFirestore(targets)
	text, notes, err := defs.JSON([]byte(mine))
	if err != nil {
		t.Fatal(err)
	}
	var top struct {
		Comment        map[string]bool
		Indexes        []map[string]any
		FieldOverrides []struct {
			CollectionGroup, FieldPath string
			TTL                        bool
			Indexes                    []map[string]string
		}
	}
	if err := json.Unmarshal(text, &top); err != nil {
		t.Fatal(err)
	}
	if !top.Comment["kept"] || len(top.Indexes) != 3 || top.Indexes[0]["density"] != "SPARSE_ALL" || len(top.Indexes[1]["fields"].([]any)) != 3 ||
		top.Indexes[2]["queryScope"] != "COLLECTION_GROUP" {
		t.Errorf("indexes: %v", top.Indexes)
	}
	o := top.FieldOverrides
	if len(o) != 5 || !o[0].TTL || len(o[0].Indexes) != 2 || o[0].Indexes[0]["order"] != "DESCENDING" || o[0].Indexes[1]["order"] != "ASCENDING" || len(o[1].Indexes) != 0 {
		t.Errorf("overrides: %+v", o)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "Session.expiry_key keeps an index that the reaper does not need: descending in scope collection") {
		t.Errorf("notes: %q", notes)
	}
	again, _, err := defs.JSON(text)
	if err != nil || !bytes.Equal(again, text) {
		t.Errorf("merged with itself: %v\n%s", err, again)
	}
	for text, want := range map[string]string{
		"[]":                             "no object",
		"null":                           "null",
		"{\n\n  x":                       "line 3",
		`{"indexes": 3}`:                 "indexes is no list",
		`{"indexes": [{}]}`:              "indexes[0] is no index",
		`{"fieldOverrides": [{}]}`:       "fieldOverrides[0] is no override",
		`{"indexes": [], "indexes": "x"`: "line 1",
	} {
		if _, _, err := defs.JSON([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestYAML(t *testing.T) {
	defs := indexes.ForDatastore(targets[:4])
	text, err := defs.YAML(nil)
	if err != nil {
		t.Fatal(err)
	}
	type index struct {
		Kind       string
		Ancestor   bool
		Properties []struct{ Name, Direction string }
	}
	decode := func(text []byte) (list []index) {
		t.Helper()
		var f struct{ Indexes []index }
		if err := yaml.Load(text, &f, yaml.WithKnownFields()); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		return f.Indexes
	}
	if got := fmt.Sprint(decode(text)); got != "[{Event false [{shard } {at }]}]" {
		t.Errorf("index.yaml: %s", got)
	}
	mine := "# mine\nindexes:\n# the first\n- kind: Task # why\n  ancestor: yes\n  properties:\n  - name: done\n    direction: desc\n"
	text, err = defs.YAML([]byte(mine))
	if err != nil || !strings.Contains(string(text), "# mine") || !strings.Contains(string(text), "# why") || len(decode(text)) != 2 {
		t.Errorf("%v\n%s", err, text)
	}
	again, err := defs.YAML(text)
	if err != nil || !bytes.Equal(again, text) {
		t.Errorf("merged with itself: %v\n%s", err, again)
	}
	for _, empty := range []string{"", "# only this\n", "indexes:\n", "indexes: []"} {
		if text, err := defs.YAML([]byte(empty)); err != nil || len(decode(text)) != 1 {
			t.Errorf("%q: %v\n%s", empty, err, text)
		}
	}
	for text, want := range map[string]string{
		"- a":                     "no mapping",
		"indexes: 3":              "indexes is no list",
		"indexes:\n- kind: A":     "line 2",
		"indexes: [":              "did not find",
		"indexes:\n- properties:": "line 2",
	} {
		if _, err := defs.YAML([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if text, err := indexes.ForDatastore(targets[:3]).YAML(nil); err != nil || len(decode(text)) != 0 {
		t.Errorf("nothing needed: %v\n%s", err, text)
	}
}

// Each command is words that a shell leaves alone, with documented flags.
func TestGcloud(t *testing.T) {
	odd := append(slices.Clone(targets), store.Target{Kind: "it's", Property: "a,b c", ShardProperty: "$shard", Type: store.Instant})
	text := indexes.ForFirestore(odd).Gcloud("my-project", "second")
	flag := regexp.MustCompile(`^--(project|database|collection-group|query-scope|field-config|index|disable-indexes)(=.+)?$`)
	commands := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		commands++
		words := regexp.MustCompile(`(\\'|'[^']*'|[^\s'])+`).FindAllString(line, -1)
		if got := strings.Join(words[:3], " "); got != "gcloud firestore indexes" {
			t.Errorf("%s", line)
		}
		for _, w := range words[5:] {
			if !flag.MatchString(w) && words[3] != "fields" {
				t.Errorf("%q in %s", w, line)
			}
		}
	}
	for _, want := range []string{
		"gcloud firestore indexes composite create --project=my-project --database=second --collection-group=Event --query-scope=collection-group --field-config=field-path=shard,order=ascending --field-config=field-path=at,order=ascending\n",
		"gcloud firestore indexes fields update at --project=my-project --database=second --collection-group=Event --disable-indexes\n",
		"gcloud firestore indexes fields update expiry_key --project=my-project --database=second --collection-group=Session --index=order=ascending\n",
		`--collection-group='it'\''s' --query-scope=collection --field-config='^*^field-path=` + "`$shard`" + `*order=ascending' --field-config='^*^field-path=` + "`a,b c`" + `*order=ascending'`,
		"# expires of items: gcloud cannot",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if commands < 7 {
		t.Errorf("%d commands:\n%s", commands, text)
	}
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"indexes":[],"fieldOverrides":[{"collectionGroup":"Session","fieldPath":"expiry_key","indexes":[]}]}`))
	f.Add([]byte("indexes:\n- kind: A\n  properties:\n  - name: b\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if out, _, err := indexes.ForFirestore(targets).JSON(text); err == nil {
			if again, _, err := indexes.ForFirestore(targets).JSON(out); err != nil || !bytes.Equal(again, out) {
				t.Errorf("JSON merged twice: %v\n%s\n%s", err, out, again)
			}
		}
		if out, err := indexes.ForDatastore(targets).YAML(text); err == nil {
			if again, err := indexes.ForDatastore(targets).YAML(out); err != nil || !bytes.Equal(again, out) {
				t.Errorf("YAML merged twice: %v\n%s\n%s", err, out, again)
			}
		}
	})
}
