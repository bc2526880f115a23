package draw

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
)

// manyRanges returns the status of a target with so many ranges, in some of which something is due.
func manyRanges(generations, shards, namespaces int, now time.Time) (st inspect.TargetStatus) {
	for i := range generations * shards * namespaces {
		r := inspect.RangeStatus{Generation: 1 + i/(shards*namespaces), Shard: fmt.Sprintf("%04d", i/namespaces%shards),
			Namespace: fmt.Sprint("tenant-", i%namespaces)}
		if i%3 == 0 {
			due := now.Add(-time.Duration(i%90) * time.Minute)
			r.OldestDue, r.ThrottledBy = &due, "ramp"
		}
		st.Ranges = append(st.Ranges, r)
	}
	return st
}

// Ten thousand ranges are folded into what can be read, and none that is behind gets lost.
func TestMapFoldsByTheWorst(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct{ generations, shards, namespaces int }{{10, 1000, 1}, {1, 9999, 1}, {625, 16, 1}, {1, 200, 50}, {2, 16, 1},
		{100, 100, 1}} {
		st := manyRanges(c.generations, c.shards, c.namespaces, now)
		worst := now.Add(-40 * 24 * time.Hour)
		st.Ranges[len(st.Ranges)/2].OldestDue = &worst
		st.Ranges[len(st.Ranges)/2].ThrottledBy = "gate"
		m := NewMap(st, now, "")
		cells, ranges, found := 0, 0, false
		for _, row := range m.Rows {
			for _, c := range row.Cells {
				cells++
				ranges += c.Ranges
				found = found || c.Level == 5 && c.Text == "40d" && c.Mark.Name == "gate"
			}
		}
		if most := mostCells + 2*mostRows; cells > most || ranges != len(st.Ranges) || m.Ranges != ranges || !found {
			t.Errorf("%+v: %d cells of %d ranges (of %d), the worst found: %v", c, cells, ranges, len(st.Ranges), found)
		}
		if chosen := NewMap(st, now, m.Rows[0].Cells[0].ID).Chosen; chosen == nil || len(chosen.List) == 0 {
			t.Errorf("%+v: its first cell explains nothing", c)
		}
	}
}

func TestRangesSayWhy(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	for _, c := range []struct {
		r    inspect.RangeStatus
		text string
		why  string
	}{
		{inspect.RangeStatus{}, "·", "it was never found to hold anything due"},
		{inspect.RangeStatus{Swept: ago(time.Minute)}, "·", "it is at rest"},
		{inspect.RangeStatus{NextDue: ago(-2 * time.Hour)}, "·", "its first survivor is due in 2h"},
		{inspect.RangeStatus{OldestDue: ago(30 * time.Second)}, "30s", "no process works on it now"},
		{inspect.RangeStatus{OldestDue: ago(5 * time.Minute), ThrottledBy: "ramp", Owner: "host/1", LeaseUntil: ago(-time.Second)},
			"5m", "its rate is ramping up: 500/s, then 50 % more every five minutes; in work by host/1"},
		{inspect.RangeStatus{OldestDue: ago(3 * time.Hour), ThrottledBy: "paused"}, "3h",
			"an operator has paused the target; no process works on it now"},
		{inspect.RangeStatus{OldestDue: ago(2000 * 24 * time.Hour), Refused: true}, "999d",
			"the store refuses to delete or carry some entities; no process works on it now"},
		{inspect.RangeStatus{OldestDue: ago(time.Second), ThrottledBy: "new-reason"}, "1s", "new-reason; no process works on it now"},
		{inspect.RangeStatus{OldestDue: ago(-time.Minute)}, "0s", "no process works on it now"}, // the store's clock is ahead
	} {
		c.r.Generation, c.r.Shard = 1, "0003"
		m := NewMap(inspect.TargetStatus{Ranges: []inspect.RangeStatus{c.r}}, now, "1.0")
		if got := m.Rows[0].Cells[0].Text; got != c.text || m.Chosen.List[0].Why != c.why {
			t.Errorf("%+v: %q, %q", c.r, got, m.Chosen.List[0].Why)
		}
	}
}

