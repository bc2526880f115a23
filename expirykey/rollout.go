package expirykey

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// rolloutBuckets is how finely a rollout divides the ids: hundredths of a per cent.
const rolloutBuckets = 10_000

// InRollout reports whether an id is among the first percent of all ids, which is how a
// change reaches a share of the entities first. The same id, salt and percent give the
// same answer in every language and at every time, and an id that is in stays in when
// the percent rises. Rollouts with different salts choose their ids independently, and
// independently of shards. Percent counts in hundredths, rounded; 0 and less is nobody,
// 100 and more is everybody. A numeric id goes by its decimal digits.
//
// docs/key-format.md defines the bucket of an id for writers in other languages.
func InRollout(id, salt string, percent float64) bool {
	// The shard's hash would not do: each share would fill some shards and leave others.
	return float64(rolloutBucket(id, salt)) < math.Floor(percent*100+0.5)
}

// rolloutBucket is the first 8 bytes of SHA-256(salt LF id), as a big-endian number,
// modulo the number of buckets.
func rolloutBucket(id, salt string) uint64 {
	sum := sha256.Sum256([]byte(salt + "\n" + id))
	return binary.BigEndian.Uint64(sum[:8]) % rolloutBuckets
}
