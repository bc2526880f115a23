package plan_test

import (
	"bufio"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A script is what the commands of a golden file have set.
type script struct {
	t     *testing.T
	out   strings.Builder
	line  string
	rules plan.Rules
	view  plan.View
	book  plan.Book
	now   time.Time
}

func play(t *testing.T, text string) string {
	t.Helper()
	s := &script{t: t}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, ">"):
			s.say(line)
			s.line = line
			words := strings.Fields(line[1:])
			s.do(words[0], words[1:])
		case line == "" || strings.HasPrefix(line, "#"):
			s.say(line)
		}
	}
	return s.out.String()
}

func (s *script) say(format string, args ...any) {
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	s.out.WriteString(strings.TrimRight(format, " ") + "\n")
}

func (s *script) fail(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", s.line, err)
	}
}

func (s *script) do(command string, words []string) {
	switch command {
	case "target":
		s.target(words)
	case "now":
		s.now = s.at(words[0])
	case "record":
		s.record(words)
	case "generation":
		s.generation(words)
	case "cursor":
		table := maps.Collect(s.view.Cursors.All())
		s.cursor(table, words)
		s.view.Cursors = cursor.NewTable(slices.Collect(maps.Values(table))...)
	case "own":
		own := map[cursor.ID]cursor.Cursor{}
		for id, packed := range s.book.Own {
			own[id] = packed.Cursor(id)
		}
		s.cursor(own, words)
		clear(s.book.Own)
		for id, c := range own {
			s.book.Own[id] = cursor.Pack(c)
		}
	case "seal":
		s.seal(words)
	case "tried":
		s.tried(words)
	case "live":
		s.live()
	case "plan":
		p := s.plan()
		s.tellRanges(p)
		s.tellChores(p)
	case "ranges":
		s.tellRanges(s.plan())
	case "rewinds":
		p := s.plan()
		for _, r := range p.Ranges() {
			s.say("    %-11s %s", rangeName(r), short(s.rules.NextRewind(p.Cursor(r)).Truncate(time.Second)))
		}
	case "chores":
		s.tellChores(s.plan())
	case "spans":
		s.tellSpans(strings.Join(words, ""))
	case "reading":
		s.tellReading(words)
	case "order":
		chance, err := strconv.ParseFloat(words[0], 64)
		s.fail(err)
		var names []string
		for _, r := range plan.Order(s.plan().Ranges(), chance) {
			names = append(names, rangeName(r))
		}
		s.say("    %s", strings.Join(names, " "))
	case "first":
		s.tellRecord(plan.First(s.rules, s.now))
	case "restart", "probed":
		s.adopt(command == "restart", words)
	case "configured":
		s.tellRecord(plan.Configured(s.rules, s.view.Record, s.now))
	case "lineage":
		if err := plan.CheckLineage(s.view.Record, len(words) > 0, s.rules.Target, s.view.Cursors); err != nil {
			s.say("    %v", err)
		} else {
			s.say("    fine")
		}
	default:
		s.t.Fatalf("what is %q?", s.line)
	}
}

func (s *script) plan() *plan.Plan { return plan.New(s.rules, &s.view, s.book, s.now) }

func (s *script) target(words []string) {
	created := s.at("21T00:00")
	chosen := layout.Generation
	s.rules = plan.Rules{Target: "sessions", Rewind: 24 * time.Hour, MaxAge: 365 * 24 * time.Hour,
		Policy: generation.Policy{Every: 24 * time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 3, Shards: 1}}
	p := &s.rules.Policy
	s.view = plan.View{Namespaces: []string{""}, CursorsSent: created}
	s.book = plan.Book{Own: map[cursor.ID]cursor.Packed{}, Tried: map[plan.Chore]time.Time{}}
	lengths := map[string]*time.Duration{"every": &p.Every, "ramp": &p.Ramp, "staleness": &p.Staleness, "slack": &p.Slack,
		"rewind": &s.rules.Rewind, "retention": &s.rules.Retention, "max_age": &s.rules.MaxAge}
	numbers := map[string]*int{"settle": &p.Settle, "keep": &p.Keep, "shards": &p.Shards}
	var err error
	for name, value := range s.settings(words) {
		switch {
		case lengths[name] != nil:
			*lengths[name], err = time.ParseDuration(value)
		case numbers[name] != nil:
			*numbers[name], err = strconv.Atoi(value)
		case name == "layout":
			chosen = layout.Layout(value)
		case name == "values":
			for v := range strings.SplitSeq(value, ",") {
				s.rules.ShardValues = append(s.rules.ShardValues, store.TextValue(v))
			}
		case name == "namespaces":
			s.view.Namespaces = strings.Split(strings.ReplaceAll(value, "-", ""), ",")
		default:
			err = fmt.Errorf("what is %s?", name)
		}
		s.fail(err)
	}
	s.rules.Form, s.rules.Generations = chosen.Form(), chosen.HasSuccession()
	s.rules.Scope = cursor.Scope{Kind: "Session", Property: "expires", Layout: string(chosen)}
	if !s.rules.Generations {
		p.Every = 0
	}
	if !s.rules.Form.HasGenerations() {
		p.Shards = 0
	}
	s.now = created
	s.view.Record = plan.First(s.rules, created)
	s.view.Record.Checked, s.view.Record.Probe, s.view.Record.Revision = created, time.Time{}, "1-x"
}

