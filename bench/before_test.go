package bench_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A page is what the report compares with: the page before, as it was written. The zero
// page is of no use to compare with, and every figure is new.
type page struct {
	header   map[string]string // the lines of its list, "Commit" and so on
	sections []*section
}

// readPage reads the page before: the committed one, since a run may be repeated until it
// is committed or, without one, the page that this run replaces. A page that cannot be
// parsed is reported, and counts as none.
func readPage(file string, warn io.Writer) page {
	text, err := committed(file)
	if err != nil {
		text, err = os.ReadFile(file)
	}
	if errors.Is(err, os.ErrNotExist) {
		return page{}
	}
	p, parsed := page{}, err
	if err == nil {
		p, parsed = parsePage(string(text))
	}
	if parsed != nil {
		fmt.Fprintf(warn, "%s cannot be compared with, all figures count as new: %v\n", file, parsed)
		return page{}
	}
	return p
}

// committed returns a file as it was committed last.
func committed(file string) ([]byte, error) {
	git := exec.Command("git", "show", "HEAD:./"+filepath.Base(file))
	git.Dir = filepath.Dir(file)
	return git.Output()
}

// parsePage parses what report.markdown has written, by this version or one before it.
func parsePage(text string) (p page, err error) {
	p.header = map[string]string{}
	column, inTable := -1, false
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, "\r ")
		title, isTitle := strings.CutPrefix(line, "## ")
		key, value, isHeader := strings.Cut(strings.TrimPrefix(line, "- "), ": ")
		switch {
		case strings.HasPrefix(line, "<<<<<<<"), strings.HasPrefix(line, ">>>>>>>"):
			return page{}, fmt.Errorf("line %d: a merge conflict", i+1)
		case isTitle && p.section(title) != nil:
			return page{}, fmt.Errorf("line %d: the section %q is there twice", i+1, title)
		case isTitle:
			p.sections, column, inTable = append(p.sections, &section{title: title}), -1, false
		case len(p.sections) == 0 && isHeader && strings.HasPrefix(line, "- "):
			p.header[key] = value
		case !strings.HasPrefix(line, "| "):
			inTable = false
		case !inTable:
			inTable = true
			if column = slices.Index(cells(line), "measured"); column < 1 || len(p.sections) == 0 {
				return page{}, fmt.Errorf("line %d: a table without a column of measured figures", i+1)
			}
		case !strings.HasPrefix(line, "| ---"):
			row := cells(line)
			if len(row) <= column {
				return page{}, fmt.Errorf("line %d: too few columns", i+1)
			}
			s := p.sections[len(p.sections)-1]
			s.rows = append(s.rows, [3]string{row[0], row[column], ""})
		}
	}
	if len(p.sections) == 0 {
		return page{}, errors.New("no section in it")
	}
	return p, nil
}

func cells(line string) []string {
	return strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
}

func (p page) section(title string) *section {
	for _, s := range p.sections {
		if s.title == title {
			return s
		}
	}
	return nil
}

// figures returns what a section of the page before has in the place of each row of the
// same section now, or "" for what is new. A name that occurs more than once on one of
// the pages is told by the row with a name of its own that it follows.
func (p page) figures(now *section) []string {
	list := make([]string, len(now.rows))
	was := p.section(now.title)
	if was == nil {
		return list
	}
	often := map[string]bool{}
	for _, s := range []*section{was, now} {
		seen := map[string]bool{}
		for _, row := range s.rows {
			often[row[0]] = often[row[0]] || seen[row[0]]
			seen[row[0]] = true
		}
	}
	known := map[string]string{}
	for i, key := range keys(was.rows, often) {
		known[key] = was.rows[i][1]
	}
	for i, key := range keys(now.rows, often) {
		list[i] = known[key]
	}
	return list
}

func keys(rows [][3]string, often map[string]bool) (list []string) {
	after := ""
	for _, row := range rows {
		if key := row[0]; often[key] {
			list = append(list, after+"\n"+key)
		} else {
			list, after = append(list, key), key
		}
	}
	return list
}

// unspread is by which part a figure may differ of which no spread is known.
const unspread = 0.25

var (
	number  = regexp.MustCompile(`\d+(\.\d+)?`)
	spreads = regexp.MustCompile(`^(.*) \((\d+(?:\.\d+)?) to (\d+(?:\.\d+)?)\)$`)
)

// differs reports whether two figures differ by more than their spread: what they spread
// over has nothing in common or, if one of them has no spread, one of their numbers
// differs by more than a quarter and by more than one in its last digit.
func differs(a, b string) bool {
	a, low, high, ok := spreadOf(a)
	b, from, to, too := spreadOf(b)
	if ok && too {
		return high < from || to < low
	}
	x, y := number.FindAllString(a, -1), number.FindAllString(b, -1)
	if len(x) != len(y) || number.ReplaceAllString(a, "0") != number.ReplaceAllString(b, "0") {
		return true
	}
	for i := range x {
		m, n := parsed(x[i]), parsed(y[i])
		digit := math.Max(lastDigit(x[i]), lastDigit(y[i]))
		if apart := math.Abs(m - n); apart > unspread*math.Max(m, n) && apart > 1.5*digit {
			return true
		}
	}
	return false
}

