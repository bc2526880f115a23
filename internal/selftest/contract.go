package selftest

import (
	"strings"
	"unicode"

	"github.com/reaper-ttl/reaper/store/storetest"
)

// contractChecks are the cases of the suite that every driver must pass: those that other
// checks may follow, and those that come after all others.
func contractChecks(caps storetest.Caps) (list, last []check) {
	var fresh []check
	for _, c := range storetest.Cases(caps) {
		if c.NotFor == storetest.NoDescendants || c.NotFor == storetest.NoArchive {
			continue // a fence has no way to write descendants, and shows no whole entities: the suite's own tests run these
		}
		one := check{name: c.Name, group: Contract, what: sentence(c.Name), why: c.NotFor,
			test: func(b *bench) { c.Run(b.tb, b.db) }}
		switch {
		case c.Last:
			last = append(last, one)
		case c.Fresh:
			fresh = append(fresh, one)
		default:
			list = append(list, one)
		}
	}
	return append(fresh, list...), last
}

// sentence turns the name of a case into words: DisposeFindsGone is "Dispose finds gone".
func sentence(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) && !(name[i-1] >= 'A' && name[i-1] <= 'Z') {
			b.WriteByte(' ')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}
