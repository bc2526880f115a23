package restore

import "testing"

// SetMostCopies lets one restore choose from no more archived copies than n, until the end of a test.
func SetMostCopies(t *testing.T, n int) {
	before := mostCopies
	t.Cleanup(func() { mostCopies = before })
	mostCopies = n
}
