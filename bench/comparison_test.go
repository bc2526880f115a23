package bench_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// oldPage is a page as it was written before pages were compared.
const oldPage = `# Benchmarks

- Machine: a machine
- Commit: abc, 1 November 2026 04:39 UTC
- Sizes: small

Rates - are medians: or so.

## Embedded store

All with the same | pages.

| what | measured | aim |
| --- | --- | --- |
| sweep | 1000 entities/s |  |
| **sweep / bare loop** | 0.90 (0.88 to 0.91) | at least 0.95 |
| **first** | 4.00 | at most 1.3 |
| the same | 4.44 | the store's own share |
| **second** | 0.90 | at most 1.3 |
| the same | 0.99 | the store's own share |

![plot](plots/x.svg)
`

// secondPage is a report of two sections, of which the page before has one.
func secondPage(t *testing.T, before string, reasons ...*reason) (*report, string) {
	t.Helper()
	r := little()
	r.reasons = reasons
	if before != "" {
		p, err := parsePage(before)
		if err != nil {
			t.Fatal(err)
		}
		r.before = p
	}
	r.section("Embedded store", "Intro.")
	r.add("sweep", "1010 entities/s (1000 to 1020)", "")
	r.add("**sweep / bare loop**", "0.94 (0.92 to 0.96)", "at least 0.95")
	r.add("**zeroth**", "1.00", "at most 1.3")
	r.add("the same", "1.00", "the store's own share")
	r.add("**first**", "1.20", "at most 1.3")
	r.add("the same", "4.60", "the store's own share")
	r.add("**second**", "0.90", "at most 1.3")
	r.add("the same", "0.99", "the store's own share")
	r.section("Others", "Intro.")
	r.add("sweep", "7 s", "")
	return r, r.markdown(t)
}

func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("without the line %q:\n%s", line, text)
		}
	}
}

// TestBefore wants each figure to be followed by what it was, and a mark if it differs.
func TestBefore(t *testing.T) {
	_, text := secondPage(t, oldPage)
	lines := []string{
		"- The page before: of commit abc, 1 November 2026 04:39 UTC", "- Sizes of the page before: small",
		"- Speed: the 1 rates that are on both pages are 1.01 (1.01 to 1.01) times those of the page before, in the median: by so much rates and times differ by themselves; ratios may, where a store shares the cores with its clients",
		"| sweep | 1010 entities/s (1000 to 1020) | 1000 entities/s |  |",
		"| **sweep / bare loop** | 0.94 (0.92 to 0.96) | 0.90 (0.88 to 0.91), **differs** | at least 0.95 |",
		"| **zeroth** | 1.00 | new | at most 1.3 |", "| the same | 1.00 | new | the store's own share |",
		"| **first** | 1.20 | 4.00, **differs** | at most 1.3 |", "| the same | 4.60 | 4.44 | the store's own share |",
		"| the same | 0.99 | 0.99 | the store's own share |", "| sweep | 7 s | new |  |",
	}
	wantLines(t, text, lines...)
	// What was written is the page before of the next one.
	if _, next := secondPage(t, text); strings.Contains(next, "differs**") || strings.Contains(next, "| new |") {
		t.Errorf("a page differs from itself:\n%s", next)
	}
	if _, first := secondPage(t, ""); !strings.Contains(first, "- The page before: none\n") {
		t.Errorf("no page before:\n%s", first)
	}
}

// TestReasons wants reasons where they apply, and the others named.
func TestReasons(t *testing.T) {
	r, text := secondPage(t, oldPage,
		&reason{section: "Embedded store", figure: "sweep / bare loop", before: "0.90 (0.88 to 0.91)", text: "it is new"},
		&reason{section: "Embedded store", figure: "sweep / bare loop", text: "it costs what it does"},
		&reason{section: "Embedded store", figure: "first", before: "3.00", text: "of another difference"},
		&reason{section: "Embedded store", figure: "second", text: "of an aim that is reached"},
		&reason{section: "Embedded store", figure: "sweep", before: "1000 entities/s", text: "differs no longer"})
	wantLines(t, text, "| **sweep / bare loop** | 0.94 (0.92 to 0.96) | 0.90 (0.88 to 0.91), **differs**: it is new | at least 0.95; **missed**: it costs what it does |")
	var said bytes.Buffer
	r.unused(&said)
	for _, left := range []string{"of another difference", "of an aim that is reached", "differs no longer"} {
		if strings.Contains(text, left) || !strings.Contains(said.String(), left) {
			t.Errorf("%q is on the page, or is not named:\n%s", left, said.String())
		}
	}
	if strings.Contains(said.String(), "it is new") || strings.Contains(said.String(), "it costs") {
		t.Errorf("named, but on the page:\n%s", said.String())
	}
	if _, next := secondPage(t, text, r.reasons[1]); !strings.Contains(next, "**missed**: it costs") {
		t.Errorf("the reason of an aim did not survive:\n%s", next)
	}
}

