package cursor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/cursortest"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

func rangeID(n int) cursor.ID {
	return cursor.ID{Target: "sessions", Generation: 1, Shard: fmt.Sprintf("%04d", n)}
}

// A claim that must not be made is not, and asks nobody before the heartbeats of others are read.
func TestClaimUnless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		k := keeper(t, s, "a")
		var read bool
		go func() {
			time.Sleep(300 * time.Millisecond)
			read = true
			cursortest.Look(t, k, "sessions")
		}()
		began, asked := time.Now(), -1
		full := func(held int) bool {
			if asked = held; !read {
				t.Error("it was asked before the heartbeats were read")
			}
			return held > 0
		}
		c := cursor.Table{}.Get(id, scope, store.Text)
		first, err := k.ClaimUnless(t.Context(), t.Context(), c, full)
		if err != nil || asked != 0 || time.Since(began) < 300*time.Millisecond {
			t.Fatalf("%v after %v, asked with %d", err, time.Since(began), asked)
		}
		second := cursor.Table{}.Get(rangeID(4), scope, store.Text)
		writes := s.Writes()
		_, err = k.ClaimUnless(t.Context(), t.Context(), second, full)
		if !errors.Is(err, cursor.ErrFull) || asked != 1 || s.Writes() != writes {
			t.Errorf("%v, asked with %d", err, asked)
		}
		if k.Pulse.Held() != 1 {
			t.Errorf("it holds %d", k.Pulse.Held())
		}
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := k.ClaimUnless(t.Context(), t.Context(), second, full); err != nil || asked != 0 {
			t.Errorf("after the release: %v, asked with %d", err, asked)
		}
	})
}

// A stop makes no claim, but waits for the answer to one that was sent: it would be released by nobody.
func TestClaimAtAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, before := hooked()
		k := keeper(t, s, "a")
		first, err := k.Claim(t.Context(), cursor.Table{}.Get(rangeID(4), scope, store.Text)) // an epoch is in force from here on
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		work, giveUp := context.WithTimeout(t.Context(), 3*time.Second)
		defer giveUp()
		takes := time.Second
		before(func(ctx context.Context, c modelstore.Call) error {
			if c.Method != "Save" {
				return nil
			}
			stop()
			select {
			case <-time.After(takes):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		c := cursor.Table{}.Get(id, scope, store.Text)
		claim, err := k.ClaimUnless(ctx, work, c, nil)
		if err != nil || ctx.Err() == nil || k.Pulse.Held() != 2 {
			t.Fatalf("a claim that was sent before the stop: %v, %d are held", err, k.Pulse.Held())
		}
		if err := claim.Release(work); err != nil {
			t.Fatal(err)
		}
		writes := s.Writes()
		if _, err := k.ClaimUnless(ctx, work, recordOf(load(t, s, cursor.Table{})), nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a claim after the stop: %v", err)
		}
		takes = time.Minute
		began := time.Now()
		if _, err := k.ClaimUnless(t.Context(), work, recordOf(load(t, s, cursor.Table{})), nil); err == nil || time.Since(began) > time.Second {
			t.Errorf("a claim that is not answered: %v after %v, where work ended after a second", err, time.Since(began))
		}
		if s.Writes() != writes || k.Pulse.Held() != 1 {
			t.Errorf("%d writes, and %d ranges are held", s.Writes()-writes, k.Pulse.Held())
		}
		before(func(context.Context, modelstore.Call) error { return nil })
		if err := first.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Who cannot read the heartbeats claims nevertheless, a second later; and who does not ask does not wait.
func TestClaimWithoutAMeeting(t *testing.T) {
	for name, c := range map[string]struct {
		full func(int) bool
		wait time.Duration
	}{
		"asks":         {func(int) bool { return false }, time.Second},
		"does not ask": {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := keeper(t, modelstore.New(time.Now), "a")
				began := time.Now()
				if _, err := k.ClaimUnless(t.Context(), t.Context(), cursor.Table{}.Get(id, scope, store.Text), c.full); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != c.wait {
					t.Errorf("it took %v", took)
				}
				if _, err := k.ClaimUnless(t.Context(), t.Context(), cursor.Table{}.Get(rangeID(4), scope, store.Text), c.full); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != c.wait {
					t.Errorf("the second claim waited, too: %v in all", took)
				}
			})
		})
	}
}

