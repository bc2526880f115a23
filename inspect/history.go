package inspect

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A TargetHistory is the history of one target, in the form that `reaper history --json`
// prints.
type TargetHistory struct {
	Name      string          `json:"name"`
	Since     time.Time       `json:"since"`
	Sums      HistorySums     `json:"sums"`      // over all runs of the records that were asked for, shown or not
	Records   []HistoryRecord `json:"records"`   // the newest ones, in the order of time
	More      int             `json:"more"`      // older ones that the limit left out
	Newer     int             `json:"newer"`     // records of a later version of reaper, which were skipped
	Malformed int             `json:"malformed"` // records that make no sense, which were skipped
	Check     *HistoryCheck   `json:"check"`     // nil without --check
}

// HistorySums are sums over runs.
type HistorySums struct {
	Runs    int  `json:"runs"`
	AtLeast bool `json:"at_least"` // a run goes on, or was lost: it may have done more
	metrics.Counts
	Operations store.Operations `json:"operations"`
}

// A HistoryRecord is one entry of the history. Run is nil for a change, and Change for a run.
type HistoryRecord struct {
	ID      string         `json:"id"`
	Kind    history.Kind   `json:"kind"`
	At      time.Time      `json:"at"`
	Actor   string         `json:"actor"` // as claimed
	Host    string         `json:"host"`
	Owner   string         `json:"owner"`
	Version string         `json:"version"`
	Config  string         `json:"config"` // hash of the target's settings
	Expires time.Time      `json:"expires"`
	Run     *HistoryRun    `json:"run"`
	Change  *HistoryChange `json:"change"`
}

// A HistoryRun is what one process did.
type HistoryRun struct {
	Task    string      `json:"task"` // sweep, serve or audit
	Updated time.Time   `json:"updated"`
	Ended   *time.Time  `json:"ended"` // nil while it goes on
	End     history.End `json:"end"`   // why it ended; empty while it goes on
	AtLeast bool        `json:"at_least"`
	// Silent says that the run has no end though its process has no heartbeat: most likely it
	// was killed, and no other process has noticed yet.
	Silent  bool       `json:"silent"`
	Horizon *time.Time `json:"horizon"`
	metrics.Counts
	Operations store.Operations `json:"operations"`
	Delays     []HistoryDelay   `json:"delays"` // of its deletes, the shortest first; empty if unknown
	Held       []string         `json:"held"`
	Failures   int64            `json:"failures"`
	Error      string           `json:"error"`
	Missed     int64            `json:"missed"`  // writes of history that failed meanwhile
	Unsaved    int64            `json:"unsaved"` // cursors that could not be saved any more
}

// A HistoryDelay is how many deletes of a run came so long after their entities were due.
type HistoryDelay struct {
	Over    float64  `json:"over_seconds"`
	Within  *float64 `json:"within_seconds"` // nil if it has no bound
	Deletes int64    `json:"deletes"`
}

// A HistoryChange is something that was changed, or that happened.
type HistoryChange struct {
	What       string `json:"what"`
	Generation int    `json:"generation"` // 0 if it is about none
	Before     string `json:"before"`
	After      string `json:"after"`
	Reason     string `json:"reason"`
}

// A HistoryCheck compares the history with the cursor records, which count for themselves
// how many entities their ranges have deleted.
type HistoryCheck struct {
	Since   time.Time `json:"since"`   // when the history of the target begins
	Runs    int       `json:"runs"`    // that were added up
	Lost    int       `json:"lost"`    // of these, runs that were lost or go on: their numbers are at least so high
	Unsaved int64     `json:"unsaved"` // cursors that the runs could not save: the ranges have counted less
	Deleted int64     `json:"deleted"` // by the history
	Expired int64     `json:"expired"` // of these, by runs whose records have expired
	Ranges  int       `json:"ranges"`  // cursor records that were added up
	Retired int       `json:"retired"` // retired generations, whose sum is in the history
	Counted int64     `json:"counted"` // deleted since then by the cursor records and the retired generations
	Verdict Agreement `json:"verdict"`
	Why     string    `json:"why"` // the verdict, for people

	Budget BudgetCheck `json:"budget"`
}

// A BudgetCheck compares the history with what processes reported to the budget of the breaker
// and the limits, since both exist. Only runs that deleted by the present budget count.
type BudgetCheck struct {
	Since      *time.Time `json:"since"`      // nil if there is no budget
	Deleted    int64      `json:"deleted"`    // by the history
	Reported   int64      `json:"reported"`   // to the budget
	Unreported int64      `json:"unreported"` // by the history, what processes had not reported when they wrote it
	Doubtful   int64      `json:"doubtful"`   // what may be reported twice, or not at all, since a reply was lost
	Without    int64      `json:"without"`    // deleted without this budget; it is not compared
	Verdict    Agreement  `json:"verdict"`
	Why        string     `json:"why"`
}

