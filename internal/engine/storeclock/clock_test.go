package storeclock

import (
	"errors"
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	wall := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	passed := time.Duration(0)
	c := &Clock{now: func() time.Time { return wall }, passed: func() time.Duration { return passed }, maxSkew: 10 * time.Second}

	sent := wall
	wall, passed = wall.Add(2*time.Second), passed+2*time.Second
	for _, skew := range []time.Duration{-11 * time.Second, 13 * time.Second} {
		if err := c.Observe(sent.Add(skew), sent); !errors.Is(err, ErrWrong) {
			t.Errorf("a store %v apart: %v", skew, err)
		}
		if err := c.Check(); !errors.Is(err, ErrWrong) {
			t.Errorf("after a store %v apart: %v", skew, err)
		}
	}
	inStore := sent.Add(3 * time.Second)
	if err := c.Observe(inStore, sent); err != nil {
		t.Fatal(err)
	}
	wall, passed = wall.Add(time.Minute), passed+time.Minute
	const later = time.Minute - time.Minute/8
	if got, want := c.Now(), inStore.Add(later); !got.Equal(want) {
		t.Errorf("the store's time a minute later = %v, want %v", got, want)
	}
	if err := c.Check(); err != nil {
		t.Errorf("steady clock: %v", err)
	}
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 11 * time.Second} {
		wall = wall.Add(jump)
		if err := c.Check(); !errors.Is(err, ErrWrong) {
			t.Errorf("jump of %v: %v", jump, err)
		}
		if got, want := c.Now(), inStore.Add(later); !got.Equal(want) {
			t.Errorf("the store's time jumped along to %v, want %v", got, want)
		}
		wall = wall.Add(-jump)
	}
}

// A wall clock that is set wrong while a response travels shows no jump. The next response does.
func TestClockThatJumpsUnseen(t *testing.T) {
	began := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	real, ahead := time.Duration(0), time.Duration(0)
	c := &Clock{now: func() time.Time { return began.Add(real + ahead) }, passed: func() time.Duration { return real },
		maxSkew: 10 * time.Second}
	respond := func(jump time.Duration) error {
		sent := c.now()
		ahead += jump
		real += time.Second
		return c.Observe(began.Add(real), sent)
	}
	if err := respond(20 * time.Second); err != nil {
		t.Fatal("it may have travelled for as long: ", err)
	}
	if err := respond(0); !errors.Is(err, ErrWrong) {
		t.Errorf("the next response: %v", err)
	}
	if err := c.Check(); !errors.Is(err, ErrWrong) {
		t.Errorf("a check after it: %v", err)
	}
	ahead = 0
	if err := respond(0); err != nil || c.Check() != nil {
		t.Errorf("set right: %v, %v", err, c.Check())
	}
}

// A clock that takes eight seconds for seven of the store's never runs ahead of the store. Nor
// does it take a write for younger than it is.
func TestClockThatRunsTooFast(t *testing.T) {
	began := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	for _, speed := range []float64{0.9, 1, 1.1, 8.0 / 7} {
		real := time.Duration(0)
		passed := func() time.Duration { return time.Duration(float64(real) * speed) }
		c := &Clock{now: func() time.Time { return began.Add(passed()) }, passed: passed, maxSkew: 10 * time.Second}
		if err := c.Observe(began, began); err != nil {
			t.Fatal(err)
		}
		for real = 0; real < time.Minute; real += 700 * time.Millisecond {
			if ahead := c.Now().Sub(began.Add(real)); ahead > time.Microsecond {
				t.Errorf("at speed %v it is %v ahead of the store after %v", speed, ahead, real)
			}
			if got, want := c.Since(began), passed(); got != want {
				t.Errorf("at speed %v a write was %v ago, and its clock says %v", speed, want, got)
			}
		}
	}
}
