package writers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/writers"
)

func record() map[string]any {
	return map[string]any{
		"schema": int64(2), "nursery_shards": int64(16), "staleness_ms": int64(60_000),
		"generations": []any{map[string]any{
			"number": 7, "shards": 32, "opened": "1999-01-01T00:00:00.000000Z", "ramp_ms": 0, "closed": ""}},
	}
}

func ExampleNurseryKey() {
	key, err := writers.NurseryKey("s-1842", time.Date(2026, 11, 21, 0, 7, 30, 854_000_001, time.UTC), 16)
	fmt.Println(key, err)
	// Output: 00000000.0006.20261121T000730.855Z <nil>
}

func ExampleFollow() {
	read := func(context.Context) (map[string]any, error) {
		return record(), nil // in an application: the entity ReaperTarget/sessions, by its client
	}
	f := writers.Follow(context.Background(), read, writers.Options{})
	defer f.Close()
	if err := f.Refresh(context.Background()); err != nil { // optional: wait for the first read
		fmt.Println(err)
	}
	key, err := f.Key("s-1842", time.Date(2026, 11, 21, 0, 7, 30, 0, time.UTC))
	fmt.Println(key, err)
	// Output: 00000007.0022.20261121T000730.000Z <nil>
}

// A follower stamps the nursery until it knows more, reads twice within the staleness,
// stamps the nursery again once its copy is too old, and ends when it is closed.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		var isDown atomic.Bool
		f := writers.Follow(t.Context(), func(ctx context.Context) (map[string]any, error) {
			if reads.Add(1) == 1 {
				<-ctx.Done() // it is given up after half a staleness
				return nil, ctx.Err()
			}
			if isDown.Load() {
				return nil, errors.New("unavailable")
			}
			return record(), nil
		}, writers.Options{Shards: 4})
		stamps := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if k, err := f.Key("__id7__", time.Now().Add(time.Hour)); err != nil || !strings.HasPrefix(k.String(), want) {
				t.Errorf("%s: %v, %v, want %s", when, k, err, want)
			}
		}
		stamps("at once", fmt.Sprintf("00000000.%04d.", writers.ShardOf("7", 4)))
		time.Sleep(time.Minute)
		stamps("after a read that hung", fmt.Sprintf("00000007.%04d.", writers.ShardOf("7", 32)))
		before := reads.Load()
		time.Sleep(time.Hour)
		if got := reads.Load() - before; got < 115 || got > 125 {
			t.Errorf("%d reads in an hour, want one in 30 s", got)
		}
		stamps("an hour later", "00000007.")
		isDown.Store(true)
		time.Sleep(2 * time.Minute)
		stamps("two minutes after the last answer", "00000000.")
		f.Close()
		before = reads.Load()
		time.Sleep(time.Hour)
		if reads.Load() != before {
			t.Error("a closed follower reads")
		}
	})
}

// A read that panics ends no application. A mistake in the call shows at once.
func TestFollowMistakes(t *testing.T) {
	f := writers.Follow(t.Context(), func(context.Context) (map[string]any, error) {
		var record map[string]any
		return record["generations"].([]any)[0].(map[string]any), nil
	}, writers.Options{})
	defer f.Close()
	if err := f.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "panic") {
		t.Errorf("a read that panics: %v", err)
	}
	if key, err := f.Key("s-1842", time.Now().Add(time.Hour)); err != nil || key.Generation != 0 {
		t.Errorf("key %v, %v", key, err)
	}
	none := func(context.Context) (map[string]any, error) { return nil, nil }
	for name, follow := range map[string]func(){
		"no read":           func() { writers.Follow(t.Context(), nil, writers.Options{}) },
		"negative shards":   func() { writers.Follow(t.Context(), none, writers.Options{Shards: -1}) },
		"more than a key's": func() { writers.Follow(t.Context(), none, writers.Options{Shards: 20_000}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: it follows", name)
				}
			}()
			follow()
		}()
	}
}
