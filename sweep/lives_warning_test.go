package sweep_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/sweep"
)

// What counts cannot tell apart is warned about, and never held: a shorter life at each write,
// and a deploy that writes entities without extending them.
func TestShorterLivesAreTold(t *testing.T) {
	const ttl = 20 * time.Hour
	for name, c := range map[string]struct {
		write func(w *world, name string, at time.Time) // after the deploy
		shows time.Duration                             // when the first of these expire, after the deploy
		told  bool
	}{
		"the same": {func(w *world, name string, at time.Time) { w.put(1, 4, name, at.Add(ttl)) }, ttl, false},
		"a shorter life at each write": {func(w *world, name string, at time.Time) { w.put(1, 4, name, at.Add(2*time.Hour)) },
			2 * time.Hour, true},
		"no more extended": {func(w *world, name string, at time.Time) { // written once more, shortly before it expires
			w.put(1, 4, name, at.Add(time.Hour))
		}, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				w := withBreaker(t, 60)
				sweepOn := func() {
					cfg := w.config()
					cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
					if res := sweep.Run(t.Context(), cfg).Targets[0]; res.Held != "" || res.Error != "" {
						t.Fatalf("%+v", res)
					}
				}
				var deployed time.Time
				for i := range 55 {
					for n := range 40 {
						name, at := fmt.Sprint("w-", i, "-", n), time.Now()
						if i < 30 {
							w.put(1, 4, name, at.Add(ttl))
							continue
						}
						if deployed.IsZero() {
							deployed = at
						}
						c.write(w, name, at)
					}
					time.Sleep(time.Hour)
					sweepOn()
					said := strings.Contains(log.String(), "half as long to live")
					if said && (!c.told || deployed.IsZero()) {
						t.Fatalf("hour %d: %s", i, log.String())
					}
					if said {
						if after := time.Since(deployed); after > c.shows+2*time.Hour {
							t.Errorf("it was told after %v", after)
						}
						return
					}
				}
				if c.told {
					t.Error("nobody was told")
				}
			})
		})
	}
}
