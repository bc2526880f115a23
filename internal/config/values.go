package config

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The word that stands for "no limit" in files, variables and flags.
const unlimited = "unlimited"

// A Limit bounds something unless it is Unlimited. The zero Limit lets nothing
// through, so that a configuration that nobody filled in deletes nothing; no
// limit that was read from a file, a variable or a flag is zero.
type Limit[N int64 | float64 | time.Duration] struct {
	Most      N
	Unlimited bool
}

// NoLimit returns the limit that lets everything through.
func NoLimit[N int64 | float64 | time.Duration]() Limit[N] { return Limit[N]{Unlimited: true} }

// AtMost returns the limit that lets n through and no more.
func AtMost[N int64 | float64 | time.Duration](n N) Limit[N] { return Limit[N]{Most: n} }

// Exceeds reports whether l lets more through than m.
func (l Limit[N]) Exceeds(m Limit[N]) bool {
	return !m.Unlimited && (l.Unlimited || l.Most > m.Most)
}

// String returns the limit as it is written in the targets file.
func (l Limit[N]) String() string {
	if l.Unlimited {
		return unlimited
	}
	switch n := any(l.Most).(type) {
	case time.Duration:
		return FormatDuration(n)
	case float64:
		return strconv.FormatFloat(n, 'f', -1, 64)
	default:
		return fmt.Sprint(n)
	}
}

// The functions that parse values return errors without the value: the caller decides
// whether to print it. A value from the environment is never printed, since it may be a
// secret in the wrong variable.
var (
	errEmpty      = errors.New("is empty")
	errNoUnit     = errors.New("has no unit: write for example 90s, 15m, 36h or 7d")
	errDuration   = errors.New("is not a duration: write a number and a unit (d, h, m, s or ms), as in 15m or 1d12h")
	errDurationD  = errors.New("has days that are not whole or do not come first: write for example 1d12h")
	errNegative   = errors.New("is negative")
	errTooLong    = errors.New("is longer than 106751d, the longest duration there is")
	errNotInteger = errors.New("is not a whole number in plain decimal digits")
	errLeading0   = errors.New("has a leading zero: write it without")
	errNotNumber  = errors.New("is not a number in plain decimal digits")
	errNotBool    = errors.New("is neither true nor false")
)

var (
	digitsOnly = regexp.MustCompile(`^[0-9]+$`)
	decimal    = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)
)

// Duration parses a duration as Go writes it (90s, 1h30m, 500ms) or with whole
// days in front (1825d, 1d12h). A bare number is an error, except 0; so is a
// negative duration, which has no meaning in this program.
func Duration(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%s %w", quote(s), err)
	}
	return d, nil
}

// Rate parses a rate in entities a second, or the word unlimited.
func Rate(s string) (Limit[float64], error) {
	if s == unlimited {
		return NoLimit[float64](), nil
	}
	n, err := parseNumber(s)
	switch {
	case err != nil:
		return Limit[float64]{}, fmt.Errorf("%s %w", short(s), err)
	case n <= 0:
		return Limit[float64]{}, fmt.Errorf("%s is not a valid rate: write a number above 0, or unlimited", short(s))
	case n < minRate || n > maxRate:
		return Limit[float64]{}, fmt.Errorf("%s is not between %v and %v",
			short(s), minRate, strconv.FormatFloat(maxRate, 'f', -1, 64))
	}
	return AtMost(n), nil
}

// Percent reads a share in per cent, above 0 and at most 100.
func Percent(s string) (float64, error) {
	n, err := parseNumber(s)
	if err != nil {
		return 0, fmt.Errorf("%s %w", short(s), err)
	}
	if n < minPercent || n > 100 {
		return 0, fmt.Errorf("%s is not between %v and 100", short(s), minPercent)
	}
	return n, nil
}

// Spread reads the time over which an adoption spreads what has expired already.
func Spread(s string) (time.Duration, error) {
	d, err := Duration(s)
	if err == nil && d > maxSpread {
		return 0, fmt.Errorf("%s is not between 0s and %s", short(s), FormatDuration(maxSpread))
	}
	return d, err
}

