package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v4"

	"github.com/reaper-ttl/reaper/store"
)

// A reader reads one target.
type reader struct {
	*file
	path   string // "targets[3]"
	node   *yaml.Node
	target Target
	values map[string]*yaml.Node // the values in the file, by path below the target
	bad    map[string]bool       // values that were reported: rules about several fields ignore them
}

// read fills in the target and says whether it is a mapping at all.
func (r *reader) read() bool {
	if !r.mapping(r.node, r.path, fieldsOf(""), r.field) {
		return false
	}
	r.target.complete(r.driver)
	r.check()
	return true
}

// field reads one field. What it reports marks the field as bad.
func (r *reader) field(_, path string, v *yaml.Node) {
	below := strings.TrimPrefix(path, r.path+".")
	for _, s := range sections {
		if below == s.name {
			r.values[below] = v
			if below == breakerSection && v.Kind == yaml.ScalarNode {
				r.breakerOff(v, path)
				return
			}
			if !r.mapping(v, path, fieldsOf(s.name), func(_, path string, v *yaml.Node) { r.field("", path, v) }) {
				r.bad[below] = true
			}
			return
		}
	}
	r.values[below], r.target.written[below] = v, true
	before := len(r.problems)
	fieldAt(below).read(r, v, path)
	if len(r.problems) > before {
		r.bad[below] = true
	}
}

// TargetName checks the name of a target, as the targets file does.
func TargetName(s string) error {
	if !targetName.MatchString(s) {
		return errors.New("is not a valid target name: want [a-z][a-z0-9-]{0,62}")
	}
	return nil
}

// scalar returns the text of a value whose tag is one of those given, and
// which is not empty.
func (r *reader) scalar(v *yaml.Node, path, want string, tags ...string) (string, bool) {
	if v.Kind == yaml.ScalarNode && v.Tag == "!!str" && v.Value == "" {
		r.wrong(v, path, want)
		return "", false
	}
	return r.scalarOrEmpty(v, path, want, tags...)
}

// scalarOrEmpty is scalar for fields of which "" is a valid value.
func (r *reader) scalarOrEmpty(v *yaml.Node, path, want string, tags ...string) (string, bool) {
	if v.Kind == yaml.ScalarNode && slices.Contains(tags, v.Tag) {
		return v.Value, true
	}
	switch {
	case v.Kind == yaml.ScalarNode && v.Tag == "!!null":
		r.at(v, path, "is empty: write %s", want)
	case slices.Contains(tags, "!!str") && slices.Contains([]string{"!!int", "!!float", "!!bool", "!!timestamp"}, v.Tag):
		r.at(v, path, "is %s; it must be %s: put it in quotation marks", describe(v), want)
	case v.Tag == "!!str" && resolves(v.Value, tags):
		r.at(v, path, "is %s; it must be %s: take away the quotation marks", describe(v), want)
	default:
		r.wrong(v, path, want)
	}
	return "", false
}

// resolves reports whether a text would be of one of the types without its
// quotation marks.
func resolves(s string, tags []string) bool {
	_, notInt := parseInt(s)
	_, notBool := parseBool(s)
	return notInt == nil && slices.Contains(tags, "!!int") || notBool == nil && slices.Contains(tags, "!!bool")
}

const optionalText = `a text, or "" for none`

func (r *reader) text(v *yaml.Node, path string, to *string, check func(string) error) {
	s, ok := r.scalar(v, path, "a text", "!!str")
	if !ok {
		return
	}
	if check != nil {
		if err := check(s); err != nil {
			r.at(v, path, "%s %v", quote(s), err)
			return
		}
	}
	*to = s
}

// gate reads a URL, a path, or an empty text for none. Messages do not repeat it, since it
// may hold a password.
func (r *reader) gate(v *yaml.Node, path string) {
	s, ok := r.scalarOrEmpty(v, path, optionalText, "!!str")
	if !ok {
		return
	}
	shown := quote(s)
	if strings.Contains(s, "@") {
		shown = "this text"
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		r.at(v, path, "%s holds a control character", shown)
		return
	}
	if err := checkGate(s); s != "" && err != nil {
		r.at(v, path, "%s %v", shown, err)
		return
	}
	r.target.Pace.Gate = s
}

func (r *reader) boolean(v *yaml.Node, path string, to *bool) {
	s, ok := r.scalar(v, path, "true or false", "!!bool")
	if !ok {
		return
	}
	b, err := parseBool(s)
	if err != nil {
		r.at(v, path, "%s %v", quote(s), err)
		return
	}
	*to = b
}

func choice[T ~string](r *reader, v *yaml.Node, path string, to *T, all ...T) {
	words := make([]string, len(all))
	for i, c := range all {
		words[i] = string(c)
	}
	s, ok := r.scalar(v, path, "one of "+strings.Join(words, ", "), "!!str")
	if !ok {
		return
	}
	if !slices.Contains(words, s) {
		r.at(v, path, "%s is not one of %s", quote(s), strings.Join(words, ", "))
		return
	}
	*to = T(s)
}

