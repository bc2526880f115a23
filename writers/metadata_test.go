package writers_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"regexp"
	"strings"
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
		Dependencies []struct {
			Scope string `xml:"scope"`
		} `xml:"dependencies>dependency"`

		Model      string   `xml:"modelVersion"`
		Group      string   `xml:"groupId"`
		Artifact   string   `xml:"artifactId"`
		Name       string   `xml:"name"`
		About      string   `xml:"description"`
		URL        string   `xml:"url"`
		Licenses   []string `xml:"licenses>license>url"`
		Developers []string `xml:"developers>developer>name"`
		Source     string   `xml:"scm>url"`
		Connection string   `xml:"scm>connection"`
	}
	if err := xml.Unmarshal(text(t, "java/pom.xml"), &java); err != nil {
		t.Fatal(err)
	}
	python := regexp.MustCompile(`(?m)^version = "(.+)"$`).FindSubmatch(text(t, "python/pyproject.toml"))
	if python == nil || node.Version == "" || node.Version != java.Version || node.Version != string(python[1]) {
		t.Errorf("versions: node %q, java %q, python %q", node.Version, java.Version, python)
	}
	for _, what := range []string{java.Model, java.Group, java.Artifact, java.Name, java.About, java.URL, java.Source,
		java.Connection, strings.Join(java.Licenses, ""), strings.Join(java.Developers, "")} {
		if what == "" {
			t.Errorf("java/pom.xml lacks something that Maven's central repository asks for: %+v", java)
		}
	}
	for _, d := range java.Dependencies {
		if d.Scope != "test" {
			t.Errorf("a dependency of java/pom.xml has the scope %q, want test: the package itself has none", d.Scope)
		}
	}
	if len(node.Dependencies) > 0 ||
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
