// Package history keeps what was done to a target, by which process and by whom: runs,
// what operators changed, and what happened to generations, configuration and version.
//
// The invariant is that history follows the work and never leads it: a record is written
// after the fact, by compare-and-set, and a write that fails loses a record, or the latest
// numbers of one, and nothing else. Nothing that deletes entities reads these records.
// [Collect] removes records of this sort alone, each by its revision and only once its own
// expiry key is due.
//
// Limits: the key of a record begins with one of [Buckets] digits, so that writes spread,
// and goes on with the time, so that a span of time costs one query a bucket. Actors are
// what processes claim: the cloud's audit log is the proof.
package history

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// Schema is the version of the records that this program writes, and the newest that
	// it reads.
	Schema = 1
	// Buckets is how many digits the key of a record may begin with.
	Buckets = 16
	// MaxText is the longest text of a record in bytes; a longer one is cut.
	MaxText = 2000
	// clockSlack is how much earlier than asked for a query begins: the key of a record has
	// the time of the process that wrote it.
	clockSlack = time.Minute
	// queriesAtOnce bounds the queries of one read.
	queriesAtOnce = 4
)

// A Kind is a kind of record.
type Kind string

// The kinds of records.
const (
	KindRun        Kind = "run"           // what one process deleted, for a run or an hour
	KindAction     Kind = "action"        // what an operator changed
	KindTrip       Kind = "trip"          // the breaker holds the target
	KindApproval   Kind = "approval"      // an operator's word that what the breaker holds is right
	KindGeneration Kind = "generation"    // one was opened, closed, sealed, drained or retired
	KindConfig     Kind = "configuration" // a process began with other settings than the one before
	KindVersion    Kind = "version"       // likewise, of another version
)

var kinds = []Kind{KindRun, KindAction, KindTrip, KindApproval, KindGeneration, KindConfig, KindVersion}

// An End says why a run ended.
type End string

// Why runs end. A run without an end goes on, or was killed.
const (
	Open     End = ""
	Done     End = "done"     // everything that was due is gone, or the hour is over
	Idle     End = "idle"     // likewise, and nothing is left to do
	Deadline End = "deadline" // its time was over
	Signal   End = "signal"   // the process was asked to stop
	Paused   End = "paused"
	Gate     End = "gate"
	Breaker  End = "breaker"
	Limit    End = "limit"
	Lost     End = "lost" // the process is dead: another one has marked its run
	Failed   End = "failed"
)

var ends = []End{Open, Done, Idle, Deadline, Signal, Paused, Gate, Breaker, Limit, Lost, Failed}

// An Origin says who wrote a record.
type Origin struct {
	Actor   string // as claimed
	Host    string
	Owner   string // the process, as in leases and heartbeats
	Version string // of the program
	Config  string // hash of the target's settings
}

// A Record is one entry of the history of a target. It has a Run if its kind is [KindRun],
// else a Change.
type Record struct {
	Target   string
	Key      string
	Kind     Kind
	At       time.Time // when the run began, or the change was made, in the store's time
	Expires  time.Time // from then on [Collect] removes the record
	By       Origin
	Run      Run
	Change   Change
	Revision string // as in the store; empty for a record not saved yet
}

// A Run is what one process did to a target in one run, or in an hour.
type Run struct {
	Task    string    // sweep, serve or audit
	Updated time.Time // the numbers are as of then
	Ended   time.Time // zero while it goes on
	End     End
	Horizon time.Time // what expired up to here was due
	// Sums has one entry for each account: programs that tell several kinds of work apart
	// write several. The counts of a run are the sums over all.
	Sums       []Sum
	Operations store.Operations
	Delays     []metrics.DelayCount // of the deletes, from due to deleted, the shortest first; empty if unknown
	Held       []string             // what held the target, or held ranges back, meanwhile
	Failures   int64
	Error      string // why it failed; empty if it did not
	Missed     int64  // writes of history that failed meanwhile
	// Unsaved is how many cursors could not be saved any more, such as those of a lost lease:
	// what their ranges deleted last is in the counts, but not in the cursor records.
	Unsaved int64
}

