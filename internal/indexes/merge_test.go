package indexes_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/internal/indexes"
	"github.com/reaper-ttl/reaper/store"
)

// overrides returns the single-field indexes of each overridden field.
func overrides(t *testing.T, text []byte) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, o := range strictly(t, text).FieldOverrides {
		name := o.CollectionGroup + "." + o.FieldPath
		if _, twice := all[name]; twice {
			t.Errorf("%s is overridden twice", name)
		}
		all[name] = fmt.Sprint(o.Indexes)
	}
	return all
}

// An override that is there keeps what it has and gets what the reaper needs, and
// no more: what somebody switched off for a reason of their own stays off.
func TestMergedOverrides(t *testing.T) {
	const none, asc, ascGroup = "[]", "[{ASCENDING  COLLECTION}]", "[{ASCENDING  COLLECTION_GROUP}]"
	targets := append(slices.Clone(targets), store.Target{Kind: "odd", Property: "a-b", Type: store.Text})
	for _, c := range []struct {
		override    string // of the file
		field, want string
		note        string
	}{
		{`{"collectionGroup":"plain","fieldPath":"expires","indexes":[]}`, "plain.expires", asc, ""},
		{`{"collectionGroup":"ReaperCursor","fieldPath":"target","indexes":[]}`, "ReaperCursor.target", asc, ""},
		{`{"collectionGroup":"ReaperCursor","fieldPath":"*","indexes":[]}`, "ReaperCursor.target", asc, ""},
		{`{"collectionGroup":"plain","fieldPath":"*","indexes":[]}`, "plain.expires", asc, ""},
		{`{"collectionGroup":"plain","fieldPath":"*","indexes":[{"order":"ASCENDING","queryScope":"COLLECTION"}]}`, "plain.expires", "", ""},
		{`{"collectionGroup":"items","fieldPath":"expires","indexes":[]}`, "items.expires", "[{ASCENDING  COLLECTION} {ASCENDING  COLLECTION_GROUP}]", ""},
		{`{"collectionGroup":"items","fieldPath":"expires","indexes":[{"order":"DESCENDING","queryScope":"COLLECTION_GROUP"}]}`, "items.expires",
			"[{DESCENDING  COLLECTION_GROUP} {ASCENDING  COLLECTION} {ASCENDING  COLLECTION_GROUP}]", ""},
		{`{"collectionGroup":"Session","fieldPath":"expiry_key","ttl":true,"indexes":[{"order":"DESCENDING","queryScope":"COLLECTION"}]}`, "Session.expiry_key",
			"[{DESCENDING  COLLECTION} {ASCENDING  COLLECTION}]", "descending in scope collection"},
		{`{"collectionGroup":"things","fieldPath":"expiry-key","indexes":[{"order":"ASCENDING","queryScope":"COLLECTION_GROUP"}]}`, "things.expiry-key", ascGroup, ""},
		{`{"collectionGroup":"odd","fieldPath":"a-b","indexes":[]}`, "odd.a-b", asc, ""},
		{`{"collectionGroup":"Event","fieldPath":"at","indexes":[]}`, "Event.at", none, ""},
	} {
		text, notes, err := indexes.ForFirestore(targets).JSON([]byte(`{"indexes":[],"fieldOverrides":[` + c.override + `]}`))
		if err != nil {
			t.Errorf("%s: %v", c.override, err)
			continue
		}
		if got := overrides(t, text)[c.field]; got != c.want {
			t.Errorf("%s becomes %q, want %q", c.override, got, c.want)
		}
		if got := strings.Join(notes, "\n"); strings.Contains(got, "\n") || !strings.Contains(got, c.note) || c.note == "" && got != "" {
			t.Errorf("%s: notes %q", c.override, got)
		}
	}
}

