package restore

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// expiryFrom returns when an entity expires after a restore that began at an instant; has is false if it never does, or
// has no expiry of the target's: what lies below one has none.
func (j *job) expiryFrom(began time.Time, namespace string, c store.Copy) (at time.Time, has bool) {
	e := j.Expiry
	was, had := j.expiry(c)
	switch {
	case !had || e.Never:
		return at, false
	case e.Keep:
		return was, true
	}
	return began.Add(e.In + time.Duration(part(j.Target.Name, namespace, c.Key)*float64(e.Spread))).UTC().
		Truncate(time.Millisecond), true
}

// part returns a number in [0, 1] for an entity, evenly spread. It is not the hash of shards.
func part(target, namespace, key string) float64 {
	sum := sha256.Sum256([]byte("restore " + target + "\n" + namespace + "\n" + key))
	return float64(binary.BigEndian.Uint64(sum[:8])) / math.MaxUint64
}

// expiresOf returns when an entity with this value in its expiry property expires. It goes by the value and not by
// the layout, which may be another one by now.
func expiresOf(v store.Value) (at time.Time, ok bool) {
	switch v.Type {
	case store.Instant:
		return v.Time, true
	case store.Text:
		key, err := expirykey.Parse(v.Text)
		return key.Expires, err == nil
	}
	return at, false
}

// value returns the value that says when an item expires, stamped as its writer would.
func (r *run) value(one item) (store.Value, error) {
	if !one.expires {
		return store.Value{}, nil
	}
	return r.job.Target.Layout.Form().Value(one.at, func(at time.Time) (expirykey.Key, error) {
		id, err := r.job.keyer.ID(one.Key)
		if err != nil {
			return expirykey.Key{}, err
		}
		return r.switches.StamperFor(id).Name(id, at)
	})
}

// numberOf returns the number that an id may stand for; 0 if it stands for none.
func numberOf(id string) int64 {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != id {
		return 0
	}
	return n
}
