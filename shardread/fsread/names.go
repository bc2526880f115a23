package fsread

import (
	"cmp"
	"strconv"
	"strings"
)

// compareNames orders document names as Firestore does: segment by segment,
// ids that are numbers (__id7__) by value and before all others, which go by
// their bytes. The client's own comparison does not know about numbers.
func compareNames(a, b string) int {
	for a != "" && b != "" {
		var s, t string
		s, a, _ = strings.Cut(a, "/")
		t, b, _ = strings.Cut(b, "/")
		if s == t {
			continue
		}
		m, mOK := number(s)
		n, nOK := number(t)
		switch {
		case mOK && nOK:
			return cmp.Compare(m, n)
		case mOK:
			return -1
		case nOK:
			return 1
		}
		return strings.Compare(s, t)
	}
	return cmp.Compare(len(a), len(b)) // a parent comes before its descendants
}

func number(segment string) (int64, bool) {
	digits, ok := strings.CutPrefix(segment, "__id")
	if !ok {
		return 0, false
	}
	if digits, ok = strings.CutSuffix(digits, "__"); !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil
}
