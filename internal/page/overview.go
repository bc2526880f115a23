package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/page/draw"
	"github.com/reaper-ttl/reaper/sweep"
)

// errNotRead is the error of a target that was not read yet.
var errNotRead = errors.New("not read yet")

// A targetView is what a page shows of a target.
type targetView struct {
	Target
	Status  inspect.TargetStatus
	Known   bool // Status was read
	Fresh   freshness
	Verdict verdict
	Banners []banner
	Live    map[string]string // texts that this process knows by itself
	Due     string            // how long the oldest has been due
	Backlog string
	Gone    string
	Behind  string // how much of the backlog is behind the cursors; empty if nothing is
	Held    string // what holds it, or holds most of its ranges back
}

// A banner is what a person should know first, and the commands that have to do with it.
type banner struct {
	Class, Head, Text string
	Commands          []command
}

// A command is to be copied to a terminal.
type command struct{ What, Line string }

// A statusDocument is the form of `reaper status --json`, with what is known of its age.
type statusDocument struct {
	Store   string                  `json:"store"`
	Now     time.Time               `json:"now"`
	Targets []inspect.TargetStatus  `json:"targets"`
	Reads   []readDocument          `json:"reads"`
	Trips   []inspect.BreakerStatus `json:"trips"`
}

// A readDocument says how old the status of a target is.
type readDocument struct {
	Target     string     `json:"target"`
	At         *time.Time `json:"at"`               // nil if it was never read
	Unanswered *time.Time `json:"unanswered_since"` // nil if the last read succeeded
	Error      string     `json:"error"`
}

// An overview is the content of the first page.
type overview struct {
	Targets []targetView
	Banners []banner
	Fresh   freshness // of the target whose reads have failed for the longest
	Reading int       // targets that were never read
}

func (s *Server) showOverview(w http.ResponseWriter, r *http.Request) {
	views := s.views(r.Context(), s.Targets)
	if wantsJSON(r) {
		s.answer(w, s.statusDocument(views))
		return
	}
	o := overview{Targets: views}
	for _, v := range views {
		o.Banners = append(o.Banners, v.Banners...)
		if !v.Known {
			o.Reading++
		}
		if f := v.Fresh; f.Since != nil && (o.Fresh.Since == nil || f.Since.Before(*o.Fresh.Since)) {
			o.Fresh = f
		}
	}
	s.show(w, r, http.StatusOK, "overview", frame{Title: "Overview", Here: "overview", JSON: "index.json",
		Events: "events", Soon: o.Reading > 0 && o.Fresh.Since == nil, Content: o})
}

// views looks at targets, all at the same time.
func (s *Server) views(ctx context.Context, targets []Target) []targetView {
	list := make([]targetView, len(targets))
	states := s.states()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var all sync.WaitGroup
	for i, t := range targets {
		all.Go(func() { list[i] = s.view(t, s.lookAt(ctx, t.Name), states) })
	}
	all.Wait()
	return list
}

// view returns what a page shows of a target.
func (s *Server) view(t Target, c copied[look], states map[string]sweep.State) targetView {
	v := targetView{Target: t, Status: c.Value.Status, Known: c.Known(), Fresh: s.freshnessOf(c.At, c.Asked, c.Err),
		Verdict: verdictOf(c), Live: map[string]string{}}
	if st, ok := states[t.Name]; ok {
		v.Live = s.liveTexts(st)
	}
	if !v.Known {
		v.Status.Name, v.Status.Err, v.Status.Verdict = t.Name, cmp.Or(c.Err, errNotRead), inspect.Unknown
		v.Status.Why = v.Verdict.Why
		return v
	}
	now := s.Now()
	v.Banners = bannersOf(v, c.Value.Trip, now)
	st := v.Status
	if v.Due = "nothing is due"; st.OldestDue != nil {
		v.Due = draw.Age(now.Sub(*st.OldestDue))
	} else if st.SweptTo == nil && len(st.Ranges) > 0 {
		v.Due = "not known"
	}
	switch {
	case st.Backlog == nil:
		v.Backlog = "not known"
	case st.AtLeast:
		v.Backlog = "at least " + draw.Count(*st.Backlog)
	default:
		v.Backlog = draw.Count(*st.Backlog)
	}
	if st.GoneAt != nil {
		v.Gone = "gone in " + draw.Age(st.GoneAt.Sub(now))
	}
	if st.Behind != nil && *st.Behind > 0 {
		v.Behind = draw.Count(*st.Behind)
	}
	v.Held = heldText(st)
	return v
}

// Rate shows how much the ranges in work may delete.
func (v targetView) Rate() string { return draw.Rate(v.Status.Rate, v.Status.Unlimited) }

// heldText says what holds a target or, if nothing does, what holds most of its ranges back.
func heldText(st inspect.TargetStatus) string {
	if st.Held != "" {
		return st.Held
	}
	reasons := map[string]int{}
	for _, r := range st.Ranges {
		if r.OldestDue != nil && r.ThrottledBy != "" {
			reasons[r.ThrottledBy]++
		}
	}
	if len(reasons) == 0 {
		return "nothing"
	}
	names := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		return cmp.Or(reasons[b]-reasons[a], strings.Compare(a, b))
	})
	return fmt.Sprintf("%s, %s", draw.Visible(names[0]), draw.Plural(reasons[names[0]], "range", "ranges"))
}