// At each range, each of the processes that divide the ranges has a turn of its own, and each is
// the first at about as many of them. All of them agree on it.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keepers, _ := crewOf(t, 4)
		first := make([]int, len(keepers))
		for n := range 400 {
			taken := make([]bool, len(keepers))
			for i, k := range keepers {
				before, processes := k.Turn(rangeID(n))
				if processes != len(keepers) || taken[before] {
					t.Fatalf("range %d: process %d has turn %d of %d", n, i, before, processes)
				}
				if taken[before] = true; before == 0 {
					first[i]++
				}
			}
		}
		for i, n := range first {
			if n < 60 || n > 140 {
				t.Errorf("of 400 ranges, process %d is the first at %d", i, n)
			}
		}
	})
}

// A process is full with its part of the ranges while others hold or want the rest: not with a
// range fewer, not alone, and not next to processes that are gone or at rest.
func TestIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keepers, hearts := crewOf(t, 4)
		k := keepers[0]
		for _, c := range []struct {
			held, wanted int
			full         bool
		}{{0, 0, true}, {0, 1, false}, {1, 1, true}, {1, 4, true}, {1, 5, false}, {15, 64, false}, {16, 64, true}, {17, 64, true}} {
			if full := k.IsFull(c.held, c.wanted); full != c.full {
				t.Errorf("with %d of %d wanted, full is %v", c.held, c.wanted, full)
			}
		}
		hearts[1].stop()   // its heartbeat is gone
		hearts[2].Want(-1) // it rests
		synctest.Wait()
		time.Sleep(11 * time.Second)
		cursortest.Look(t, k, "sessions")
		if _, processes := k.Turn(id); processes != 2 || k.IsFull(16, 64) || !k.IsFull(32, 64) {
			t.Errorf("next to one at work, %d processes divide the ranges", processes)
		}
		hearts[2].Seek(true) // it rests, but wants what others hold
		synctest.Wait()
		cursortest.Look(t, k, "sessions")
		if _, processes := k.Turn(id); processes != 3 || !k.IsSought() {
			t.Errorf("with one that seeks, %d processes divide the ranges", processes)
		}
		hearts[2].Seek(false)
		hearts[3].Want(-1)
		time.Sleep(11 * time.Second)
		cursortest.Look(t, k, "sessions")
		if _, processes := k.Turn(id); processes != 1 || k.IsFull(64, 64) || k.IsSought() {
			t.Errorf("alone, %d processes divide the ranges", processes)
		}
	})
}

// A process whose heartbeat stands still is left out after a lease, however it ended: nobody waits
// for it any longer.
func TestFrozenProcessHasNoPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, before := hooked()
		keepers := []*cursor.Keeper{keeperOf(s, "p-0"), keeperOf(s, "p-1")}
		for _, k := range keepers {
			startHeart(t, k, true).Want(1)
		}
		synctest.Wait()
		look := func() (processes int) {
			cursortest.Look(t, keepers[0], "sessions")
			_, processes = keepers[0].Turn(id)
			return processes
		}
		if n := look(); n != 2 {
			t.Fatalf("%d processes", n)
		}
		before(func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Save" && strings.HasSuffix(c.Record.Key, "p-1") {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		time.Sleep(29 * time.Second)
		if n := look(); n != 2 {
			t.Errorf("after less than a lease, %d processes divide the ranges", n)
		}
		time.Sleep(2 * time.Second)
		if n := look(); n != 1 {
			t.Errorf("after a lease, %d processes divide the ranges", n)
		}
		before(func(context.Context, modelstore.Call) error { return nil })
	})
}

// crewOf returns the keepers of some processes at work, which know of each other, and their
// pulses.
func crewOf(t *testing.T, n int) (keepers []*cursor.Keeper, hearts []*heart) {
	s := modelstore.New(time.Now)
	for i := range n {
		k := keeperOf(s, fmt.Sprintf("p-%d", i))
		h := startHeart(t, k, true)
		k.Pulse = h.Pulse
		h.Want(1)
		keepers, hearts = append(keepers, k), append(hearts, h)
	}
	synctest.Wait()
	for _, k := range keepers {
		cursortest.Look(t, k, "sessions")
	}
	return keepers, hearts
}
