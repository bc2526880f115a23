package cursor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/cursortest"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

var (
	id    = cursor.ID{Target: "sessions", Generation: 1, Shard: "0003"}
	scope = cursor.Scope{Kind: "Session", Property: "expiry_key", Layout: "generation", Opened: time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)}
)

// keeper returns the keeper of a process that lives until the test ends.
func keeper(t *testing.T, s store.Store, owner string) *cursor.Keeper {
	return cursortest.Start(t, s, "sessions", owner, 30*time.Second)
}

// hooked returns a store, and a function that sets the hook that runs before each call from
// then on. The hook may change at any time, also while a heartbeat is being written.
func hooked() (s *modelstore.Store, before func(func(context.Context, modelstore.Call) error)) {
	var hook atomic.Pointer[func(context.Context, modelstore.Call) error]
	s = modelstore.New(time.Now)
	s.Before = func(ctx context.Context, c modelstore.Call) error {
		if f := hook.Load(); f != nil {
			return (*f)(ctx, c)
		}
		return nil
	}
	return s, func(f func(context.Context, modelstore.Call) error) { hook.Store(&f) }
}

func load(t *testing.T, s store.Store, before cursor.Table) cursor.Table {
	t.Helper()
	table, err := cursor.Reader{Store: s, Target: "sessions", Now: time.Now}.All(context.WithoutCancel(t.Context()), before)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// recordOf returns the cursor of the range as its record is.
func recordOf(table cursor.Table) cursor.Cursor {
	c, _ := table.At(id)
	return c
}

func at(text, key string) store.Position {
	return store.Position{Value: store.TextValue(text), Key: key}
}

func ExampleKeeper() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := modelstore.New(time.Now)
	k := &cursor.Keeper{Store: s, Owner: "this process", Lease: 30 * time.Second, Now: time.Now, StoreNow: time.Now,
		Log: slog.New(slog.DiscardHandler)}
	k.Pulse = k.NewPulse("sessions", "v1", func(cursor.Beat) {})
	go k.Pulse.Run(ctx, ctx, false)

	table, _ := cursor.Reader{Store: s, Target: "sessions", Now: time.Now}.All(ctx, cursor.Table{})
	claim, err := k.Claim(ctx, table.Get(id, scope, store.Text))
	if err != nil {
		fmt.Println(err)
		return
	}
	// … entities are deleted up to s-1842, and then:
	claim.Update(func(c *cursor.Cursor) {
		c.Position = store.Position{Value: store.TextValue("00000001.0003.20261121T000730.855Z"), Key: `"s-1842"`}
		c.Deleted += 500
	})
	if err := claim.Release(ctx); err != nil {
		fmt.Println(err)
		return
	}
	table, _ = cursor.Reader{Store: s, Target: "sessions", Now: time.Now}.All(ctx, table)
	c := table.Get(id, scope, store.Text)
	fmt.Println(c.Position.Value.Text, c.Position.Key, c.Deleted)
	// Output: 00000001.0003.20261121T000730.855Z "s-1842" 500
}

func TestKeysAreEscaped(t *testing.T) {
	seen := map[string]cursor.ID{}
	for _, c := range []struct {
		id   cursor.ID
		want string
	}{
		{id, "sessions.00000001.0003"},
		{cursor.ID{Target: "s", Namespace: "eu", Generation: 12, Shard: "x"}, "s.00000012.x@eu"},
		{cursor.ID{Target: "s", Generation: 12, Shard: "x@eu"}, "s.00000012.x%40eu"},
		{cursor.ID{Target: "s", Generation: 0, Shard: "a.b/c%é", Namespace: "n.1"}, "s.00000000.a%2Eb%2Fc%25%C3%A9@n%2E1"},
	} {
		if got := c.id.Key(); got != c.want {
			t.Errorf("key of %+v = %q, want %q", c.id, got, c.want)
		}
		if other, ok := seen[c.id.Key()]; ok {
			t.Errorf("%+v and %+v have one key", c.id, other)
		}
		seen[c.id.Key()] = c.id
	}
}

// What a claim saves is what the next process reads.
func TestRecordRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		now := time.Now().UTC()
		claim, err := keeper(t, s, "a").Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
		if err != nil {
			t.Fatal(err)
		}
		claim.Update(func(c *cursor.Cursor) {
			c.Position, c.Swept, c.Deleted = at("00000001.0003.x", "k"), now, 7
			c.Rewind = cursor.Rewind{Position: at("00000001.0003.a", "j"), Began: now, Done: now.Add(-time.Hour), Window: 90 * time.Second}
			c.Stock = cursor.Stock{Next: now.Add(time.Hour), Suspects: true, Refused: true}
			c.Rate, c.RateUsed, c.TargetRevision = 750.5, now, 9
		})
		if err := claim.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := claim.Cursor()
		got := recordOf(load(t, s, cursor.Table{}))
		got.Seen, want.Seen, got.Sent = time.Time{}, time.Time{}, time.Time{}
		if got != want {
			t.Errorf("read %+v\nwrote %+v", got, want)
		}
		if got.Lease.Released.IsZero() {
			t.Error("the record does not say when it was given back")
		}
		if got.Lease.Released = (time.Time{}); got.Lease != (cursor.Lease{Token: 1}) {
			t.Errorf("lease after the release: %+v", got.Lease)
		}
	})
}

