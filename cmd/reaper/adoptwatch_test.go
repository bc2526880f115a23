package main

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// watch starts adopt --watch and waits until it is past its first round, and says so by a line
// of its log. The returned function ends it.
func (b *workdir) watch(line string, args ...string) (end func()) {
	b.t.Helper()
	cmd, _, _ := b.command(nil, append([]string{"adopt", "sessions", "--apply", "--watch", "--log-format", "json"}, args...)...)
	lines := bufio.NewScanner(b.start(cmd))
	all := ""
	for lines.Scan() {
		all += lines.Text() + "\n"
		is := strings.Contains(lines.Text(), line)
		if is || strings.Contains(lines.Text(), "following the index") || strings.Contains(lines.Text(), "full rounds instead") {
			if !is {
				b.t.Errorf("instead of %q: %s", line, lines.Text())
			}
			return func() {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				for lines.Scan() {
					all += lines.Text() + "\n"
				}
				if err := cmd.Wait(); err != nil {
					b.t.Errorf("the watch ended with %v:\n%s", err, all)
				}
			}
		}
	}
	b.t.Fatalf("the watch ended without %q: %v\n%s", line, cmd.Wait(), all)
	return nil
}

// What an old writer creates gets a key within seconds, and no second round is needed. What it
// is told to leave alone, because the property is not indexed everywhere, waits for a round.
func TestAdoptWatch(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	inBothModes(t, adoptTarget, func(t *testing.T, b *workdir, o oldWriter) {
		if d, ok := o.(oldDatastore); ok {
			d.indexed = true
			o = d
		}
		seed(o, 300)
		end := b.watch(`"message":"following the index"`)
		n := nightly.Size(t, 3, 1)
		for i := range n {
			want := fmt.Sprint("new-", i)
			o.put(time.Now(), want)
			for keys := map[string]string{}; keys[want] == ""; keys, _ = o.all() {
				time.Sleep(100 * time.Millisecond)
			}
		}
		end()
		if st := b.status().Adoption; st == nil || st.FollowedTo == nil || st.Round != 1 || st.Written != int64(300+n) {
			t.Errorf("at the end: %+v", st)
		}
		if res := b.adopts("verify", "sessions"); res.Left() != 0 || res.Scanned != int64(300+n) {
			t.Errorf("%+v", res)
		}
	})
	t.Run("unindexed", func(t *testing.T) {
		t.Parallel()
		b, e, project := newDatastore(t, adoptTarget)
		seed(oldDatastore{t: t, client: datastoreClient(t, e, project)}, 80)
		b.watch("the index of created does not contain")()
	})
}

// A watch of a target that is held waits. It says so in its log, and prints nothing: it is not for the user
// to run the command again.
func TestWatchOfAHeldTarget(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := newEmbedded(t, strings.ReplaceAll(adoptTarget, "lease: 5s", "lease: 3s"))
	b.must(strings.NewReader(`{"id":"a","data":{"created":"2026-11-01T00:00:00Z"}}`+"\n"), "load")
	b.must(nil, "pause", "--reason", "a test")
	cmd, out, _ := b.command(nil, "adopt", "sessions", "--apply", "--watch", "--log-format", "json")
	lines := bufio.NewScanner(b.start(cmd))
	waits := false
	for lines.Scan() {
		if strings.Contains(lines.Text(), "round suspended; it goes on in a minute") {
			waits = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	if err := cmd.Wait(); err != nil || !waits || out.Len() > 0 {
		t.Errorf("it waits: %v, %v\n%s", waits, err, out)
	}
}

// A watch whose adoption was undone ends: another round would begin a new adoption. So does one whose
// adoption was finished, in good order.
func TestWatchEndsWithItsAdoption(t *testing.T) {
	t.Parallel() // most of it is waiting
	s := modelstore.New(time.Now)
	target := sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * 24 * time.Hour, Page: 50, Lease: 30 * time.Second,
		MaxClockSkew: 10 * time.Second,
		Policy:       generation.Policy{Every: 24 * time.Hour, Ramp: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 32},
	}
	cfg := adopt.Config{
		Sweep: sweep.Config{Store: s, Apply: true, Workers: 2, Owner: "a", Now: time.Now, Grace: time.Second,
			Log: slog.New(slog.DiscardHandler)},
		Target: target, Rule: adopt.Rule{Property: "created", Plus: time.Hour}, Percent: 100,
		Rate: throttle.Limits{Unlimited: true},
	}
	err := s.Put(t.Context(), target.Target, "", []store.Entity{{Name: "a", Data: []byte(`{"created":"2026-01-01T00:00:00Z"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{adoption: &adoption{cfg: cfg}}
	if err := w.stillAdopted(t.Context()); err != nil {
		t.Errorf("before the first round: %v", err)
	}
	for _, order := range []adopt.Order{adopt.Stamp, adopt.Undo} {
		cfg.Order = order
		if order == adopt.Undo {
			if _, err := adopt.Finish(t.Context(), cfg, 0); err != nil {
				t.Fatal(err)
			}
			if err := w.stillAdopted(t.Context()); !errors.Is(err, errFinished) {
				t.Errorf("after it was finished: %v", err)
			}
			cfg.AlsoWriters = true
		}
		if _, err := adopt.Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		err := w.stillAdopted(t.Context())
		var e *exit
		if undone := errors.As(err, &e) && e.code == exitUsage && strings.Contains(err.Error(), "was undone"); undone != (order == adopt.Undo) {
			t.Errorf("after %s: %v", order, err)
		}
	}
}
