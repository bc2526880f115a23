package draw

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/inspect"
)

const (
	// mostCells is about how many cells a map has: so many fit on a screen, and can be read.
	mostCells = 480
	// mostRows is how many generations a map tells apart; older ones are folded into one row.
	mostRows = 40
	// mostInCell is how many ranges of a cell are listed, the worst first.
	mostInCell = 50
)

// A Map shows how far behind the ranges of a target are: a row for each generation, a cell
// for each shard with all its namespaces. If there are too many, several shards share a cell,
// which shows the worst of their ranges.
type Map struct {
	Ranges, Due, InWork int
	Namespaces          int
	Fold                int // most shards in a cell
	Rows                []mapRow
	Marks               []mark // those that are in use
	Levels              []level
	Chosen              *chosenCell // the cell that is explained; nil if none is
}

// A mapRow is a generation, or several old ones.
type mapRow struct {
	ID     string
	Name   string // of the generation; "ranges" for a layout without generations
	State  string
	Opened *time.Time
	Cells  []cell
}

// A cell stands for the ranges of one shard, or of several that follow each other.
type cell struct {
	ID     string // for links
	Shards string
	Ranges int
	Level  int
	Text   string // how long the oldest of it has been due
	Mark   mark
	InWork bool
	Label  string // all of that in words
	Chosen bool
	of     []RangeKey
}

// A chosenCell explains the ranges of a cell, the worst first.
type chosenCell struct {
	cell
	Where string
	List  []rangeLine
	More  int
}

// A rangeLine explains one range.
type rangeLine struct {
	inspect.RangeStatus
	Name, DueFor, Why string
}

// A mark says what holds a range back, as a letter and in words.
type mark struct{ Letter, Name, Meaning string }

// marks are in the order of what a person should see first.
var marks = []mark{
	{"B", "breaker", "the breaker is open, or counts what is due"},
	{"G", "gate", "the gate is closed"},
	{"‖", "paused", "an operator has paused the target"},
	{"N", "limit", "the limits are used up"},
	{"A", "archive", "the archive cannot be written"},
	{"D", "record", "a record cannot be read or written"},
	{"X", "refused", "the store refuses to delete or carry some entities"},
	{"P", "pushback", "the store pushes back"},
	{"Y", "latency", "the store has become slow"},
	{"C", "compaction", "the store has to compact"},
	{"T", "total", "the target's share of its total is used"},
	{"M", "max", "it deletes as fast as pace.max allows"},
	{"R", "ramp", "its rate is ramping up: 500/s, then 50 % more every five minutes"},
	{"S", "lease", "the lease of a process that is gone has not run out"},
}

// markOf returns the mark of a name; one that is not in the list gets a question mark.
func markOf(name string) mark {
	if name == "" {
		return mark{}
	}
	for _, m := range marks {
		if m.Name == name {
			return m
		}
	}
	return mark{"?", name, name}
}

// rank orders marks by what a person should see first; the empty one comes last.
func (m mark) rank() int {
	if m.Name == "" {
		return len(marks) + 1
	}
	if i := slices.Index(marks, m); i >= 0 {
		return i
	}
	return len(marks)
}

// A level is a shade of the map.
type level struct {
	Number       int
	Name, Sample string
	from         time.Duration
}

// levels are the shades, from nothing due to due for more than a day.
var levels = []level{
	{0, "nothing due", "·", 0}, {1, "due for under 1m", "20s", 0}, {2, "1m to 10m", "5m", time.Minute},
	{3, "10m to 1h", "30m", 10 * time.Minute}, {4, "1h to 1d", "5h", time.Hour}, {5, "over 1d", "3d", 24 * time.Hour},
}

// levelOf returns the shade of a range that has had something due for so long.
func levelOf(due time.Duration) int {
	for _, l := range slices.Backward(levels) {
		if due >= l.from && l.Number > 0 {
			return l.Number
		}
	}
	return 1
}

// A place is where a range is shown: its generation, and the index of its shard in it.
type place struct{ generation, shard int }

