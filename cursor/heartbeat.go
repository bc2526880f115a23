package cursor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// HeartbeatSchema is the version of heartbeats that this program writes, and the
// newest that it reads.
const HeartbeatSchema = 2

// forgetAfter is the age, in the store's time, above which any process that reads a
// heartbeat removes it. Its own process counted its lease by a clock that is at most
// seconds away from that time.
const forgetAfter = time.Hour

// mostLease is longer than any lease that can be configured.
const mostLease = 24 * time.Hour

// A Heartbeat is the record by which one process says for one target that it is alive, and
// for how long others must assume so. It is a value.
type Heartbeat struct {
	Target string
	Owner  string // as in the leases of cursor records
	// Process tells two processes of one owner name apart: it is random.
	Process string
	Epoch   int64 // from 1; one higher whenever the process begins again to hold anything
	Count   int64 // writes since the epoch began
	// Lease is for how long the process counts as alive after this write; zero says that
	// it holds nothing and has no share of a total.
	Lease time.Duration
	// Read is an instant before the read of heartbeats on which the process's share of a
	// total rests, in the store's time: that share counts every process that existed by
	// then.
	Read    time.Time
	Begun   time.Time // when the epoch began, in the store's time
	Renewed time.Time // when it was written, in the store's time
	Claims  int64     // how many ranges the process held when it was written
	Seeks   bool      // it waits for ranges that others hold
	Version string    // of the program
	Why     string    // what this process cannot read or write, so that it deletes nothing; empty if it can
	Behind  Behind    // what it counted last behind the cursors

	Revision string // as in the store; empty for a record not saved yet
	// Seen is when this process first saw this revision, and First this epoch, on its own
	// clock.
	Seen, First time.Time
	// Invalid says what is wrong with a record that makes no sense. Its process counts
	// as alive until the record has not changed for a lease.
	Invalid error

	key string // of the record, as it was read
}

// Heartbeats are those of one target, by the keys of their records.
type Heartbeats map[string]Heartbeat

// Key returns the key of the heartbeat's record.
func (h Heartbeat) Key() string {
	if h.key != "" {
		return h.key
	}
	return HeartbeatKey(h.Target, h.Owner)
}

// HeartbeatKey returns the key of the record of one process and target: target@owner,
// both escaped.
func HeartbeatKey(target, owner string) string { return escape(target) + "@" + escape(owner) }

// isHeartbeatKey reports whether HeartbeatKey returns this key, without making that.
func isHeartbeatKey(key, target, owner string) bool {
	target, owner = escape(target), escape(owner)
	n := len(target)
	return len(key) == n+1+len(owner) && key[:n] == target && key[n] == '@' && key[n+1:] == owner
}

// LoadHeartbeats reads all heartbeats of a target, and the store's time after the first of
// them was read. Records that this process has seen before keep the instant at which it
// first saw them.
func LoadHeartbeats(
	ctx context.Context, s store.Loader, target string, seenBefore Heartbeats, now func() time.Time,
) (Heartbeats, time.Time, error) {
	var at time.Time
	all := Heartbeats{}
	q := store.RecordQuery{Sort: store.WorkerRecord, Target: target}
	err := store.LoadAll(ctx, s, q, func(got store.Records) error {
		if at.IsZero() {
			at = got.Now
		}
		return all.add(got, seenBefore, now())
	})
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("load heartbeats of %s: %w", target, err)
	}
	return all, at, nil
}

func (all Heartbeats) add(got store.Records, seenBefore Heartbeats, seen time.Time) error {
	for _, rec := range got.List {
		h, err := decodeHeartbeat(rec)
		if err != nil {
			return err
		}
		h.Seen, h.First = seen, seen
		if old, ok := seenBefore[rec.Key]; ok && old.Epoch == h.Epoch {
			h.First = old.First
			if old.Revision == h.Revision {
				h.Seen = old.Seen
			}
		}
		all[rec.Key] = h
	}
	return nil
}

// IsDead reports whether a heartbeat has stayed unchanged for its lease plus longer. Sent
// is an instant of this process's own clock, not after the last read was sent. If the
// heartbeat's process wakes up, it joins again.
func (h Heartbeat) IsDead(sent time.Time, lease, longer time.Duration) bool {
	return h.Lease > 0 && sent.Sub(h.Seen) >= max(lease, h.Lease)+longer
}

