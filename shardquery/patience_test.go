package shardquery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// patience is what the callers here have.
const patience = 2 * time.Minute

// Patiently gives up on a permanent error at once, and on any other error when
// patience ends.
func TestPatientlyGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		for _, c := range []struct {
			err         error
			least, most time.Duration
		}{
			{store.ErrDenied, 0, 0},
			{store.ErrMissingIndex, 0, 0},
			{store.ErrTooLarge, 0, 0},
			{store.ErrDeadline, time.Minute, patience},
			{store.ErrPushback, time.Minute, patience},
		} {
			s.Before = func(context.Context, modelstore.Call) error { return fmt.Errorf("for ever: %w", c.err) }
			began, reader := time.Now(), newReader(s, time.Now())
			err := shardquery.Patiently(t.Context(), patience, func() error {
				var page store.Page
				_, err := reader.Next(t.Context(), &page, 500)
				return err
			})
			took := time.Since(began)
			if !errors.Is(err, c.err) || errors.Is(err, shardquery.ErrShrunk) || took < c.least || took > c.most {
				t.Errorf("%v: gave up after %v with %v", c.err, took, err)
			}
		}
	})
}

func TestPatientlyAsksForLessAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), 0
		err := shardquery.Patiently(t.Context(), patience, func() error {
			if calls++; calls < 20 {
				return fmt.Errorf("%w: %w", store.ErrTooLarge, shardquery.ErrShrunk)
			}
			return nil
		})
		if err != nil || calls != 20 || time.Since(began) > 0 {
			t.Errorf("%d calls in %v: %v", calls, time.Since(began), err)
		}
		// Also where each takes its time, patience ends.
		calls = 0
		err = shardquery.Patiently(t.Context(), patience, func() error {
			calls++
			time.Sleep(50 * time.Second)
			return fmt.Errorf("%w: %w", store.ErrDeadline, shardquery.ErrShrunk)
		})
		if took := time.Since(began); !errors.Is(err, store.ErrDeadline) || calls != 3 {
			t.Errorf("%d calls in %v: %v", calls, took, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		calls = 0
		err = shardquery.Patiently(ctx, patience, func() error {
			if calls++; calls == 3 {
				cancel()
			}
			return fmt.Errorf("%w: %w", store.ErrDeadline, shardquery.ErrShrunk)
		})
		if !errors.Is(err, context.Canceled) || calls != 3 {
			t.Errorf("%d calls: %v", calls, err)
		}
	})
}

func TestBeyondFindsShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		for i, value := range []string{"00000001.0000.20261121T000000.000Z", "00000001.0003.20261121T000000.000Z",
			"00000001.0005.tomorrow", "00000001.0005x", "00000001.0040.20261121T000000.000Z", "00000002.0009."} {
			e := store.Entity{Name: fmt.Sprint(i), Expiry: store.TextValue(value)}
			_ = s.Put(t.Context(), target, "", []store.Entity{e})
		}
		failing := 0
		s.Before = func(context.Context, modelstore.Call) error {
			if failing++; failing%3 != 0 {
				return store.ErrUnavailable
			}
			return nil
		}
		g := generation.Generation{Number: 1, Shards: 2}
		for _, c := range []struct{ known, want []int }{
			{nil, []int{3, 5, 40}},
			{[]int{40, 3}, []int{5}},
			{[]int{2, 3, 4, 5, 40}, nil},
		} {
			got, err := shardquery.Beyond(t.Context(), s, target, "", g, c.known, patience)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("with %v known: %v, %v, want %v", c.known, got, err, c.want)
			}
		}
		s.Before = func(context.Context, modelstore.Call) error { return store.ErrUnavailable }
		began := time.Now()
		_, err := shardquery.Beyond(t.Context(), s, target, "", g, nil, time.Minute)
		if took := time.Since(began); !errors.Is(err, store.ErrUnavailable) || took > time.Minute || took < 30*time.Second {
			t.Errorf("gave up after %v with %v", took, err)
		}
		lo, hi := expirykey.GenerationRange(1)
		q := store.Query{Target: target, Lo: store.TextValue(lo), Hi: store.TextValue(hi)}
		began = time.Now()
		if _, _, err = shardquery.First(t.Context(), s, q, time.Minute); !errors.Is(err, store.ErrUnavailable) ||
			time.Since(began) > time.Minute {
			t.Errorf("gave up after %v with %v", time.Since(began), err)
		}
	})
}
