package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/guptarohit/asciigraph"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
)

// plan shows a plan to people, in lines of at most 80 characters on a terminal.
func (to screen) plan(res planResult) []byte {
	var b bytes.Buffer
	for i, t := range res.Targets {
		if i > 0 {
			b.WriteByte('\n')
		}
		to.planTarget(&b, t)
	}
	b.WriteByte('\n')
	b.WriteString(to.wrapped("  prices        ", pricesText(res.Prices)))
	return b.Bytes()
}

func (to screen) planTarget(b *bytes.Buffer, t planTarget) {
	fmt.Fprintf(b, "%s\n", printable(t.Name))
	line := func(label, text string) { b.WriteString(to.wrapped(fmt.Sprintf("%-16s", "  "+label), text)) }
	line("workload", workloadText(t.Workload))
	for _, known := range t.Known {
		line("", known)
	}
	line("settings", strings.Join(t.Settings, "; "))
	b.WriteByte('\n')
	line("due now", grouped(int64(t.Workload.Backlog)))
	line("gone", goneText(t.Drain))
	line("delay", delayText(t.Delay))
	line("shards", shardsText(t.Shards))
	line("generations", generationsText(t.Generations))
	line("index", indexText(t.Storage))
	line("storage", storageText(t))
	line("breaker", breakerText(t.Breaker))
	writeBills(b, "a month, in the long run", t.Month)
	writeBills(b, "the first month, from an empty target", t.First)
	writeBills(b, "once, for what is due now", t.Backlog)
	for _, bill := range t.Month {
		if bill.Caveat != "" {
			line(wayNames[bill.Way]+":", bill.Caveat)
		}
	}
	if missing := missingText(t); missing != "" {
		line("money:", missing)
	}
	to.planPast(b, t)
	if chart := chartOf(t.Drain); chart != "" {
		last := t.Drain.Points[len(t.Drain.Points)-1]
		fmt.Fprintf(b, "\n  left of the backlog, over %s\n%s\n", secondsText(last.Seconds), chart)
	}
	b.WriteString("\n  for the targets file")
	if t.Changed != nil {
		b.WriteString(", which changes " + changesText(t))
	}
	fmt.Fprintf(b, ":\n\n%s", t.Stanza)
}

// wayNames are what people call the ways, short enough for a column.
var wayNames = map[forecast.Way]string{forecast.ByNative: "native mode", forecast.ByLookup: "lookup",
	forecast.ByQuery: "query", forecast.ByStore: "embedded", forecast.ByTTL: "built-in TTL",
	forecast.ByNaively: "naive query"}

// writeBills shows what ways cost, as a table.
func writeBills(b *bytes.Buffer, title string, bills []forecast.Bill) {
	if len(bills) == 0 {
		return
	}
	const row = "  %-14s%16s%14s%16s%16s\n"
	fmt.Fprintf(b, "\n  %s\n", title)
	fmt.Fprintf(b, row, "", "reads", "writes", "deletes", "money")
	for _, bill := range bills {
		money := moneyText(bill.Dollars)
		if bill.Way == forecast.ByStore {
			money = "none"
		}
		fmt.Fprintf(b, row, wayNames[bill.Way], countText(bill.Reads), countText(bill.Writes), countText(bill.Deletes), money)
	}
	if first := bills[0]; first.AfterFree != nil && *first.AfterFree < *first.Dollars {
		fmt.Fprintf(b, "  %-14s%62s\n", "", wayNames[first.Way]+" with the free tier to itself: "+moneyText(first.AfterFree))
	}
}

// moneyText shows dollars; what is not known is not guessed.
func moneyText(dollars *float64) string {
	switch {
	case dollars == nil:
		return "not known"
	case *dollars > 0 && *dollars < 0.01:
		return "under $0.01"
	}
	whole, cents := math.Modf(math.Round(*dollars*100) / 100)
	return fmt.Sprintf("$%s.%02.0f", grouped(int64(whole)), cents*100)
}

// countText shows a count in a column.
func countText(n float64) string { return grouped(int64(math.Round(min(n, 1e17)))) }

// secondsText shows how long something takes: two units, and no more.
func secondsText(seconds float64) string {
	unit := time.Second
	switch {
	case seconds <= 0:
		return "0s"
	case seconds < 10:
		return fmt.Sprintf("%.2gs", seconds)
	case seconds >= 10*86400:
		unit = 24 * time.Hour
	case seconds >= 86400:
		unit = time.Hour
	case seconds >= 3600:
		unit = time.Minute
	}
	seconds = min(seconds, forecast.LongestLife.Seconds())
	return config.FormatDuration(time.Duration(seconds * float64(time.Second)).Round(unit))
}

