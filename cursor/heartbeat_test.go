package cursor_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

func keeperOf(s store.Store, owner string) *cursor.Keeper {
	return &cursor.Keeper{Store: s, Owner: owner, Lease: 30 * time.Second, Now: time.Now, StoreNow: time.Now,
		Log: slog.New(slog.DiscardHandler)}
}

// A heart is a process whose pulse runs.
type heart struct {
	*cursor.Pulse
	stop func()

	mu    sync.Mutex
	beats []cursor.Beat
}

func (h *heart) last() cursor.Beat {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.beats) == 0 {
		return cursor.Beat{}
	}
	return h.beats[len(h.beats)-1]
}

func startHeart(t *testing.T, k *cursor.Keeper, announce bool) *heart {
	h := &heart{}
	h.Pulse = k.NewPulse("sessions", "v1", func(b cursor.Beat) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.beats = append(h.beats, b)
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		h.Run(ctx, context.Background(), announce)
		close(done)
	}()
	h.stop = func() { cancel(); <-done }
	t.Cleanup(h.stop)
	return h
}

func heartbeats(t *testing.T, s store.Loader) cursor.Heartbeats {
	t.Helper()
	all, _, err := cursor.LoadHeartbeats(context.WithoutCancel(t.Context()), s, "sessions", nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// One write for each third of the lease, whatever is claimed; next to none while nothing
// is; none is left at a good end.
func TestPulseWritesByTheThirdOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		h := startHeart(t, keeperOf(s, "host/1/A"), true)
		synctest.Wait()
		is, ok := heartbeats(t, s)["sessions@host%2F1%2FA"]
		if !ok || is.Lease != 0 || is.Version != "v1" || is.Owner != "host/1/A" || h.last().Live {
			t.Errorf("announced: %+v", is)
		}
		before := s.Writes()
		time.Sleep(time.Hour)
		if n := s.Writes() - before; n > 12 {
			t.Errorf("%d writes in an idle hour", n)
		}
		h.Want(1)
		synctest.Wait()
		if is = heartbeats(t, s)[is.Key()]; is.Lease != 30*time.Second || is.Epoch != 2 || is.Count != 0 || !h.last().Live {
			t.Errorf("with a claim: %+v", is)
		}
		h.Want(99)
		before = s.Writes()
		time.Sleep(10 * time.Minute)
		if n := s.Writes() - before; n < 58 || n > 61 {
			t.Errorf("%d writes in ten minutes with a hundred claims", n)
		}
		if again := heartbeats(t, s)[is.Key()]; again.Epoch != 2 || again.Count < 58 {
			t.Errorf("ten minutes later: %+v", again)
		}
		h.Want(-100)
		time.Sleep(11 * time.Second)
		if is = heartbeats(t, s)[is.Key()]; is.Lease != 0 || h.last().Live {
			t.Errorf("after the last claim: %+v", is)
		}
		h.stop()
		if all := heartbeats(t, s); len(all) != 0 {
			t.Errorf("after a good end: %+v", all)
		}
	})
}

// A process that joins may have relied on what an earlier heartbeat tells: a late answer of
// the store must not take that back.
func TestHeartbeatTellsNoLessThanBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		h := startHeart(t, keeperOf(s, "a"), false)
		h.Want(1)
		synctest.Wait()
		read := time.Now().UTC()
		for _, at := range []time.Duration{0, -2 * time.Second, time.Second} {
			h.SetRead(read.Add(at), true)
			synctest.Wait()
			if is := heartbeats(t, s)["sessions@a"].Read; is.Before(read.Add(max(0, at))) {
				t.Errorf("after a read %v later it tells of %v before that", at, read.Add(at).Sub(is))
			}
		}
	})
}

// A heartbeat that cannot be written ends its epoch within the lease; the next one holds
// nothing of it.
func TestHeartbeatThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		var deaf atomic.Bool
		s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && deaf.Load() {
				return store.ErrUnavailable
			}
			return nil
		}
		h := startHeart(t, keeperOf(s, "a"), false)
		h.Want(1)
		time.Sleep(time.Minute)
		first := h.last()
		deaf.Store(true)
		time.Sleep(time.Until(first.Sent.Add(30 * time.Second)))
		synctest.Wait()
		if b := h.last(); b.Live || b.Epoch != 1 {
			t.Errorf("a lease after the last heartbeat was sent: %+v", b)
		}
		time.Sleep(time.Minute)
		deaf.Store(false)
		time.Sleep(time.Second)
		if b := h.last(); !b.Live || b.Epoch != 2 {
			t.Errorf("once it can be written again: %+v", b)
		}
	})
}

// A renewal that is answered only after the lease does not go on with the epoch: others
// may have taken it for dead.
func TestRenewalThatComesTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		var slow atomic.Bool
		s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && slow.Load() {
				time.Sleep(40 * time.Second) // as if the whole process were frozen
			}
			return nil
		}
		h := startHeart(t, keeperOf(s, "a"), false)
		h.Want(1)
		time.Sleep(time.Second)
		slow.Store(true)
		time.Sleep(10 * time.Second) // a renewal is sent
		slow.Store(false)
		time.Sleep(40 * time.Second)
		if b := h.last(); !b.Live || b.Epoch != 2 {
			t.Errorf("%+v", b)
		}
		for _, b := range h.beats {
			if b.Live && b.Acked.Sub(b.Sent) >= 30*time.Second {
				t.Errorf("it went on by %+v", b)
			}
		}
	})
}

