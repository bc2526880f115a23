// Package expirykey encodes when an entity expires as one indexed string of
// fixed width, so that string order is the order of (generation, shard,
// expires) and one range of strings holds one shard of one generation.
//
//	00000042.0007.20261121T000730.855Z
//	generation . shard . expires (UTC, milliseconds, rounded up)
//
// The invariant is that for any two keys a and b, a.String() < b.String()
// exactly where (a.Generation, a.Shard, a.Expires) < (b.Generation, b.Shard,
// b.Expires). Parsing is strict: what was not printed by [Key.String] is
// refused, for an entity is never deleted on the strength of a guess.
//
// Limits: generations 0 to [MaxGeneration], shards 0 to [MaxShard], years 1 to
// 9999. docs/key-format.md describes the format for writers in other languages,
// and docs/key-vectors.json holds test vectors for them.
package expirykey

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"time"
)

const (
	// Len is the length of every expiry key in bytes.
	Len = 34
	// MaxGeneration is the largest generation that eight digits hold.
	MaxGeneration = 99_999_999
	// MaxShard is the largest shard that four digits hold. Shard counts go to
	// [MaxShards], so a well-behaved writer never uses this last one.
	MaxShard = 9_999
	// MaxShards is the largest number of shards a generation may have.
	MaxShards = 9_999
	// Nursery is the generation that always exists, is never sealed, and that
	// a writer stamps when it cannot know a later one.
	Nursery = 0
)

// ErrMalformed is wrapped by every error of [Parse].
var ErrMalformed = errors.New("malformed expiry key")

// A Key is the decoded form of an expiry key.
type Key struct {
	Generation int       // 0 to MaxGeneration; 0 is the nursery
	Shard      int       // 0 to MaxShard
	Expires    time.Time // UTC, whole milliseconds, years 1 to 9999
}

// New returns the key of an entity that expires at the given instant. The
// instant is rounded up to a millisecond, so that nothing expires early. It is
// an error if any part does not fit the format.
func New(generation, shard int, expires time.Time) (Key, error) {
	if generation < 0 || generation > MaxGeneration {
		return Key{}, fmt.Errorf("expiry key: generation %d is not between 0 and %d", generation, MaxGeneration)
	}
	if shard < 0 || shard > MaxShard {
		return Key{}, fmt.Errorf("expiry key: shard %d is not between 0 and %d", shard, MaxShard)
	}
	at := ceil(expires)
	if y := at.Year(); y < 1 || y > 9999 {
		return Key{}, fmt.Errorf("expiry key: year %d is not between 1 and 9999", y)
	}
	return Key{generation, shard, at}, nil
}

// ceil rounds up to a whole millisecond, in UTC and without a monotonic clock.
func ceil(t time.Time) time.Time {
	t = t.Round(0).UTC()
	down := t.Truncate(time.Millisecond)
	if down.Equal(t) {
		return t
	}
	return down.Add(time.Millisecond)
}

// String returns the 34 bytes of the key. The key must come from [New] or
// [Parse].
func (k Key) String() string {
	var buf [Len]byte
	return string(k.Append(buf[:0]))
}

// Append appends the 34 bytes of the key to dst and allocates nothing where
// dst has room for them.
func (k Key) Append(dst []byte) []byte {
	dst = appendPrefix(dst, k.Generation, k.Shard)
	at := k.Expires.UTC()
	year, month, day := at.Date()
	hour, minute, second := at.Clock()
	// AppendFormat would need room for nanoseconds, which it then cuts off.
	dst = appendDigits(append(dst, '.'), year, 4)
	dst = appendDigits(dst, int(month), 2)
	dst = appendDigits(dst, day, 2)
	dst = appendDigits(append(dst, 'T'), hour, 2)
	dst = appendDigits(dst, minute, 2)
	dst = appendDigits(dst, second, 2)
	dst = appendDigits(append(dst, '.'), at.Nanosecond()/int(time.Millisecond), 3)
	return append(dst, 'Z')
}

func appendPrefix(dst []byte, generation, shard int) []byte {
	dst = appendDigits(dst, generation, 8)
	dst = append(dst, '.')
	return appendDigits(dst, shard, 4)
}

func appendDigits(dst []byte, n, width int) []byte {
	at := len(dst)
	for range width {
		dst = append(dst, '0')
	}
	for i := at + width - 1; n > 0 && i >= at; i-- {
		dst[i] = byte('0' + n%10)
		n /= 10
	}
	return dst
}