// NewMap folds the ranges of a target into cells. Chosen is the id of the cell to explain.
func NewMap(st inspect.TargetStatus, now time.Time, chosen string) Map {
	m := Map{Ranges: len(st.Ranges), Levels: levels}
	shards := shardsOf(st.Ranges)
	widest, namespaces := 1, map[string]bool{}
	rows := rowsOf(st.Ranges)
	for _, r := range st.Ranges {
		namespaces[r.Namespace] = true
		if r.OldestDue != nil {
			m.Due++
		}
		if isHeld(r, now) {
			m.InWork++
		}
	}
	m.Namespaces = len(namespaces)
	for _, names := range shards {
		widest = max(widest, len(names))
	}
	m.Fold = max(1, (widest*len(rows)+mostCells-1)/mostCells)
	byCell := map[place][]inspect.RangeStatus{}
	for _, r := range st.Ranges {
		row := rows[r.Generation]
		index, _ := slices.BinarySearch(shards[r.Generation], r.Shard)
		at := place{row, index / m.Fold}
		byCell[at] = append(byCell[at], r)
	}
	used := map[mark]bool{}
	for _, at := range slices.SortedFunc(maps.Keys(byCell), comparePlaces) {
		if len(m.Rows) == 0 || m.Rows[len(m.Rows)-1].ID != rowID(at.generation) {
			m.Rows = append(m.Rows, newRow(st, at.generation, rows))
		}
		row := &m.Rows[len(m.Rows)-1]
		list := byCell[at]
		c := newCell(*row, at, list, now)
		if c.Chosen = c.ID == chosen; c.Chosen {
			m.Chosen = explainCell(st, *row, c, list, now)
		}
		if c.Mark.Name != "" {
			used[c.Mark] = true
		}
		row.Cells = append(row.Cells, c)
	}
	m.Marks = slices.SortedFunc(maps.Keys(used), func(a, b mark) int { return a.rank() - b.rank() })
	return m
}

// A LiveCell is what changes of a cell from second to second.
type LiveCell struct {
	Level  int    `json:"level"`
	Text   string `json:"text"`
	Letter string `json:"letter"`
	InWork bool   `json:"work"`
	Label  string `json:"label"`
}

// Live returns the cells that have one of these ranges, by their ids.
func (m Map) Live(ranges map[RangeKey]bool) map[string]LiveCell {
	list := map[string]LiveCell{}
	for _, row := range m.Rows {
		for _, c := range row.Cells {
			if slices.ContainsFunc(c.of, func(r RangeKey) bool { return ranges[r] }) {
				list[c.ID] = LiveCell{c.Level, c.Text, c.Mark.Letter, c.InWork, c.Label}
			}
		}
	}
	return list
}

// A RangeKey names a range as its status does.
type RangeKey struct {
	Namespace  string
	Generation int
	Shard      string
}

// KeyOf returns the key of the range that a status is of.
func KeyOf(r inspect.RangeStatus) RangeKey { return RangeKey{r.Namespace, r.Generation, r.Shard} }

// comparePlaces puts the newest generation first, and the nursery last.
func comparePlaces(a, b place) int {
	order := func(generation int) int {
		if generation == expirykey.Nursery {
			return 1
		}
		return -generation
	}
	return cmp.Or(order(a.generation)-order(b.generation), a.shard-b.shard)
}

// shardsOf lists the shards of each generation, in order.
func shardsOf(ranges []inspect.RangeStatus) map[int][]string {
	all := map[int]map[string]bool{}
	for _, r := range ranges {
		if all[r.Generation] == nil {
			all[r.Generation] = map[string]bool{}
		}
		all[r.Generation][r.Shard] = true
	}
	list := map[int][]string{}
	for g, names := range all {
		list[g] = slices.Sorted(maps.Keys(names))
	}
	return list
}

// rowsOf returns the generation whose row each generation is shown in: its own, or the newest of
// the old ones that share a row.
func rowsOf(ranges []inspect.RangeStatus) map[int]int {
	rows := map[int]int{}
	for _, r := range ranges {
		rows[r.Generation] = r.Generation
	}
	numbers := slices.Sorted(maps.Keys(rows))
	numbers = slices.DeleteFunc(numbers, func(n int) bool { return n == expirykey.Nursery })
	if extra := len(numbers) - mostRows; extra > 0 {
		for _, n := range numbers[:extra+1] {
			rows[n] = numbers[extra]
		}
	}
	return rows
}

func rowID(generation int) string { return strconv.Itoa(generation) }

func newRow(st inspect.TargetStatus, number int, rows map[int]int) mapRow {
	row := mapRow{ID: rowID(number), Name: fmt.Sprintf("generation %08d", number)}
	for _, g := range st.Generations {
		if g.Number == number {
			row.State, row.Opened = g.State, &g.Opened
		}
	}
	oldest := number
	for n, shown := range rows {
		if shown == number {
			oldest = min(oldest, n)
		}
	}
	switch {
	case len(st.Generations) == 0:
		row.Name, row.State, row.Opened = "ranges", "", nil
	case number == expirykey.Nursery:
		row.Name = "nursery"
	case oldest != number:
		row.Name, row.State, row.Opened = fmt.Sprintf("generations %08d to %08d", oldest, number), "folded", nil
	}
	return row
}

