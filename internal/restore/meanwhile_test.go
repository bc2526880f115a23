package restore_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/restore"
	"github.com/reaper-ttl/reaper/throttle"
)

// While a restore stands still, an object comes back into the archive, or one is repaired and another one damaged:
// how far it had come is no place in what the archive has now.
func TestArchiveChangesWhileARestoreStops(t *testing.T) {
	for name, c := range map[string]struct {
		gone, damaged bool // before, the first object is gone with its manifest; afterwards, the last one is damaged
		want          int
	}{
		"an object comes back":   {gone: true, want: 1800},
		"another one is damaged": {damaged: true, want: 1200},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.gone(1800, 600)
				names, intact := w.bucket.names(), maps.Clone(w.bucket.objects)
				if w.bucket.objects[names[0]] = nil; c.gone {
					delete(w.bucket.objects, names[0])
					delete(w.bucket.objects, strings.TrimSuffix(names[0], ".ndjson.zst")+".done.ndjson.zst")
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w.s.After = func(context.Context, modelstore.Call) error {
					if len(w.entities()) > 0 {
						cancel()
					}
					return nil
				}
				if res, err := restore.Run(ctx, w.config()); res.Complete || res.Restored == 0 {
					t.Fatalf("not stopped in the middle: %+v, %v", res, err)
				}
				w.s.After = nil
				if maps.Copy(w.bucket.objects, intact); c.damaged {
					w.bucket.objects[names[2]] = nil
				}
				res, err := restore.Run(t.Context(), w.config())
				if len(w.entities()) != c.want || res.Restored+res.Exist != int64(c.want) ||
					errors.Is(err, restore.ErrPartial) != c.damaged {
					t.Errorf("%d exist: %+v, %v", len(w.entities()), res, err)
				}
			})
		})
	}
}

// A restore that takes longer than its entities are to live stops before it inserts what is due at once.
func TestRestoreOutlastsItsExpiries(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.gone(1200, 600)
		cfg := w.config()
		cfg.Expiry = restore.Expiry{In: time.Minute}
		cfg.Rate = throttle.Limits{Start: 10, Max: 10}
		res, err := restore.Run(t.Context(), cfg)
		if !errors.Is(err, restore.ErrDue) || res.Complete || res.Restored < 500 || res.Restored > 700 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}