func TestDiffers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"0.86 (0.78 to 0.87)", "0.92 (0.90 to 0.95)", true},
		{"0.86 (0.78 to 0.91)", "0.92 (0.90 to 0.95)", false},
		{"0.86 (0.86 to 0.86)", "0.92 (0.90 to 0.95)", false}, // one round has no spread
		{"13.47", "17.70", false},
		{"13.47", "18.70", true},
		{"0.1 s / 0.3 s / 73 MiB", "0.2 s / 0.3 s / 73 MiB", false}, // one in the last digit
		{"1.7 s / 3.6 s / 236 MiB", "1.7 s / 3.6 s / 150 MiB", true},
		{"0.6 s / 236 MiB", "236 MiB", true},
		{"0 / 10", "3 / 10", true},
		{"55 MiB", "55 KiB", true},
		{"", "", false},
		{strings.Repeat("9", 400), strings.Repeat("9", 401), false},
	} {
		if got := differs(c.a, c.b); got != c.want || differs(c.b, c.a) != c.want {
			t.Errorf("%q and %q: %v", c.a, c.b, got)
		}
	}
}

func TestMisses(t *testing.T) {
	for _, c := range []struct {
		figure, aim   string
		missed, known bool
	}{
		{"0.86 (0.78 to 0.97)", "at least 0.95", true, true},
		{"0.95 (0.78 to 0.97)", "at least 0.95", false, true},
		{"17.7", "at most 1.3", true, true},
		{"1.00 (0.9 to 1.2)", "above 1", true, true},
		{"0.5 s / 3 MiB", "10 s / 150 MiB", false, false},
		{"0.5", "reported", false, false},
		{"none", "at most 1", false, false},
	} {
		if missed, known := misses(c.figure, c.aim); missed != c.missed || known != c.known {
			t.Errorf("%q, %q: %v, %v", c.figure, c.aim, missed, known)
		}
	}
}

// TestBadPages wants of a page that nobody can read that it counts as none, and why.
func TestBadPages(t *testing.T) {
	for name, text := range map[string]string{
		"no section in it":          "hello\n",
		"without a column":          "## A\n\n| what | aim |\n| --- | --- |\n| x | y |\n",
		"without a column of":       "| what | measured | aim |\n| --- | --- | --- |\n",
		"too few columns":           "## A\n\n| what | measured | aim |\n| --- | --- | --- |\n| x\n",
		"a merge conflict":          "## A\n<<<<<<< HEAD\n",
		`the section "A" is there`:  "## A\n## A\n",
		"no section in it ":         "",
		"no section in it  ":        "\x00\xff\xfe",
		"line 3: a table without a": "## A\n\n| a | b |\n",
	} {
		file := filepath.Join(t.TempDir(), "page.md")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		p := readPage(file, &said)
		if len(p.sections) > 0 || !strings.Contains(said.String(), strings.TrimSpace(name)) {
			t.Errorf("%q: %d sections, said %q", text, len(p.sections), said.String())
		}
	}
	var said bytes.Buffer
	if p := readPage(filepath.Join(t.TempDir(), "none.md"), &said); len(p.sections) > 0 || said.Len() > 0 {
		t.Errorf("no page: %d sections, said %q", len(p.sections), said.String())
	}
}

func TestBadReasons(t *testing.T) {
	for text, want := range map[string]string{
		"# a comment\n\nmisses | A | b | why\n": "",
		"misses | A | b\n":                      "line 1: want",
		"\ndiffers | A | b | why\n":             "line 2: want",
		"reason\n":                              "line 1: want",
	} {
		file := filepath.Join(t.TempDir(), "reasons")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readReasons(file); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := readReasons(reasonsFile); err != nil {
		t.Error(err)
	}
}

// TestPresentPage reads the page that is in the repository.
func TestPresentPage(t *testing.T) {
	var said bytes.Buffer
	if p := readPage("../docs/benchmarks.md", &said); len(p.sections) < 5 || said.Len() > 0 || p.header["Commit"] == "" {
		t.Errorf("%d sections, said %q, commit %q", len(p.sections), said.String(), p.header["Commit"])
	}
}
