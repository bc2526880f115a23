package config

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxName is the most bytes that the stores take for a name.
const MaxName = 1500

var (
	targetName    = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	namespaceName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
	reserved      = regexp.MustCompile(`(?s)^__.*__$`)
)

// checkName checks a name by the rules that the stores share: UTF-8, 1 to
// 1,500 bytes, no slash, not "." or "..", not __.*__, no control characters.
func checkName(s string) error {
	switch {
	case s == "":
		return errEmpty
	case len(s) > MaxName:
		return fmt.Errorf("has %d bytes; names have at most %d", len(s), MaxName)
	case !utf8.ValidString(s):
		return errors.New("is not UTF-8")
	case strings.Contains(s, "/"):
		return errors.New("holds a slash")
	case s == "." || s == "..":
		return errors.New("is a name that the stores do not allow")
	case reserved.MatchString(s):
		return errors.New("begins and ends with two underscores: the stores reserve such names")
	case strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("holds a control character")
	}
	return nil
}

// checkProperty checks a property name by checkName's rules, and those of query languages
// and field paths.
func checkProperty(s string) error {
	if err := checkName(s); err != nil {
		return err
	}
	switch at := strings.IndexAny(s, ".[]*`"); {
	case at >= 0 && s[at] == '.':
		return errors.New("holds '.', which no property name may: a nested property cannot be used")
	case at >= 0:
		return fmt.Errorf("holds %q, which no property name may", s[at])
	}
	return nil
}

// PropertyName checks the name of a property, as the targets file does.
func PropertyName(s string) error {
	if err := checkProperty(s); err != nil {
		return fmt.Errorf("%s %w", quote(s), err)
	}
	return nil
}

// checkNamespace checks a namespace by Datastore's rules. The empty one is the default
// namespace.
func checkNamespace(s string) error {
	switch {
	case s == "":
		return nil
	case reserved.MatchString(s):
		return errors.New("begins and ends with two underscores: the stores reserve such names")
	case !namespaceName.MatchString(s):
		return errors.New("is not a valid namespace: write 1 to 100 ASCII letters, digits, points, underscores and hyphens")
	}
	return nil
}

// checkGate checks that a gate has one of its two forms. Any other text would be the name of
// a file that does not exist, and a missing file is an open gate.
func checkGate(s string) error {
	if strings.HasPrefix(s, "/") || strings.HasPrefix(s, "./") {
		return nil
	}
	u, err := url.Parse(s)
	if err == nil && u.Hostname() != "" && (strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://")) {
		return nil
	}
	return errors.New("is not a valid gate: write an http:// or https:// URL, " +
		"or the path of a file that begins with / or ./")
}

// checkBucket checks the URL of a bucket.
func checkBucket(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil, strings.ContainsFunc(s, unicode.IsControl):
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
	case u.Scheme == "file" && u.Host == "" && len(u.Path) > 1, u.Scheme == "gs" && u.Host != "":
		return nil
	}
	return errors.New("is not a valid place: write file:///directory or gs://bucket/prefix")
}

// checkKind checks a target's kind by the rules of its store. If the store is not known, a
// path of any length passes.
func checkKind(s string, d Driver, group bool) error {
	if d != Firestore && d != "" {
		return checkName(s)
	}
	if !strings.Contains(s, "/") {
		return checkName(s)
	}
	if group {
		return errors.New("holds a slash: a collection group is named by its last segment alone")
	}
	segments := strings.Split(s, "/")
	for i, segment := range segments {
		if err := checkName(segment); err != nil {
			return fmt.Errorf("has a segment %d that %w", i+1, err)
		}
	}
	if d == Firestore && len(segments)%2 == 0 {
		return fmt.Errorf("has %d segments, so it is the path of a document: a collection's has an odd number", len(segments))
	}
	return nil
}
