package store

import (
	"crypto/rand"
	"strconv"
	"strings"
)

// NewRevision returns a revision to follow prev: a count, which a reader can
// follow, and a random part, so that no two writers ever choose the same.
func NewRevision(prev string) string {
	// A foreign text counts as zero; the random part still tells revisions apart.
	return strconv.FormatInt(RevisionCount(prev)+1, 10) + "-" + rand.Text()[:12]
}

// RevisionCount returns how many revisions of a record there were up to this one.
// It is 0 for a text that holds no count: that is older than any.
func RevisionCount(revision string) int64 {
	count, _, _ := strings.Cut(revision, "-")
	n, _ := strconv.ParseInt(count, 10, 64)
	return n
}
