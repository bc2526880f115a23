package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/page/draw"
	"github.com/reaper-ttl/reaper/store"
)

// A doctorPage is the content of the page of the doctor.
type doctorPage struct {
	Report doctor.Report
	Known  bool
	Fresh  freshness
	Groups []doctorGroup
	Errors int
	Warns  int
	Infos  int
}

// A doctorGroup is the findings about one thing.
type doctorGroup struct {
	Name     string
	Findings []doctor.Finding
}

func (s *Server) showDoctor(w http.ResponseWriter, r *http.Request) {
	c := s.doctors.get(r.Context(), "", doctorEvery, func(ctx context.Context, _ doctor.Report) (doctor.Report, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		report, err := s.Source.Doctor(ctx)
		return s.reportWithoutIDs(report), err
	})
	fresh := s.freshnessOf(c.At, c.Asked, c.Err)
	if wantsJSON(r) {
		s.answerOnce(w, r, c.Known(), c.Value, "the checks go on")
		return
	}
	p := doctorPage{Report: c.Value, Known: c.Known(), Fresh: fresh, Errors: c.Value.Count(doctor.Error),
		Warns: c.Value.Count(doctor.Warning), Infos: c.Value.Count(doctor.Info)}
	for _, g := range doctor.Groups() {
		group := doctorGroup{Name: string(g)}
		for _, f := range c.Value.Findings {
			if f.Group == g {
				group.Findings = append(group.Findings, f)
			}
		}
		if len(group.Findings) > 0 {
			p.Groups = append(p.Groups, group)
		}
	}
	s.show(w, r, http.StatusOK, "doctor", frame{Title: "Doctor", Here: "doctor", JSON: "doctor.json",
		Soon: !c.Known() && c.Err == nil, Content: p})
}

// reportWithoutIDs leaves out evidence that names entities, unless ids are shown.
func (s *Server) reportWithoutIDs(r doctor.Report) doctor.Report {
	if s.IDs {
		return r
	}
	for i, f := range r.Findings {
		switch f.Group {
		case doctor.Data, doctor.Indexes, doctor.Configuration:
			if len(f.Evidence) > 0 {
				r.Findings[i].Evidence = []string{"reaper doctor shows the evidence, which may name entities"}
			}
		default:
			for j, e := range f.Evidence {
				f.Evidence[j] = draw.WithoutIDs(e)
			}
		}
	}
	for i, u := range r.Unchecked {
		r.Unchecked[i].Why = draw.WithoutIDs(u.Why)
	}
	return r
}

// An explainPage is the content of the page that explains an entity.
type explainPage struct {
	Allowed bool // ids are shown
	Targets []Target
	Asked   *Question // nil without a question
	Number  bool
	Text    string // the id for the form
	Answer  inspect.Explanation
	Known   bool
	Fresh   freshness
	Command string
}

func (s *Server) showExplain(w http.ResponseWriter, r *http.Request) {
	p := explainPage{Allowed: s.IDs, Targets: s.Targets}
	code := http.StatusOK
	var q Question
	if r.URL.Query().Has("id") {
		var why string
		if q, why = s.question(r); why != "" {
			s.fail(w, r, http.StatusBadRequest, why)
			return
		}
		p.Asked, p.Number = &q, q.ID.Number != 0
		p.Command = explainCommand(q, parameter(r, "id"))
		if id := parameter(r, "id"); draw.Visible(id) == id { // else the form would ask for another one
			p.Text = id
		}
		if !s.IDs {
			code = http.StatusForbidden
		}
	}
	if p.Asked != nil && s.IDs {
		key := fmt.Sprintf("%q %q %q %q %d", q.Target, q.Namespace, q.ID.Parent, q.ID.Name, q.ID.Number)
		c := s.answers.get(r.Context(), key, explainEvery, s.explain(q))
		if errors.Is(c.Err, inspect.ErrUnknownEntity) {
			s.fail(w, r, http.StatusBadRequest, draw.Visible(c.Err.Error()))
			return
		}
		p.Answer, p.Known, p.Fresh = c.Value, c.Known(), s.freshnessOf(c.At, c.Asked, c.Err)
	}
	switch {
	case wantsJSON(r) && p.Asked == nil:
		s.fail(w, r, http.StatusBadRequest, "id is missing")
	case wantsJSON(r) && !s.IDs:
		s.fail(w, r, http.StatusForbidden, "ids of entities are shown only with --ui-ids")
	case wantsJSON(r) && !p.Known:
		s.fail(w, r, http.StatusServiceUnavailable, "the store has not answered yet: ask again soon")
	case wantsJSON(r):
		s.answer(w, p.Answer)
	default:
		s.show(w, r, code, "explain", frame{Title: "Explain", Here: "explain",
			JSON: "explain.json?" + r.URL.Query().Encode(), Soon: p.Asked != nil && s.IDs && !p.Known && p.Fresh.Why == "",
			Content: p})
	}
}

// explain returns what explains an entity.
func (s *Server) explain(q Question) func(context.Context, inspect.Explanation) (inspect.Explanation, error) {
	return func(ctx context.Context, _ inspect.Explanation) (inspect.Explanation, error) {
		ctx, cancel := context.WithTimeout(ctx, explainWithin)
		defer cancel()
		return s.Source.Explain(ctx, q)
	}
}

// question reads which entity a request asks for.
func (s *Server) question(r *http.Request) (q Question, why string) {
	id, target := parameter(r, "id"), parameter(r, "target")
	if target == "" && len(s.Targets) == 1 {
		target = s.Targets[0].Name
	}
	if _, ok := s.target(target); !ok {
		return q, "target is missing, or there is no such target"
	}
	if id == "" {
		return q, "id is empty, not UTF-8, or longer than 1,500 bytes"
	}
	q = Question{Target: target, Namespace: parameter(r, "namespace"),
		ID: store.Entity{Name: id, Parent: parameter(r, "parent")}}
	if r.URL.Query().Get("number") != "" {
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil || n <= 0 {
			return q, "id is not a positive integer"
		}
		q.ID.Name, q.ID.Number = "", n
	}
	return q, ""
}

// explainCommand returns the command that explains the same entity.
func explainCommand(q Question, id string) string {
	line := "reaper explain --target " + draw.Quoted(q.Target)
	if q.Namespace != "" {
		line += " --namespace " + draw.Quoted(q.Namespace)
	}
	if q.ID.Parent != "" {
		line += " --parent " + draw.Quoted(q.ID.Parent)
	}
	if q.ID.Number != 0 {
		line += " --number"
	}
	return line + " -- " + draw.Quoted(id)
}