// A Sum is what was counted in one account.
type Sum struct {
	Account string
	Counts  metrics.Counts
	Budget  Budgeted
}

// A Budgeted is what deletes have to do with the budget of the breaker and the limits.
type Budgeted struct {
	Began      time.Time // of the budget; zero if there was none. It tells two budgets apart
	Deleted    int64     // of a sum, its counts have it
	Unreported int64     // that the processes had not reported to the budget yet; less than 0 if it was of an earlier run
	Doubtful   int64     // that the budget may have twice, or not at all, since a reply was lost
}

// Plus returns the account with a sum added. Sums of an earlier budget are left out, and so is
// the account itself if the sum is of a later one.
func (b Budgeted) Plus(s Sum) Budgeted {
	switch {
	case s.Budget.Began.IsZero() || s.Budget.Began.Before(b.Began):
		return b
	case s.Budget.Began.After(b.Began):
		b = Budgeted{Began: s.Budget.Began}
	}
	b.Deleted += s.Counts.Deleted
	b.Unreported += s.Budget.Unreported
	b.Doubtful += s.Budget.Doubtful
	return b
}

// AccountAll is the account of work that is not told apart.
const AccountAll = "all"

// What happens to the cursor records of a generation when they are removed: it has retired, or
// its namespace is gone.
const (
	Retired   = "retired"
	Forgotten = "forgotten"
)

// A Change is something that was changed, or that happened.
type Change struct {
	What          string // pause, resume, pace, advance, opened, sealed, retired, ...
	Generation    int
	Before, After string
	Reason        string
	// Deleted is how many entities had been deleted by the cursor records that were removed.
	Deleted int64
}

// Counts returns the counts of the run over all accounts.
func (r Run) Counts() (sum metrics.Counts) {
	for _, s := range r.Sums {
		sum = metrics.Add(sum, s.Counts)
	}
	return sum
}

// IsAtLeast reports whether the run may have done more than its numbers say: it goes on, or
// was killed after they were written.
func (r Run) IsAtLeast() bool { return r.Ended.IsZero() || r.End == Lost }

// keyTime is the form of the time in keys.
const keyTime = "20060102T150405.000Z"

// BucketOf returns the bucket of the records of one process.
func BucketOf(target, owner string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(target + "@" + owner))
	return int(h.Sum32() % Buckets)
}

// newKey returns a key that no other record has.
func newKey(target, owner string, at time.Time) string {
	return prefix(BucketOf(target, owner)) + at.UTC().Format(keyTime) + "." + strings.ToLower(rand.Text()[:10])
}

// Began returns when the run with a key began, or the change was made; ok is false for any other text.
func Began(key string) (at time.Time, ok bool) {
	_, rest, _ := strings.Cut(key, ".")
	if len(rest) < len(keyTime) {
		return at, false
	}
	at, err := time.Parse(keyTime, rest[:len(keyTime)])
	return at, err == nil
}

func prefix(bucket int) string { return fmt.Sprintf("%x.", bucket) }

// end returns a key that is after all of a bucket. It is a valid key for each store.
func end(bucket int) string { return prefix(bucket) + "~" }

// NewRun returns the record of a run that began at an instant in the store's time.
func NewRun(target, task string, by Origin, at time.Time) Record {
	r := newRecord(target, KindRun, by, at)
	r.Run = Run{Task: task, Updated: r.At}
	return r
}

// NewChange returns the record of a change that was made at an instant in the store's time.
func NewChange(target string, kind Kind, by Origin, at time.Time, c Change) Record {
	r := newRecord(target, kind, by, at)
	r.Change = c
	return r
}

func newRecord(target string, kind Kind, by Origin, at time.Time) Record {
	at = at.UTC().Truncate(time.Microsecond)
	return Record{Target: target, Key: newKey(target, by.Owner, at), Kind: kind, At: at, By: by}
}

