package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// followPart is the number of the part that stands for the index of the rule's property: the
// process that follows it holds that part. Its After is the last value that was met.
const followPart = maxParts

// A progress is the record of one part.
type progress struct {
	target   string
	part     int
	reading  time.Time // of the record; anything else is left from another reading
	after    string    // everything up to this key was read and disposed of
	done     bool
	kept     int64  // keys that undo could not remove
	owner    string // empty if nobody holds it
	token    int64  // rises with each claim
	scanned  int64  // in this round, by all who held the part
	stamped  int64
	left     int64 // without a key, though the rule gives one
	mismatch int64 // with a key that disagrees with the rule
	revision string
}

// partKey returns the key of a part's record. The target's own record sorts before them.
func partKey(target string, part int) string { return fmt.Sprintf("%s.%05d", target, part) }

func (p progress) encode() store.Record {
	return store.Record{Sort: store.AdoptRecord, Key: partKey(p.target, p.part), Target: p.target, Revision: p.revision,
		Fields: store.Fields{
			"schema": int64(Schema), "part": int64(p.part), "reading": store.FormatTime(p.reading), "after": p.after,
			"done": p.done, "kept": p.kept, "owner": p.owner, "token": p.token, "scanned": p.scanned, "stamped": p.stamped,
			"unstamped": p.left, "mismatch": p.mismatch,
		}}
}

func decodeProgress(rec store.Record) (progress, error) {
	what := fmt.Sprintf("adoption record %s %q", rec.Sort, rec.Key)
	f := rec.Fields.Reader(what)
	if err := f.Schema(Schema, what, ErrNewer); err != nil {
		return progress{}, err
	}
	p := progress{target: rec.Target, part: int(f.Int("part")), reading: f.Time("reading"), after: f.Text("after"),
		done: f.Bool("done"), kept: f.Int("kept"), owner: f.Text("owner"), token: f.Int("token"), scanned: f.Int("scanned"),
		stamped: f.Int("stamped"), left: f.Int("unstamped"), mismatch: f.Int("mismatch"), revision: rec.Revision}
	if p.part < 0 || p.part > followPart || partKey(p.target, p.part) != rec.Key {
		f.Fail("part", "%d does not belong to this key", p.part)
	}
	return p, f.Err()
}

// loadParts reads the records of the parts of a record's reading, and with the same read
// the record as it is now; nil if it is gone. A part without a record, or with that of an
// earlier reading, has not been begun.
func loadParts(ctx context.Context, s store.Loader, r Record) (parts []progress, now *Record, err error) {
	parts = make([]progress, len(r.Parts))
	for i := range parts {
		parts[i] = progress{target: r.Target, part: i, reading: r.Reading, after: r.after(i)}
	}
	keys := make([]string, len(parts), len(parts)+1)
	for i := range keys {
		keys[i] = partKey(r.Target, i)
	}
	got, err := loadKeys(ctx, s, r.Target, append(keys, r.Target))
	if err != nil {
		return nil, nil, fmt.Errorf("load adoption records of %s: %w", r.Target, err)
	}
	for _, rec := range got.List {
		if rec.Key == r.Target {
			one, err := decode(rec)
			if err != nil {
				return nil, nil, err
			}
			now = &one
			continue
		}
		p, err := decodeProgress(rec)
		if err != nil {
			return nil, nil, err
		}
		if !p.reading.Equal(r.Reading) { // token and revision go on
			parts[p.part].token, parts[p.part].revision = p.token, p.revision
			continue
		}
		parts[p.part] = p
	}
	return parts, now, nil
}

// unfinished reports whether a part of a record's reading was not read to its end.
func unfinished(ctx context.Context, s store.Loader, rec Record) (bool, error) {
	parts, _, err := loadParts(ctx, s, rec)
	return slices.ContainsFunc(parts, func(p progress) bool { return !p.done }), err
}

// loadFollow reads the record of the process that follows a record's reading. It begins where that
// reading began: its last round may have begun days later, if somebody went on with it then.
func loadFollow(ctx context.Context, s store.Loader, rec Record) (progress, error) {
	p := progress{target: rec.Target, part: followPart, reading: rec.Reading, after: store.FormatTime(rec.Reading)}
	is, exists, err := loadFollower(ctx, s, rec.Target)
	if err != nil || !exists {
		return p, err
	}
	if !is.reading.Equal(rec.Reading) { // the new round has read all that came before it
		p.token, p.revision = is.token, is.revision
		return p, nil
	}
	return is, nil
}

// loadFollower reads the record of the process that follows the index of a target, be it for an earlier reading.
func loadFollower(ctx context.Context, s store.Loader, target string) (p progress, exists bool, err error) {
	got, err := loadKeys(ctx, s, target, []string{partKey(target, followPart)})
	if err != nil {
		return p, false, fmt.Errorf("load adoption records of %s: %w", target, err)
	}
	if len(got.List) == 0 {
		return p, false, nil
	}
	p, err = decodeProgress(got.List[0])
	return p, err == nil, err
}

// loadKeys reads records by their keys. It repeats a read that fails for a moment: a run of many
// hours must not end by that.
func loadKeys(ctx context.Context, s store.Loader, target string, keys []string) (got store.Records, err error) {
	err = store.Retry(ctx, savePatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, saveTimeout)
		defer cancel()
		got, err = s.Load(ctx, store.RecordQuery{Sort: store.AdoptRecord, Target: target, Keys: keys})
		return err
	})
	return got, err
}

// forget removes all records of a target's adoption: those of the parts first, so that a
// crash leaves a record by which it can be repeated. Another process may do the same.
func forget(ctx context.Context, s store.Store, r Record) error {
	keys := make([]string, followPart+1)
	for i := range keys {
		keys[i] = partKey(r.Target, i)
	}
	got, err := loadKeys(ctx, s, r.Target, keys)
	for _, rec := range append(got.List, r.encode()) {
		if err != nil {
			break
		}
		prev := rec.Revision
		rec.Fields, rec.Revision = nil, store.NewRevision(prev) // its own revision would look like a repeat
		if err = saveRecord(ctx, s, rec, prev); errors.Is(err, store.ErrConflict) {
			now, _, exists, loadErr := Load(ctx, s, r.Target)
			if err = errors.Join(err, loadErr); loadErr == nil && (!exists || now.Phase == Undoing) {
				err = nil // the other one removes what is left
			}
		}
	}
	if err != nil {
		return fmt.Errorf("remove adoption records of %s: %w", r.Target, err)
	}
	return nil
}

// A sighting is when a revision of a part's record was seen first, on the own clock.
type sighting struct {
	revision string
	at       time.Time
}

// Sightings are the last ones of some parts.
type sightings map[int]sighting

// unchanged returns for how long a part has been seen with the revision that it has now.
func (s sightings) unchanged(p progress, now time.Time) time.Duration {
	if was, ok := s[p.part]; !ok || was.revision != p.revision {
		s[p.part] = sighting{p.revision, now}
	}
	return now.Sub(s[p.part].at)
}