func TestAnotherScopeDiscardsPositionNotToken(t *testing.T) {
	c := cursor.Cursor{ID: id, Scope: scope, Position: at("x", "y"), Swept: time.Unix(1, 0), Rewind: cursor.Rewind{Done: time.Unix(1, 0)},
		Lease: cursor.Lease{Token: 5}, Deleted: 9}
	table := cursor.NewTable(c)
	if got := table.Get(id, scope, store.Text); got != c {
		t.Errorf("same scope: %+v", got)
	}
	for _, other := range []cursor.Scope{
		{Kind: "User", Property: scope.Property, Layout: scope.Layout, Opened: scope.Opened},
		{Kind: scope.Kind, Property: "other", Layout: scope.Layout, Opened: scope.Opened},
		{Kind: scope.Kind, Property: scope.Property, Layout: "sharded", Opened: scope.Opened},
		{Kind: scope.Kind, Property: scope.Property, Layout: scope.Layout, Opened: scope.Opened.Add(1)},
	} {
		got := table.Get(id, other, store.Text)
		if !got.Position.IsZero() || got.Rewind != (cursor.Rewind{}) || !got.Swept.IsZero() || got.Lease.Token != 5 || got.Deleted != 9 {
			t.Errorf("scope %+v: %+v", other, got)
		}
	}
}

func TestLoadRefusesNonsense(t *testing.T) {
	for field, value := range map[string]any{
		"rewind_window_ms": int64(-1), "refused": "yes", "schema": int64(3), "namespace": int64(1), "position": true, "rewind_began": "soon", "token": "1", "shard": "0004", "generation": int64(2),
	} {
		s := modelstore.New(time.Now)
		claim, err := keeper(t, s, "a").Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
		if err != nil {
			t.Fatal(err)
		}
		if err := claim.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, _ := s.Load(t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"})
		rec := got.List[0]
		prev := rec.Revision
		rec.Revision, rec.Fields[field] = "edited", value
		if err := s.Save(t.Context(), rec, prev); err != nil {
			t.Fatal(err)
		}
		_, err = cursor.Reader{Store: s, Target: "sessions", Now: time.Now}.All(t.Context(), cursor.Table{})
		if err == nil || field == "schema" && !errors.Is(err, cursor.ErrNewer) || !strings.Contains(err.Error(), rec.Key) {
			t.Errorf("%s = %v: %v", field, value, err)
		}
	}
}

// A claim is renewed for as long as it lasts, moving or waiting, and nobody else
// gets the range meanwhile (L3).
func TestClaimIsExclusiveUntilReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		first, second := keeper(t, s, "first"), keeper(t, s, "second")
		claim, err := first.Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
		if err != nil {
			t.Fatal(err)
		}
		var table cursor.Table
		for range 100 {
			table = load(t, s, table)
			time.Sleep(time.Second)
			cursortest.Look(t, second, "sessions")
			if _, err := second.Claim(t.Context(), table.Get(id, scope, store.Text)); !errors.Is(err, cursor.ErrTaken) {
				t.Fatalf("claim of a held range: %v", err)
			}
			time.Sleep(3 * time.Second)
		}
		if _, cancel, err := claim.Writing(t.Context()); err != nil {
			t.Errorf("after five minutes: %v", err)
		} else {
			cancel()
		}
		if err := claim.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		next, err := second.Claim(t.Context(), load(t, s, table).Get(id, scope, store.Text))
		if err != nil {
			t.Fatalf("claim of a released range: %v", err)
		}
		if got := next.Cursor().Lease.Token; got != 2 {
			t.Errorf("token %d after the first one's 1", got)
		}
		_ = next.Release(t.Context())
	})
}

func TestOnlyOneOfManyClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		cur := load(t, s, cursor.Table{}).Get(id, scope, store.Text)
		won := make(chan *cursor.Claim, 20)
		for i := range 20 {
			go func() {
				claim, err := keeper(t, s, fmt.Sprint(i)).Claim(t.Context(), cur)
				if err != nil && !errors.Is(err, cursor.ErrTaken) {
					t.Error(err)
				}
				won <- claim
			}()
		}
		winners := 0
		for range 20 {
			if claim := <-won; claim != nil {
				winners++
				_ = claim.Release(t.Context())
			}
		}
		if winners != 1 {
			t.Errorf("%d workers hold the range", winners)
		}
	})
}

