package sweep

import (
	"errors"
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	wall := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	passed := time.Duration(0)
	c := &clock{now: func() time.Time { return wall }, passed: func() time.Duration { return passed }, maxSkew: 10 * time.Second}

	sent := wall
	wall, passed = wall.Add(2*time.Second), passed+2*time.Second
	for _, skew := range []time.Duration{-11 * time.Second, 13 * time.Second} {
		if err := c.observe(sent.Add(skew), sent); !errors.Is(err, ErrClock) {
			t.Errorf("a store %v apart: %v", skew, err)
		}
	}
	inStore := sent.Add(3 * time.Second)
	if err := c.observe(inStore, sent); err != nil {
		t.Fatal(err)
	}
	wall, passed = wall.Add(time.Minute), passed+time.Minute
	if got, want := c.Now(), inStore.Add(time.Minute); !got.Equal(want) {
		t.Errorf("the store's time a minute later = %v, want %v", got, want)
	}
	if err := c.check(); err != nil {
		t.Errorf("steady clock: %v", err)
	}
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 11 * time.Second} {
		wall = wall.Add(jump)
		if err := c.check(); !errors.Is(err, ErrClock) {
			t.Errorf("jump of %v: %v", jump, err)
		}
		if got, want := c.Now(), inStore.Add(time.Minute); !got.Equal(want) {
			t.Errorf("the store's time jumped along to %v, want %v", got, want)
		}
		wall = wall.Add(-jump)
	}
}
