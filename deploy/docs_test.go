package deploy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/config"
)

// What people copy from these pages and files must exist.
func TestVariablesAndLinks(t *testing.T) {
	known := map[string]bool{"REAPER_": true} // the prefix itself
	for _, s := range config.Settings() {
		known[s.Env] = true
	}
	pages := []string{"../docs/runbook.md", "../docs/operations.md"}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if ext := filepath.Ext(name); err == nil && !d.IsDir() && ext != ".go" && ext != ".sum" {
			pages = append(pages, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	variables, links := 0, 0
	for _, page := range pages {
		text := read(t, page)
		for _, name := range regexp.MustCompile(`\bREAPER_[A-Z_]*`).FindAllString(text, -1) {
			if variables++; !known[name] {
				t.Errorf("%s names %s, which is no setting", page, name)
			}
		}
		if filepath.Ext(page) != ".md" {
			continue
		}
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s points at %s: %v", page, link[1], err)
			} else if anchor != "" && !anchors(read(t, file))[anchor] {
				t.Errorf("%s points at %s: no such section", page, link[1])
			}
		}
	}
	if variables < 10 || links < 20 {
		t.Errorf("only %d variables and %d links in %v", variables, links, pages)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors are a page's sections as GitHub names them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(h[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}
