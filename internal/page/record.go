package page

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/page/draw"
	"github.com/reaper-ttl/reaper/metrics"
)

const (
	// recordsShown is how many records the page of the history has unless the request says more.
	recordsShown = 100
	// mostRecordsShown is how many it has at most.
	mostRecordsShown = 2000
)

// historySpans are how far back the page of the history may go.
var historySpans = []struct {
	Name string
	long time.Duration
}{{"24h", 24 * time.Hour}, {"7d", 7 * 24 * time.Hour}, {"30d", month}}

// A historyQuery says which records a request asks for. All are from the copies that viewers
// share: no question reads more.
type historyQuery struct {
	Target string // empty for all
	Since  string
	Only   string // actions, failed, or empty for all
	Limit  int
	long   time.Duration
}

func readHistoryQuery(r *http.Request) (q historyQuery, why string) {
	q = historyQuery{Target: parameter(r, "target"), Since: parameter(r, "since"), Only: parameter(r, "only"),
		Limit: recordsShown}
	if q.Since == "" {
		q.Since = "7d"
	}
	for _, sp := range historySpans {
		if sp.Name == q.Since {
			q.long = sp.long
		}
	}
	switch {
	case q.long == 0:
		return q, "since is 24h, 7d or 30d: reaper history knows the others"
	case q.Only != "" && q.Only != "actions" && q.Only != "failed":
		return q, "only is actions or failed"
	}
	if text := parameter(r, "limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > mostRecordsShown {
			return q, fmt.Sprintf("limit is a number from 1 to %d", mostRecordsShown)
		}
		q.Limit = n
	}
	return q, ""
}

// A historyDocument is the form of `reaper history --json`.
type historyDocument struct {
	Store   string                  `json:"store"`
	Now     time.Time               `json:"now"`
	Targets []inspect.TargetHistory `json:"targets"`
}

// A historyPage is the content of the page of the history.
type historyPage struct {
	historyQuery
	Lists   []historyList
	Targets []Target
	Fresh   freshness
	Links   [][]filterLink
}

// A filterLink is one choice of a filter.
type filterLink struct {
	Name, Query string
	Chosen      bool
}

// A historyList is the records of one target, the newest first.
type historyList struct {
	inspect.TargetHistory
	Lines []historyLine
	Read  bool
}

// A historyLine is one record, for people.
type historyLine struct {
	At     time.Time
	Kind   string // deleted, failed, action, trip or generation
	What   string
	More   string
	Who    string
	Reason string
}

func (s *Server) showHistory(w http.ResponseWriter, r *http.Request) {
	q, why := readHistoryQuery(r)
	targets := s.Targets
	if q.Target != "" {
		t, ok := s.target(q.Target)
		if !ok {
			s.fail(w, r, http.StatusNotFound, "there is no such target")
			return
		}
		targets = []Target{t}
	}
	if why != "" {
		s.fail(w, r, http.StatusBadRequest, why)
		return
	}
	p := historyPage{historyQuery: q, Targets: s.Targets, Links: filterLinks(q)}
	soon := false
	for _, t := range targets {
		s.histories.touch(t.Name, historyEvery, s.readHistory(t.Name))
	}
	for _, t := range targets {
		c := s.history(r.Context(), t.Name)
		f := s.freshnessOf(c.At, c.Asked, c.Err)
		if f.Since != nil {
			p.Fresh = f
		}
		soon = soon || !c.Known() && f.Since == nil
		list := historyList{TargetHistory: selectRecords(c.Value, q, s.Now()), Read: c.Known()}
		list.Name = t.Name
		for _, one := range slices.Backward(list.Records) {
			list.Lines = append(list.Lines, lineOf(one))
		}
		p.Lists = append(p.Lists, list)
	}
	if wantsJSON(r) {
		doc := historyDocument{Store: s.Store, Now: s.Now().UTC(), Targets: []inspect.TargetHistory{}}
		for _, l := range p.Lists {
			doc.Targets = append(doc.Targets, l.TargetHistory)
		}
		s.answer(w, doc)
		return
	}
	s.show(w, r, http.StatusOK, "history", frame{Title: "History", Here: "history",
		JSON: "history.json?" + r.URL.Query().Encode(), Soon: soon, Content: p})
}

