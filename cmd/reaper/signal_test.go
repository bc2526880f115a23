package main

import (
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// slowerTarget takes so long that a signal arrives before the end, even on a busy machine.
var slowerTarget = strings.Replace(slowTarget, "max: 400", "max: 40", 1)

// A terminal that goes away ends a sweep and a daemon as SIGTERM does, even if SIGHUP comes
// twice: all ranges are released, and nothing is lost.
func TestStopsOnHangup(t *testing.T) {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP) // else what nohup has started ignores it, and so do its children
	defer signal.Stop(heard)
	t.Run("sweep", func(t *testing.T) {
		b := newEmbedded(t, slowerTarget)
		b.env = append(b.env, patientEnd)
		ndjson, _ := sessions(40_000, time.Now())
		b.must(strings.NewReader(ndjson), "load")
		cmd, out, _ := b.command(nil, "sweep", "--apply", "--json", "--log-level", "debug", "--log-format", "json")
		log := b.startAndWatch(cmd, 100, 0)
		for range 2 {
			if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
		}
		b.wantEnd(cmd, log)
		if res := b.result(out.String()); res.Complete || res.Targets[0].Error != "" || res.Targets[0].Deleted == 0 || res.Targets[0].Deleted == 20_000 {
			t.Errorf("result: %+v", res)
		}
		b.nobodyHolds()
	})
	t.Run("serve", func(t *testing.T) {
		b := newEmbedded(t, slowerTarget)
		b.env = append(b.env, patientEnd)
		ndjson, _ := sessions(40_000, time.Now())
		b.must(strings.NewReader(ndjson), "load")
		d := b.serve("--apply", "--schedule", "@every 1s")
		d.until("work", func() bool { return d.value(`reaper_deleted_entities_total{target="sessions"}`) > 0 })
		d.stopBy(syscall.SIGHUP, syscall.SIGHUP)
		if !strings.Contains(d.said(), "stopped in good order") {
			t.Errorf("log:\n%s", d.said())
		}
		b.nobodyHolds()
	})
}

// A process that nohup started outlives its terminal.
func TestNohup(t *testing.T) {
	b := newEmbedded(t, slowerTarget)
	ndjson, live := sessions(8_000, time.Now())
	b.must(strings.NewReader(ndjson), "load")
	cmd, out, _ := b.command(nil, "sweep", "--apply", "--json", "--log-level", "debug", "--log-format", "json")
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell: ", err)
	}
	cmd.Args = append([]string{shell, "-c", `trap "" HUP; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = shell
	log := b.startAndWatch(cmd, 100, 0)
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	b.wantEnd(cmd, log)
	if res := b.result(out.String()); !res.Complete || res.Targets[0].Deleted != 4_000 {
		t.Errorf("result: %+v", res)
	}
	b.wantLive(live)
}