// guard reads how deletes are made conditional. For "none", which would be no check at all,
// the error names the check that is nearly free.
func (r *reader) guard(v *yaml.Node, path string) {
	if v.Value == "none" {
		r.at(v, path, "none is not supported: a sweep would delete entities that were extended since it read them. "+
			"Write auto, and single_valued: true if the property always holds one plain text, never a list, blob or map: "+
			"the check then costs one read for a page of entities")
		return
	}
	choice(r, v, path, &r.target.Guard, store.GuardAuto, store.GuardLookup, store.GuardQuery)
}

func (r *reader) integer(v *yaml.Node, path string, to *int, lowest, highest int) {
	s, ok := r.scalar(v, path, fmt.Sprintf("a whole number between %d and %d", lowest, highest), "!!int")
	if !ok {
		return
	}
	n, err := parseInt(s)
	switch {
	case err != nil:
		r.at(v, path, "%s %v", short(s), err)
	case n < int64(lowest) || n > int64(highest):
		r.at(v, path, "%s is not between %d and %d", short(s), lowest, highest)
	default:
		*to = int(n)
	}
}

func (r *reader) duration(v *yaml.Node, path string, to *time.Duration, lowest, highest time.Duration) {
	s, ok := r.scalar(v, path, "a duration, such as 15m or 7d", "!!str", "!!int", "!!float")
	if !ok {
		return
	}
	d, err := parseDuration(s)
	switch {
	case err != nil:
		r.at(v, path, "%s %v", short(s), err)
	case d < lowest && highest == maxDuration:
		r.at(v, path, "%s is less than %s", short(s), FormatDuration(lowest))
	case d < lowest || d > highest:
		r.at(v, path, "%s is not between %s and %s", short(s), FormatDuration(lowest), FormatDuration(highest))
	default:
		*to = d
	}
}

func (r *reader) rate(v *yaml.Node, path string, to *Limit[float64]) {
	s, ok := r.scalar(v, path, "a number of entities a second, or unlimited", "!!str", "!!int", "!!float")
	if !ok {
		return
	}
	if v.Tag == "!!str" {
		if s != unlimited {
			r.at(v, path, "%s is neither a number of entities a second nor the word unlimited", quote(s))
			return
		}
		*to = NoLimit[float64]()
		return
	}
	n, err := Rate(s)
	if err != nil {
		r.at(v, path, "%v", err)
		return
	}
	*to = n
}

func (r *reader) most(v *yaml.Node, path string, to *Limit[int64]) {
	s, ok := r.scalar(v, path, "a whole number, or unlimited", "!!str", "!!int")
	if !ok {
		return
	}
	if s == unlimited {
		*to = NoLimit[int64]()
		return
	}
	n, err := parseInt(s)
	switch {
	case err != nil || v.Tag == "!!str":
		r.at(v, path, "%s is neither a whole number nor the word unlimited", quote(s))
	case n < 1:
		r.at(v, path, "%s is less than 1: write unlimited for none", short(s))
	default:
		*to = AtMost(n)
	}
}

// breakerOff reads the word that stands in the place of the section's fields. A boolean is
// refused: whether it means a breaker that is open or closed must not be guessed.
func (r *reader) breakerOff(v *yaml.Node, path string) {
	if v.Tag == "!!str" && v.Value == breakerOff {
		r.target.Breaker.Off = true
		return
	}
	r.wrong(v, path, "a mapping of fields, or off")
	r.bad[breakerSection] = true
}

// fraction reads a part of all entities, as a percentage.
func (r *reader) fraction(v *yaml.Node, path string) {
	const want = "a percentage, such as 25%"
	s, ok := r.scalar(v, path, want, "!!str")
	if !ok {
		return
	}
	digits, percent := strings.CutSuffix(s, "%")
	n, err := parseNumber(digits)
	switch {
	case !percent || err != nil:
		r.at(v, path, "%s is not %s", quote(s), want)
	case n <= 0 || n > 100:
		r.at(v, path, "%s is not above 0%% and at most 100%%", short(s))
	default:
		r.target.Breaker.Fraction = n / 100
	}
}

// adoptFrom reads the rule by which entities are adopted. It is one field, because half a
// rule means nothing.
func (r *reader) adoptFrom(v *yaml.Node, path string) {
	from, problems := AdoptFrom{}, len(r.problems)
	created, plus := false, false
	known := []string{"property", "plus", "create_time"}
	ok := r.mappingOf(v, path, known, didYouMean, func(name, path string, v *yaml.Node) {
		switch name {
		case "property":
			r.text(v, path, &from.Property, checkProperty)
		case "plus":
			plus = true
			r.duration(v, path, &from.Plus, 0, maxDuration)
		case "create_time":
			from.CreateTime, created = true, true
			r.duration(v, path, &from.Plus, time.Millisecond, maxDuration)
		}
	})
	switch {
	case !ok || len(r.problems) > problems:
		return
	case created && (plus || from.Property != ""):
		r.at(v, path, "create_time is a rule of its own: write {create_time: 30d}, or {property: NAME, plus: 30d}")
		return
	case !created && from.Property == "":
		r.at(v, path, "names no value to begin with: write {property: NAME, plus: 30d} or {create_time: 30d}")
		return
	}
	r.target.Adopt.From = from
}

