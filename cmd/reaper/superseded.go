package main

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

const (
	// supersededWithin bounds the look for the target that replaces another one.
	supersededWithin = 2 * time.Second
	// supersededEvery is how often a daemon looks.
	supersededEvery = time.Hour
)

// supersededBy returns the name of the target that replaces one, because its adoption is
// finished; empty without one. Only targets of the same kind cost a read.
func (s *session) supersededBy(ctx context.Context, t sweep.Target) (string, error) {
	var others []string
	for _, o := range s.Targets {
		if o.Kind == t.Kind && o.Group == t.Group && o.Name != t.Name && o.StoreTarget().Type == store.Text {
			others = append(others, o.Name)
		}
	}
	if len(others) == 0 {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, supersededWithin)
	defer cancel()
	return adopt.SupersededBy(ctx, s.db.Store, t.Target, others)
}

// warnSuperseded warns of targets that others replace, each once.
func (s *session) warnSuperseded(ctx context.Context, warned map[string]bool) {
	for _, t := range s.sweep.Targets {
		by, err := s.supersededBy(ctx, t)
		switch {
		case err != nil: // people can do without it
			s.log.DebugContext(ctx, "cannot read adoptions", "target", t.Name, "error", err)
		case by != "" && !warned[t.Name]:
			warned[t.Name] = true
			s.log.WarnContext(ctx, "target superseded: remove it from the targets file", "target", t.Name,
				"property", t.Property, "superseded_by", by)
		}
	}
}

// A supersession is what a look for the target that replaces another one has found.
type supersession struct {
	by  string
	err error
}

func (s *session) supersession(ctx context.Context, t sweep.Target) supersession {
	by, err := s.supersededBy(ctx, t)
	return supersession{by, err}
}

func (u supersession) fill(st *inspect.TargetStatus) {
	if st.SupersededBy = u.by; u.err != nil {
		st.Unread = append(st.Unread, fmt.Sprintf("the adoptions of the kind: %v", u.err))
	}
}
