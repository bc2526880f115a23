package config

import (
	"bytes"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// leaves lists the fields of a target by their paths, as the targets file would name them.
func leaves(typ reflect.Type, prefix string) (paths []string) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name := strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(f.Name, "${1}_${2}"))
		switch {
		case !f.IsExported():
		case slices.ContainsFunc(sections, func(s struct{ name, about string }) bool { return s.name == name }):
			paths = append(paths, leaves(f.Type, name+".")...)
		default:
			paths = append(paths, prefix+name)
		}
	}
	return paths
}

// Every setting of a target has one row, and each row is a setting.
func TestEverySettingHasARow(t *testing.T) {
	want := slices.DeleteFunc(leaves(reflect.TypeFor[Target](), ""), func(path string) bool {
		return path == "all_namespaces" || path == "breaker.off" // these follow from namespaces, and from the word off
	})
	var got []string
	for _, f := range fields {
		got = append(got, f.path)
		if f.about == "" || f.fallback == "" && f.sample == "" {
			t.Errorf("the row of %s says nothing of it, or has no default", f.path)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("the rows are of\n%v, the settings\n%v", got, want)
	}
}

// The reference has the bounds of every setting: only a yes or no, and a duration that may
// be any, have none.
func TestEveryBoundIsDocumented(t *testing.T) {
	for _, f := range fields {
		boundless := f.fallback == "true" || f.fallback == "false" || f.path == "retention"
		if (f.accepts == "") != boundless {
			t.Errorf("the row of %s says of its bounds: %q", f.path, f.accepts)
		}
	}
	for _, want := range []string{"how often a new generation opens (at least 1m)", "entities per commit (1 to 500)"} {
		if !strings.Contains(Sample(), want) {
			t.Errorf("%q is not in the sample", want)
		}
	}
}

// The sample is what a file without any setting means.
func TestSampleIsTheDefault(t *testing.T) {
	for _, d := range []Driver{Datastore, ""} {
		parse := func(text string) Target {
			list, err := ParseTargets("sample", strings.NewReader(text), d)
			if err != nil || len(list) != 1 {
				t.Fatalf("%v\n%s", err, text)
			}
			list[0].written = nil
			return list[0]
		}
		got, want := parse(Sample()), parse("targets:\n- {name: sessions, kind: Session}\n")
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the sample is\n%+v, and the default\n%+v", got, want)
		}
	}
}

// The reference has the sample as it is now; -update writes it there.
func TestReferenceHasTheSample(t *testing.T) {
	const page = "../../docs/reference.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)(## The targets file\n\n```yaml\n)(.*?)(```)")
	if !block.Match(text) {
		t.Fatalf("%s has no such section", page)
	}
	now := block.ReplaceAll(text, []byte("${1}"+strings.ReplaceAll(Sample(), "$", "$$")+"${3}"))
	if *update {
		if err := os.WriteFile(page, now, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(now, text) {
		t.Errorf("%s has another sample than\n%s\ngo test ./internal/config -update writes it", page, Sample())
	}
}