// selectRecords returns the records that a query asks for, with their sums.
func selectRecords(h inspect.TargetHistory, q historyQuery, now time.Time) inspect.TargetHistory {
	from := now.Add(-q.long).UTC()
	one := inspect.TargetHistory{Name: h.Name, Since: from, Records: []inspect.HistoryRecord{}, Newer: h.Newer,
		Malformed: h.Malformed}
	for _, r := range h.Records {
		if r.At.Before(from) && (r.Run == nil || r.Run.Updated.Before(from)) || !isWanted(r, q.Only) {
			continue
		}
		if run := r.Run; run != nil {
			one.Sums.Runs++
			one.Sums.AtLeast = one.Sums.AtLeast || run.AtLeast
			one.Sums.Counts = metrics.Add(one.Sums.Counts, run.Counts)
			one.Sums.Operations.Reads += run.Operations.Reads
			one.Sums.Operations.Writes += run.Operations.Writes
			one.Sums.Operations.Deletes += run.Operations.Deletes
		}
		one.Records = append(one.Records, r)
	}
	one.More = h.More
	if extra := len(one.Records) - q.Limit; extra > 0 {
		one.More += extra
		one.Records = one.Records[extra:]
	}
	return one
}

func isWanted(r inspect.HistoryRecord, only string) bool {
	switch only {
	case "actions":
		return r.Run == nil
	case "failed":
		return r.Run != nil && isFailed(r.Run)
	}
	return true
}

func isFailed(run *inspect.HistoryRun) bool {
	return run.End == history.Failed || run.End == history.Lost || run.Failures+run.Missed > 0
}

// filterLinks returns the choices of the page, each with what else is chosen.
func filterLinks(q historyQuery) [][]filterLink {
	query := func(since, only string) string {
		text := "?since=" + since
		if q.Target != "" {
			text += "&target=" + q.Target
		}
		if only != "" {
			text += "&only=" + only
		}
		return text
	}
	var spans, kinds []filterLink
	for _, sp := range historySpans {
		spans = append(spans, filterLink{sp.Name, query(sp.Name, q.Only), sp.Name == q.Since})
	}
	for _, k := range []struct{ name, only string }{{"everything", ""}, {"actions", "actions"}, {"failed", "failed"}} {
		kinds = append(kinds, filterLink{k.name, query(q.Since, k.only), k.only == q.Only})
	}
	return [][]filterLink{spans, kinds}
}

// lineOf describes a record.
func lineOf(r inspect.HistoryRecord) historyLine {
	l := historyLine{At: r.At, Who: r.Actor, Kind: "deleted"}
	if l.Who == "" {
		l.Who = r.Owner
	}
	if r.Run == nil {
		l.What, l.Reason, l.Kind = draw.ChangeText(r), r.Change.Reason, "action"
		switch r.Kind {
		case history.KindTrip:
			l.Kind = "trip"
		case history.KindGeneration:
			l.Kind = "generation"
		case history.KindRun, history.KindAction, history.KindApproval, history.KindConfig, history.KindVersion:
		}
		switch c := r.Change; {
		case c.Before != "" && c.After != "":
			l.More = c.Before + " → " + c.After
		default:
			l.More = c.Before + c.After
		}
		return l
	}
	run := r.Run
	number := draw.Count(run.Deleted)
	if run.AtLeast {
		number = "at least " + number
	}
	l.What = fmt.Sprintf("%s deleted %s in %s, %s", run.Task, number, draw.Age(run.Updated.Sub(r.At)), endText(run))
	if isFailed(run) || run.Silent {
		l.Kind = "failed"
	}
	l.More = alsoText(run)
	l.Reason = run.Error
	return l
}

// endText says why a run ended.
func endText(run *inspect.HistoryRun) string {
	switch {
	case run.Silent:
		return "no sign of life since " + draw.Instant(run.Updated)
	case run.End == history.Open:
		return "goes on"
	case run.End == history.Deadline:
		return "out of time"
	case run.End == history.Signal:
		return "stopped by a signal"
	case run.End == history.Gate || run.End == history.Breaker || run.End == history.Limit:
		return "held by its " + string(run.End)
	}
	return string(run.End)
}

// alsoText says what else a run met.
func alsoText(run *inspect.HistoryRun) string {
	var also []string
	for _, c := range []struct {
		n    int64
		name string
	}{{run.Carried, "carried"}, {run.Strays, "strays"}, {run.Conflicts, "conflicts"}, {run.Suspect, "suspect"},
		{run.Malformed, "malformed"}, {run.Refused, "refused"}, {run.Mismatch, "mismatches"}, {run.Failures, "failures"},
		{run.Missed, "failed writes of history"}} {
		if c.n > 0 {
			also = append(also, draw.Count(c.n)+" "+c.name)
		}
	}
	if len(run.Held) > 0 {
		also = append(also, "held back by "+strings.Join(run.Held, ", "))
	}
	return strings.Join(also, "; ")
}
