package selftest

import (
	"context"

	"github.com/reaper-ttl/reaper/store"
)

// shape gives a fence the optional interfaces that its store has, since sweeps and the suite
// go by them.
func (f *fence) shape() Database {
	dropper, drops := f.in.(store.Dropper)
	exclusive, excludes := f.in.(store.Exclusive)
	pressured, feels := f.in.(store.Pressured)
	namespacer, lists := f.in.(store.Namespacer)
	guarder, guards := f.in.(store.Guarder)
	switch {
	case drops && excludes && feels:
		return &local{f, exclusive, pressured, dropper}
	case lists && guards:
		return &spaced{f, guarder, namespacer}
	}
	return f
}

// local is a fence around an embedded store.
type local struct {
	*fence
	store.Exclusive
	store.Pressured

	dropper store.Dropper
}

func (l *local) Drop(ctx context.Context, t store.Target, from, to string) error {
	if !l.scratch.ownsKind(t.Kind) {
		return l.outside("drop", t.Kind)
	}
	return l.do(ctx, "drop", func(ctx context.Context) error { return l.dropper.Drop(ctx, t, from, to) })
}

func (l *local) Dropped(ctx context.Context, t store.Target) (string, error) {
	return l.dropper.Dropped(ctx, t)
}

// spaced is a fence around a store with namespaces, and several ways to check deletes.
type spaced struct {
	*fence
	store.Guarder

	namespacer store.Namespacer
}

func (s *spaced) Namespaces(ctx context.Context) (names []string, err error) {
	err = s.do(ctx, "namespaces", func(ctx context.Context) error {
		names, err = s.namespacer.Namespaces(ctx)
		return err
	})
	return names, err
}