// bounds say what a rate waits for.
var bounds = map[string]string{"ramp": "the ramp", "max": "pace.max", "total": "pace.total or limits"}

func goneText(d forecast.Drain) string {
	switch {
	case d.Never:
		return fmt.Sprintf("never: %s come to be due, and at most %s go (%s)", perSecondText(d.Inflow),
			perSecondText(d.Most), bounds[d.Bound])
	case d.Start == 0:
		return "as fast as the store goes: the pace is unlimited"
	case d.Seconds == nil || d.Backlog == 0:
		return "nothing is due"
	}
	most := "no limit"
	if d.Most > 0 {
		most = perSecondText(d.Most)
	}
	return fmt.Sprintf("after %s from a cold start: %s at first, at most %s; bounded by %s", secondsText(*d.Seconds),
		perSecondText(d.Start), most, cmp.Or(bounds[d.Bound], "nothing"))
}

func delayText(d forecast.Delay) string {
	if d.Behind {
		return "grows without end: more comes to be due than the pace lets go"
	}
	return fmt.Sprintf("p50 %s, p99 %s; the busiest ranges work %s of the time", secondsText(d.P50),
		secondsText(d.P99), shareText(d.Busy))
}

// shareText shows a share, with two digits unless it is large.
func shareText(share float64) string {
	if share >= 0.1 || share == 0 {
		return fmt.Sprintf("%.0f%%", 100*share)
	}
	return fmt.Sprintf("%.2g%%", 100*share)
}

func shardsText(s forecast.Shards) string {
	text := fmt.Sprintf("%s set, %s needed: each range takes %s, deletes included, of %d/s", grouped(int64(s.Set)),
		grouped(int64(s.Needed)), perSecondText(s.Load), forecast.PerRange)
	if s.Needed > s.Set {
		text += fmt.Sprintf("; the writes alone need %s", grouped(int64(s.Least)))
	}
	if s.Set > s.Needed {
		text += "; each shard that is not needed costs queries at each tick"
	}
	if s.Needed > forecast.MostShards {
		text += fmt.Sprintf("; a target has at most %d: divide it", forecast.MostShards)
	}
	return text
}

func generationsText(g forecast.Generations) string {
	if g.Every == 0 {
		return "none with this layout"
	}
	text := fmt.Sprintf("every %s, keep %d: ", secondsText(g.Every), g.Keep)
	if g.Most == 0 {
		return text + "nothing is carried"
	}
	return text + fmt.Sprintf("%.2g carries an entity, at most %.0f; none with every %s, keep %d", g.Carries, g.Most,
		secondsText(g.WantedEvery), g.WantedKeep)
}

func indexText(s forecast.Storage) string {
	return fmt.Sprintf("%.0f rows of %.0f bytes an entity: %s rows, %s", s.RowsEach, s.RowBytes, countText(s.Rows),
		gibText(s.IndexGiB))
}

func gibText(gib float64) string {
	if gib < 0.01 {
		return fmt.Sprintf("%.2g MiB", gib*1024)
	}
	if gib < 100 {
		return fmt.Sprintf("%.3g GiB", gib)
	}
	return countText(gib) + " GiB"
}

func storageText(t planTarget) string {
	text := countText(t.Storage.Entities) + " entities in the long run"
	if t.Workload.Entities > 0 {
		text = countText(t.Storage.Entities) + " entities"
	}
	if t.Storage.EntitiesGiB == nil {
		return text + "; --size says how much they take up"
	}
	return fmt.Sprintf("%s, %s; with the index %s a month", text, gibText(*t.Storage.EntitiesGiB),
		moneyText(t.StorageDollars))
}

func breakerText(t forecast.Trips) string {
	var parts []string
	switch {
	case !t.On:
		return "off"
	case t.NewGround:
		parts = append(parts, fmt.Sprintf("trips at the first sweep with --apply (new-ground): more than %s are due; see "+
			"reaper breaker show, and approve", grouped(t.Floor)))
	default:
		parts = append(parts, "does not trip")
	}
	parts = append(parts, fmt.Sprintf("a window holds %s, %s of all", countText(t.Hour), shareText(t.Share)))
	switch {
	case t.Blind:
		parts = append(parts, "it is blind for bursts: lives are about as short as its window")
	case t.Unlearnt:
		parts = append(parts, "which it learns on its first day; from "+countText(t.Limit)+" on it trips")
	default:
		parts = append(parts, "and from "+countText(t.Limit)+" on it trips")
	}
	return strings.Join(parts, "; ")
}