func parseDuration(s string) (time.Duration, error) {
	switch {
	case s == "":
		return 0, errEmpty
	case s == "0":
		return 0, nil
	case decimal.MatchString(s):
		return 0, errNoUnit
	case strings.HasPrefix(s, "-"):
		return 0, errNegative
	}
	var days time.Duration
	if whole, rest, ok := strings.Cut(s, "d"); ok {
		switch {
		case digitsOnly.MatchString(whole) && !strings.Contains(rest, "d"):
		case whole == "", whole[0] < '0', whole[0] > '9', strings.Contains(s, " "):
			return 0, errDuration
		default:
			return 0, errDurationD
		}
		const day = 24 * time.Hour
		n, err := strconv.ParseInt(whole, 10, 64)
		if err != nil || n > int64(math.MaxInt64/day) {
			return 0, errTooLong
		}
		days, s = time.Duration(n)*day, rest
		if s == "" {
			return days, nil
		}
	}
	if c := s[0]; c < '0' || c > '9' { // ParseDuration would accept signs and a leading point
		return 0, errDuration
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil && decimal.MatchString(s):
		return 0, errNoUnit
	case err != nil:
		return 0, errDuration // a number too large for Go ends here too
	case d > math.MaxInt64-days:
		return 0, errTooLong
	}
	return days + d, nil
}

// FormatDuration prints a duration the way people write it, and [Duration] reads it:
// 1825d, 1d12h, 1m30s, not 43800h0m0s.
func FormatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	if d == 0 {
		return "0s"
	}
	var b strings.Builder
	if d >= day {
		fmt.Fprintf(&b, "%dd", d/day)
		d %= day
	}
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= u.unit {
			fmt.Fprintf(&b, "%d%s", d/u.unit, u.name)
			d %= u.unit
		}
	}
	if d > 0 {
		b.WriteString(d.String())
	}
	return b.String()
}

// parseInt reads decimal digits only: no sign, no other base, no underscores.
// A leading zero is refused, since many parsers take 010 for 8.
func parseInt(s string) (int64, error) {
	switch digits := strings.TrimPrefix(s, "-"); {
	case s == "":
		return 0, errEmpty
	case !digitsOnly.MatchString(digits):
		return 0, errNotInteger
	case len(digits) > 1 && digits[0] == '0':
		return 0, errLeading0
	}
	n, _ := strconv.ParseInt(s, 10, 64) // out of range is the first or last one, which the caller's own bounds refuse
	return n, nil
}

// parseNumber reads plain decimal digits with an optional fraction.
func parseNumber(s string) (float64, error) {
	switch digits := strings.TrimPrefix(s, "-"); {
	case s == "":
		return 0, errEmpty
	case !decimal.MatchString(digits):
		return 0, errNotNumber
	case len(digits) > 1 && digits[0] == '0' && digits[1] != '.':
		return 0, errLeading0
	}
	n, _ := strconv.ParseFloat(s, 64) // out of range is infinity, which the caller's own bounds refuse
	return n, nil
}

// parseBool accepts true and false and nothing else: whether to delete must not be guessed
// from "yes", "1" or "on".
func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "":
		return false, errEmpty
	}
	return false, errNotBool
}

// units are those of sizes in bytes, the largest first.
var units = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

var errSize = errors.New("is not a size: write a whole number and a unit (GiB, MiB or KiB), as in 16MiB")

// parseSize parses a number of bytes, which has a unit.
func parseSize(s string) (int64, error) {
	for _, u := range units {
		if digits, ok := strings.CutSuffix(s, u.name); ok && digitsOnly.MatchString(digits) {
			n, err := strconv.ParseInt(digits, 10, 64)
			if err != nil || n > math.MaxInt64/u.bytes {
				return 0, errSize
			}
			return n * u.bytes, nil
		}
	}
	return 0, errSize
}

// formatSize writes a number of bytes as the targets file has it.
func formatSize(n int64) string {
	for _, u := range units {
		if n > 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
