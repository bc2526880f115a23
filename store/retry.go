package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Retry calls op until it succeeds, fails with an error that is not
// [Transient], ctx is done, or most has passed. It waits in between, longer
// each time, with jitter. The error is op's last one; where ctx ended the
// waiting it wraps the context's cause, too.
func Retry(ctx context.Context, most time.Duration, op func() error) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 50 * time.Millisecond
	wait.MaxInterval = 5 * time.Second
	var last error
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		last = op()
		if last != nil && !Transient(last) {
			return struct{}{}, backoff.Permanent(last)
		}
		return struct{}{}, last
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(most))
	if err != nil && last != nil && !errors.Is(err, last) {
		return fmt.Errorf("%w (%w)", last, err)
	}
	return err
}
