package deploy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/internal/config"
)

// What people copy from these pages and files must exist.
func TestVariablesAndLinks(t *testing.T) {
	known := map[string]bool{"REAPER_": true} // the prefix itself
	for _, s := range config.Settings() {
		known[s.Env] = true
	}
	pages := documents(t)
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
	if variables < 30 || links < 100 {
		t.Errorf("only %d variables and %d links in %v", variables, links, pages)
	}
}

// documents are the pages that people read.
func documents(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages in docs: %v", len(pages), err)
	}
	return append(pages, "../README.md", "../CHANGELOG.md", "../SECURITY.md", "../CONTRIBUTING.md")
}

// The first page is short, and prose is as wide as code.
func TestPagesAreReadable(t *testing.T) {
	const firstPage, columns = 9 << 10, 120
	if size := len(read(t, "../README.md")); size > firstPage {
		t.Errorf("the README has %d bytes, and may have %d", size, firstPage)
	}
	for _, page := range documents(t) {
		if strings.HasSuffix(page, "benchmarks.md") { // a program writes it
			continue
		}
		code := false
		for i, line := range strings.Split(read(t, page), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			if isProse := !code && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "    "); isProse &&
				utf8.RuneCountInString(line) > columns {
				t.Errorf("%s:%d has more than %d columns: %.60s…", page, i+1, columns, line)
			}
		}
	}
}

// The reference names every setting, and those of the targets file.
func TestReferenceIsComplete(t *testing.T) {
	text := read(t, "../docs/reference.md")
	for _, s := range config.Settings() {
		if !strings.Contains(text, "`"+s.Env+"`") {
			t.Errorf("docs/reference.md does not name %s", s.Env)
		}
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

// The runbook of each alert begins with the findings of the doctor that go with it, by names that
// it prints: those are the sections of its page, which a test of package doctor holds.
func TestRunbooksBeginWithTheFinding(t *testing.T) {
	findings := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^### (.+)$`).FindAllStringSubmatch(read(t, "../docs/doctor.md"), -1) {
		findings[h[1]] = true
	}
	sections := map[string]string{}
	for _, section := range strings.Split(read(t, "../docs/runbook.md"), "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n\n")
		sections[name] = text
	}
	alerts := 0
	for _, r := range readRules(t) {
		if r.Alert == "" {
			continue
		}
		alerts++
		text, ok := strings.CutPrefix(sections[r.Alert], "**Finding.** `reaper doctor` finds ")
		if !ok {
			t.Errorf("the runbook of %s does not begin with a finding", r.Alert)
			continue
		}
		first, _, _ := strings.Cut(text, "\n\n")
		links := regexp.MustCompile("\\[`([a-z-]+)`\\]\\(doctor\\.md#([a-z-]+)\\)").FindAllStringSubmatch(first, -1)
		if len(links) == 0 {
			t.Errorf("the runbook of %s names no finding: %s", r.Alert, first)
		}
		for _, l := range links {
			if l[1] != l[2] || !findings[l[1]] {
				t.Errorf("the runbook of %s names %s and points at %s: there is no such finding", r.Alert, l[1], l[2])
			}
		}
	}
	if alerts < 15 || len(findings) < 50 {
		t.Errorf("only %d alerts and %d findings", alerts, len(findings))
	}
}

// anchors are a page's sections as GitHub names them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(h[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}