// An Agreement is the verdict of a check.
type Agreement string

// The verdicts of a check.
const (
	Agrees      Agreement = "agrees"
	AtLeast     Agreement = "at-least" // they differ, and runs without a proper end explain that
	Differs     Agreement = "differs"
	NotCompared Agreement = "not-compared"
	// Pending and Off are verdicts on the budget alone.
	Pending Agreement = "pending" // they differ by what working processes have not reported or written yet
	Off     Agreement = "off"     // breaker and limits are off, or were for a part of the time; the rest agrees
)

// Differs reports whether any of the three accounts differs from the history for no known reason.
func (c HistoryCheck) Differs() bool { return c.Verdict == Differs || c.Budget.Verdict == Differs }

// A HistoryQuery says which records are wanted.
type HistoryQuery struct {
	Since   time.Time // zero: all
	Limit   int       // most records
	Actions bool      // only changes, no runs
	Failed  bool      // only runs that failed, were lost, or had failures
	Check   bool
}

// wants reports whether a query asks for a record.
func (q HistoryQuery) wants(r history.Record) bool {
	isRun := r.Kind == history.KindRun
	failed := isRun && (r.Run.End == history.Failed || r.Run.End == history.Lost || r.Run.Failures+r.Run.Missed > 0)
	return !(q.Actions && isRun) && (!q.Failed || failed)
}

// ReadHistory reads the history of a target. It writes nothing.
func ReadHistory(ctx context.Context, cfg sweep.Config, t sweep.Target, q HistoryQuery) (TargetHistory, error) {
	list, err := history.Read(ctx, cfg.Store, t.Name, q.Since)
	if err != nil {
		return TargetHistory{}, err
	}
	beats, _, err := cursor.LoadHeartbeats(ctx, cfg.Store, t.Name, nil, cfg.Now)
	if err != nil {
		return TargetHistory{}, err
	}
	h := TargetHistory{Name: t.Name, Since: q.Since, Records: []HistoryRecord{}, Newer: list.Newer,
		Malformed: list.Malformed}
	for _, r := range list.Records {
		if !q.wants(r) {
			continue
		}
		if r.Kind == history.KindRun {
			h.Sums.add(r.Run)
		}
		h.Records = append(h.Records, shown(r, beats, list.Now))
	}
	if h.More = max(0, len(h.Records)-q.Limit); h.More > 0 {
		h.Records = h.Records[h.More:]
	}
	if q.Check {
		check, err := checkHistory(ctx, cfg, t)
		if err != nil {
			return h, err
		}
		h.Check = &check
	}
	return h, nil
}

func (s *HistorySums) add(r history.Run) {
	s.Runs++
	s.AtLeast = s.AtLeast || r.IsAtLeast()
	s.Counts = metrics.Add(s.Counts, r.Counts())
	s.Operations.Reads += r.Operations.Reads
	s.Operations.Writes += r.Operations.Writes
	s.Operations.Deletes += r.Operations.Deletes
}

// shown converts a record for people and programs.
func shown(r history.Record, beats cursor.Heartbeats, now time.Time) HistoryRecord {
	one := HistoryRecord{ID: r.Key, Kind: r.Kind, At: r.At, Actor: r.By.Actor, Host: r.By.Host, Owner: r.By.Owner,
		Version: r.By.Version, Config: r.By.Config, Expires: r.Expires}
	if r.Kind != history.KindRun {
		one.Change = &HistoryChange{What: r.Change.What, Generation: r.Change.Generation, Before: r.Change.Before,
			After: r.Change.After, Reason: r.Change.Reason}
		return one
	}
	beat, found := beats[cursor.HeartbeatKey(r.Target, r.By.Owner)]
	alive := found && isFresh(beat, now) || now.Sub(r.Run.Updated) < 2*cursor.IdleBeat
	run := &HistoryRun{Task: r.Run.Task, Updated: r.Run.Updated, Ended: timePtr(r.Run.Ended), End: r.Run.End,
		AtLeast: r.Run.IsAtLeast(), Silent: r.Run.Ended.IsZero() && !alive, Horizon: timePtr(r.Run.Horizon),
		Counts: r.Run.Counts(), Operations: r.Run.Operations, Held: append([]string{}, r.Run.Held...),
		Failures: r.Run.Failures, Error: r.Run.Error, Missed: r.Run.Missed,
		Unsaved: r.Run.Unsaved}
	run.Delays = delaysOf(r.Run.Delays)
	one.Run = run
	return one
}

