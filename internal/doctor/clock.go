package doctor

import (
	"fmt"
	"time"
)

// slow is how long the fastest of a few small reads may take in a healthy setup.
const slow = time.Second

// offset returns how far the store's clock is ahead of this one at least, by an answer; it is
// negative if the store's is behind. The answer may have been made at any instant between.
func (a answer) offset() time.Duration {
	switch {
	case a.now.After(a.after):
		return a.now.Sub(a.after)
	case a.now.Before(a.before):
		return a.now.Sub(a.before)
	}
	return 0
}

// judgeClock compares this clock with the store's, and says if the store is slow.
func (x *exam) judgeClock(a answer) {
	if took := a.took(); took > slow {
		x.find(Finding{ID: "store-slow", What: fmt.Sprintf("The fastest of %d small reads took %v.", probes, round(took)),
			Mend: "run reaper in the location of the database; check the network and the load of this machine"})
	}
	target, most := "", time.Duration(0)
	for _, t := range x.Sweep.Targets {
		if target == "" || t.MaxClockSkew < most {
			target, most = t.Name, t.MaxClockSkew
		}
	}
	by, direction := a.offset(), "behind"
	if by < 0 {
		by, direction = -by, "ahead of"
	}
	if target == "" || by <= most/2 {
		return
	}
	f := Finding{ID: "clock-drift", Mend: "synchronise this machine's clock (NTP)",
		What: fmt.Sprintf("This machine's clock is %v %s the store's.", round(by), direction),
		Evidence: []string{
			fmt.Sprintf("here %s, there %s", a.before.UTC().Format(time.RFC3339Nano), a.now.UTC().Format(time.RFC3339Nano)),
			fmt.Sprintf("target %s has max_clock_skew: %v, at which nothing is swept", target, most),
		}}
	if by > most {
		f.ID = "clock-skew"
		f.What = fmt.Sprintf("This machine's clock is %v %s the store's: a sweep from here deletes nothing.",
			round(by), direction)
	}
	x.find(f)
}

// round makes a duration readable.
func round(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}