// Parse decodes an expiry key. It accepts exactly the strings that
// [Key.String] prints; every other one is an error that wraps [ErrMalformed]
// and names the part at fault. It allocates nothing on success.
func Parse(s string) (Key, error) {
	if len(s) != Len {
		return Key{}, malformed(s, fmt.Sprintf("it has %d bytes, not %d", len(s), Len))
	}
	if s[8] != '.' || s[13] != '.' || s[22] != 'T' || s[29] != '.' || s[33] != 'Z' {
		return Key{}, malformed(s, "a separator is missing: it should look like 00000042.0007.20261121T000730.855Z")
	}
	generation, ok1 := digits(s[0:8])
	shard, ok2 := digits(s[9:13])
	if !ok1 || !ok2 {
		return Key{}, malformed(s, "generation and shard are decimal digits")
	}
	at, fault := instant(s[14:33])
	if fault != "" {
		return Key{}, malformed(s, fault)
	}
	return Key{generation, shard, at}, nil
}

// instant decodes 20261121T000730.855, whose separators are there, or says what
// is wrong with it.
func instant(s string) (at time.Time, fault string) {
	year, ok1 := digits(s[0:4])
	month, ok2 := digits(s[4:6])
	day, ok3 := digits(s[6:8])
	hour, ok4 := digits(s[9:11])
	minute, ok5 := digits(s[11:13])
	second, ok6 := digits(s[13:15])
	milli, ok7 := digits(s[16:19])
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || !ok7 {
		return time.Time{}, "the instant is decimal digits"
	}
	if year < 1 || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, "the instant does not exist"
	}
	at = time.Date(year, time.Month(month), day, hour, minute, second, milli*int(time.Millisecond), time.UTC)
	if at.Month() != time.Month(month) || at.Day() != day { // time.Date normalises 30 February
		return time.Time{}, "the date does not exist"
	}
	return at, ""
}

func malformed(s, why string) error {
	const most = 80 // enough to recognise it; a value may be 1,500 bytes long
	if len(s) > most {
		s = s[:most] + "…"
	}
	return fmt.Errorf("%w %q: %s", ErrMalformed, s, why)
}

func digits(s string) (n int, ok bool) {
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

// Prefix returns "G.S.", with which every key of the shard begins.
func Prefix(generation, shard int) string {
	return string(appendPrefix(nil, generation, shard)) + "."
}

// Range returns the bounds [lo, hi) of the keys of one shard of a generation:
// "G.S." and "G.S/", for '/' follows '.' in ASCII.
func Range(generation, shard int) (lo, hi string) {
	var buf [Len]byte
	lo = string(append(appendPrefix(buf[:0], generation, shard), '.'))
	hi = string(append(appendPrefix(buf[:0], generation, shard), '/'))
	return lo, hi
}

// GenerationRange returns the bounds [lo, hi) of all keys of a generation.
func GenerationRange(generation int) (lo, hi string) {
	p := string(appendDigits(nil, generation, 8))
	return p + ".", p + "/"
}

// UpTo returns the last key of the shard that expires at or before the given
// instant; ok is false where there can be none. Years after 9999 count as the
// end of 9999.
func UpTo(generation, shard int, instant time.Time) (last string, ok bool) {
	at := instant.Round(0).UTC()
	switch y := at.Year(); {
	case y < 1:
		return "", false
	case y > 9999:
		at = time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC)
	}
	return Key{generation, shard, at.Truncate(time.Millisecond)}.String(), true
}

// NextShard returns the lowest shard of the generation whose whole range lies
// after the value s; ok is false if no such shard exists. A probe that met s uses
// it to skip the values between two ranges.
func NextShard(generation int, s string) (shard int, ok bool) {
	shard = sort.Search(MaxShard+1, func(i int) bool { return Prefix(generation, i) > s })
	return shard, shard <= MaxShard
}

// GenerationOf returns the generation in whose range the value s lies, whether or
// not s is a whole key, and the lowest generation whose range lies after s. Within is
// false if s lies between two ranges, and next is MaxGeneration+1 if none follows. A
// probe that met s uses it to step over the rest of the generation.
func GenerationOf(s string) (generation, next int, within bool) {
	next = sort.Search(MaxGeneration+1, func(i int) bool {
		lo, _ := GenerationRange(i)
		return lo > s
	})
	if next == 0 {
		return 0, 0, false
	}
	_, hi := GenerationRange(next - 1)
	return next - 1, next, s < hi
}

// ShardOfName returns the shard of an entity whose key ends in a name, in a
// generation of n shards: FNV-1a (32 bit) over the name's UTF-8 bytes, modulo
// n. A hash makes stamping repeatable. It panics where n is not positive.
func ShardOfName(name string, n int) int {
	h := fnv32
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * prime32
	}
	return int(h % uint32(n))
}

// ShardOfNumber is [ShardOfName] over the decimal digits of a numeric id.
func ShardOfNumber(id int64, n int) int {
	var buf [20]byte
	h := fnv32
	for _, c := range strconv.AppendInt(buf[:0], id, 10) {
		h = (h ^ uint32(c)) * prime32
	}
	return int(h % uint32(n))
}

// The parameters of 32-bit FNV-1a (RFC 9923); hash/fnv has them unexported and
// would cost an allocation for each hash.
const (
	fnv32   uint32 = 2166136261
	prime32 uint32 = 16777619
)