// A run that lasted longer than an hour is divided among the hours, and what happened is marked.
func TestCharts(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 30, 0, 0, time.UTC)
	run := &inspect.HistoryRun{Updated: now, Operations: store.Operations{Reads: 900, Deletes: 600}}
	run.Expired, run.Deleted = 1200, 600
	at := now.Add(-2 * time.Hour)
	h := inspect.TargetHistory{Records: []inspect.HistoryRecord{
		{Kind: history.KindGeneration, At: now.Add(-20 * time.Hour), Change: &inspect.HistoryChange{What: "opened", Generation: 7}},
		{Kind: history.KindRun, At: now.Add(-90 * time.Minute), Run: run},
		{Kind: history.KindRun, At: now.Add(-90 * 24 * time.Hour), Run: &inspect.HistoryRun{Updated: now.Add(-80 * 24 * time.Hour),
			Counts: metrics.Counts{Deleted: 5}}},
		{Kind: history.KindAction, At: at, Actor: "ann", Change: &inspect.HistoryChange{What: "pause"}},
		{Kind: history.KindTrip, At: at.Add(time.Minute), Change: &inspect.HistoryChange{What: "trip x"}},
	}}
	hour := now.Truncate(time.Hour)
	second, three := 1.0, 3.0
	run.Delays = []inspect.HistoryDelay{{Over: .5, Within: &second, Deletes: 300}, {Over: 2, Within: &three, Deletes: 285},
		{Over: 86400, Deletes: 15}}
	prices, _ := forecast.ProvenPrices("us-central1")
	list := BucketsOf(Spans[0], h, prices, now)
	if n := len(list); n != 24 || !list[23].Begin.Equal(hour) || list[23].Deleted != 200 || list[22].Deleted != 400 ||
		list[22].Due != 800 || list[21].Deleted != 0 || *list[23].P50 != 1 || *list[23].P99 != 86400 || !list[22].Over || list[21].P50 != nil {
		t.Errorf("%d buckets, %+v", n, list[21:])
	}
	// 300 reads of $0.03 and 200 deletes of $0.01 for 100,000 each.
	if d := list[23].Dollars; d == nil || math.Abs(*d-.00011) > 1e-12 {
		t.Errorf("%v dollars", d)
	}
	if list := BucketsOf(Spans[0], h, forecast.Prices{}, now); list[23].Dollars != nil {
		t.Errorf("$%g without a price", *list[23].Dollars)
	}
	if days := BucketsOf(Spans[1], h, prices, now); days[29].Deleted != 600 || len(days) != 30 || *days[29].P50 != 1 {
		t.Errorf("%+v", days[28:])
	}
	events := EventsOf(h, now.Add(-30*24*time.Hour))
	charts := ChartsOf(Spans[0], list, events)
	c := charts[0]
	if len(charts) != 4 || len(c.Bars) != 4 || len(c.Marks) != 2 || c.Marked != 3 || c.Marks[1].Letter != "T" ||
		!strings.Contains(c.Marks[1].Title, "pause") || c.Marks[0].Title != "Nov 25, 16:30: generation 00000007 opened" {
		t.Errorf("%d charts, %+v", len(charts), c)
	}
	if c.Summary != "1,200 found due, 600 deleted; 3 events are marked." || c.Rows[22][2] != "400" {
		t.Errorf("%s %v", c.Summary, c.Rows[22])
	}
	if row := charts[3].Rows[23]; row[1] != "1 s" || row[2] != "over 24h" {
		t.Errorf("%v", row)
	}
	if row := charts[2].Rows[22]; row[1] != "$0.00022" || charts[2].Summary != "$0.00033; 3 events are marked." {
		t.Errorf("%v, %s", row, charts[2].Summary)
	}
	if empty := ChartsOf(Spans[1], make([]Bucket, 30), nil); empty[0].Empty == "" {
		t.Error("a chart of nothing does not say so")
	}
}