// An index is another where its API, its density or a direction is another.
func TestAlmostTheSameIndex(t *testing.T) {
	one := indexes.ForFirestore([]store.Target{{Kind: "E", Property: "at", ShardProperty: "my-shard", Type: store.Instant}})
	const fields = "\"fields\":[{\"fieldPath\":\"%s\",\"order\":\"ASCENDING\"},{\"fieldPath\":\"at\",\"order\":\"%s\"}]"
	for attributes, want := range map[string]int{
		`"queryScope":"COLLECTION",` + fmt.Sprintf(fields, "`my-shard`", "ASCENDING"):                                           1,
		`"queryScope":"COLLECTION",` + fmt.Sprintf(fields, "my-shard", "ASCENDING"):                                             1,
		`"queryScope":"COLLECTION","apiScope":"ANY_API","density":"SPARSE_ALL",` + fmt.Sprintf(fields, "my-shard", "ASCENDING"): 1,
		`"queryScope":"COLLECTION","apiScope":"MONGODB_COMPATIBLE_API",` + fmt.Sprintf(fields, "my-shard", "ASCENDING"):         2,
		`"queryScope":"COLLECTION","density":"DENSE",` + fmt.Sprintf(fields, "my-shard", "ASCENDING"):                           2,
		`"queryScope":"COLLECTION_GROUP",` + fmt.Sprintf(fields, "my-shard", "ASCENDING"):                                       2,
		`"queryScope":"COLLECTION",` + fmt.Sprintf(fields, "my-shard", "DESCENDING"):                                            2,
	} {
		text, _, err := one.JSON([]byte(`{"indexes":[{"collectionGroup":"E",` + attributes + `}]}`))
		var f struct{ Indexes []json.RawMessage }
		if err == nil {
			err = json.Unmarshal(text, &f)
		}
		if err != nil || len(f.Indexes) != want {
			t.Errorf("%s: %d indexes, want %d: %v", attributes, len(f.Indexes), want, err)
		}
	}
	mine := "indexes:\n- kind: E\n  properties:\n  - name: my-shard\n  - name: at\n    direction: %s\n"
	for direction, want := range map[string]int{"asc": 1, "ascending": 1, "desc": 2, "descending": 2} {
		text, err := indexes.ForDatastore([]store.Target{{Kind: "E", Property: "at", ShardProperty: "my-shard"}}).YAML(fmt.Appendf(nil, mine, direction))
		if got := strings.Count(string(text), "kind: E"); err != nil || got != want {
			t.Errorf("%s: %d indexes, want %d: %v", direction, got, want, err)
		}
	}
}

// The tools of Firebase take comments in their file, and their template has some.
func TestCommentsInJSON(t *testing.T) {
	mine := "// mine\n{ /* \"indexes\": 3, */\n  \"url\": \"https://x//y\", // why\n  \"indexes\": []\n}\n"
	text, notes, err := indexes.ForFirestore(targets).JSON([]byte(mine))
	if err != nil || !strings.Contains(string(text), "https://x//y") || len(notes) != 1 || !strings.Contains(notes[0], "comments") {
		t.Errorf("%v, %q\n%s", err, notes, text)
	}
	if _, _, err := indexes.ForFirestore(targets).JSON([]byte("{ /*\n*/\n oops")); err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Error(err)
	}
}

// Nothing of a file is dropped in silence.
func TestMergeDropsNothing(t *testing.T) {
	two := "indexes:\n- kind: A\n  properties:\n  - name: a\n---\nindexes:\n- kind: B\n  properties:\n  - name: b\n"
	if text, err := indexes.ForDatastore(targets).YAML([]byte(two)); err == nil {
		t.Errorf("of two documents one is left:\n%s", text)
	}
	if text, _, err := indexes.ForFirestore(targets).JSON([]byte(`{"indexes":[{"collectionGroup":"A","fields":[{"fieldPath":"a"}]}],"indexes":[]}`)); err == nil {
		t.Errorf("of two lists one is left:\n%s", text)
	}
}

// An override drops no index that another target of the configuration needs,
// also where definitions for only one of them are wanted.
func TestDefinitionsOfSomeTargets(t *testing.T) {
	all := []store.Target{
		{Name: "a", Kind: "items", Property: "x", Type: store.Text},
		{Name: "b", Kind: "users/u1/items", Group: false, Property: "x", Type: store.Instant},
		{Name: "c", Kind: "other", Property: "x", Type: store.Text},
	}
	d := indexes.ForFirestore(all).Of(all[:1])
	for _, descending := range []bool{false, true} {
		for _, f := range d.Fields {
			if f.Collection == "items" && !slices.Contains(f.Singles, indexes.Single{Descending: descending, Scope: indexes.Collection}) {
				t.Errorf("%+v", f)
			}
		}
	}
	text, _, err := d.JSON(nil)
	if err != nil || strings.Contains(string(text), "other") || strings.Contains(string(text), "items") {
		t.Errorf("%v\n%s", err, text)
	}
}

// The separator that gcloud is told must not be in a name; those that
// configurations allow have no asterisk.
func TestGcloudSeparator(t *testing.T) {
	text := indexes.ForFirestore([]store.Target{{Kind: "E", Property: "a,b;c=d{e", ShardProperty: "s", Type: store.Instant}}).Gcloud("", "")
	if want := "--field-config='^*^field-path=`a,b;c=d{e`*order=ascending'"; !strings.Contains(text, want) {
		t.Errorf("%s is not in\n%s", want, text)
	}
}