// settings splits words such as keep=3; a word without a value has an empty one.
func (s *script) settings(words []string) map[string]string {
	m := map[string]string{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		if _, twice := m[name]; twice {
			s.t.Fatalf("%s: %s twice", s.line, name)
		}
		m[name] = value
	}
	return m
}

func (s *script) at(text string) time.Time {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04", "2006-01-02T15:04:05.999999"} {
		whole := text
		if layout != time.RFC3339Nano {
			whole = "2026-11-" + text
		}
		if t, err := time.Parse(layout, whole); err == nil {
			return t
		}
	}
	s.t.Fatalf("%s: %q is no instant", s.line, text)
	return time.Time{}
}

// short prints an instant as at reads it.
func short(t time.Time) string {
	switch {
	case t.Year() < 2000:
		return "at once"
	case t.Year() != 2026 || t.Month() != time.November:
		return t.Format(time.RFC3339)
	case t.Second() == 0 && t.Nanosecond() == 0:
		return t.Format("02T15:04")
	}
	return t.Truncate(time.Millisecond).Format("02T15:04:05.999")
}

func (s *script) record(words []string) {
	rec := &s.view.Record
	for name, value := range s.settings(words) {
		var err error
		switch name {
		case "created":
			rec.Created = s.at(value)
		case "checked":
			rec.Checked = s.at(value)
		case "probe":
			rec.Probe = s.at(value)
		case "nursery":
			rec.NurseryShards, err = strconv.Atoi(value)
		case "revision":
			rec.Revision = value
		case "empty-index":
			rec.EmptyIndex = value != "no"
		default:
			err = fmt.Errorf("what is %s?", name)
		}
		s.fail(err)
	}
}

func (s *script) generation(words []string) {
	number, err := strconv.Atoi(words[0])
	s.fail(err)
	list := s.view.Record.Generations
	i := slices.IndexFunc(list, func(g generation.Generation) bool { return g.Number == number })
	if len(words) > 1 && words[1] == "gone" {
		s.view.Record.Generations = slices.Delete(slices.Clone(list), i, i+1)
		return
	}
	p := s.rules.Policy
	g := generation.Generation{Number: number, Shards: p.Shards, Ramp: p.Ramp, Staleness: p.Staleness, Slack: p.Slack}
	if i >= 0 {
		g = list[i]
	}
	for name, value := range s.settings(words[1:]) {
		switch name {
		case "shards":
			g.Shards, err = strconv.Atoi(value)
		case "opened":
			g.Opened = s.at(value)
		case "ramp":
			g.Ramp, err = time.ParseDuration(value)
		case "closed":
			g.Closed = s.at(value)
		case "draining":
			g.Draining = s.at(value)
		default:
			err = fmt.Errorf("what is %s?", name)
		}
		s.fail(err)
	}
	if i >= 0 {
		list[i] = g
	} else {
		s.view.Record.Generations = append(list, g)
	}
}

// rangeName names a range as cursor takes it.
func rangeName(r shardquery.Range) string {
	return idName(cursor.ID{Namespace: r.Namespace, Generation: r.Generation, Shard: r.ShardName()})
}

func idName(id cursor.ID) string {
	name := fmt.Sprintf("%d.%s", id.Generation, id.Shard)
	if id.Namespace != "" {
		name += "@" + id.Namespace
	}
	return name
}

func (s *script) cursor(table map[cursor.ID]cursor.Cursor, words []string) {
	name, ns, _ := strings.Cut(words[0], "@")
	number, shard, _ := strings.Cut(name, ".")
	g, err := strconv.Atoi(number)
	s.fail(err)
	id := cursor.ID{Target: s.rules.Target, Namespace: ns, Generation: g, Shard: shard}
	c, ok := table[id]
	if !ok {
		c = s.newCursor(id)
	}
	for name, value := range s.settings(words[1:]) {
		if name == "gone" {
			delete(table, id)
			return
		}
		s.change(&c, name, value)
	}
	table[id] = c
}

