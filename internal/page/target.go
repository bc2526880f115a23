package page

import (
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/page/draw"
)

// mostParameter is the longest parameter of a request that is read: ids have at most 1,500 bytes.
const mostParameter = 1500

// A targetPage is the content of the page of a target.
type targetPage struct {
	targetView
	Map       draw.Map
	Deleted   int64 // since the records began
	Spans     []spanView
	Events    []draw.Event
	History   freshness
	AtLeast   bool // a run goes on, or was lost
	Commands  []command
	NoHistory bool // it was never read
	Prices    forecast.Prices
}

// A spanView is the charts of one span.
type spanView struct {
	Name   string
	Charts []draw.Chart
}

// A targetDocument is the status of a target, with what its charts show.
type targetDocument struct {
	statusDocument
	Hours []draw.Bucket `json:"hours"`
	Days  []draw.Bucket `json:"days"`
}

func (s *Server) showTarget(w http.ResponseWriter, r *http.Request) {
	name, _ := strings.CutSuffix(r.PathValue("name"), ".json")
	t, ok := s.target(name)
	if !ok {
		s.fail(w, r, http.StatusNotFound, "there is no such target")
		return
	}
	s.looks.touch(name, s.every(), s.readTarget(name)) // at the same time as the history
	h := s.history(r.Context(), name)
	v := s.views(r.Context(), []Target{t})[0]
	now := s.Now()
	prices := s.pricesNow(r.Context())
	hours := draw.BucketsOf(draw.Spans[0], h.Value, prices, now)
	days := draw.BucketsOf(draw.Spans[1], h.Value, prices, now)
	if wantsJSON(r) {
		s.answer(w, targetDocument{s.statusDocument([]targetView{v}), hours, days})
		return
	}
	own, _ := s.withOwn(v.Status)
	p := targetPage{targetView: v, Map: draw.NewMap(own, now, parameter(r, "cell")),
		History: s.freshnessOf(h.At, h.Asked, h.Err), NoHistory: !h.Known(), Commands: commandsFor(v)}
	for _, r := range v.Status.Ranges {
		p.Deleted += r.Deleted
	}
	p.Events = draw.EventsOf(h.Value, now.Add(-month))
	p.Prices = prices
	p.AtLeast = h.Value.Sums.AtLeast
	p.Spans = []spanView{
		{draw.Spans[0].Name, draw.ChartsOf(draw.Spans[0], hours, p.Events)},
		{draw.Spans[1].Name, draw.ChartsOf(draw.Spans[1], days, p.Events)},
	}
	s.show(w, r, http.StatusOK, "target", frame{Title: name, Here: "target", JSON: name + ".json",
		Events: "events?target=" + name, Soon: (!v.Known || p.NoHistory) && v.Fresh.Since == nil && p.History.Since == nil,
		Content: p})
}

// commandsFor lists what may be done to a target.
func commandsFor(v targetView) []command {
	name := draw.Quoted(v.Name)
	list := []command{}
	if !v.Status.Paused {
		list = append(list, command{"stop all deletes, usually within five seconds",
			"reaper pause --target " + name + ` --reason "…"`})
	} else {
		list = append(list, command{"go on deleting", "reaper resume --target " + name + ` --reason "…"`})
	}
	return append(list,
		command{"change its pace", "reaper pace --target " + name + ` --max 200 --reason "…"`},
		command{"all ranges in the terminal", "reaper status --target " + name + " --all"},
		command{"entities that are kept", "reaper list --target " + name + " --kept malformed"},
		command{"compare history and counters", "reaper history --target " + name + " --check"})
}

// parameter returns a parameter of a request; empty if it is no text, or longer than any that is
// meant.
func parameter(r *http.Request, name string) string {
	text := r.URL.Query().Get(name)
	if len(text) > mostParameter || !utf8.ValidString(text) {
		return ""
	}
	return text
}
