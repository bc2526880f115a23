package bench_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	fssdk "cloud.google.com/go/firestore"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/firestore"
	"github.com/reaper-ttl/reaper/sweep"
)

// childrenEach is how many descendants each due document has, at three levels.
const childrenEach = 50

// parental is a target whose documents have descendants.
func parental() sweep.Target {
	t := sharded()
	t.Kind = "u"
	t.Descendants = sweep.Descendants{Mode: sweep.DeleteDescendants, Max: 100_000, Owners: []store.Target{t.Target}}
	return t
}

// fillFamilies writes due documents with descendants, and returns their paths.
func fillFamilies(tb testing.TB, db *firestore.DB, client *fssdk.Client, parents int) (paths []string) {
	tb.Helper()
	stamper := generation.Stamper{Shards: shards}
	var batch []store.Entity
	var below []string
	for i := range parents {
		key, err := stamper.Name(name(i), time.Now().Add(-time.Minute))
		if err != nil {
			tb.Fatal(err)
		}
		batch = append(batch, store.Entity{Name: name(i), Expiry: store.TextValue(key.String()), Data: []byte(`{"user":"u7"}`)})
		path := "u/" + name(i)
		paths = append(paths, path)
		for j := range childrenEach {
			posts := fmt.Sprintf("%s/posts/p-%d", path, j%10)
			below = append(below, []string{posts, posts + "/likes/l", posts + "/likes/l/tags/t-1", posts + "/likes/l/tags/t-2",
				posts + "/likes/m"}[j/10])
		}
	}
	for page := range slices.Chunk(batch, store.MaxPage) {
		if err := db.Put(tb.Context(), parental().Target, "", page); err != nil {
			tb.Fatal(err)
		}
	}
	for page := range slices.Chunk(below, store.MaxPage) {
		b := client.Batch() //nolint:staticcheck // it is deprecated, and one commit
		for _, path := range page {
			b.Set(client.Doc(path), map[string]any{"user": "u7"})
		}
		if _, err := b.Commit(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
	return paths
}

// A family is a project on the emulator in native mode, with the paths of its due documents.
type family struct {
	*firestore.DB
	project string
	parents []string
}

// descendants compares how fast documents are deleted with all below them.
func descendants(tb testing.TB, r *report) {
	parents := max(4, r.cloud/500)
	r.section("Documents with descendants", fmt.Sprintf("Google's emulator, native mode: %d due documents, each with %d descendants at "+
		"three levels. A sweep deletes descendants first, page by page, in transactions that make sure that the document is due. "+
		"`recursiveDelete` of Google's client for Node checks nothing.", parents, childrenEach))
	if !emulator.Available(tb.Context()) || !nodewriter.Available() {
		r.add("rates", "the emulator or the client for Node is not installed here", "")
		return
	}
	e := emulator.Start(tb, emulator.Native)
	tb.Setenv("FIRESTORE_EMULATOR_HOST", e.Host) // what the client goes by
	node := nodewriter.StartFamily(tb, nodewriter.FamilyOptions{Emulator: e, Mode: "native", Project: e.Project(tb)})
	want := parents * (1 + childrenEach)
	recursive := func(atOnce int) func(family) func(context.Context) (int, error) {
		return func(f family) func(context.Context) (int, error) {
			node.Connect(f.project)
			return func(context.Context) (int, error) {
				node.RecursiveDelete(f.parents, atOnce)
				return want, nil
			}
		}
	}
	list := []*contestant[family]{
		{what: "sweep with descendants", ready: func(f family) func(context.Context) (int, error) {
			return func(ctx context.Context) (int, error) {
				res := sweep.Run(ctx, configFor(f.DB, parental(), workers))
				err := res.Targets[0].Err
				if err == nil && !res.Complete {
					err = errors.New("the sweep is not complete")
				}
				return int(res.Targets[0].Deleted + res.Targets[0].Descendants), err
			}
		}},
		{what: "`recursiveDelete` of one document after the other", ready: recursive(1)},
		{what: fmt.Sprintf("`recursiveDelete` of %d documents at the same time", workers), ready: recursive(workers)},
	}
	race(tb, r.rounds, want, r.warm, list, func(*contestant[family]) (family, func()) {
		f := family{project: e.Project(tb)}
		var err error
		if f.DB, err = firestore.Open(tb.Context(), firestore.Options{Project: f.project, Emulator: e.Host}); err != nil {
			tb.Fatal(err)
		}
		client, err := fssdk.NewClient(tb.Context(), f.project)
		if err != nil {
			tb.Fatal(err)
		}
		f.parents = fillFamilies(tb, f.DB, client, parents)
		lookedAround(tb, f.DB, parental())
		return f, func() {
			for _, kind := range []string{"u", "posts", "likes", "tags"} { // recursiveDelete does not say how many it deleted
				left, err := client.CollectionGroup(kind).Limit(1).Documents(tb.Context()).GetAll()
				if err != nil || len(left) > 0 {
					tb.Fatalf("%d of %s are left: %v", len(left), kind, err)
				}
			}
			closed(tb, client)
			closed(tb, f.DB)
		}
	})
	results(r, list, "at least 2", "reported")
}