func (s *script) newCursor(id cursor.ID) cursor.Cursor {
	c := cursor.Cursor{ID: id, Scope: s.rules.Scope, Revision: "1-x"}
	c.Opened = s.view.Record.Created
	for _, other := range s.view.Record.Generations {
		if other.Number == id.Generation {
			c.Opened = other.Opened
		}
	}
	return c
}

func (s *script) change(c *cursor.Cursor, name, value string) {
	at := func() (t time.Time) {
		if value != "" {
			t = s.at(value)
		}
		return t
	}
	switch name {
	case "position":
		c.Position = s.position(c.ID, at())
	case "key":
		c.Position = store.Position{Value: store.TextValue(value)}
	case "swept":
		c.Swept = at()
	case "rewind-began":
		c.Rewind.Began = at()
	case "rewind-position":
		c.Rewind.Position = store.Position{Value: store.TextValue(value)}
	case "rewind-done":
		c.Rewind.Done = at()
	case "next":
		c.Stock.Next = at()
	case "emptied":
		c.Stock.Emptied = at()
	case "suspects":
		c.Stock.Suspects = value != "no"
	case "refused":
		c.Stock.Refused = value != "no"
	case "held-by":
		c.Lease = cursor.Lease{Owner: value, Epoch: 1, Token: c.Lease.Token + 1}
	case "layout":
		c.Layout = value
	case "target-revision":
		n, err := strconv.ParseInt(value, 10, 64)
		s.fail(err)
		c.TargetRevision = n
	default:
		s.t.Fatalf("%s: what is %s?", s.line, name)
	}
}

func (s *script) position(id cursor.ID, at time.Time) store.Position {
	switch {
	case at.IsZero():
		return store.Position{}
	case !s.rules.Form.HasGenerations():
		return store.Position{Value: store.InstantValue(at)}
	}
	shard, err := strconv.Atoi(id.Shard)
	s.fail(err)
	k, err := expirykey.New(id.Generation, shard, at)
	s.fail(err)
	return store.Position{Value: store.TextValue(k.String())}
}

// seal says that a pass over a generation is done, in all namespaces.
func (s *script) seal(words []string) {
	number, err := strconv.Atoi(words[0])
	s.fail(err)
	began := s.now
	if len(words) > 1 {
		began = s.at(words[1])
	}
	seal := cursor.Seal{Target: s.rules.Target, Generation: number, Kind: s.rules.Scope.Kind,
		Property: s.rules.Scope.Property, Namespaces: s.view.Namespaces, First: began, Began: began, Done: began, Revision: "1-" + s.line}
	for _, g := range s.view.Record.Generations {
		if g.Number == number {
			seal.Opened = g.Opened
		}
	}
	seals := map[int]cursor.Seal{number: seal}
	for other, is := range s.view.Seals {
		if other != number {
			seals[other] = is
		}
	}
	s.view.Seals = seals
}

func (s *script) tried(words []string) {
	at := s.now
	if n := len(words) - 1; n > 0 && strings.Contains(words[n], "T") {
		at, words = s.at(words[n]), words[:n]
	}
	c := plan.Chore{Kind: plan.Kind(words[0])}
	if len(words) > 1 {
		if n, err := strconv.Atoi(words[1]); err == nil {
			c.Generation = n
		} else {
			c.Namespace = words[1]
		}
	}
	s.book.Tried[c.Key()] = at
}

func (s *script) live() {
	next, steps := plan.Desired(s.rules, s.view.Record, s.plan().Blocked(), s.now)
	for _, step := range steps {
		s.say("    generation %d is %s", step.Generation, step.State)
	}
	next.Revision = fmt.Sprintf("%d-x", store.RevisionCount(s.view.Record.Revision)+1)
	s.view.Record = next
}

// adopt makes the record list generations that were found in the index.
func (s *script) adopt(restart bool, words []string) {
	var used []generation.Generation
	floor := 0
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		n, err := strconv.Atoi(value)
		s.fail(err)
		if name == "floor" {
			floor = n
			continue
		}
		number, err := strconv.Atoi(name)
		s.fail(err)
		used = append(used, generation.Generation{Number: number, Shards: n})
	}
	var next generation.Record
	var err error
	if restart {
		next, err = plan.FirstAdopting(s.rules, used, floor, s.now)
	} else {
		next, err = s.view.Record.Adopt(used, floor, s.rules.Policy, s.now)
	}
	if err != nil {
		s.say("    %v", err)
		return
	}
	next.Revision, next.Checked = s.view.Record.Revision, s.now
	s.view.Record = next
	s.tellRecord(next)
	if !next.Probe.IsZero() {
		s.say("    to be probed again at %s", short(next.Probe))
	}
}

