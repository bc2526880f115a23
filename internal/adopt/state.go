package adopt

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A State is how far a target's adoption has come, over all processes.
type State struct {
	Phase      Phase     `json:"phase"`
	Rule       string    `json:"rule"`
	Percent    float64   `json:"percent"`
	Round      int       `json:"round"`
	RoundBegan time.Time `json:"round_began"`
	Parts      int       `json:"parts"` // of the present reading of all keys
	PartsDone  int       `json:"parts_done"`
	Scanned    int64     `json:"scanned"` // by finished pages: a part in work has read a little more
	Written    int64     `json:"written"` // keys that were written or, in the phase undo, removed
	// What the last round, and adopt --watch since, has left without a key though the rule gives
	// one, and has found with a key that disagrees with the rule.
	Unstamped int64 `json:"unstamped"`
	Mismatch  int64 `json:"mismatch"`
	// FollowedTo is the last value that adopt --watch has met in the index of the rule's property;
	// nil if nobody follows it since the round.
	FollowedTo *time.Time `json:"followed_to"`
}

// LoadState reads the state of a target's adoption; nil without one, which costs one
// read.
func LoadState(ctx context.Context, s store.Loader, target string) (*State, error) {
	rec, _, exists, err := Load(ctx, s, target)
	if err != nil || !exists {
		return nil, err
	}
	parts, _, err := loadParts(ctx, s, rec)
	if err != nil {
		return nil, err
	}
	round := rec.Round()
	st := &State{Phase: rec.Phase, Rule: rec.Rule.String(), Percent: round.Percent, Round: round.Number,
		RoundBegan: round.Began, Parts: len(parts)}
	for _, p := range parts {
		if p.done {
			st.PartsDone++
		}
		st.Scanned += p.scanned
		st.Written += p.stamped
		st.Unstamped += p.left
		st.Mismatch += p.mismatch
	}
	f, err := loadFollow(ctx, s, rec)
	if err != nil || f.revision == "" || f.token == 0 || f.scanned == 0 && f.owner == "" {
		return st, err
	}
	st.Written += f.stamped
	st.Unstamped += f.left
	st.Mismatch += f.mismatch
	if at, err := time.Parse(store.TimeLayout, f.after); err == nil {
		st.FollowedTo = &at
	}
	return st, nil
}

// SupersededBy returns which of some other targets replaces this one: its adoption is
// finished, and its rule read the property by which this target is swept. It is empty if
// there is no such target. Each name costs a read.
func SupersededBy(ctx context.Context, s store.Loader, t store.Target, others []string) (name string, err error) {
	for _, name := range others {
		rec, _, exists, err := Load(ctx, s, name)
		if err != nil {
			return "", err
		}
		if exists && rec.Phase == Finished && rec.Kind == t.Kind && rec.Property != t.Property &&
			rec.Rule.Property == t.Property {
			return name, nil
		}
	}
	return "", nil
}