// A holder whose store does not answer gives up before anybody may take over,
// and starts no write that could outlast its lease.
func TestHolderGivesUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, before := hooked()
		claim, err := keeper(t, s, "first").Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		table := load(t, s, cursor.Table{})
		second := keeper(t, s, "second")
		time.Sleep(time.Millisecond)
		cursortest.Look(t, second, "sessions")
		var silent atomic.Bool
		silent.Store(true)
		before(func(ctx context.Context, c modelstore.Call) error {
			if silent.Load() && c.Method == "Save" && c.Record.Fields["owner"] == "first" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		ctx, cancel, err := claim.Writing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer cancel()
		<-ctx.Done()
		if held := time.Since(began); held > 30*time.Second {
			t.Errorf("writes were allowed for %v", held)
		}
		if _, _, err := claim.Writing(t.Context()); !errors.Is(err, cursor.ErrLost) {
			t.Errorf("a write after that: %v", err)
		}
		time.Sleep(time.Minute)
		<-claim.Done()
		cursortest.Look(t, second, "sessions")
		next, err := second.Claim(t.Context(), load(t, s, table).Get(id, scope, store.Text))
		if err != nil {
			t.Fatalf("takeover: %v", err)
		}
		silent.Store(false)
		claim.Update(func(c *cursor.Cursor) { c.Position = at("far", "ahead") })
		if err := claim.Release(t.Context()); err == nil {
			t.Error("a lost claim was released")
		}
		if err := next.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := recordOf(load(t, s, cursor.Table{})); !got.Position.IsZero() {
			t.Errorf("a worker that lost its lease moved the cursor to %+v", got.Position)
		}
	})
}

// A write ends with its claim, also if the lease would have lasted: the process may begin another epoch at once,
// from which on others take the range for free.
func TestWriteEndsWithItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		claim, err := keeper(t, s, "a").Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel, err := claim.Writing(t.Context())
		if err != nil || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		}
		defer cancel()
		began := time.Now()
		if err := claim.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if <-ctx.Done(); time.Since(began) > time.Second {
			t.Errorf("it goes on for %v", time.Since(began))
		}
	})
}

// A save whose reply is lost is repeated as the same write, and succeeds.
func TestLostReplyOfASave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		var lost atomic.Int64
		s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && lost.Add(1) <= 3 {
				return fmt.Errorf("the reply was lost: %w", store.ErrUnavailable)
			}
			return nil
		}
		claim, err := keeper(t, s, "a").Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
		if err != nil {
			t.Fatal(err)
		}
		lost.Store(0)
		claim.Update(func(c *cursor.Cursor) { c.Position = at("x", "y") })
		if err := claim.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := recordOf(load(t, s, cursor.Table{})); got.Position != at("x", "y") || got.Lease.Token != 1 || got.Lease.Owner != "" {
			t.Errorf("the record: %+v", got)
		}
	})
}

// Opening an exclusive store voids the leases of every other opening at once.
func TestExclusiveStoreVoidsOldLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		before := keeper(t, s, "opening-1/a")
		before.Opening = "opening-1/"
		if _, err := before.Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text)); err != nil {
			t.Fatal(err)
		}
		after := keeper(t, s, "opening-2/a")
		after.Opening = "opening-2/"
		claim, err := after.Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
		if err != nil {
			t.Fatalf("claim after a new opening: %v", err)
		}
		if err := claim.Release(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // the first claim's keeper finds out and ends
	})
}

func TestMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		k := keeper(t, s, "a")
		cur := load(t, s, cursor.Table{}).Get(id, scope, store.Text)
		move := func(c *cursor.Cursor) { c.Position = at("x", "") }
		if _, ok, err := k.Move(t.Context(), cur, move); !ok || err != nil {
			t.Fatalf("move: %v, %v", ok, err)
		}
		if _, ok, err := k.Move(t.Context(), cur, move); ok || err != nil {
			t.Errorf("move of a record that has changed: %v, %v", ok, err)
		}
		claim, err := keeper(t, s, "b").Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := k.Move(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text), move); ok || err != nil {
			t.Errorf("move of a held range: %v, %v", ok, err)
		}
		_ = claim.Release(t.Context())
	})
}