func (s *script) tellRecord(r generation.Record) {
	var list []string
	for _, g := range r.Generations {
		one := fmt.Sprintf("%d opened %s with %d shards", g.Number, short(g.Opened), g.Shards)
		if !g.Closed.IsZero() {
			one += ", closed " + short(g.Closed)
		}
		list = append(list, one)
	}
	if len(list) == 0 {
		list = []string{"no generations"}
	}
	s.say("    %s: kind %s, property %s, nursery %d, staleness %v, slack %v; %s",
		r.Target, r.Kind, r.Property, r.NurseryShards, r.Staleness, r.Slack, strings.Join(list, "; "))
}

func (s *script) tellRanges(p *plan.Plan) {
	blocked := p.Blocked()
	last := -1
	for _, r := range p.Ranges() {
		if r.Generation != last {
			last = r.Generation
			s.say("    %s", s.stageOf(p, last, slices.Contains(blocked, last)))
		}
		need, text := p.Range(r), ""
		if began := p.Cursor(r).Rewind.Began; need.Behind && !began.IsZero() && began.Before(need.Since) {
			text = ", begins again"
		}
		s.say("      %-11s %s%s", rangeName(r), needOf(need), text)
	}
}

func (s *script) stageOf(p *plan.Plan, number int, blocked bool) string {
	st := p.Stage(number)
	switch {
	case number == expirykey.Nursery && !s.rules.Form.HasGenerations():
		return "timestamps"
	case number == expirykey.Nursery:
		return "nursery"
	}
	text := fmt.Sprintf("generation %d: %s", number, st.State)
	if st.IsSealed() {
		text += ", since " + short(st.Sealed)
	}
	switch {
	case st.Final:
		text += ", last read from " + short(st.Since)
	case !st.IsSealed() && p.SealedSoon(number):
		text += ", not rewound any more"
	}
	switch {
	case blocked:
		text += ", blocked"
	case st.Drain:
		text += ", drained"
	case !st.DrainFrom.IsZero():
		text += ", drained from " + short(st.DrainFrom)
	}
	return text
}

func needOf(n plan.Need) string {
	if !n.Read {
		return "at rest"
	}
	var list []string
	for _, part := range []struct {
		is   bool
		text string
	}{{!n.Unread, "read"}, {n.Fresh, "fresh: probed from the start"}, {n.Unread && !n.Fresh, "unread: read from the start"}, {n.Behind && !n.SuspectsOnly, "behind"},
		{n.SuspectsOnly, "behind for suspects only"}, {n.Stage.Drain, "carry"}, {n.Inventory, "inventory"}} {
		if part.is {
			list = append(list, part.text)
		}
	}
	text := strings.Join(list, ", ")
	if n.IsSlow() {
		text += " (slow)"
	}
	return text
}

func (s *script) tellChores(p *plan.Plan) {
	list := p.Chores()
	if len(list) == 0 {
		s.say("    no chore")
	}
	for i, c := range list {
		text := fmt.Sprintf("    %d. %s", i+1, c.Kind)
		switch c.Kind {
		case plan.Seal, plan.Retire:
			text += fmt.Sprintf(" %d", c.Generation)
		case plan.Audit:
			text += " " + strconv.Quote(c.Namespace)
		case plan.Life:
			_, steps := plan.Desired(s.rules, s.view.Record, p.Blocked(), s.now)
			for _, step := range steps {
				text += fmt.Sprintf(" %d:%s", step.Generation, step.State)
			}
		case plan.Forget:
			for _, f := range p.Forgotten() {
				text += " " + idName(f.ID)
			}
		case plan.Look:
		}
		s.say("%s, due %s", text, short(c.At))
	}
}

var readings = map[plan.Reading]string{plan.RewindRead: "rewind", plan.NowReading: "under way",
	plan.MissedRead: "after the one under way", plan.SealedRead: "after the sealing", plan.SealingRead: "at the sealing",
	plan.RefusedRead: "tries the refused", plan.AuditRead: "audit"}

func (s *script) tellReading(words []string) {
	p := s.plan()
	var v store.Value
	if len(words) > 1 {
		v = store.TextValue(words[1])
	}
	for _, r := range p.Ranges() {
		if rangeName(r) == words[0] {
			read, after := p.NextReading(r, v)
			s.say("    %s, %s", readings[read], short(after))
			return
		}
	}
	s.t.Fatalf("%s: no such range", s.line)
}

func (s *script) tellSpans(namespace string) {
	p := s.plan()
	for _, k := range p.AuditSpans(namespace) {
		s.say("    generations %d to %d: [%s, %s)", k.First, k.Last, k.From, k.To)
	}
	c := p.AuditCursor(namespace)
	s.say("    next round %s", short(plan.NextAudit(c)))
}
