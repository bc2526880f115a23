package draw

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/reaper-ttl/reaper/inspect"
)

// Visible replaces characters that would change how the text around them reads: control
// characters, and those that turn the direction of writing or take no room. Ids and values
// hold whatever their writers put there.
func Visible(text string) string {
	if !strings.ContainsFunc(text, isHidden) {
		return strings.ToValidUTF8(text, string(unicode.ReplacementChar))
	}
	var b strings.Builder
	for _, r := range text {
		if isHidden(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isHidden reports whether a character is shown as its number. Cf has those of direction, and
// those without width.
func isHidden(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// VisibleLines is visible for a text of many lines.
func VisibleLines(text []byte) []byte {
	if !bytes.ContainsFunc(text, func(r rune) bool { return r != '\n' && isHidden(r) }) {
		return text
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		lines[i] = Visible(line)
	}
	return []byte(strings.Join(lines, "\n"))
}

// quotedOrPath matches what may be an id in the text of an error.
var quotedOrPath = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|documents/\S*`)

// WithoutIDs returns a text of an error without what may be an id.
func WithoutIDs(text string) string { return quotedOrPath.ReplaceAllString(text, "(id hidden)") }

// Count shows a number for people: 1,234,567.
func Count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short shows a number in a few characters: 999, 1.2k, 35M.
func short(n float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if n >= unit.of {
			return strings.TrimSuffix(fmt.Sprintf("%.3g", n/unit.of), ".0") + unit.name
		}
	}
	return fmt.Sprintf("%.3g", n)
}

// Plural shows a count with its noun.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(int64(n)) + " " + many
}

// Age shows how long something took, or has been going on, with at most two units.
func Age(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return twoUnits(int(d.Minutes()), "m", int(d.Seconds())%60, "s")
	case d < 48*time.Hour:
		return twoUnits(int(d.Hours()), "h", int(d.Minutes())%60, "m")
	}
	return inspect.Age(d)
}

func twoUnits(large int, unit string, small int, smaller string) string {
	if small == 0 {
		return fmt.Sprintf("%d%s", large, unit)
	}
	return fmt.Sprintf("%d%s %d%s", large, unit, small, smaller)
}

// oneUnit shows a duration in at most three characters, for a cell of the map.
func oneUnit(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	case d < 999*24*time.Hour:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
	return "999d"
}

// Instant shows an instant for people.
func Instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Minute shows an instant to the minute.
func Minute(t time.Time) string { return t.UTC().Format("Jan 2, 15:04") }

// Machine shows an instant for programs.
func Machine(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Rate shows how much may go in a second.
func Rate(perSecond float64, unlimited bool) string {
	if unlimited {
		return "unlimited"
	}
	return fmt.Sprintf("%.4g/s", perSecond)
}

// Quoted returns a word of a command as a shell reads it back.
func Quoted(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@+=,", r))
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(Visible(word), "'", `'\''`) + "'"
}
