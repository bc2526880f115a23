package page

import (
	"context"
	"net/http"
)

// A planPage is the content of the page that forecasts a target.
type planPage struct {
	Target  string
	Targets []Target
	Text    string
	Known   bool
	Fresh   freshness
}

func (s *Server) showPlan(w http.ResponseWriter, r *http.Request) {
	p := planPage{Targets: s.Targets, Target: parameter(r, "target")}
	if p.Target == "" && len(s.Targets) > 0 {
		p.Target = s.Targets[0].Name
	}
	if _, ok := s.target(p.Target); !ok {
		s.fail(w, r, http.StatusNotFound, "no target has this name")
		return
	}
	c := s.plans.get(r.Context(), p.Target, planEvery, func(ctx context.Context, _ Plan) (Plan, error) {
		due := int64(0)
		if at := s.looks.peek(p.Target); at.Value.Status.Backlog != nil {
			due = *at.Value.Status.Backlog
		}
		return s.Source.Plan(ctx, p.Target, due)
	})
	p.Text, p.Known, p.Fresh = c.Value.Text, c.Known(), s.freshnessOf(c.At, c.Asked, c.Err)
	if wantsJSON(r) {
		s.answerOnce(w, r, p.Known, c.Value.Document, "the history is being read")
		return
	}
	s.show(w, r, http.StatusOK, "plan", frame{Title: "Plan of " + p.Target, Here: "plan",
		JSON: "plan.json?target=" + p.Target, Soon: !p.Known && c.Err == nil, Content: p})
}