// A heartbeat that somebody has made unreadable does not tell which epoch has begun. The next one has
// another number anyway, for others may have taken that one for dead.
func TestEpochAfterAnUnreadableHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		var lost atomic.Bool
		s.After = func(ctx context.Context, c modelstore.Call) error {
			if c.Method != "Save" || lost.Swap(true) {
				return nil
			}
			<-ctx.Done() // the answer is lost
			return store.ErrDeadline
		}
		h := startHeart(t, keeperOf(s, "a"), false)
		h.Want(1)
		time.Sleep(time.Second)
		got, err := s.Load(t.Context(), store.RecordQuery{Sort: store.WorkerRecord, Target: "sessions", Limit: 1})
		if err != nil || len(got.List) != 1 {
			t.Fatal(got, err)
		}
		rec := got.List[0]
		rec.Fields["renewed"] = "garbage"
		prev := rec.Revision
		rec.Revision = store.NewRevision(prev)
		if err := s.Save(t.Context(), rec, prev); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if b := h.last(); !b.Live || b.Epoch != 2 {
			t.Errorf("the epoch after the first one, which began in the store: %+v", b)
		}
	})
}

// Of two processes with one name the second waits until the first one's heartbeat has
// stood still for a lease.
func TestTwoProcessesOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		first := startHeart(t, keeperOf(s, "a"), false)
		first.Want(1)
		time.Sleep(time.Second)
		second := startHeart(t, keeperOf(s, "a"), false)
		second.Want(1)
		time.Sleep(10 * time.Minute)
		if a, b := first.last(), second.last(); !a.Live || b.Live {
			t.Fatalf("%+v, %+v", a, b)
		}
		first.Want(-1) // it holds nothing any more, and goes on saying so: not at all
		time.Sleep(2 * time.Minute)
		if a, b := first.last(), second.last(); a.Live || !b.Live || b.Epoch < 2 {
			t.Errorf("%+v, %+v", a, b)
		}
		for _, h := range heartbeats(t, s) {
			if h.Epoch != second.last().Epoch {
				t.Errorf("%+v", h)
			}
		}
	})
}

// A record that makes no sense stops nobody, counts as somebody, and is removed in the
// end; one of a newer program is an error.
func TestHeartbeatsThatMakeNoSense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		k := keeperOf(s, "a")
		startHeart(t, k, true)
		synctest.Wait()
		got, err := s.Load(t.Context(), store.RecordQuery{Sort: store.WorkerRecord, Target: "sessions"})
		if err != nil || len(got.List) != 1 {
			t.Fatal(got, err)
		}
		for field, value := range map[string]any{"epoch": int64(-4), "lease_ms": int64(-1), "count": "many", "owner": "b"} {
			rec := got.List[0]
			fields := store.Fields{}
			for name, v := range rec.Fields {
				fields[name] = v
			}
			fields[field] = value
			bad := store.Record{Sort: rec.Sort, Key: rec.Key + "x", Target: rec.Target, Revision: "1-" + field, Fields: fields}
			if err := s.Save(t.Context(), bad, ""); err != nil {
				t.Fatal(err)
			}
			h := heartbeats(t, s)[bad.Key]
			if h.Invalid == nil || !strings.Contains(h.Invalid.Error(), bad.Key) || h.Key() != bad.Key {
				t.Errorf("%s %v: %+v", field, value, h)
			}
			if h.IsForgotten(time.Now().Add(24*time.Hour), time.Now()) || !h.IsForgotten(time.Now(), time.Now().Add(2*time.Hour)) {
				t.Errorf("%s %v: forgotten by the wrong clock", field, value)
			}
			if err := k.ForgetHeartbeat(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(heartbeats(t, s)); n != 1 {
			t.Errorf("%d are left", n)
		}
		newer := got.List[0]
		newer.Fields["schema"] = int64(99)
		newer.Key, newer.Revision = "sessions@c", "1-z"
		if err := s.Save(t.Context(), newer, ""); err != nil {
			t.Fatal(err)
		}
		if _, _, err := cursor.LoadHeartbeats(t.Context(), s, "sessions", nil, time.Now); !errors.Is(err, cursor.ErrNewer) {
			t.Error(err)
		}
	})
}

// A heartbeat that a restore has taken back ends the epoch: the records of the ranges went back,
// too, so that others may claim them.
func TestHeartbeatThatWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		h := startHeart(t, keeperOf(s, "a"), false)
		h.Want(1)
		time.Sleep(time.Second)
		ctx := context.WithoutCancel(t.Context())
		read := func() store.Record {
			got, err := s.Load(ctx, store.RecordQuery{Sort: store.WorkerRecord, Target: "sessions", Limit: 10})
			if err != nil || len(got.List) != 1 {
				t.Fatalf("%v, %v", got.List, err)
			}
			return got.List[0]
		}
		old := read()
		time.Sleep(35 * time.Second)
		if err := s.Save(ctx, old, read().Revision); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		if b := h.last(); !b.Live || b.Epoch != 2 {
			t.Errorf("it goes on by the epoch of the record that was restored: %+v", b)
		}
	})
}