// KeptFor returns the record with an expiry of so long after its last change.
func (r Record) KeptFor(keep time.Duration) Record {
	at := r.At
	if r.Run.Updated.After(at) {
		at = r.Run.Updated
	}
	r.Expires = at.Add(keep).Truncate(time.Millisecond)
	return r
}

// ExpiryKey returns the record's own expiry key: in the nursery, in its bucket's shard.
func (r Record) ExpiryKey() (string, error) {
	k, err := expirykey.New(expirykey.Nursery, BucketOf(r.Target, r.By.Owner), r.Expires)
	if err != nil {
		return "", err
	}
	return k.String(), nil
}

// Save writes a record if the store still has the revision that it was made from, and
// returns it with its new revision. It fails with store.ErrConflict if somebody else has
// changed the record.
func Save(ctx context.Context, s store.Store, r Record) (Record, error) {
	next := r
	next.Revision = store.NewRevision(r.Revision)
	rec, err := next.encode()
	if err == nil {
		err = s.Save(ctx, rec, r.Revision)
	}
	if err != nil {
		return r, fmt.Errorf("save history record %s of %s: %w", r.Key, r.Target, err)
	}
	return next, nil
}

// A List is what was read of the history of a target.
type List struct {
	Records   []Record // in the order of time
	Newer     int      // records of a later version, which were skipped
	Malformed int      // records that make no sense, which were skipped
	Now       time.Time
}

