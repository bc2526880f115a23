package datastore

import (
	"cmp"
	"context"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// TestConformance runs the suite of all drivers by every guard, on the default
// database and on a named one.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		guard    store.Guard
		database string
	}{
		{store.GuardLookup, ""},
		{store.GuardLookup, "named-db"},
		{store.GuardQuery, ""},
		{store.GuardAuto, "(default)"}, // lookup, since it is an emulator
	} {
		t.Run(string(c.guard)+"/"+cmp.Or(c.database, "default"), func(t *testing.T) {
			t.Parallel() // much of the time the emulator waits for locks
			e := emulator.Start(t, emulator.Datastore)
			db := openWith(t, Options{Project: e.Project(t), Database: c.database, Emulator: e.Host})
			planted := planter{db, application(t, db.project, c.database, e.Host)}
			storetest.Run(t, func(storetest.TB) store.Store { return planted }, storetest.Caps{
				Guard:      c.guard,
				Namespaces: []string{"tenant-1", "tenant-2"},
				Counter:    true,
				Dumper:     true,
				Keyer:      true,
				Adopter:    true,
				Descender:  true,
				Archiver:   true,
				// The guard query relies on a promise that there are no lists.
				KeepsLists: c.guard != store.GuardQuery,
				TellsGone:  true,
				// The service orders keys by itself: numbers before names,
				// names by their bytes.
				NumbersFirst:  true,
				OrdersByBytes: true,
				Clock:         time.Now,
			})
		})
	}
}

// A planter is a database, and an application's own client of it.
type planter struct {
	*DB
	app *sdk.Client
}

// Plant implements storetest.Planter.
func (p planter) Plant(
	ctx context.Context, _ store.Target, namespace, key string, list []storetest.Plant,
) (texts []string, err error) {
	above, err := ParseKey(namespace, key)
	if err != nil {
		return nil, err
	}
	var keys []*sdk.Key
	var entities []sdk.PropertyList
	for _, one := range list {
		at := above
		for _, s := range one.Path {
			at = &sdk.Key{Kind: s.Kind, Name: s.Name, ID: s.Number, Parent: at, Namespace: namespace}
		}
		ps := sdk.PropertyList{}
		for name, text := range one.Properties {
			p := sdk.Property{Name: name}
			if text != "" {
				p.Value = text
			}
			ps = append(ps, p)
		}
		keys, entities, texts = append(keys, at), append(entities, ps), append(texts, FormatKey(at))
	}
	for _, g := range groups(keys) {
		if _, err := p.app.PutMulti(ctx, pick(keys, g), pick(entities, g)); err != nil {
			return nil, p.fail(ctx, "plant", err)
		}
	}
	return texts, nil
}
