package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Names sort by time: TARGET/2026/11/26/182604.123-0123abcd-0007.ndjson.zst, and its manifest right before it:
// '.' and 'd' are before '.' and 'n'.
const (
	objectSuffix   = ".ndjson.zst"
	manifestSuffix = ".done.ndjson.zst"
	nameLayout     = "2006/01/02/150405.000"
)

var (
	objectName = regexp.MustCompile(`^([^/]+)/(\d{4}/\d\d/\d\d/\d{6}\.\d{3})-[0-9a-f]+-\d+(\.done)?\.ndjson\.zst$`)
	targetName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`) // one element of a path
)

// nameOf returns the name of an object: that of a process's seq-th, which was begun at an instant.
func nameOf(target, owner string, at time.Time, seq int) string {
	return fmt.Sprintf("%s/%s-%s-%04d%s", target, at.UTC().Format(nameLayout), ownerHash(owner), seq, objectSuffix)
}

// ownerHash stands for a process in names. Two that have the same are kept apart by Create.
func ownerHash(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:4])
}

// manifestOf returns the name of the manifest of an object.
func manifestOf(object string) string {
	return strings.TrimSuffix(object, objectSuffix) + manifestSuffix
}

// parsed is what the name of an object or a manifest says.
type parsed struct {
	target   string
	at       time.Time
	object   string // the name of the object, also if this is its manifest's
	manifest bool
}

// parseName reads the name of an object or a manifest. Other objects, such as probes, have other names.
func parseName(name string) (p parsed, ok bool) {
	m := objectName.FindStringSubmatch(name)
	if m == nil {
		return p, false
	}
	at, err := time.Parse(nameLayout, m[2])
	if err != nil {
		return p, false
	}
	p = parsed{target: m[1], at: at, object: name, manifest: m[3] != ""}
	if p.manifest {
		p.object = strings.TrimSuffix(name, manifestSuffix) + objectSuffix
	}
	return p, true
}
