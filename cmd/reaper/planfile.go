package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/linechart"
)

// errNoFile is why there is no plan to read.
var errNoFile = errors.New("there is no such file")

// mostPlan is how large a file with a plan may be.
const mostPlan = 16 << 20

// readPlan reads a plan that --out has kept.
func readPlan(name string) (planResult, error) {
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return planResult{}, fmt.Errorf("%s: %w", name, errNoFile)
	}
	if err != nil {
		return planResult{}, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, mostPlan))
	if err != nil {
		return planResult{}, err
	}
	p, err := parsePlan(text)
	if err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// parsePlan reads a plan as JSON, or as a picture that holds it.
func parsePlan(text []byte) (p planResult, err error) {
	if trimmed := bytes.TrimSpace(text); bytes.HasPrefix(trimmed, []byte("<")) {
		data, err := linechart.Data(bytes.NewReader(trimmed))
		if err != nil {
			return p, fmt.Errorf("it holds no plan: %w", err)
		}
		text = []byte(data)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("it holds no plan: %w", err)
	}
	switch {
	case p.Format > planFormat:
		return p, errors.New("it holds a plan of a later version of reaper")
	case p.Format < 1 || p.Made.IsZero():
		return p, errors.New("it holds no plan")
	}
	return p, nil
}

// writePlan writes a plan to a file, all of it or nothing.
func writePlan(name string, res planResult) error {
	text, err := json.MarshalIndent(res, "", "  ")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if isPicture(name) {
		err = pictureOf(res, string(text)).Write(&b)
	} else {
		b.Write(append(text, '\n'))
	}
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(name), ".plan-*")
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	_, err = temp.Write(b.Bytes())
	err = errors.Join(err, temp.Chmod(0o644), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("--out: %w", err), os.Remove(temp.Name()))
	}
	return nil
}

// pictureOf draws what is left of the largest backlog over time.
func pictureOf(res planResult, data string) linechart.Chart {
	c := linechart.Chart{Title: "No backlog", About: "Nothing is due.", Data: data, Points: []linechart.Point{{}, {X: 1}},
		X: secondsText, Y: func(n float64) string { return countText(n) }}
	most := 0.0
	for _, t := range res.Targets {
		if t.Drain.Backlog <= most || len(t.Drain.Points) == 0 {
			continue
		}
		most = t.Drain.Backlog
		c.Title = fmt.Sprintf("%s: %s due, %s", t.Name, grouped(int64(most)), goneText(t.Drain))
		c.About = "What is left of the backlog over time. Planned on " + res.Made.UTC().Format(time.RFC3339) + "."
		c.Points = c.Points[:0]
		for _, p := range t.Drain.Points {
			c.Points = append(c.Points, linechart.Point{X: p.Seconds, Y: p.Left})
		}
	}
	return c
}

// A plan is stale after a month: traffic and prices change. A number is another one if it differs by more
// than a tenth, as much as forecasts and simulation may.
const (
	planKeeps = 30 * 24 * time.Hour
	planDiffs = 0.1
)

// staleBecause says why an earlier plan is not right any more.
func staleBecause(old, res planResult) []string {
	why := []string{}
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	age := res.Made.Sub(old.Made)
	if age > planKeeps {
		add("it was made %s ago, on %s", config.FormatDuration(age.Truncate(24*time.Hour)),
			old.Made.UTC().Format("2006-01-02"))
	}
	if old.Store != res.Store {
		add("it was for the store %q", old.Store)
	}
	for _, name := range forecast.PriceNames() {
		was, is := old.Prices.List[name], res.Prices.List[name]
		if was.Dollars != is.Dollars {
			add("the price of %s was $%g, and is $%g now", name, was.Dollars, is.Dollars)
		}
	}
	for _, t := range res.Targets {
		i := slices.IndexFunc(old.Targets, func(o planTarget) bool { return o.Name == t.Name })
		if i < 0 {
			add("it does not have target %s", t.Name)
			continue
		}
		for _, what := range changedSince(old.Targets[i], t, age) {
			add("%s: %s", t.Name, what)
		}
	}
	return why
}

// changedSince says what has changed in the plan for a target since an earlier one.
func changedSince(old, t planTarget, age time.Duration) (why []string) {
	for _, line := range t.Settings {
		path, is, _ := strings.Cut(line, ": ")
		was := "not set"
		for _, l := range old.Settings {
			if value, found := strings.CutPrefix(l, path+": "); found {
				was = value
			}
		}
		if was != is {
			why = append(why, fmt.Sprintf("%s was %s, and is %s now", path, was, is))
		}
	}
	differ := func(what string, was, is float64, show func(float64) string) {
		if math.Abs(is-was) > planDiffs*max(math.Abs(was), math.Abs(is)) {
			why = append(why, fmt.Sprintf("%s: %s by the plan, and %s now", what, show(was), show(is)))
		}
	}
	differ("written", old.Workload.Writes, t.Workload.Writes, perSecondText)
	differ("longest life", longestLife(old.Workload), longestLife(t.Workload), secondsText)
	left := old.Workload.Backlog
	if t.Live && old.Live { // it should have become less
		left = leftAfter(old.Drain, age.Seconds())
	}
	if max(left, t.Workload.Backlog) > planDiffs*old.Workload.Backlog || old.Workload.Backlog == 0 {
		differ("due", left, t.Workload.Backlog, countText)
	}
	return why
}

func longestLife(w forecast.Workload) (seconds float64) {
	for _, l := range w.Lives {
		seconds = max(seconds, l.For.Seconds())
	}
	return seconds
}

// leftAfter returns what should be left of a backlog some seconds after the plan.
func leftAfter(d forecast.Drain, seconds float64) float64 {
	if d.Seconds == nil || len(d.Points) == 0 {
		return d.Backlog
	}
	for _, p := range d.Points {
		if p.Seconds >= seconds {
			return p.Left
		}
	}
	return 0
}