// missingText says why money is not known.
func missingText(t planTarget) string {
	missing := map[string]bool{}
	for _, bill := range slices.Concat(t.Month, t.First, t.Backlog) {
		for _, name := range bill.Missing {
			missing[string(name)] = true
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("not known where the price of %s is not: --location %s, or --price",
		strings.Join(slices.Sorted(maps.Keys(missing)), ", "), strings.Join(forecast.ProvenLocations(), " or "))
}

func pricesText(p forecast.Prices) string {
	if len(p.List) == 0 {
		if p.Location == "" {
			return "none"
		}
		return "none are proven for " + printable(p.Location)
	}
	var parts []string
	for _, name := range forecast.PriceNames() {
		if price, known := p.List[name]; known {
			parts = append(parts, fmt.Sprintf("%s $%g (%s, %s)", name, price.Dollars, price.Source, price.Date))
		}
	}
	text := strings.Join(parts, "; ") + "; for 100,000 operations, storage for a GiB and month"
	if p.Location != "" {
		text = printable(p.Location) + ": " + text
	}
	return text
}

// planPast compares the last month with its forecast.
func (to screen) planPast(b *bytes.Buffer, t planTarget) {
	p := t.Past
	if p == nil {
		return
	}
	row := func(what string, was, by float64) {
		differs := "-"
		if by > 0 {
			differs = fmt.Sprintf("%+.0f%%", 100*(was/by-1))
		}
		fmt.Fprintf(b, "  %-14s%16s%16s%10s\n", what, countText(was), countText(by), differs)
	}
	fmt.Fprintf(b, "\n  since %s: %s\n", p.Since.UTC().Format("2006-01-02 15:04"), counted(int64(p.Runs), "run", "runs"))
	fmt.Fprintf(b, "  %-14s%16s%16s%10s\n", "", "history", "forecast", "differs")
	row("reads", float64(p.Operations.Reads), p.Forecast.Reads)
	row("writes", float64(p.Operations.Writes), p.Forecast.Writes)
	row("deletes", float64(p.Operations.Deletes), p.Forecast.Deletes)
	row("carries", float64(p.Counts.Carried), p.Carries)
}

// The size of a chart in the terminal.
const (
	chartHeight = 8
	chartWidth  = 60
)

// chartOf draws what is left of a backlog over time; empty without one.
func chartOf(d forecast.Drain) string {
	if len(d.Points) < 2 {
		return ""
	}
	left := make([]float64, len(d.Points))
	for i, p := range d.Points {
		left[i] = p.Left
	}
	return asciigraph.Plot(left, asciigraph.Height(chartHeight), asciigraph.Width(chartWidth), asciigraph.LowerBound(0),
		asciigraph.Offset(2), asciigraph.YAxisValueFormatter(shortCount))
}

// shortCount shows a count with a letter: 12.5M.
func shortCount(n float64) string {
	for _, unit := range []struct {
		scale float64
		name  string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if n >= unit.scale {
			return fmt.Sprintf("%.4g%s", n/unit.scale, unit.name)
		}
	}
	return fmt.Sprintf("%.0f", n)
}

// changesText says what the stanza changes, and what comes of it.
func changesText(t planTarget) string {
	n, c := t.Changed, t.Changed.Changes
	var what, then []string
	if c.Shards > 0 {
		what = append(what, "shards")
	}
	if c.Every > 0 || c.Keep > 0 {
		what = append(what, "generations")
	}
	if c.Max > 0 {
		what = append(what, "pace.max")
	}
	if n.Seconds != nil && t.Drain.Backlog > 0 {
		then = append(then, "gone after "+secondsText(*n.Seconds))
	}
	if n.Delay.Behind {
		then = append(then, "and sweeps still fall behind")
	} else {
		then = append(then, "p99 "+secondsText(n.Delay.P99))
	}
	if n.Month.Dollars != nil {
		then = append(then, moneyText(n.Month.Dollars)+" a month")
	}
	return strings.Join(what, ", ") + "\n  (" + strings.Join(then, ", ") + ")"
}