// A move of the cursor of a range whose holder is dead ends the holder's lease: the record's
// new revision is not a sign of life.
func TestMoveAfterTheHoldersDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, before := hooked()
		dead := keeper(t, s, "dead")
		claim, err := dead.Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
		if err != nil {
			t.Fatal(err)
		}
		before(func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Fields["owner"] == "dead" {
				return store.ErrDenied
			}
			return nil
		})
		<-claim.Done()
		k, seen := keeper(t, s, "a"), load(t, s, cursor.Table{})
		cursortest.Look(t, k, "sessions")
		time.Sleep(k.Lease)
		cursortest.Look(t, k, "sessions")
		next, ok, err := k.Move(t.Context(), recordOf(seen), func(c *cursor.Cursor) { c.Position = at("x", "") })
		if !ok || err != nil || next.Lease.Token != 1 || next.Lease.Released.IsZero() {
			t.Fatalf("move: %+v, %v, %v", next, ok, err)
		}
		claim, err = k.Claim(t.Context(), recordOf(load(t, s, seen)))
		if err != nil {
			t.Fatalf("claim after the move: %v", err)
		}
		if c := claim.Cursor(); c.Lease.Token != 2 || c.Position != at("x", "") {
			t.Errorf("claimed %+v", c)
		}
		_ = claim.Release(t.Context())
	})
}

// A record of an earlier version has neither window nor refused: both are zero.
func TestRecordsOfEarlierVersions(t *testing.T) {
	s := modelstore.New(time.Now)
	claim, err := keeper(t, s, "a").Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
	if err != nil {
		t.Fatal(err)
	}
	claim.Update(func(c *cursor.Cursor) { c.Rewind.Window, c.Stock.Refused = time.Minute, true })
	if err := claim.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, _ := s.Load(t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"})
	rec := got.List[0]
	if rec.Fields["rewind_window_ms"] != int64(60_000) || rec.Fields["refused"] != true {
		t.Errorf("the record: %v", rec.Fields)
	}
	prev := rec.Revision
	rec.Revision = "9-old"
	delete(rec.Fields, "rewind_window_ms")
	delete(rec.Fields, "refused")
	if err := s.Save(t.Context(), rec, prev); err != nil {
		t.Fatal(err)
	}
	if c := recordOf(load(t, s, cursor.Table{})); c.Rewind.Window != 0 || c.Stock.Refused {
		t.Errorf("read %+v, %+v", c.Rewind, c.Stock)
	}
}

// A claim, a move and the removal of a record give up soon if the store does not
// answer: other ranges are waiting.
func TestClaimsAreImpatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, before := hooked()
		k := keeper(t, s, "a")
		cur := load(t, s, cursor.Table{}).Get(id, scope, store.Text)
		known := cur
		known.Revision = "1-x"
		before(func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" {
				return store.ErrUnavailable
			}
			return nil
		})
		for what, try := range map[string]func() error{
			"claim": func() error { _, err := k.Claim(t.Context(), cur); return err },
			"move":  func() error { _, _, err := k.Move(t.Context(), cur, func(*cursor.Cursor) {}); return err },
			"forget": func() error {
				_, err := k.Forget(t.Context(), known)
				return err
			},
		} {
			began := time.Now()
			if err := try(); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took < time.Second/2 || took > 5*time.Second { // the waits in between are jittered
				t.Errorf("%s gave up after %v", what, took)
			}
		}
		before(func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Save" { // as if a dead process left a transaction open
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		began := time.Now()
		if _, err := k.Claim(t.Context(), cur); err == nil || time.Since(began) > 15*time.Second {
			t.Errorf("a claim that hangs: %v after %v", err, time.Since(began))
		}
	})
}

// The holder of a range retries for longer: until its lease runs out.
func TestAHolderIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, before := hooked()
		claim, err := keeper(t, s, "a").Claim(t.Context(), load(t, s, cursor.Table{}).Get(id, scope, store.Text))
		if err != nil {
			t.Fatal(err)
		}
		until := time.Now().Add(10 * time.Second)
		before(func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && time.Now().Before(until) {
				return store.ErrUnavailable
			}
			return nil
		})
		if err := claim.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		if c := recordOf(load(t, s, cursor.Table{})); c.Lease.Owner != "" {
			t.Errorf("still held: %+v", c.Lease)
		}
	})
}

func TestSealCoversWhatItsPassWentOver(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	some := cursor.Seal{Namespaces: []string{"", "eu"}, Began: began}
	all := cursor.Seal{Namespaces: []string{cursor.AllNamespaces}, Began: began}
	for _, c := range []struct {
		seal      cursor.Seal
		namespace string
		since     time.Time
		want      bool
	}{
		{some, "eu", time.Time{}, true},
		{some, "", began, true},
		{some, "us", time.Time{}, false},
		{some, "eu", began.Add(1), false},
		{all, "us", began, true},
		{all, "us", began.Add(1), false},
		{cursor.Seal{}, "", time.Time{}, false},
		{cursor.Seal{Namespaces: []string{""}}, "", time.Time{}, false}, // it never began
	} {
		if got := c.seal.Covers(c.namespace, c.since); got != c.want {
			t.Errorf("%q since %v: %v, want %v", c.namespace, c.since, got, c.want)
		}
	}
}