func (r *reader) archiveTo(v *yaml.Node, path string) {
	s, ok := r.scalarOrEmpty(v, path, optionalText, "!!str")
	if !ok {
		return
	}
	if err := checkBucket(s); s != "" && err != nil {
		r.at(v, path, "%s %v", quote(s), err)
		return
	}
	r.target.Archive.To = s
}

func (r *reader) archiveRoll(v *yaml.Node, path string) {
	r.mappingOf(v, path, []string{"size", "after"}, didYouMean, func(name, path string, v *yaml.Node) {
		if name == "size" {
			r.size(v, path, &r.target.Archive.Roll.Size, minRoll, maxRoll)
		} else {
			r.duration(v, path, &r.target.Archive.Roll.After, minRollAfter, maxRollAfter)
		}
	})
}

// size reads a number of bytes, with a unit.
func (r *reader) size(v *yaml.Node, path string, to *int64, lowest, highest int64) {
	s, ok := r.scalar(v, path, "a size, such as 16MiB", "!!str", "!!int")
	if !ok {
		return
	}
	n, err := parseSize(s)
	switch {
	case err != nil:
		r.at(v, path, "%s %v", short(s), err)
	case n < lowest || n > highest:
		r.at(v, path, "%s is not between %s and %s", short(s), formatSize(lowest), formatSize(highest))
	default:
		*to = n
	}
}

func (r *reader) adoptPercent(v *yaml.Node, path string) {
	s, ok := r.scalar(v, path, "a number above 0 and at most 100", "!!int", "!!float")
	if !ok {
		return
	}
	n, err := Percent(s)
	if err != nil {
		r.at(v, path, "%v", err)
		return
	}
	r.target.Adopt.Percent = n
}

func (r *reader) schedule(v *yaml.Node, path string) {
	s, ok := r.scalarOrEmpty(v, path, optionalText, "!!str")
	if !ok || s == "" { // none of its own
		return
	}
	sch, err := parseSchedule(s)
	if err != nil {
		r.at(v, path, "%s %v", quote(s), err)
		return
	}
	r.target.Schedule = sch
}

func (r *reader) namespaces(v *yaml.Node, path string) {
	if v.Kind == yaml.ScalarNode && v.Tag == "!!str" {
		r.at(v, path, "is %s; it must be a list: write [%s]", describe(v), quote(v.Value))
		return
	}
	if !r.sequence(v, path) {
		return
	}
	if len(v.Content) == 0 {
		r.at(v, path, `is an empty list: write [""] for the default namespace, ["*"] for all`)
		return
	}
	t := &r.target
	t.Namespaces = nil
	seen := map[string]bool{}
	for i, n := range v.Content {
		path := fmt.Sprintf("%s[%d]", path, i)
		s, ok := r.scalarOrEmpty(n, path, "a text", "!!str")
		if !ok {
			continue
		}
		if s == "*" {
			t.AllNamespaces = true
			if len(v.Content) > 1 {
				r.at(n, path, `"*" means all namespaces, so it must be the only entry`)
			}
			continue
		}
		if err := checkNamespace(s); err != nil {
			r.at(n, path, "%s %v", quote(s), err)
			continue
		}
		if seen[s] {
			r.at(n, path, "%s is listed a second time", quote(s))
			continue
		}
		seen[s] = true
		t.Namespaces = append(t.Namespaces, s)
	}
}

func (r *reader) shardValues(v *yaml.Node, path string) {
	if !r.sequence(v, path) {
		return
	}
	switch n := len(v.Content); {
	case n == 0:
		r.at(v, path, "is an empty list: write every value that the shard property has")
		return
	case n > maxShards:
		r.at(v, path, "has %d values; there may be at most %d", n, maxShards)
		return
	}
	seen := map[ShardValue]bool{}
	var first *yaml.Node
	for i, n := range v.Content {
		path := fmt.Sprintf("%s[%d]", path, i)
		var value ShardValue
		s, ok := r.scalarOrEmpty(n, path, "a text or a whole number", "!!str", "!!int")
		if !ok {
			continue
		}
		if n.Tag == "!!int" {
			number, err := parseInt(s)
			if err == nil && strconv.FormatInt(number, 10) != s {
				err = errNotInt64
			}
			if err != nil {
				r.at(n, path, "%s %v", short(s), err)
				continue
			}
			value = ShardValue{Number: number, Numeric: true}
		} else {
			if len(s) > MaxName {
				r.at(n, path, "%s has %d bytes; indexed values have at most %d", quote(s), len(s), MaxName)
				continue
			}
			value = ShardValue{Text: s}
		}
		if first == nil {
			first = n
		}
		switch {
		case n.Tag != first.Tag:
			r.at(n, path, "is %s, but the first value is %s: they must be all texts or all whole numbers",
				describe(n), describe(first))
		case seen[value]:
			r.at(n, path, "is %s a second time", describe(n))
		default:
			seen[value] = true
			r.target.ShardValues = append(r.target.ShardValues, value)
		}
	}
}
