package sweep_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/sweep"
)

// What counts cannot tell apart is warned about, and never held: a shorter life at each write, and
// a deploy that goes on writing entities but no longer extends them. The warning and the metric come
// within an hour of the first entity that expires too soon.
func TestShorterLivesAreTold(t *testing.T) {
	nightly.Races(t)
	const ttl, deploy, ends = 20 * time.Hour, 40, 80 // hours of writing
	for name, c := range map[string]struct {
		ttl     time.Duration // of what is written after the deploy
		extends bool          // an entity that is touched, every five hours for as long as it is used
		shows   time.Duration // when the first of these expire, after the deploy
	}{
		"the same":                     {ttl, true, 0},
		"a shorter life at each write": {2 * time.Hour, true, 2 * time.Hour},
		"half the life at each write":  {ttl / 2, true, ttl / 2},
		"no longer extended":           {ttl, false, 15 * time.Hour}, // last touched five hours before
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := withBreaker(t, 60)
				sweeper := &livesSweeper{world: w}
				var deployed time.Time
				expires := map[string]time.Time{}
				for hour := range ends {
					now, life, extends := time.Now(), ttl, true
					if hour >= deploy {
						life, extends = c.ttl, c.extends
					}
					if hour == deploy {
						deployed = now
					}
					for n := range 30 {
						for age := 0; age <= min(hour, 15); age += 5 { // written now, or touched
							name := fmt.Sprint("w-", hour-age, "-", n)
							if age == 0 || extends {
								expires[name] = now.Add(life)
							}
							if expires[name].After(now) {
								w.put(1, 4, name, expires[name])
							}
						}
					}
					for range 12 {
						time.Sleep(5 * time.Minute)
						sweeper.sweep()
						if !sweeper.told {
							continue
						}
						if deployed.IsZero() || c.shows == 0 {
							t.Fatalf("hour %d: a warning for nothing", hour)
						}
						if after := time.Since(deployed.Add(c.shows)); after < 0 || after > time.Hour+5*time.Minute {
							t.Errorf("told %v after the first has expired too soon", after)
						}
						return
					}
				}
				if c.shows > 0 {
					t.Error("nobody was told")
				}
			})
		})
	}
}

// A livesSweeper sweeps, and notes whether the log and the metrics warn of shorter lives.
type livesSweeper struct {
	*world
	log  bytes.Buffer
	told bool
}

func (s *livesSweeper) sweep() {
	s.t.Helper()
	cfg, registry := s.config(), prometheus.NewRegistry()
	cfg.Log = slog.New(slog.NewTextHandler(&s.log, nil))
	cfg.Metrics = metrics.New(metrics.Options{Registry: registry, Targets: []string{"sessions"}, Apply: true})
	res := sweep.Run(s.t.Context(), cfg).Targets[0]
	if res.Held != "" || res.Error != "" {
		s.t.Fatalf("%+v", res)
	}
	families, err := registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	halved := 0.0
	for _, f := range families {
		if f.GetName() == "reaper_lives_halved" {
			halved += f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	if s.told = strings.Contains(s.log.String(), "half as long to live"); s.told != (halved > 0) {
		s.t.Errorf("reaper_lives_halved is %v, and the log says:\n%s", halved, s.log.String())
	}
}