// IsForgotten reports whether a heartbeat is so old that its record is removed: by the
// store's time, or by this process's own clock if it makes no sense.
func (h Heartbeat) IsForgotten(stored, local time.Time) bool {
	if h.Invalid != nil {
		return local.Sub(h.Seen) > forgetAfter
	}
	// After an hour of sleep, a process writes by a clock that has not been set again yet.
	return stored.Sub(h.Renewed) > forgetAfter+h.Lease && local.Sub(h.Seen) >= h.Lease
}

// IsOfThisOpening reports whether a lease or a heartbeat of that owner can be valid: in an
// exclusive store those of other openings are void.
func (k *Keeper) IsOfThisOpening(owner string) bool { return strings.HasPrefix(owner, k.Opening) }

// Alive returns the heartbeats that are not void.
func (k *Keeper) Alive(all Heartbeats) Heartbeats {
	alive := make(Heartbeats, len(all))
	for key, h := range all {
		if k.IsOfThisOpening(h.Owner) {
			alive[key] = h
		}
	}
	return alive
}

// ForgetHeartbeat removes the record of a dead process, unless it has changed since it was
// read.
func (k *Keeper) ForgetHeartbeat(ctx context.Context, h Heartbeat) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	err := k.Store.Save(ctx, store.Record{Sort: store.WorkerRecord, Key: h.Key(), Target: h.Target,
		Revision: store.NewRevision(h.Revision)}, h.Revision)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return fmt.Errorf("remove heartbeat %s: %w", h.Key(), err)
	}
	return nil
}

func (h Heartbeat) encode() store.Record {
	rec := store.Record{
		Sort: store.WorkerRecord, Key: h.Key(), Target: h.Target, Revision: h.Revision,
		Fields: store.Fields{
			"schema":   int64(HeartbeatSchema),
			"owner":    h.Owner,
			"process":  h.Process,
			"epoch":    h.Epoch,
			"count":    h.Count,
			"lease_ms": h.Lease.Milliseconds(),
			"read":     store.FormatTime(h.Read),
			"begun":    store.FormatTime(h.Begun),
			"renewed":  store.FormatTime(h.Renewed),
			"claims":   h.Claims,
			"seeks":    h.Seeks,
			"version":  h.Version,
			"why":      h.Why,
		},
	}
	h.Behind.encode(rec.Fields)
	return rec
}

// decodeHeartbeat fails only for a record of a newer program. A record that makes no sense
// must neither stop all processes nor count as no process at all.
func decodeHeartbeat(rec store.Record) (Heartbeat, error) {
	key := strconv.Quote(rec.Key)
	f := rec.Fields.Reader("heartbeat " + string(rec.Sort) + " " + key)
	if err := f.Schema(HeartbeatSchema, "heartbeat "+key, ErrNewer); err != nil {
		return Heartbeat{}, err
	}
	h := Heartbeat{
		Target:   rec.Target,
		Owner:    f.Text("owner"),
		Process:  f.Text("process"),
		Epoch:    number(f, "epoch", math.MaxInt64-1),
		Count:    number(f, "count", math.MaxInt64),
		Lease:    millis(f, "lease_ms"),
		Read:     f.Time("read"),
		Begun:    f.Time("begun"),
		Renewed:  f.Time("renewed"),
		Claims:   number(f, "claims", math.MaxInt64),
		Seeks:    f.Bool("seeks"),
		Version:  f.Text("version"),
		Why:      f.Text("why"),
		Behind:   readBehind(f),
		Revision: rec.Revision,
	}
	if h.Epoch < 1 {
		f.Fail("epoch", "%d is not an epoch: they begin with 1", h.Epoch)
	}
	if h.Lease > mostLease {
		f.Fail("lease_ms", "%v is longer than any lease", h.Lease)
	}
	h.Invalid = f.Err()
	if h.Invalid == nil && h.Key() != rec.Key {
		h.Invalid = fmt.Errorf("heartbeat %q says that it belongs to %q", rec.Key, h.Key())
	}
	if h.Invalid != nil {
		h = Heartbeat{Target: rec.Target, Owner: h.Owner, Revision: rec.Revision, Invalid: h.Invalid}
	}
	h.key = rec.Key
	return h, nil
}
