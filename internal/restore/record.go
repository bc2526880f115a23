package restore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// Schema is the version of the record that this program writes, and the newest that it reads.
const Schema = 1

// ErrNewer is wrapped by the error for a record of a newer program.
var ErrNewer = store.WithHint(errors.New("the restore record was written by a newer reaper"), "update this one")

// A place is how far a restore has come: everything before it is done.
type place struct {
	depth  int
	at     time.Time // when the object was begun
	object string
	line   int // of the last entity that is done

	exist, restored, verified, vanished, stripped, refused, notFound int64

	plan string // the fingerprint of the plan in which this is a place
}

// isAhead reports whether a line was not done before.
func (p place) isAhead(depth int, o *object, line int) bool {
	switch {
	case depth != p.depth:
		return depth > p.depth
	case !o.At.Equal(p.at):
		return o.At.After(p.at)
	case o.Name != p.object:
		return o.Name > p.object
	}
	return line > p.line
}

// A record is that of the last restore of a target.
type record struct {
	target       string
	order        string // in words
	since, until time.Time
	began        time.Time // in the store's time
	actor        string
	reason       string
	owner        string // the process that goes on with it; empty if none does
	token        int64  // rises with each claim
	done         bool
	lines        int64  // of the selection, in the plan that had the most
	revision     string // as in the store; empty for a record not saved yet

	place
}

// isUnfinished reports whether there is a restore that was not finished. One that was killed while it made its plan has
// inserted nothing, and left nothing to finish.
func (r record) isUnfinished() bool { return r.revision != "" && !r.done && r.plan != "" }

// resumes reports whether a job goes on with this restore.
func (r record) resumes(j *job) bool { return r.isUnfinished() && r.order == j.Order && !j.Abandon }

// isGivenUp reports whether a job gives up this restore.
func (r record) isGivenUp(j *job) bool { return r.isUnfinished() && !r.resumes(j) }

// blocks returns an error if a job would give up this restore, and was not told to.
func (r record) blocks(j *job) error {
	if !r.isGivenUp(j) || j.Abandon {
		return nil
	}
	return fmt.Errorf("target %s: %w: that of %s since %s (%s); entities restored so far %d", r.target, ErrUnfinished,
		r.actor, r.began.Format(time.RFC3339), r.order, r.restored)
}

// next returns the record of the restore of a job: of this one, or of one that begins now, in the store's time.
func (r record) next(j *job, now time.Time) record {
	if r.resumes(j) {
		return r
	}
	began := now.UTC().Truncate(time.Microsecond)
	// What is archived from now on is not part of it. The clock of what archived the last ones may have been ahead.
	latest, until := began.Add(j.Target.MaxClockSkew), j.Pick.Until
	if until.IsZero() || until.After(latest) {
		until = latest
	}
	return record{target: r.target, order: j.Order, since: j.Pick.Since, until: until, began: began, token: r.token,
		revision: r.revision}
}

func loadRecord(ctx context.Context, s store.Loader, target string) (r record, now time.Time, err error) {
	err = store.Retry(ctx, patience, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		got, err := s.Load(ctx, store.RecordQuery{Sort: store.RestoreRecord, Target: target, Keys: []string{target}})
		if err != nil {
			return err
		}
		r, now = record{target: target}, got.Now
		if len(got.List) > 0 {
			r, err = decode(got.List[0])
		}
		return err
	})
	if err != nil {
		return r, now, fmt.Errorf("load restore record %s: %w", target, err)
	}
	return r, now, nil
}

// Unfinished says which restore of a target was not finished, or which one a process may be at; empty if every one has
// ended. Records are read from s, which is the store or stands before it.
func Unfinished(ctx context.Context, s store.Loader, in store.Store, target string) (what string, err error) {
	r, _, err := loadRecord(ctx, s, target)
	was := fmt.Sprintf("that of %s since %s (%s)", r.actor, r.began.Format(time.RFC3339), r.order)
	switch {
	case err != nil:
		return "", err
	case r.isUnfinished():
		return "a restore of it was not finished, " + was + ": configure the target again, and reaper restore goes on with " +
			"it, or gives it up with --abandon", nil
	case r.owner != "" && !isVoid(in, r.owner):
		return fmt.Sprintf("process %s may be at a restore of it, %s: if that process is dead, remove the record %s %s by "+
			"hand", r.owner, was, store.RestoreRecord, target), nil
	}
	return "", nil
}

// save writes the record if nobody else has changed it. After a lost reply the same write again finds its own
// revision.
func (r *record) save(ctx context.Context, s store.Store) error {
	next := *r
	next.revision = store.NewRevision(r.revision)
	rec := next.encode()
	err := store.Retry(ctx, patience, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return s.Save(ctx, rec, r.revision)
	})
	if err != nil {
		return fmt.Errorf("save restore record %s: %w", r.target, err)
	}
	*r = next
	return nil
}

func (r *record) encode() store.Record {
	return store.Record{Sort: store.RestoreRecord, Key: r.target, Target: r.target, Revision: r.revision,
		Fields: store.Fields{
			"schema": int64(Schema), "order": r.order, "since": store.FormatTime(r.since), "until": store.FormatTime(r.until),
			"began": store.FormatTime(r.began), "actor": r.actor, "reason": r.reason, "owner": r.owner, "token": r.token,
			"done": r.done, "depth": int64(r.depth), "object_at": store.FormatTime(r.at), "object": r.object,
			"line": int64(r.line), "exist": r.exist, "restored": r.restored, "verified": r.verified, "vanished": r.vanished,
			"stripped": r.stripped, "refused": r.refused, "not_found": r.notFound,
			"plan": r.plan, "lines": r.lines,
		}}
}

func decode(rec store.Record) (record, error) {
	what := fmt.Sprintf("restore record %s %q", rec.Sort, rec.Key)
	f := rec.Fields.Reader(what)
	if err := f.Schema(Schema, what, ErrNewer); err != nil {
		return record{}, err
	}
	r := record{target: rec.Target, order: f.Text("order"), since: f.Time("since"), until: f.Time("until"),
		began: f.Time("began"), actor: f.Text("actor"), reason: f.Text("reason"), owner: f.Text("owner"),
		token: f.Int("token"), done: f.Bool("done"), lines: f.Int("lines"), revision: rec.Revision,
		place: place{depth: int(f.Int("depth")), at: f.Time("object_at"), object: f.Text("object"),
			line: int(f.Int("line")), exist: f.Int("exist"), restored: f.Int("restored"), verified: f.Int("verified"),
			vanished: f.Int("vanished"), stripped: f.Int("stripped"), refused: f.Int("refused"),
			notFound: f.Int("not_found"), plan: f.Text("plan")}}
	if r.began.IsZero() {
		f.Fail("began", "it is missing")
	}
	return r, f.Err()
}