func delaysOf(counts []metrics.DelayCount) []HistoryDelay {
	list := make([]HistoryDelay, 0, len(counts))
	for _, c := range counts {
		d := HistoryDelay{Over: c.Over.Seconds(), Deletes: c.N}
		if c.Within > 0 {
			seconds := c.Within.Seconds()
			d.Within = &seconds
		}
		list = append(list, d)
	}
	return list
}

// isFresh reports whether the process of a heartbeat works, as far as that can be seen at once.
func isFresh(beat cursor.Heartbeat, now time.Time) bool {
	return now.Sub(beat.Renewed) < 2*cursor.IdleBeat+beat.Lease
}

const (
	// checkTries is how often history and cursor records are compared if they differ. While a
	// process works, what was just deleted is in one of them up to a second before the other.
	checkTries = 3
	checkAgain = 3 * time.Second
)

// checkHistory compares all of the history of a target with its cursor records.
func checkHistory(ctx context.Context, cfg sweep.Config, t sweep.Target) (check HistoryCheck, err error) {
	for try := 1; ; try++ {
		check, err = checkOnce(ctx, cfg, t)
		if err != nil || !check.Differs() || try == checkTries {
			return check, err
		}
		if err := throttle.Sleep(ctx, checkAgain); err != nil {
			return check, err
		}
	}
}

func checkOnce(ctx context.Context, cfg sweep.Config, t sweep.Target) (check HistoryCheck, err error) {
	state, found, err := history.LoadState(ctx, cfg.Store, t.Name)
	if err != nil {
		return check, fmt.Errorf("load the state of the history of %s: %w", t.Name, err)
	}
	// The cursors first: what is deleted meanwhile makes the history larger, as does a run that goes on.
	table, err := cursor.Reader{Store: cfg.Store, Target: t.Name, Now: cfg.Now}.All(ctx, cursor.Table{})
	if err != nil {
		return check, err
	}
	list, err := history.Read(ctx, cfg.Store, t.Name, time.Time{})
	if err != nil {
		return check, err
	}
	check = HistoryCheck{Since: state.Since, Ranges: table.Len(), Deleted: state.Expired.Deleted,
		Counted: state.Expired.Counted - state.Base, Expired: state.Expired.Deleted, Lost: int(state.Expired.Unsure)}
	for _, c := range table.All() {
		check.Counted += c.Deleted
	}
	for _, r := range list.Records {
		if slices.Contains(state.Expired.Keys, r.Key) {
			continue // it is about to be removed
		}
		switch r.Kind {
		case history.KindRun:
			check.Runs++
			check.Deleted += r.Run.Counts().Deleted
			check.Unsaved += r.Run.Unsaved
			if r.Run.IsAtLeast() {
				check.Lost++
			}
		case history.KindGeneration:
			check.Counted += r.Change.Deleted
			if r.Change.What == history.Retired {
				check.Retired++
			}
		}
	}
	check.judge(found, list.Newer+list.Malformed)
	if found {
		err = check.compareBudget(ctx, cfg, t, state, list)
	} else {
		check.Budget = BudgetCheck{Verdict: NotCompared, Why: check.Why}
	}
	return check, err
}

// compareBudget fills in the account of the budget. It reads the budget after the history: what
// the history has, and did not call unreported, is in the budget by then.
func (c *HistoryCheck) compareBudget(
	ctx context.Context, cfg sweep.Config, t sweep.Target, state history.State, list history.List,
) error {
	b, err := spend.Load(ctx, cfg.Store, t.Name)
	if err != nil {
		if store.Transient(err) || ctx.Err() != nil {
			return err
		}
		c.Budget = BudgetCheck{Verdict: NotCompared, Why: err.Error()}
		return nil
	}
	beats, _, err := cursor.LoadHeartbeats(ctx, cfg.Store, t.Name, nil, cfg.Now)
	if err != nil {
		return err
	}
	account := history.Budgeted{Began: b.Began}
	if state.Expired.Budget.Began.Equal(b.Began) {
		account = state.Expired.Budget
	}
	var working bool
	var late int64 // what processes that work have not reported yet
	for _, r := range list.Records {
		if r.Kind != history.KindRun || slices.Contains(state.Expired.Keys, r.Key) {
			continue
		}
		beat, found := beats[cursor.HeartbeatKey(r.Target, r.By.Owner)]
		alive := found && isFresh(beat, list.Now)
		working = working || alive && r.Run.Ended.IsZero()
		for _, s := range r.Run.Sums {
			if !s.Budget.Began.Equal(b.Began) {
				continue
			}
			account = account.Plus(s)
			if alive {
				late += s.Budget.Unreported
			}
		}
	}
	since := b.Began
	c.Budget = BudgetCheck{Deleted: account.Deleted, Reported: b.Spent.Ever, Unreported: max(0, account.Unreported),
		Doubtful: account.Doubtful, Without: c.Deleted - account.Deleted}
	if !since.IsZero() && state.Budget.Began.Equal(since) {
		c.Budget.Reported -= state.Budget.Deleted
		since = state.Since
	}
	c.Budget.Since = timePtr(since)
	c.Budget.judge(t.Breaker.On || t.Limits.Any(), list.Newer+list.Malformed, c.Lost, working, late)
	return nil
}

