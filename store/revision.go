package store

import (
	"crypto/rand"
	"strconv"
	"strings"
)

// NewRevision returns a revision to follow prev: a count, which a reader can
// follow, and a random part, so that no two writers ever choose the same.
func NewRevision(prev string) string {
	count, _, _ := strings.Cut(prev, "-")
	n, _ := strconv.ParseInt(count, 10, 64) // a foreign text counts as zero; the random part still tells them apart
	return strconv.FormatInt(n+1, 10) + "-" + rand.Text()[:12]
}
