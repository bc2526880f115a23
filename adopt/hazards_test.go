package adopt_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/reaper-ttl/reaper/adopt"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

// spaced is a store that lists namespaces.
type spaced struct {
	*modelstore.Store

	namespaces []string
}

func (s *spaced) Namespaces(context.Context) ([]string, error) { return s.namespaces, nil }

// A target may have more namespaces than an adoption has parts otherwise. All of them are read, or none.
func TestManyNamespaces(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const n = 300
		s := &spaced{Store: w.s}
		for i := range n {
			ns := fmt.Sprintf("tenant-%03d", i)
			s.namespaces = append(s.namespaces, ns)
			e := store.Entity{Name: "a", Data: []byte(`{"created":"2026-11-21T12:00:00Z"}`)}
			if err := w.s.Put(t.Context(), w.target.Target, ns, []store.Entity{e}); err != nil {
				t.Fatal(err)
			}
		}
		config := func(order adopt.Order) adopt.Config {
			cfg := w.config()
			cfg.Sweep.Store, cfg.Target.Namespaces, cfg.Order = s, []string{"*"}, order
			return cfg
		}
		if res := w.run(config(adopt.Stamp)); res.Stamped != n {
			t.Errorf("%d of %d are stamped", res.Stamped, n)
		}
		if res := w.run(config(adopt.Verify)); res.Scanned != n || res.Left() != 0 {
			t.Errorf("verify reads %d of %d: %+v", res.Scanned, n, res.Counts)
		}
		if res := w.run(config(adopt.Undo)); res.Removed != n {
			t.Errorf("undo removes %d of %d", res.Removed, n)
		}
		got, err := w.s.Load(t.Context(), store.RecordQuery{Sort: store.AdoptRecord, Target: "sessions"})
		if err != nil || len(got.List) != 0 {
			t.Errorf("%d records are left, %v", len(got.List), err)
		}
		for i := range n {
			s.namespaces = append(s.namespaces, fmt.Sprintf("more-%03d", i))
		}
		if res, err := adopt.Run(t.Context(), config(adopt.Stamp)); err == nil || res.Scanned != 0 {
			t.Errorf("600 namespaces: %d were read, %v", res.Scanned, err)
		}
	})
}