// judge fills in the verdict. Lost is how many runs go on or were lost, and late what processes
// that work have not reported yet.
func (b *BudgetCheck) judge(isOn bool, skipped, lost int, working bool, late int64) {
	switch more := b.Deleted - b.Reported; {
	case b.Since == nil && isOn && b.Without == 0:
		b.Verdict, b.Why = Agrees, "nothing was deleted yet"
	case b.Since == nil:
		b.Verdict, b.Why = Off, "breaker and limits are off, or were when the last entity was deleted"
	case more == 0 && isOn && b.Without == 0:
		b.Verdict, b.Why = Agrees, "the sums are the same"
	case more == 0:
		b.Verdict = Off
		b.Why = fmt.Sprintf("the sums are the same; %s were made while breaker and limits were off, or by a budget that was "+
			"removed, and are left out", counted(b.Without, "delete"))
	case skipped > 0:
		b.Verdict, b.Why = NotCompared, counted(int64(skipped), "record")+" could not be read"
	case more > 0 && more <= late:
		b.Verdict = Pending
		b.Why = fmt.Sprintf("processes that work have %s to report to the budget", counted(more, "delete"))
	case more < 0 && lost > 0 && working:
		b.Verdict = Pending
		b.Why = fmt.Sprintf("processes that work have %s to write to the history", counted(-more, "delete"))
	case more > 0 && more <= b.Unreported:
		b.Verdict = AtLeast
		b.Why = fmt.Sprintf("they differ by %d: processes were killed, or could not write, before they reported %d",
			more, b.Unreported)
	case more < 0 && lost > 0:
		b.Verdict = AtLeast
		b.Why = fmt.Sprintf("they differ by %d: the last seconds of %s that %s on or %s lost are not in the history",
			-more, counted(int64(lost), "run"), verb(lost, "goes", "go"), verb(lost, "was", "were"))
	case max(more, -more) <= b.Doubtful+b.Unreported:
		b.Verdict = AtLeast
		b.Why = fmt.Sprintf("they differ by %d: replies of the store were lost, and %s may be in the budget twice, or not "+
			"at all", max(more, -more), counted(b.Doubtful, "delete"))
	default:
		b.Verdict, b.Why = Differs, fmt.Sprintf("they differ by %d", max(more, -more))
	}
}

// judge fills in the verdict.
func (c *HistoryCheck) judge(found bool, skipped int) {
	differ := max(c.Counted-c.Deleted, c.Deleted-c.Counted)
	switch {
	case !found:
		c.Verdict, c.Why = NotCompared, "no process has written history for this target yet"
	case c.Deleted == c.Counted:
		c.Verdict, c.Why = Agrees, "the sums are the same"
	case skipped > 0:
		c.Verdict, c.Why = NotCompared, counted(int64(skipped), "record")+" could not be read"
	case c.Lost > 0:
		c.Verdict = AtLeast
		c.Why = fmt.Sprintf("they differ by %d: the last seconds of %s that %s on or %s lost are in neither, or in one alone",
			differ, counted(int64(c.Lost), "run"), verb(c.Lost, "goes", "go"), verb(c.Lost, "was", "were"))
	case c.Unsaved > 0 && c.Deleted > c.Counted:
		c.Verdict = AtLeast
		c.Why = fmt.Sprintf("they differ by %d: %s could not be saved, as after a lost lease, and what was deleted there "+
			"last is in the history alone", differ, counted(c.Unsaved, "cursor"))
	default:
		c.Verdict, c.Why = Differs, fmt.Sprintf("they differ by %d", differ)
	}
}

// counted shows a number of things.
func counted(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// verb returns the form of a verb for a number of things.
func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
