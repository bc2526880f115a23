package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// A Schedule says when sweeps begin, in UTC: daylight saving time would skip
// one run a year and double another. The zero Schedule never does.
type Schedule struct {
	text string
	next cron.Schedule
}

// IsZero reports whether there is no schedule.
func (s Schedule) IsZero() bool { return s.next == nil }

// String returns the schedule as it was written.
func (s Schedule) String() string { return s.text }

// Next returns the first run after t, in UTC; the zero time where there is
// none. It makes a Schedule a cron.Schedule.
func (s Schedule) Next(t time.Time) time.Time {
	if s.next == nil {
		return time.Time{}
	}
	return s.next.Next(t.UTC())
}

var (
	errScheduleZone   = errors.New("names a time zone: schedules are in UTC")
	errScheduleEvery  = errors.New("needs @every followed by whole seconds, at least one: for example @every 5m")
	errScheduleFields = errors.New("is not a schedule: write five fields " +
		"(minute, hour, day of month, month, day of week), @hourly, @daily or @every 5m")
	errScheduleNever = errors.New("never runs twice: there is no such date")
	errScheduleStep  = errors.New("has a step that is larger than the field's range, " +
		"so it would run more often than it reads")
)

// ParseSchedule reads five cron fields (minute, hour, day of month, month, day
// of week), a descriptor such as @hourly, or @every with a duration. It refuses
// schedules that the cron library would run at other times than they say.
func ParseSchedule(s string) (Schedule, error) {
	sch, err := parseSchedule(s)
	if err != nil {
		return Schedule{}, fmt.Errorf("schedule %s %w", quote(s), err)
	}
	return sch, nil
}

// parseSchedule never repeats s in its errors.
func parseSchedule(s string) (sch Schedule, err error) {
	defer func() { // the library panics on texts such as "TZ=UTC"
		if recover() != nil {
			sch, err = Schedule{}, errScheduleFields
		}
	}()
	text := strings.TrimSpace(s)
	if text == "" {
		return Schedule{}, errEmpty
	}
	if strings.Contains(text, "TZ=") {
		return Schedule{}, errScheduleZone
	}
	if every, ok := strings.CutPrefix(text, "@every"); ok {
		d, err := parseDuration(strings.TrimSpace(every))
		if err != nil || d < time.Second || d%time.Second != 0 {
			return Schedule{}, errScheduleEvery // the library rounds and clamps instead
		}
		return Schedule{text, cron.Every(d)}, nil
	}
	if !strings.HasPrefix(text, "@") {
		if err := checkSteps(strings.Fields(text)); err != nil {
			return Schedule{}, err
		}
	}
	next, err := cron.ParseStandard(text)
	if err != nil {
		return Schedule{}, errScheduleFields // the library's error repeats the text
	}
	sch = Schedule{text, next}
	// Any instant will do: a schedule that ever runs does so twice within the five years
	// that the library looks ahead, even on leap days.
	first := sch.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC))
	second := sch.Next(first)
	if first.IsZero() || second.Sub(first) < time.Second {
		return Schedule{}, errScheduleNever
	}
	return sch, nil
}

// checkSteps refuses */90 in the minutes, which the library runs hourly. A step of the
// whole range (*/60) means what it says, and passes.
func checkSteps(fields []string) error {
	ranges := []int{60, 24, 31, 12, 7}
	if len(fields) != len(ranges) {
		return errScheduleFields
	}
	for i, field := range fields {
		for part := range strings.SplitSeq(field, ",") {
			_, step, ok := strings.Cut(part, "/")
			if !ok {
				continue
			}
			n, err := strconv.Atoi(step)
			if err != nil || n < 1 {
				return errScheduleFields
			}
			if n > ranges[i] {
				return errScheduleStep
			}
		}
	}
	return nil
}
