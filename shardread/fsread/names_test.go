package fsread

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// FuzzCompareNames: names have one order, in which a document comes before what
// lies below it and numbers before all else.
func FuzzCompareNames(f *testing.F) {
	f.Add("c/__id9__", "c/__id10__", "c/a")
	f.Add("c/__id7__", "c/__id07__", "c/__id007__")
	f.Add("c/a", "c/a/d/b", "c/a\x00")
	f.Add("c/__id-9223372036854775808__", "c/__id99999999999999999999__", "c/__id__")
	f.Add("", "/", "//")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		all := []string{a, b, c}
		for _, x := range all {
			if strings.HasSuffix(x, "/") || strings.HasPrefix(x, "/") || strings.Contains(x, "//") {
				return // no document's name
			}
			for segment := range strings.SplitSeq(x, "/") {
				if n, ok := number(segment); ok && segment != fmt.Sprintf("__id%d__", n) {
					return // as reserved as __x__ is
				}
			}
		}
		for _, x := range all {
			for _, y := range all {
				if got := compareNames(x, y); got != -compareNames(y, x) || (got == 0) != (x == y) {
					t.Errorf("%q against %q: %d, and back %d", x, y, got, compareNames(y, x))
				}
				if x != "" && strings.HasPrefix(y, x+"/") && compareNames(x, y) >= 0 {
					t.Errorf("%q is not before %q", x, y)
				}
			}
		}
		slices.SortFunc(all, compareNames)
		if compareNames(all[0], all[2]) > 0 {
			t.Errorf("%q is no order", all)
		}
	})
}
