package main

import (
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
)

// An emulator reads all entities for each page, so that a round takes their square.
var manySessions = flag.Int("sessions", 0, "so many `sessions` for TestAdoption and TestAdoptionIsUndone; "+
	"100,000 take hours")

// withApplications runs a test of so many first sessions on both emulators, with a function that starts
// Node processes on the same database. Many sessions fill emulators of their own.
func withApplications(
	t *testing.T, n int, test func(t *testing.T, b *workdir, start func() *nodewriter.Application, first nodewriter.First),
) {
	if *manySessions > 0 {
		n = *manySessions
	}
	for mode, open := range map[string]func(*testing.T, string) (*workdir, *emulator.Emulator, string){
		"datastore": newDatastore, "native": newFirestore,
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			targets := adoptTarget + "    breaker: {floor: 50}\n"
			if n > 10_000 {
				targets += "    page: 500\n"
			}
			b, e, project := open(t, targets)
			if n > 10_000 {
				e = emulator.StartOwn(t, map[string]emulator.Mode{"datastore": emulator.Datastore, "native": emulator.Native}[mode])
				b.env = append(b.env, "DATASTORE_EMULATOR_HOST="+e.Host, "FIRESTORE_EMULATOR_HOST="+e.Host)
			}
			b.env = append(b.env, "REAPER_WORKERS=4") // fewer parts, and so fewer pages
			test(t, b, func() *nodewriter.Application {
				return nodewriter.StartApplication(t, nodewriter.ApplicationOptions{
					Emulator: e, Mode: mode, Project: project, Target: "sessions", Shards: 4})
			}, nodewriter.First{N: n, Now: time.Now()})
		})
	}
}

