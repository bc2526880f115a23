package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/sweep"
)

const (
	// pastDays is how far back the history of a target is read.
	pastDays = 3 * 24 * time.Hour
	// recentPast is how old a fault in the history may be to count as one of now: a little longer
	// than from one daily audit, or look around, to the next.
	recentPast = 25 * time.Hour
	// stops is how many sweeps in a row that stop early are more than chance.
	stops = 3
)

// checkPast looks for what the history of a target shows.
func (x *exam) checkPast(ctx context.Context, s *sweep.Snapshot) error {
	list, err := history.Read(ctx, x.Sweep.Store, s.Target.Name, s.Now().Add(-pastDays))
	if err != nil {
		return err
	}
	runs := slices.DeleteFunc(list.Records, func(r history.Record) bool { return r.Kind != history.KindRun })
	if x.Mode != "" { // an embedded store has no servers that ranges are spread over
		x.judgeShards(s, runs)
	}
	x.judgeEnds(s, runs)
	x.judgeSums(s, runs)
	return nil
}

// judgeShards compares the highest rate of an hour with what the ranges of the newest generation bear.
// In the long run as many are written as are deleted, and all are written there.
func (x *exam) judgeShards(s *sweep.Snapshot, runs []history.Record) {
	ranges, newest := 0, 0
	for _, r := range s.Plan.Ranges() {
		if r.Generation > newest {
			ranges, newest = 0, r.Generation
		}
		if r.Generation == newest {
			ranges++
		}
	}
	hour, n := busiestHour(runs)
	perSecond := n / time.Hour.Seconds()
	if ranges == 0 || perSecond <= float64(ranges*forecast.PerRange) {
		return
	}
	t := s.Target
	wanted := forecast.RangesFor(perSecond)
	mend := fmt.Sprintf("reaper generation advance --shards %d --target %s, and shards: %d in the targets file", wanted,
		t.Name, wanted)
	if !t.Generations {
		mend = fmt.Sprintf("spread the entities over %d shards: docs/layouts.md, and docs/adopting.md for those "+
			"that exist", wanted)
	}
	x.find(Finding{ID: "shards-few", Target: t.Name, Mend: mend,
		What: fmt.Sprintf("Its writes go to %d ranges of the index, too few for the rate that was seen.", ranges),
		Evidence: []string{
			fmt.Sprintf("in the hour from %s on %.0f entities were deleted: %.0f a second, %.0f for each range",
				hour.UTC().Format(time.RFC3339), n, perSecond, perSecond/float64(ranges)),
			fmt.Sprintf("a range whose values rise takes %d writes a second (Firestore's best practices)", forecast.PerRange),
		}})
}

// busiestHour returns the hour in which most was deleted, and how much. What a run has deleted is
// spread evenly over its time.
func busiestHour(runs []history.Record) (hour time.Time, most float64) {
	hours := map[time.Time]float64{}
	for _, r := range runs {
		deleted := float64(r.Run.Counts().Deleted)
		length := r.Run.Updated.Sub(r.At)
		if length < time.Second || length > history.LongestRun {
			hours[r.At.Truncate(time.Hour)] += deleted
			continue
		}
		for from := r.At; from.Before(r.Run.Updated); {
			begin := from.Truncate(time.Hour)
			to := begin.Add(time.Hour)
			if to.After(r.Run.Updated) {
				to = r.Run.Updated
			}
			hours[begin] += deleted * float64(to.Sub(from)) / float64(length)
			from = to
		}
	}
	for h, n := range hours {
		if n > most || n == most && h.After(hour) {
			hour, most = h, n
		}
	}
	return hour, most
}

// judgeEnds says if sweeps fail, or are ended before they are complete.
func (x *exam) judgeEnds(s *sweep.Snapshot, runs []history.Record) {
	var recent []history.Record // that have ended, newest first
	for _, r := range slices.Backward(runs) {
		if r.Run.Task != "audit" && !r.Run.Ended.IsZero() && s.Now().Sub(r.Run.Updated) < recentPast {
			recent = append(recent, r)
		}
	}
	if len(recent) == 0 {
		return
	}
	t := s.Target
	if last := recent[0]; last.Run.End == history.Failed {
		x.find(Finding{ID: "sweeps-failing", Target: t.Name, What: "The last sweep of the target has failed.",
			Evidence: []string{runText(last), oneLine(last.Run.Error)},
			Mend:     "do what the error says; reaper history --target " + t.Name + " shows since when"})
		return
	}
	var evidence []string
	for _, r := range recent {
		if end := r.Run.End; end != history.Deadline && end != history.Signal && end != history.Lost {
			break
		}
		evidence = append(evidence, runText(r))
	}
	if len(evidence) >= stops && recent[0].Run.Task != "serve" {
		x.find(Finding{ID: "never-complete", Target: t.Name, Evidence: evidence[:min(len(evidence), examples)],
			What: fmt.Sprintf("The last %d sweeps were ended before they were complete.", len(evidence)),
			Mend: "give sweeps more time (--max-duration, the limits of the job), or look for what ends them"})
	}
}

func runText(r history.Record) string {
	return oneLine(fmt.Sprintf("the %s that began at %s ended with %s: %s on %s", r.Run.Task,
		r.At.UTC().Format(time.RFC3339), r.Run.End, orElse(r.By.Actor, "somebody"), orElse(r.By.Host, "some machine")))
}

// judgeSums says if sweeps have met what should not be there.
func (x *exam) judgeSums(s *sweep.Snapshot, runs []history.Record) {
	t := s.Target
	var strays, mismatch int64
	var from time.Time
	for _, r := range runs {
		if c := r.Run.Counts(); s.Now().Sub(r.Run.Updated) < recentPast && c.Strays+c.Mismatch > 0 {
			strays, mismatch = strays+c.Strays, mismatch+c.Mismatch
			if from.IsZero() {
				from = r.At
			}
		}
	}
	since := "since " + from.UTC().Format(time.RFC3339)
	if strays > 0 {
		x.find(Finding{ID: "strays", Target: t.Name,
			What:     "Somebody has written into generations that are sealed or retired.",
			Evidence: []string{fmt.Sprintf("%d entries were found there %s", strays, since)},
			Mend: "update the writer that uses an old copy of the target record, or have it stamp the nursery; " +
				"reaper doctor --writers shows when it writes"})
	}
	if mismatch > 0 {
		x.find(Finding{ID: "mismatch", Target: t.Name, What: "Keys disagree with the rule by which the entities are adopted.",
			Evidence: []string{fmt.Sprintf("%d entities were kept for it %s", mismatch, since)},
			Mend:     "reaper adopt verify " + t.Name + " names some; update the writer that extends entities without a key"})
	}
}

// judgeLives says if entities are deleted that had far less time to live than those before them.
func (x *exam) judgeLives(t sweep.Target, b breaker.Budget, now time.Time) {
	before, after, halved := b.HalvedLives(now)
	if !halved {
		return
	}
	x.find(Finding{ID: "lives-halved", Target: t.Name,
		What: "Entities that were deleted recently had half as long to live as those of the day before.",
		Evidence: []string{fmt.Sprintf("a third had at most %v from its last write to its expiry, and %v before",
			round(after), round(before))},
		Mend: "reaper pause --target " + t.Name + " --reason lives-halved, and look at what the writers stamp; ignore it " +
			"if the life was meant to change"})
}
