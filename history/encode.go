package history

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
)

// ErrNewer is why a record of a later version cannot be read.
var ErrNewer = errors.New("this program is older than the record")

func (r Record) encode() (store.Record, error) {
	key, err := r.ExpiryKey()
	if err != nil {
		return store.Record{}, fmt.Errorf("expiry of a history record: %w", err)
	}
	f := store.Fields{
		"schema":     int64(Schema),
		"expiry_key": key,
		"kind":       string(r.Kind),
		"at":         store.FormatTime(r.At),
		"actor":      cut(r.By.Actor),
		"host":       cut(r.By.Host),
		"owner":      cut(r.By.Owner),
		"version":    cut(r.By.Version),
		"config":     cut(r.By.Config),
	}
	if r.Kind == KindRun {
		r.Run.encode(f)
	} else {
		r.Change.encode(f)
	}
	return store.Record{Sort: store.SweepRecord, Key: r.Key, Target: r.Target, Revision: r.Revision, Fields: f}, nil
}

func (r Run) encode(f store.Fields) {
	f["task"] = r.Task
	f["updated"] = store.FormatTime(r.Updated)
	f["ended"] = store.FormatTime(r.Ended)
	f["end"] = string(r.End)
	f["horizon"] = store.FormatTime(r.Horizon)
	f["reads"], f["writes"], f["deletes"] = r.Operations.Reads, r.Operations.Writes, r.Operations.Deletes
	f["held"] = strings.Join(r.Held, ",")
	f["failures"] = r.Failures
	f["error"] = cut(r.Error)
	f["missed"] = r.Missed
	f["unsaved"] = r.Unsaved
	delays := make([]store.Fields, 0, len(r.Delays))
	for _, d := range r.Delays {
		delays = append(delays, store.Fields{"over_ms": d.Over.Milliseconds(),
			"within_ms": d.Within.Milliseconds(), "n": d.N})
	}
	f["delays"] = delays
	sums := make([]store.Fields, 0, len(r.Sums))
	for _, s := range r.Sums {
		one := store.Fields{"account": s.Account}
		s.Budget.encode(one)
		for name, at := range countsByName(&s.Counts) {
			one[name] = *at
		}
		sums = append(sums, one)
	}
	f["sums"] = sums
}

func (c Change) encode(f store.Fields) {
	f["what"] = c.What
	f["generation"] = int64(c.Generation)
	f["before"] = cut(c.Before)
	f["after"] = cut(c.After)
	f["reason"] = cut(c.Reason)
	f["deleted"] = c.Deleted
}

// countsByName returns the counts by their names in JSON, so that records follow the table
// of counters in package metrics.
func countsByName(c *metrics.Counts) map[string]*int64 {
	v := reflect.ValueOf(c).Elem()
	all := make(map[string]*int64, v.NumField())
	for i := range v.NumField() {
		if at, ok := v.Field(i).Addr().Interface().(*int64); ok {
			all[v.Type().Field(i).Tag.Get("json")] = at
		}
	}
	return all
}

// decode fails with an error that wraps ErrNewer for a record of a later version.
func decode(rec store.Record) (Record, error) {
	what := fmt.Sprintf("history record %q", rec.Key)
	f := rec.Fields.Reader(what)
	if err := f.Schema(Schema, what, ErrNewer); err != nil {
		return Record{}, err
	}
	r := Record{
		Target: rec.Target, Key: rec.Key, Kind: Kind(f.Text("kind")), At: f.Time("at"),
		By: Origin{Actor: f.Text("actor"), Host: f.Text("host"), Owner: f.Text("owner"), Version: f.Text("version"),
			Config: f.Text("config")},
		Revision: rec.Revision,
	}
	key, err := expirykey.Parse(f.Text("expiry_key"))
	if err != nil {
		f.Fail("expiry_key", "%v", err)
	}
	r.Expires = key.Expires
	switch {
	case !slices.Contains(kinds, r.Kind):
		f.Fail("kind", "%q is unknown", r.Kind)
	case r.Kind == KindRun:
		r.Run = decodeRun(f)
	default:
		r.Change = Change{What: f.Text("what"), Generation: int(f.Int("generation")), Before: f.Text("before"),
			After: f.Text("after"), Reason: f.Text("reason"), Deleted: f.Int("deleted")}
	}
	if r.At.IsZero() {
		f.Fail("at", "is missing")
	}
	if !strings.HasPrefix(r.Key, prefix(BucketOf(r.Target, r.By.Owner))+r.At.Format(keyTime)+".") {
		f.Fail("key", "belongs to another record")
	}
	return r, f.Err()
}