// Read reads the records from an instant on; the zero time stands for all.
func Read(ctx context.Context, s store.Loader, target string, since time.Time) (List, error) {
	var parts [Buckets]List
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(queriesAtOnce)
	for bucket := range parts {
		group.Go(func() (err error) {
			parts[bucket], err = readBucket(ctx, s, target, bucket, since)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return List{}, fmt.Errorf("load history of %s: %w", target, err)
	}
	var all List
	for _, p := range parts {
		all.Records = append(all.Records, p.Records...)
		all.Newer, all.Malformed = all.Newer+p.Newer, all.Malformed+p.Malformed
		if p.Now.After(all.Now) {
			all.Now = p.Now
		}
	}
	slices.SortFunc(all.Records, func(a, b Record) int {
		return cmp.Or(a.At.Compare(b.At), a.Run.Updated.Compare(b.Run.Updated), strings.Compare(a.Key, b.Key))
	})
	return all, nil
}

// readBucket reads the records of a bucket that were written, or updated, from an instant on.
func readBucket(
	ctx context.Context, s store.Loader, target string, bucket int, since time.Time,
) (list List, err error) {
	q := store.RecordQuery{Sort: store.SweepRecord, Target: target, After: prefix(bucket), Before: end(bucket)}
	if !since.IsZero() { // a run that began earlier may go on until then
		q.After += since.Add(-LongestRun - clockSlack).UTC().Format(keyTime)
	}
	err = store.LoadAll(ctx, s, q, func(page store.Records) error {
		list.Now = page.Now
		for _, rec := range page.List {
			r, err := decode(rec)
			switch {
			case errors.Is(err, ErrNewer):
				list.Newer++
			case err != nil:
				list.Malformed++
			case r.At.Before(since) && r.Run.Updated.Before(since):
			default:
				list.Records = append(list.Records, r)
			}
		}
		return nil
	})
	return list, err
}

// LongestRun is how long before the instant from which on records are asked for a run may have
// begun that goes on then. A run of serve takes an hour; one of sweep that takes longer than this
// is found by its beginning alone.
const LongestRun = 24 * time.Hour

// Load reads one record by its key; found is false if it does not exist.
func Load(ctx context.Context, s store.Loader, target, key string) (r Record, found bool, err error) {
	got, err := s.Load(ctx, store.RecordQuery{Sort: store.SweepRecord, Target: target, Keys: []string{key}})
	if err != nil || len(got.List) == 0 {
		return r, false, err
	}
	r, err = decode(got.List[0])
	return r, true, err
}

// MarkLost marks the runs of a dead process that go on by their records, if they began at
// an instant or later. It returns how many it has marked.
func MarkLost(ctx context.Context, s store.Store, target, owner string, since time.Time) (marked int, err error) {
	list, err := readBucket(ctx, s, target, BucketOf(target, owner), since)
	if err != nil {
		return 0, fmt.Errorf("load history of %s: %w", owner, err)
	}
	for _, r := range list.Records {
		if r.Kind != KindRun || r.By.Owner != owner || !r.Run.Ended.IsZero() {
			continue
		}
		r.Run.Ended, r.Run.End = r.Run.Updated, Lost
		switch _, err := Save(ctx, s, r); {
		case errors.Is(err, store.ErrConflict): // another process was first, or that one lives
		case err != nil:
			return marked, err
		default:
			marked++
		}
	}
	return marked, nil
}

// mostCollected bounds what one call of Collect reads, and so what it removes. Records are
// removed one after the other, and a call must end within the timeout of a read.
const mostCollected = 64

// Collect removes records of a bucket whose expiry key is due at an instant in the store's
// time, and keeps their sums in the state of the target. It reads the oldest of those that are
// older than keep, so that a call costs one read if there are none. A record that changes
// meanwhile stays, as do records that this program cannot read. If keep was longer once, the
// records of that time are due first.
func Collect(
	ctx context.Context, s store.Store, target string, bucket int, now time.Time, keep time.Duration,
) (removed int, err error) {
	q := store.RecordQuery{Sort: store.SweepRecord, Target: target, After: prefix(bucket),
		Before: prefix(bucket) + now.Add(-keep).UTC().Format(keyTime), Limit: mostCollected}
	got, err := s.Load(ctx, q)
	if err != nil {
		return 0, fmt.Errorf("load old history of %s: %w", target, err)
	}
	var due []Record
	for _, rec := range got.List {
		if r, err := decode(rec); err == nil && !r.Expires.After(now) {
			due = append(due, r)
		}
	}
	if len(due) == 0 {
		return 0, nil
	}
	if kept, err := keepSums(ctx, s, target, bucket, due); err != nil || !kept {
		return 0, err
	}
	for _, r := range due {
		gone := store.Record{Sort: store.SweepRecord, Key: r.Key, Target: r.Target, Revision: store.NewRevision(r.Revision)}
		switch err := s.Save(ctx, gone, r.Revision); {
		case errors.Is(err, store.ErrConflict):
		case err != nil:
			return removed, fmt.Errorf("remove history record %s of %s: %w", r.Key, r.Target, err)
		default:
			removed++
		}
	}
	return removed, nil
}

// keepSums adds records to the state of the target before they are removed, so that the
// account stays whole. If this process is killed in between, the keys in the state say that
// they are counted. It returns false if another process changes the state at the same time.
func keepSums(ctx context.Context, s store.Store, target string, bucket int, due []Record) (kept bool, err error) {
	st, found, err := LoadState(ctx, s, target)
	if err != nil {
		return false, fmt.Errorf("load the state of the history of %s: %w", target, err)
	}
	if !found { // nobody can check this account
		return true, nil
	}
	was := st.Expired
	st.Expired.Keys = nil
	for _, key := range was.Keys { // those of other buckets: of this one all that are left are due
		if !strings.HasPrefix(key, prefix(bucket)) {
			st.Expired.Keys = append(st.Expired.Keys, key)
		}
	}
	added := false
	for _, r := range due {
		if was.has(r.Key) {
			st.Expired.Keys = append(st.Expired.Keys, r.Key)
			continue
		}
		added = true
		st.Expired.add(r)
	}
	if !added {
		return true, nil
	}
	rec := st.encode()
	rec.Revision = store.NewRevision(st.Revision)
	if err = s.Save(ctx, rec, st.Revision); errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("save the state of the history of %s: %w", target, err)
	}
	return true, nil
}

// cut returns a text that a record holds: valid UTF-8 of at most MaxText bytes.
func cut(text string) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= MaxText {
		return text
	}
	const more = "..."
	at := MaxText - len(more)
	for !utf8.RuneStart(text[at]) {
		at--
	}
	return text[:at] + more
}