// spreadOf takes a figure apart. Of a single round no spread is known.
func spreadOf(figure string) (middle string, low, high float64, ok bool) {
	m := spreads.FindStringSubmatch(figure)
	if m == nil {
		return figure, 0, 0, false
	}
	low, high = parsed(m[2]), parsed(m[3])
	return m[1], low, high, low < high
}

// parsed returns a number of which the form is known; one that is too large is infinite.
func parsed(text string) float64 {
	f, _ := strconv.ParseFloat(text, 64)
	return f
}

// lastDigit returns what one in the last digit of a number stands for.
func lastDigit(number string) float64 {
	_, behind, _ := strings.Cut(number, ".")
	return math.Pow10(-len(behind))
}

// misses reports whether a figure misses its aim; known is false of an aim that only
// people understand.
func misses(figure, aim string) (missed, known bool) {
	middle, _, _, _ := spreadOf(figure)
	is, err := strconv.ParseFloat(middle, 64)
	word, bound, _ := strings.Cut(strings.TrimPrefix(aim, "at "), " ")
	want, bad := strconv.ParseFloat(bound, 64)
	if err != nil || bad != nil {
		return false, false
	}
	switch word {
	case "least":
		return is < want, true
	case "most":
		return is > want, true
	case "above":
		return is <= want, true
	}
	return false, false
}

// A reason is what somebody has written about a figure: why it differs from what it was
// before, or why it misses its aim.
type reason struct {
	section, figure string
	before          string // the figure that it differs from; "" for a reason why an aim is missed
	text            string
	used            bool
}

// reasonsFile has the form that its first lines tell.
const reasonsFile = "testdata/reasons"

// readReasons reads the reasons. A file with a mistake is an error before anything is
// measured.
func readReasons(file string) (list []*reason, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		part := cells(line)
		switch {
		case part[0] == "misses" && len(part) == 4:
			list = append(list, &reason{section: part[1], figure: part[2], text: part[3]})
		case part[0] == "differs" && len(part) == 5 && part[3] != "":
			list = append(list, &reason{section: part[1], figure: part[2], before: part[3], text: part[4]})
		default:
			return nil, fmt.Errorf("%s, line %d: want misses | section | figure | why, or differs | section | figure | before | why", file, i+1)
		}
	}
	return list, nil
}

// why returns the reason for a figure of a section, ready to be printed after what it is
// the reason of.
func (r *report) why(title, figure, before string) string {
	for _, w := range r.reasons {
		if w.section == title && w.figure == strings.Trim(figure, "*") && w.before == before {
			w.used = true
			return ": " + w.text
		}
	}
	return ""
}

// unused lists the reasons that nothing on the page has: of figures that differ no longer,
// or from another one than they did, or that reach their aim.
func (r *report) unused(warn io.Writer) {
	for _, w := range r.reasons {
		if !w.used {
			fmt.Fprintf(warn, "%s: left out, nothing on the page needs it: %s | %s: %s\n", reasonsFile, w.section, w.figure, w.text)
		}
	}
}

// compared returns the cells of a row that say what it was before, and what the aim is.
func (r *report) compared(title string, row [3]string, before string) (was, aim string) {
	was, aim = before, row[2]
	switch {
	case before == "":
		was = "new"
	case differs(row[1], before):
		was += ", **differs**" + r.why(title, row[0], before)
	}
	if missed, known := misses(row[1], aim); missed || !known {
		if why := r.why(title, row[0], ""); why != "" {
			aim += "; **missed**" + why
		}
	}
	return was, aim
}

// pageBefore says on the page what it is compared with, and what else was different then.
func (r *report) pageBefore(header string) string {
	if len(r.before.sections) == 0 {
		return "- The page before: none\n"
	}
	text := "- The page before: of commit " + r.before.header["Commit"] + "\n"
	for _, what := range []string{"Machine", "Sizes"} {
		line := fmt.Sprintf("- %s: %s\n", what, r.before.header[what])
		if !strings.Contains(header, line) {
			text += strings.Replace(line, "- "+what, "- "+what+" of the page before", 1)
		}
	}
	if n, speed := r.speed(); n > 0 {
		text += fmt.Sprintf("- Speed: the %d rates that are on both pages are %s times those of the page before, in the median: by so much rates and times differ by themselves; ratios may, where a store shares the cores with its clients\n", n, spread(speed))
	}
	return text
}

// speed returns by which factor each rate differs from what it was before, and how many there are.
func (r *report) speed() (n int, factors []float64) {
	for _, s := range r.sections {
		for i, was := range r.before.figures(s) {
			is, isRate := strings.CutSuffix(middleOf(s.rows[i][1]), " entities/s")
			was, wasRate := strings.CutSuffix(middleOf(was), " entities/s")
			if isRate && wasRate && parsed(is) > 0 && parsed(was) > 0 {
				factors = append(factors, parsed(is)/parsed(was))
			}
		}
	}
	return len(factors), factors
}

func middleOf(figure string) string {
	middle, _, _, _ := spreadOf(figure)
	return middle
}