// Sessions that have nothing but a time of creation come under expiry, while three writers in Node go
// on creating and extending some: dry run, 5 per cent, 100 per cent by processes that are killed, two at
// once, dual, verify, finish, sweep. At first the writers give no keys, then one after the other learns
// to. In the end exactly the expired ones are gone, each of the others is what its writer wrote, in every
// property, and each has the key of the rule: Google's client for Node reads and compares.
func TestAdoption(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	withApplications(t, nightly.Size(t, 20_000, 1000), func(t *testing.T, b *workdir, start func() *nodewriter.Application, first nodewriter.First) {
		const kills = 5
		n, began := int64(first.N), time.Now()
		done := func(what string) { t.Logf("after %.0f s: %s", time.Since(began).Seconds(), what) }
		reader := start()
		reader.Fill(first)
		if c := reader.Read("before", "", 100); c.Sessions != first.N || c.Keyed != 0 {
			t.Fatalf("at first: %+v", c)
		}
		done("filled")
		writers := make([]*nodewriter.Application, 3)
		for i := range writers {
			writers[i] = start()
			writers[i].Write(fmt.Sprintf("w%d", i), first, i, len(writers))
		}

		if res := b.adopts("sessions"); res.Counts[adopt.Unstamped] < n || res.DueAlready < n/4 || res.DueAlready > n/2 {
			t.Errorf("dry run: %+v", res)
		}
		if c := reader.Read("dry", "", 100); c.Keyed != 0 {
			t.Errorf("the dry run wrote keys: %+v", c)
		}
		done("dry run")
		res := b.adopts("sessions", "--apply", "--percent", "5")
		if share := float64(res.Stamped) / float64(n); share < 0.02 || share > 0.08 {
			t.Errorf("5 per cent are %d of %d", res.Stamped, n)
		}
		if c := reader.Read("5", adopt.Salt("sessions"), 5); c.Keyed == 0 || c.Outside.N != 0 {
			t.Errorf("5 per cent: %+v", c)
		}
		done("5 per cent")
		for i := range kills {
			b.killAdopt(min(first.N/(kills+4), 3000), "--rate", fmt.Sprint(200+100*i+first.N/50))
		}
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				// A process that comes late begins the next round: the other one has not failed.
				if r := b.run(nil, "adopt", "sessions", "--apply"); r.code != exitDone {
					t.Errorf("exit code %d: %s", r.code, r.log)
				}
			})
		}
		both.Wait()
		b.adopts("sessions", "--apply")
		done("100 per cent")

		// If more is due by now than the breaker lets pass, somebody has to approve it. A session that is due by its
		// key, and was extended without one, is kept.
		left := writers[0].LeaveKey()
		r := b.run(nil, "sweep", "--json", "--apply")
		swept := b.result(r.out).Targets[0]
		switch r.code {
		case exitDone:
		case exitBreaker:
			b.must(nil, "breaker", "approve", "sessions", b.breaker().Trip, "--reason", "they have expired")
			second := b.sweep("--apply")
			swept.Mismatch, swept.Deleted = swept.Mismatch+second.Mismatch, swept.Deleted+second.Deleted
		default:
			t.Errorf("the first sweep: exit code %d: %s%s", r.code, r.out, r.log)
		}
		if swept.Mismatch == 0 || swept.Deleted == 0 {
			t.Errorf("%s was extended without a key: %+v", left, swept)
		}
		done("first sweep")
		writers[0].GiveKeys()
		b.adopts("dual", "sessions", "--apply")
		writers[1].GiveKeys()
		b.adopts("sessions", "--apply")
		writers[2].AwaitTurns(2) // without keys
		if r := b.run(nil, "adopt", "finish", "sessions", "--apply"); r.code != exitFailed || strings.Contains(r.out, "is finished") {
			t.Errorf("finish while a writer gives no keys: exit code %d: %s%s", r.code, r.out, r.log)
		}
		writers[2].GiveKeys()
		b.adopts("sessions", "--apply")
		if res := b.adopts("verify", "sessions"); res.Left() != 0 {
			t.Errorf("verify: %+v", res.Counts)
		}
		done("verified")
		if r := b.must(nil, "adopt", "finish", "sessions", "--apply"); !strings.Contains(r.out, "the adoption is finished") {
			t.Errorf("%s", r.out)
		}
		b.sweepToEnd()
		done("finished and swept")

		var wrote []nodewriter.Written
		turns, extended := 0, 0
		for _, w := range writers {
			w.AwaitTurns(1) // they have gone on until now
			wrote = append(wrote, w.StopWriting())
			turns += wrote[len(wrote)-1].Turns
			extended += len(wrote[len(wrote)-1].Known)
		}
		b.sweepToEnd()
		sessions, wrong := reader.Audit(first, "before", wrote)
		t.Logf("%d sessions are left; in %d turns writers wrote %d", sessions, turns, extended)
		if wrong.N != 0 || sessions < first.N/2+turns {
			t.Errorf("%d sessions are left, %d are wrong: %q", sessions, wrong.N, wrong.Few)
		}
	})
}

// Undo leaves every session as it was before the adoption, and no record of it.
func TestAdoptionIsUndone(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	withApplications(t, nightly.Size(t, 20_000, 1000), func(t *testing.T, b *workdir, start func() *nodewriter.Application, first nodewriter.First) {
		n := int64(first.N)
		reader := start()
		reader.Fill(first)
		reader.Read("before", "", 100)
		if res := b.adopts("sessions", "--apply"); res.Stamped != n {
			t.Errorf("%+v", res)
		}
		if c := reader.Read("adopted", "", 100); c.Keyed != first.N {
			t.Errorf("adopted: %+v", c)
		}
		if res := b.adopts("undo", "sessions", "--apply"); res.Removed != n {
			t.Errorf("%+v", res)
		}
		if c := reader.Read("undone", "", 100); c.Keyed != 0 || c.Sessions != first.N {
			t.Errorf("undone: %+v", c)
		}
		if d := reader.Compare("before", "undone"); d.N != 0 {
			t.Errorf("%d differ: %q", d.N, d.Few)
		}
		if r := b.run(nil, "adopt", "undo", "sessions", "--apply"); r.code != exitUsage || !strings.Contains(r.log, "has no record of an adoption") {
			t.Errorf("exit code %d: %s", r.code, r.log)
		}
	})
}