func decodeRun(f *store.FieldReader) Run {
	r := Run{Task: f.Text("task"), Updated: f.Time("updated"), Ended: f.Time("ended"), End: End(f.Text("end")),
		Horizon: f.Time("horizon"),
		Operations: store.Operations{Reads: f.Int("reads"), Writes: f.Int("writes"),
			Deletes: f.Int("deletes")},
		Failures: f.Int("failures"), Error: f.Text("error"), Missed: f.Int("missed"), Unsaved: f.Int("unsaved")}
	if held := f.Text("held"); held != "" {
		r.Held = strings.Split(held, ",")
	}
	if !slices.Contains(ends, r.End) {
		f.Fail("end", "%q is unknown", r.End)
	}
	r.Delays = decodeDelays(f)
	for _, one := range f.List("sums") {
		in := one.Reader("sums")
		s := Sum{Account: in.Text("account"), Budget: decodeBudgeted(in)}
		for name, at := range countsByName(&s.Counts) {
			*at = in.Int(name) // what was expected to go, and did not, may make a later one negative
		}
		if err := in.Err(); err != nil {
			f.Fail("sums", "%v", err)
		}
		r.Sums = append(r.Sums, s)
	}
	return r
}

// decodeDelays reads the delays of a run. A record of an earlier version has none.
func decodeDelays(f *store.FieldReader) (list []metrics.DelayCount) {
	for _, one := range f.List("delays") {
		in := one.Reader("delays")
		over, within, n := in.Int("over_ms"), in.Int("within_ms"), in.Int("n")
		if err := in.Err(); err != nil {
			f.Fail("delays", "%v", err)
		}
		const most = math.MaxInt64 / int64(time.Millisecond)
		if over < 0 || over > most || within > most || within != 0 && within <= over || n < 0 {
			f.Fail("delays", "%d deletes over %d and within %d ms make no sense", n, over, within)
			continue
		}
		list = append(list, metrics.DelayCount{Over: time.Duration(over) * time.Millisecond,
			Within: time.Duration(within) * time.Millisecond, N: n})
	}
	return list
}

// A State is the record by which a process sees that it begins with other settings, or with
// another version, than the process before. It does not expire.
type State struct {
	Target   string
	Since    time.Time // when the history of the target begins, in the store's time
	Base     int64     // how many entities its cursor records had counted as deleted by then
	Budget   Budgeted  // and how many its budget had
	Version  string
	Config   string // hash of the settings
	Settings string // one a line
	Expired  Expired
	Revision string
}

// Expired is what is left in the account of the records that have expired.
type Expired struct {
	Deleted int64    // by runs
	Counted int64    // by cursor records that were removed
	Unsure  int64    // runs that were lost, or had cursors that they could not save
	Budget  Budgeted // by runs that deleted by the newest budget of all
	Keys    []string // of records that are in these sums, and may not be removed yet
}

// has reports whether a record is in the sums.
func (e Expired) has(key string) bool { return slices.Contains(e.Keys, key) }

// add adds a record that is about to be removed.
func (e *Expired) add(r Record) {
	e.Keys = append(e.Keys, r.Key)
	e.Deleted += r.Run.Counts().Deleted
	e.Counted += r.Change.Deleted
	for _, s := range r.Run.Sums {
		e.Budget = e.Budget.Plus(s)
	}
	if r.Kind == KindRun && (r.Run.IsAtLeast() || r.Run.Unsaved > 0) {
		e.Unsure++
	}
}

// stateKey returns the key of a target's state: no bucket is called so.
func stateKey(target string) string { return "target." + target }

func (s State) encode() store.Record {
	expired := store.Fields{"deleted": s.Expired.Deleted, "counted": s.Expired.Counted,
		"unsure": s.Expired.Unsure, "keys": strings.Join(s.Expired.Keys, " ")}
	s.Expired.Budget.encode(expired)
	f := store.Fields{
		"schema":   int64(Schema),
		"since":    store.FormatTime(s.Since),
		"base":     s.Base,
		"version":  cut(s.Version),
		"config":   s.Config,
		"settings": s.Settings,
		"expired":  []store.Fields{expired},
	}
	s.Budget.encode(f)
	return store.Record{Sort: store.SweepRecord, Key: stateKey(s.Target), Target: s.Target, Revision: s.Revision,
		Fields: f}
}

func (b Budgeted) encode(f store.Fields) {
	f["budget"] = store.FormatTime(b.Began)
	f["budgeted"], f["unreported"], f["doubtful"] = b.Deleted, b.Unreported, b.Doubtful
}

func decodeBudgeted(f *store.FieldReader) Budgeted {
	return Budgeted{Began: f.Time("budget"), Deleted: f.Int("budgeted"), Unreported: f.Int("unreported"),
		Doubtful: f.Int("doubtful")}
}

func decodeState(rec store.Record) (State, error) {
	what := fmt.Sprintf("history record %q", rec.Key)
	f := rec.Fields.Reader(what)
	if err := f.Schema(Schema, what, ErrNewer); err != nil {
		return State{}, err
	}
	s := State{Target: rec.Target, Since: f.Time("since"), Base: f.Int("base"), Budget: decodeBudgeted(f),
		Version: f.Text("version"), Config: f.Text("config"), Settings: f.Text("settings"), Revision: rec.Revision}
	for _, one := range f.List("expired") {
		in := one.Reader("expired")
		s.Expired = Expired{Deleted: in.Int("deleted"), Counted: in.Int("counted"), Unsure: in.Int("unsure"),
			Budget: decodeBudgeted(in), Keys: strings.Fields(in.Text("keys"))}
		if err := in.Err(); err != nil {
			f.Fail("expired", "%v", err)
		}
	}
	return s, f.Err()
}
