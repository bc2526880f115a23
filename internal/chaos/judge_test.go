//go:build linux

package chaos

import (
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// The oracle finds every broken rule, and accepts everything that is allowed.
func TestJudge(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	key := func(number int, at time.Time) expiry {
		k, err := expirykey.New(number, 2, at)
		if err != nil {
			t.Fatal(err)
		}
		return expiry{k.String(), k.Expires}
	}
	is := func(e expiry) state {
		return state{present: true, body: "a", expiry: e, acked: now.Add(-time.Hour)}
	}
	live, due := key(3, now.Add(time.Millisecond)), key(3, now)
	late, kept := is(due), is(due)
	late.late, late.acked = true, now.Add(time.Hour)
	kept.expiry.at = time.Time{}
	straggler := is(due)
	straggler.acked = now
	token := is(expiry{formatInstant(now), now})
	adopts := func(at, former time.Duration) state {
		s := is(expiry{"by the rule", now.Add(at)})
		if s.ruled = true; former != 0 {
			s.former = now.Add(former)
		}
		return s
	}

	at := func(v store.Value, number int, shard string) known {
		id := cursor.ID{Target: "x", Generation: number, Shard: shard}
		return known{now, cursor.NewTable(cursor.Cursor{ID: id, Position: store.Position{Value: v}}),
			generation.Record{Generations: []generation.Generation{{Number: 3}, {Number: 5}}}}
	}
	before, past := at(store.TextValue(due.text), 3, "0002"), at(store.TextValue(key(3, now.Add(time.Millisecond)).text), 3, "0002")
	for name, c := range map[string]struct {
		state state
		found *found
		known known
		wrong string
		want  observation
	}{
		"deleted":                 {state: state{}},
		"deleted and back":        {state: state{}, found: &found{"a", ""}, wrong: "back"},
		"live":                    {state: is(live), found: &found{"a", live.text}, known: before},
		"live and gone":           {state: is(live), wrong: "S1"},
		"never expires and gone":  {state: is(expiry{}), wrong: "S1"},
		"kept for ever and gone":  {state: kept, wrong: "S1"},
		"due":                     {state: is(due), found: &found{"a", due.text}, known: before},
		"due and gone":            {state: is(due), want: observation{gone: true}},
		"changed":                 {state: is(live), found: &found{"b", live.text}, wrong: "S2"},
		"due and changed":         {state: is(due), found: &found{"b", due.text}, wrong: "S2"},
		"without its expiry":      {state: is(live), found: &found{"a", ""}, wrong: "S2"},
		"with another expiry":     {state: is(live), found: &found{"a", due.text}, wrong: "S2"},
		"carried":                 {state: is(live), found: &found{"a", key(5, live.at).text}, want: observation{carried: true}},
		"carried to a retired":    {state: is(live), found: &found{"a", key(4, live.at).text}, known: before, want: observation{carried: true, stray: true}},
		"behind a cursor":         {state: is(due), found: &found{"a", due.text}, known: past, wrong: "L2"},
		"of another shard":        {state: is(due), found: &found{"a", due.text}, known: at(store.TextValue(live.text), 3, "0001")},
		"written behind a cursor": {state: straggler, found: &found{"a", due.text}, known: past},
		"written too late":        {state: late, found: &found{"a", due.text}, known: past},
		"suspect":                 {state: kept, found: &found{"a", due.text}, known: past},
		"timestamp":               {state: token, found: &found{"a", token.expiry.text}, known: at(store.InstantValue(now), 0, "0000")},
		"not adopted yet":         {state: adopts(time.Hour, 0), found: &found{"a", ""}},
		"adopted":                 {state: adopts(time.Hour, 0), found: &found{"a", key(3, now.Add(time.Hour)).text}, want: observation{adopted: true}},
		"adopted when it was due": {state: adopts(-time.Hour, 0), found: &found{"a", key(3, now.Add(-time.Minute)).text}, want: observation{adopted: true}},
		"extended since":          {state: adopts(time.Hour, time.Minute), found: &found{"a", key(3, now.Add(time.Minute)).text}, want: observation{adopted: true}},
		"adopted too early":       {state: adopts(time.Hour, 0), found: &found{"a", key(3, now.Add(time.Minute)).text}, wrong: "M1"},
		"adopted too late":        {state: adopts(time.Hour, 0), found: &found{"a", key(3, now.Add(2*time.Hour)).text}, wrong: "M1"},
		"changed by an adoption":  {state: adopts(time.Hour, 0), found: &found{"b", ""}, wrong: "S2"},
		"extended and gone":       {state: adopts(time.Hour, -time.Minute), wrong: "S1"},
		"timestamp behind":        {state: token, found: &found{"a", token.expiry.text}, known: at(store.InstantValue(now.Add(time.Microsecond)), 0, "0000"), wrong: "L2"},
	} {
		got := judge(c.state, c.found, now, "x", c.known)
		if wrong := got.wrong; !strings.Contains(wrong, c.wrong) || (wrong == "") != (c.wrong == "") {
			t.Errorf("%s: %q, want %q", name, wrong, c.wrong)
		}
		if got.wrong = ""; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}

	// A write with an unknown outcome may have happened or not.
	for name, c := range map[string]struct {
		candidates []state
		found      *found
		wrong      bool
	}{
		"before":        {[]state{is(live), {}}, &found{"a", live.text}, false},
		"after":         {[]state{{}, is(live)}, &found{"a", live.text}, false},
		"carried since": {[]state{{}, is(live)}, &found{"a", key(5, live.at).text}, false},
		"deleted":       {[]state{is(live), {}}, nil, false},
		"expired since": {[]state{is(live), is(due)}, nil, false},
		"lost":          {[]state{is(live), is(expiry{})}, nil, true},
		"neither":       {[]state{is(live), {}}, &found{"b", live.text}, true},
	} {
		if got := among(c.candidates, c.found, now); (got != "") != c.wrong {
			t.Errorf("unknown outcome, %s: %q", name, got)
		}
	}
}

func TestWentBack(t *testing.T) {
	at := func(token int64, owner, position string) cursor.Cursor {
		return cursor.Cursor{Revision: "1-A", Position: store.Position{Value: store.TextValue(position)}, Lease: cursor.Lease{Token: token, Owner: owner}}
	}
	was := at(3, "a", "m")
	other, audit := at(3, "a", "a"), at(4, "b", "a")
	other.Opened, audit.Shard = time.Unix(0, 0), "audit"
	key := func(at time.Time) string {
		k, err := expirykey.New(3, 2, at)
		if err != nil {
			t.Fatal(err)
		}
		return k.String()
	}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	drained, swept := at(3, "a", key(now.Add(time.Minute))), at(3, "a", key(now.Add(-10*time.Second)))
	for name, c := range map[string]struct {
		was, is cursor.Cursor
		wrong   string
	}{
		"new":                   {cursor.Cursor{}, at(1, "a", "a"), ""},
		"goes on":               {was, at(3, "a", "n"), ""},
		"released":              {was, at(3, "", "n"), ""},
		"taken over":            {was, at(4, "b", "m"), ""},
		"another opening":       {was, other, ""},
		"an audit begins again": {was, audit, ""},
		"an old token":          {was, at(2, "b", "n"), "L3"},
		"two owners":            {was, at(3, "b", "n"), "L3"},
		"back":                  {was, at(4, "b", "l"), "L2"},
		"back from the future":  {drained, at(4, "b", key(now.Add(-5*time.Second))), ""},
		"back from the past":    {swept, at(4, "b", key(now.Add(-11*time.Second))), "L2"},
	} {
		if got := wentBack(c.was, c.is, now); !strings.Contains(got, c.wrong) || (got == "") != (c.wrong == "") {
			t.Errorf("%s: %q, want %q", name, got, c.wrong)
		}
	}
}

// An observation counts only if nothing was written meanwhile.
func TestSlot(t *testing.T) {
	s := &slot{kind: keyed, id: "a"}
	s.begin()
	if s.look().sound {
		t.Error("a slot that is being written to is looked at")
	}
	s.end(state{present: true, body: "a"}, "put")
	v := s.look()
	s.begin()
	s.end(state{present: true, body: "b"}, "put")
	if !v.sound || s.gone(v.version) != 0 || s.look().state.body != "b" {
		t.Errorf("an old view had an effect: %+v", s.look().state)
	}
	if v = s.look(); s.gone(v.version) != 1 || s.gone(v.version) != 0 || s.look().state.present {
		t.Errorf("it is gone once: %+v", s.look().state)
	}
	for i := range 2 * historyLength {
		s.say("line %d", i)
	}
	if len(s.history) != historyLength || !strings.HasSuffix(s.history[historyLength-1], "line 27") {
		t.Errorf("history: %q", s.history)
	}
}