// liveTexts shows what this process knows of a target, a second old.
func (s *Server) liveTexts(st sweep.State) map[string]string {
	texts := map[string]string{"deleted": draw.Count(st.Deleted), "working": draw.Count(int64(st.Working)),
		"rate": draw.Rate(st.Rate, math.IsInf(st.Rate, 1)), "held": cmp.Or(string(st.Held), "nothing"), "tick": "–",
		"next": st.Next.UTC().Format("15:04:05")}
	if s.Mode != Deletes {
		texts["deleted"] = draw.Count(st.Expired)
	}
	if !st.Tick.IsZero() {
		texts["tick"] = st.Tick.UTC().Format("15:04:05")
	}
	return texts
}

// bannersOf says what holds a target, and how to end that.
func bannersOf(v targetView, trip *inspect.BreakerStatus, now time.Time) (list []banner) {
	st, name := v.Status, draw.Quoted(v.Name)
	if trip != nil {
		list = append(list, tripBanner(name, v.Name, *trip, st.Reason))
	}
	if st.Paused {
		text := "Nothing is deleted until reaper resume."
		if st.PausedUntil != nil {
			text = "Nothing is deleted until " + draw.Instant(*st.PausedUntil) + "."
		}
		if st.PausedBy != "" {
			text += " Paused by " + draw.Visible(st.PausedBy)
			if st.PausedAt != nil {
				text += " " + draw.Age(now.Sub(*st.PausedAt)) + " ago"
			}
			text += "."
		}
		if st.Held == "paused" && st.Reason != "" {
			text += " Reason: " + draw.Visible(st.Reason)
		}
		list = append(list, banner{"paused", v.Name + " is paused", text,
			[]command{{"go on deleting", "reaper resume --target " + name + ` --reason "…"`}}})
	}
	if st.Held != "" && st.Held != "paused" && trip == nil {
		list = append(list, banner{"held", v.Name + " is held by its " + draw.Visible(st.Held), draw.Visible(st.Reason),
			[]command{{"say more", "reaper status --target " + name + " --all"}}})
	}
	if st.WouldTrip != nil && st.Held == "" {
		list = append(list, banner{"would-trip", v.Name + ": its breaker would trip at the next reads from the start",
			fmt.Sprintf("%s are late, where %s may be.", draw.Count(st.WouldTrip.Due), draw.Count(st.WouldTrip.Limit)),
			[]command{{"stop before that", "reaper pause --target " + name + ` --reason "…"`}}})
	}
	if by := st.SupersededBy; by != "" {
		list = append(list, banner{"superseded", v.Name + " is superseded",
			"The adoption of " + draw.Visible(by) + " is finished: remove this target from the targets file.", nil})
	}
	return list
}

// tripBanner describes an open trip.
func tripBanner(name, title string, trip inspect.BreakerStatus, summary string) banner {
	due := draw.Count(trip.Due)
	if trip.DueAtLeast {
		due += " or more"
	}
	text := fmt.Sprintf("%s are due, where %s may be (%s). ", due, draw.Count(trip.Limit), ruleText(trip.Rule))
	if trip.At != nil {
		text += "Open since " + draw.Instant(*trip.At) + ". "
	}
	if trip.Deleted > 0 {
		text += draw.Count(trip.Deleted) + " of it went before it tripped. "
	}
	if len(trip.Samples) > 0 {
		var ids []string
		for _, id := range trip.Samples {
			ids = append(ids, draw.Visible(id))
		}
		text += "Such as " + strings.Join(ids, ", ") + ". "
	}
	if text += "Nothing is deleted until a person decides."; summary == "" {
		text = strings.TrimSpace(text)
	}
	id := draw.Quoted(trip.Trip)
	return banner{"tripped", title + ": its breaker is open", text, []command{
		{"look at the event", "reaper breaker show " + name},
		{"if it is right", "reaper breaker approve " + name + " " + id + ` --reason "…"`},
		{"try a part of it first", "reaper breaker approve " + name + " " + id + ` --count 100 --reason "…"`},
		{"once its cause is gone", "reaper breaker clear " + name + ` --reason "…"`},
	}}
}

// ruleText says what a rule of the breaker means.
func ruleText(r breaker.Rule) string {
	switch r {
	case breaker.Burst:
		return "too much expires within one window"
	case breaker.LateOnes:
		return "too much expired before its range was last swept"
	case breaker.NewGround:
		return "much is due, and this was never swept in this way"
	}
	return draw.Visible(string(r))
}

func (s *Server) statusDocument(views []targetView) statusDocument {
	doc := statusDocument{Store: s.Store, Now: s.Now().UTC(), Targets: []inspect.TargetStatus{},
		Reads: []readDocument{}, Trips: []inspect.BreakerStatus{}}
	for _, v := range views {
		doc.Targets = append(doc.Targets, v.Status)
		doc.Reads = append(doc.Reads, readDocument{v.Name, v.Fresh.Read, v.Fresh.Since, v.Fresh.Why})
		if trip := s.looks.peek(v.Name).Value.Trip; trip != nil {
			doc.Trips = append(doc.Trips, *trip)
		}
	}
	return doc
}
