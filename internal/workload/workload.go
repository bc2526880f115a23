package workload

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
)

// number is a number as a person writes it: digits, at most one point, and no sign or exponent.
var number = regexp.MustCompile(`^[0-9]{1,18}(\.[0-9]{1,9})?$`)

// quote prints an input for a message: enough of it to recognise, on one line.
func quote(s string) string {
	const most = 60
	if utf8.RuneCountInString(s) > most {
		return fmt.Sprintf("%q…", string([]rune(s)[:most]))
	}
	return fmt.Sprintf("%q", s)
}

// plain parses a number without a unit, between 0 and most.
func plain(text string, most float64) (float64, error) {
	if !number.MatchString(text) {
		return 0, fmt.Errorf("%s is not a number in plain decimal digits", quote(text))
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n > most {
		return 0, fmt.Errorf("%s is more than %s", quote(text), strconv.FormatFloat(most, 'f', -1, 64))
	}
	return n, nil
}

// split cuts a text into its number and what follows.
func split(text string) (number, unit string) {
	i := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if i < 0 {
		return text, ""
	}
	return text[:i], text[i:]
}

// scales are what a count may end in.
var scales = map[string]float64{"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}

// Count parses a number of entities: 500M, 1200000, 3k.
func Count(text string) (float64, error) {
	digits, unit := split(text)
	scale, known := scales[unit]
	if !known {
		return 0, fmt.Errorf("%s is not a number of entities: write for example 500000, 500k, 500M or 5G", quote(text))
	}
	n, err := plain(digits, forecast.MostEntities)
	if err != nil {
		return 0, fmt.Errorf("%w: write for example 500000, 500k, 500M or 5G", err)
	}
	if n *= scale; n > forecast.MostEntities {
		return 0, fmt.Errorf("%s is more than %.0f entities", quote(text), forecast.MostEntities)
	}
	return n, nil
}

// per are the units of time of a rate, in seconds.
var per = map[string]float64{"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "day": 86400}

// Rate parses a rate of entities: 20000/s, 20k/s, 300/m, 5M/d. A bare number is an error.
func Rate(text string) (perSecond float64, err error) {
	const advice = "write for example 20000/s, 300/m, 50k/h or 5M/d"
	count, unit, found := strings.Cut(text, "/")
	if !found {
		return 0, fmt.Errorf("%s has no unit: %s", quote(text), advice)
	}
	seconds, known := per[unit]
	if !known {
		return 0, fmt.Errorf("%s is not per s, m, h or d: %s", quote(text), advice)
	}
	n, err := Count(count)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s is not a valid rate: %s", quote(text), advice)
	case n == 0:
		return 0, fmt.Errorf("%s is nothing: leave it out if nothing is written", quote(text))
	case n/seconds > forecast.MostWrites:
		return 0, fmt.Errorf("%s is more than %.0f a second", quote(text), forecast.MostWrites)
	}
	return n / seconds, nil
}

// sizes are the units of a size, in bytes.
var sizes = map[string]float64{"B": 1, "KB": 1e3, "kB": 1e3, "KiB": 1 << 10, "MB": 1e6, "MiB": 1 << 20}

// Size parses the size of an entity: 300B, 2KiB, 1.5KB.
func Size(text string) (bytes float64, err error) {
	const advice = "write for example 300B, 2KiB or 1.5KB"
	digits, unit := split(text)
	scale, known := sizes[unit]
	if !known {
		return 0, fmt.Errorf("%s has no unit of size: %s", quote(text), advice)
	}
	n, err := plain(digits, forecast.MostBytes)
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, advice)
	}
	if n *= scale; n < 1 || n > forecast.MostBytes {
		return 0, fmt.Errorf("%s is not between 1 and %d bytes, the most that an entity may have", quote(text),
			forecast.MostBytes)
	}
	return n, nil
}

// mostLives bounds how many lives may be named.
const mostLives = 100

// Lives parses times to live with their shares: 1h:80%,30d:20%. One life alone needs no share.
func Lives(text string) (list []forecast.Life, err error) {
	const advice = "write for example 30d, or 1h:80%,30d:20%"
	parts := strings.Split(text, ",")
	if len(parts) > mostLives {
		return nil, fmt.Errorf("more than %d lives: %s", mostLives, advice)
	}
	sum := 0.0
	for _, part := range parts {
		life, share, found := strings.Cut(strings.TrimSpace(part), ":")
		if !found && len(parts) > 1 {
			return nil, fmt.Errorf("%s has no share: %s", quote(part), advice)
		}
		d, err := config.Duration(life)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %s", err, advice)
		case d <= 0 || d > forecast.LongestLife:
			return nil, fmt.Errorf("%s is not a life above 0 and of at most 36500d", quote(life))
		}
		one := forecast.Life{For: d, Share: 1}
		if found {
			if one.Share, err = percent(share); err != nil {
				return nil, fmt.Errorf("%w: %s", err, advice)
			}
		}
		list, sum = append(list, one), sum+one.Share
	}
	if math.Abs(sum-1) > roundedShares {
		return nil, fmt.Errorf("the shares of %s add up to %.4g%%, not to 100%%", quote(text), 100*sum)
	}
	for i := range list { // thirds of 33%, 33% and 34% or 33.3% each
		list[i].Share /= sum
	}
	return list, nil
}

// roundedShares is how far from 100 % shares may be that a person has rounded.
const roundedShares = 0.0011

// percent parses a share: 80%.
func percent(text string) (share float64, err error) {
	digits, found := strings.CutSuffix(text, "%")
	if !found {
		return 0, fmt.Errorf("%s is not a share with %%", quote(text))
	}
	n, err := plain(digits, 100)
	if err == nil && n <= 0 {
		err = fmt.Errorf("%s is no share at all", quote(text))
	}
	return n / 100, err
}

// Text returns lives as [Lives] reads them.
func Text(list []forecast.Life) string {
	parts := make([]string, len(list))
	for i, l := range list {
		share := strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(100*l.Share, 'f', 2, 64), "0"), ".")
		parts[i] = config.FormatDuration(l.For.Round(time.Second)) + ":" + share + "%"
	}
	return strings.Join(parts, ",")
}
