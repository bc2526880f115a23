package writers_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"regexp"
	"testing"
)

func text(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The packages are published together: with one version, under the licence of the
// project, and with metadata that their registries can read.
func TestMetadata(t *testing.T) {
	var node struct {
		Version      string
		Dependencies map[string]string
		Files        []string
	}
	if err := json.Unmarshal(text(t, "node/package.json"), &node); err != nil {
		t.Fatal(err)
	}
	var java struct {
		Version      string `xml:"version"`
		Dependencies []any  `xml:"dependencies>dependency"`
	}
	if err := xml.Unmarshal(text(t, "java/pom.xml"), &java); err != nil {
		t.Fatal(err)
	}
	python := regexp.MustCompile(`(?m)^version = "(.+)"$`).FindSubmatch(text(t, "python/pyproject.toml"))
	if python == nil || node.Version == "" || node.Version != java.Version || node.Version != string(python[1]) {
		t.Errorf("versions: node %q, java %q, python %q", node.Version, java.Version, python)
	}
	if len(node.Dependencies) > 0 || len(java.Dependencies) > 0 ||
		!bytes.Contains(text(t, "python/pyproject.toml"), []byte("\ndependencies = []\n")) {
		t.Error("a writer has a dependency")
	}
	for _, dir := range []string{"node", "python", "java"} {
		if !bytes.Equal(text(t, dir+"/LICENSE"), text(t, "../LICENSE")) {
			t.Errorf("%s/LICENSE is not the project's", dir)
		}
		if lines := bytes.Count(text(t, dir+"/README.md"), []byte("\n")); lines > 60 {
			t.Errorf("%s/README.md has %d lines, at most 60", dir, lines)
		}
	}
}
