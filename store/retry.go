package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Retry calls op until it succeeds, fails with an error that is not
// [Transient], ctx is done, or most has passed. It waits in between, longer
// each time, with jitter. The error is op's last one; where ctx ended the
// waiting it wraps the context's cause, too. [MayHaveHappened] is true of it if
// it is of any try.
func Retry(ctx context.Context, most time.Duration, op func() error) error {
	began := time.Now() //nolint:forbidigo // this loop owns a clock, as the back-off in it does
	last := op()
	if last == nil { // as nearly always: nothing has to be kept for a next try
		return nil
	}
	if most > 0 {
		most = max(1, most-time.Since(began)) //nolint:forbidigo // likewise
	}
	return retry(ctx, most, last, op)
}

// retry is what Retry does after the first try has failed.
func retry(ctx context.Context, most time.Duration, last error, op func() error) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 50 * time.Millisecond
	wait.MaxInterval = 5 * time.Second
	wait.RandomizationFactor = 0 // chance has it
	tried, inDoubt := true, false
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		if !tried {
			last = op()
		}
		tried = false
		inDoubt = inDoubt || MayHaveHappened(last)
		if last != nil && !Transient(last) {
			return struct{}{}, backoff.Permanent(last)
		}
		return struct{}{}, last
	}, backoff.WithBackOff(jittered{wait, ctx}), backoff.WithMaxElapsedTime(most))
	if err != nil && last != nil && !errors.Is(err, last) {
		err = fmt.Errorf("%w (%w)", last, err)
	}
	if inDoubt {
		return InDoubt(err)
	}
	return err
}

// jittered spreads the waits of another back-off over half to one and a half
// times as long.
type jittered struct {
	backoff.BackOff
	ctx context.Context
}

func (j jittered) NextBackOff() time.Duration {
	d := j.BackOff.NextBackOff()
	if d == backoff.Stop {
		return d
	}
	return d/2 + time.Duration(Chance(j.ctx)*float64(d))
}

type chanceKey struct{}

// WithChance returns a context in which what is left to chance, as how long to
// wait before the next try, goes by chance: a function that returns numbers in
// [0, 1) to any goroutine. A simulation repeats itself by it.
func WithChance(ctx context.Context, chance func() float64) context.Context {
	return context.WithValue(ctx, chanceKey{}, chance)
}

// Chance returns a random number in [0, 1).
func Chance(ctx context.Context) float64 {
	if chance, ok := ctx.Value(chanceKey{}).(func() float64); ok {
		return chance()
	}
	return rand.Float64()
}