// isHeld reports whether a process works on a range.
func isHeld(r inspect.RangeStatus, now time.Time) bool {
	return r.Owner != "" && r.LeaseUntil != nil && r.LeaseUntil.After(now)
}

// reasonOf returns what holds a range back, if something is due in it.
func reasonOf(r inspect.RangeStatus) mark {
	switch {
	case r.Refused:
		return markOf("refused")
	case r.OldestDue == nil:
		return mark{}
	}
	return markOf(r.ThrottledBy)
}

func newCell(row mapRow, at place, list []inspect.RangeStatus, now time.Time) cell {
	c := cell{ID: row.ID + "." + strconv.Itoa(at.shard), Ranges: len(list), Text: "·"}
	low, high := list[0].Shard, list[0].Shard
	var oldest *time.Time
	due := 0
	for _, r := range list {
		low, high = min(low, r.Shard), max(high, r.Shard)
		c.of = append(c.of, KeyOf(r))
		c.InWork = c.InWork || isHeld(r, now)
		if m := reasonOf(r); m.rank() < c.Mark.rank() {
			c.Mark = m
		}
		if r.OldestDue == nil {
			continue
		}
		if due++; oldest == nil || r.OldestDue.Before(*oldest) {
			oldest = r.OldestDue
		}
	}
	c.Shards = shardsText(low, high)
	words := []string{row.Name + ", " + c.Shards}
	if oldest == nil {
		words = append(words, "nothing due")
	} else {
		behind := now.Sub(*oldest)
		c.Level, c.Text = levelOf(behind), oneUnit(behind)
		words = append(words, "due for "+Age(behind))
		if len(list) > 1 {
			words = append(words, fmt.Sprintf("%d of %d ranges", due, len(list)))
		}
	}
	if c.Mark.Name != "" {
		words = append(words, c.Mark.Name)
	}
	if c.InWork {
		words = append(words, "in work")
	}
	c.Label = strings.Join(words, "; ")
	return c
}

func shardsText(low, high string) string {
	switch {
	case low == "" && high == "":
		return "the whole index"
	case low == high:
		return "shard " + Visible(low)
	}
	return "shards " + Visible(low) + " to " + Visible(high)
}

// explainCell lists the ranges of a cell, the worst first.
func explainCell(
	st inspect.TargetStatus, row mapRow, c cell, list []inspect.RangeStatus, now time.Time,
) *chosenCell {
	chosen := &chosenCell{cell: c, Where: row.Name + ", " + c.Shards}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b inspect.RangeStatus) int {
		switch {
		case a.OldestDue == nil && b.OldestDue == nil:
			return reasonOf(a).rank() - reasonOf(b).rank()
		case a.OldestDue == nil:
			return 1
		case b.OldestDue == nil:
			return -1
		}
		return a.OldestDue.Compare(*b.OldestDue)
	})
	if chosen.More = max(0, len(list)-mostInCell); chosen.More > 0 {
		list = list[:mostInCell]
	}
	for _, r := range list {
		chosen.List = append(chosen.List, explainRange(st, r, now))
	}
	return chosen
}

// explainRange says in a sentence why a range is as it is.
func explainRange(st inspect.TargetStatus, r inspect.RangeStatus, now time.Time) rangeLine {
	line := rangeLine{RangeStatus: r, Name: fmt.Sprintf("%08d.%s", r.Generation, r.Shard), DueFor: "nothing"}
	if len(st.Generations) == 0 {
		line.Name = cmp.Or(r.Shard, "the whole index")
	}
	if r.Namespace != "" {
		line.Name += "@" + r.Namespace
	}
	line.Name = Visible(line.Name)
	var why []string
	if r.OldestDue != nil {
		line.DueFor = Age(now.Sub(*r.OldestDue))
	}
	if m := reasonOf(r); m.Name != "" {
		why = append(why, m.Meaning)
	}
	switch {
	case isHeld(r, now):
		why = append(why, "in work by "+r.Owner)
	case r.OldestDue != nil:
		why = append(why, "no process works on it now")
	case r.NextDue != nil && r.NextDue.After(now):
		why = append(why, "its first survivor is due in "+Age(r.NextDue.Sub(now)))
	case r.Swept == nil:
		why = append(why, "it was never found to hold anything due")
	default:
		why = append(why, "it is at rest")
	}
	line.Why = Visible(strings.Join(why, "; "))
	return line
}
