package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// A driver maps each error of its service to a sentinel, once. By the sentinel
// Retry knows whether another try may help.
func ExampleRetry() {
	tries := 0
	err := store.Retry(context.Background(), time.Minute, func() error {
		if tries++; tries < 3 {
			return fmt.Errorf("commit: %w", store.ErrPushback)
		}
		return nil
	})
	fmt.Println(tries, err)
	err = store.Retry(context.Background(), time.Minute, func() error {
		return fmt.Errorf("commit: %w", store.ErrDenied)
	})
	fmt.Println(err)
	// Output:
	// 3 <nil>
	// commit: access denied
}

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := store.Retry(t.Context(), time.Minute, func() error { return store.ErrUnavailable })
		if took := time.Since(began); !errors.Is(err, store.ErrUnavailable) || took < 30*time.Second || took > time.Minute {
			t.Errorf("gave up after %v with %v", took, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		err = store.Retry(ctx, time.Hour, func() error { return store.ErrContention })
		if took := time.Since(began); !errors.Is(err, store.ErrContention) || !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
			t.Errorf("the context ended it after %v with %v", took, err)
		}
	})
}

// A write is in doubt if any of its tries is: the last one may have failed for certain, and the
// first one is stored.
func TestRetryOfAWriteInDoubt(t *testing.T) {
	for _, c := range []struct {
		tries []error
		want  bool
	}{
		{[]error{store.ErrUnavailable, store.ErrFailed}, true},
		{[]error{context.DeadlineExceeded, store.ErrPushback, store.ErrConflict}, true},
		{[]error{store.ErrPushback, store.ErrContention, store.ErrFailed}, false},
		{[]error{store.ErrUnavailable, nil}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			err := store.Retry(t.Context(), time.Minute, func() error { n++; return c.tries[n-1] })
			last := c.tries[len(c.tries)-1]
			if store.MayHaveHappened(err) != c.want || !errors.Is(err, last) || store.Transient(err) {
				t.Errorf("%v: %v, may have happened: %v", c.tries, err, store.MayHaveHappened(err))
			}
			if last != nil && (err.Error() != last.Error() || store.Label(err) != store.Label(last)) {
				t.Errorf("%v: it says %q", c.tries, err)
			}
		})
	}
}

func TestRevisionsNeverRepeat(t *testing.T) {
	seen := map[string]bool{}
	prev := ""
	for i := range 1000 {
		prev = store.NewRevision(prev)
		var count int
		if _, err := fmt.Sscanf(prev, "%d-", &count); err != nil || count != i+1 || seen[prev] {
			t.Fatalf("revision %d is %q", i, prev)
		}
		seen[prev] = true
	}
	if a, b := store.NewRevision("7-x"), store.NewRevision("7-x"); a == b {
		t.Errorf("two writers choose %q", a)
	}
	if got := store.NewRevision("by hand"); got[:2] != "1-" {
		t.Errorf("after a revision in another form: %q", got)
	}
}

func TestFieldReaderNamesWhatIsWrong(t *testing.T) {
	f := store.Fields{"text": "a", "int": int64(1), "float": 1.5, "bool": true, "at": "2026-11-21T03:00:00.000001Z",
		"list": []store.Fields{{"x": int64(1)}}, "bad": "yesterday", "null": nil,
		"comma": "2026-11-21T03:00:00,000001Z", "zero": "0001-01-01T00:00:00.000000Z"}
	r := f.Reader("record x")
	if r.Text("text") != "a" || r.Int("int") != 1 || r.Float("float") != 1.5 || r.Float("int") != 1 || !r.Bool("bool") ||
		r.Time("at") != time.Date(2026, 11, 21, 3, 0, 0, 1000, time.UTC) || len(r.List("list")) != 1 ||
		r.Text("missing") != "" || r.Int("null") != 0 || !r.Time("missing").IsZero() {
		t.Error("a field has the wrong value")
	}
	if err := r.Err(); err != nil {
		t.Errorf("only valid and missing fields were read: %v", err)
	}
	r.Int("text")
	r.Time("bad")
	r.Time("comma")
	r.Time("zero") // an absent instant is an empty text
	r.Bool("list")
	err := r.Err()
	for _, want := range []string{"record x: field text", "field bad", "field comma", "field zero", "field list"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestMeter(t *testing.T) {
	var m store.Meter
	store.Bill(t.Context(), store.Operations{Reads: 99}) // discarded: there is no meter
	ctx := store.WithMeter(t.Context(), &m)
	store.Bill(ctx, store.Operations{Reads: 1, Writes: 2, Deletes: 3})
	store.Bill(ctx, store.Operations{Deletes: 1})
	if got := m.Operations(); got != (store.Operations{Reads: 1, Writes: 2, Deletes: 4}) {
		t.Errorf("billed %+v", got)
	}
}

// Each revision begins with a count one above that of the revision before, and two
// writers never choose the same one.
func TestRevisionCount(t *testing.T) {
	for revision, want := range map[string]int64{"": 0, "7-ABC": 7, "7": 7, "x-7": 0, "edited": 0, "-": 0, "9223372036854775806-A": 1<<63 - 2} {
		if got := store.RevisionCount(revision); got != want {
			t.Errorf("%q counts %d, want %d", revision, got, want)
		}
		one, other := store.NewRevision(revision), store.NewRevision(revision)
		if one == other || store.RevisionCount(one) != want+1 {
			t.Errorf("after %q come %q and %q", revision, one, other)
		}
	}
}
