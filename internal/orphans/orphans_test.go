package orphans_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/internal/orphans"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A world is a model store with users, and what lies below them. It lives in a synctest bubble, in which
// hours pass at once.
type world struct {
	t      *testing.T
	s      *modelstore.Store
	target sweep.Target
	tags   store.Target
}

func in(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

func newWorld(t *testing.T) *world {
	return &world{t: t, s: modelstore.New(time.Now),
		target: sweep.Target{
			Target: store.Target{Name: "users", Kind: "User", Property: "expiry_key", Type: store.Text},
			Layout: "generation", Generations: true, Shards: 4, MaxAge: 1825 * 24 * time.Hour, Lease: 30 * time.Second,
			MaxClockSkew: 10 * time.Second, Page: 50, Pace: throttle.Limits{Unlimited: true},
			Policy: generation.Policy{Every: 24 * time.Hour, Ramp: time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute,
				Keep: 32},
			History: sweep.History{Keep: 90 * 24 * time.Hour, Actor: "ann"}},
		tags: store.Target{Name: "tags", Kind: "tags", Property: "expires", Type: store.Instant}}
}

func (w *world) config() orphans.Config {
	return orphans.Config{
		Sweep: sweep.Config{Store: w.s, Apply: true, Workers: 4, Owner: "process", Now: time.Now, Grace: time.Second,
			Log: slog.New(slog.DiscardHandler)},
		Target: w.target, Owners: []store.Target{w.target.Target, w.tags}, Rate: throttle.Limits{Unlimited: true},
		Unlimited: true, Progress: new(orphans.Progress)}
}

// user writes an entity of the target.
func (w *world) user(names ...string) {
	w.t.Helper()
	for _, n := range names {
		if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{{Name: n}}); err != nil {
			w.t.Error(err)
		}
	}
}

// below writes entities below a user, who need not exist.
func (w *world) below(user string, paths ...string) {
	for _, p := range paths {
		k := modelstore.Kin{Path: p}
		if path, own := strings.CutSuffix(p, "+"); own {
			k = modelstore.Kin{Path: path, Property: "expires"}
		}
		w.s.PutBelow("User", "", key(user), k)
	}
}

func key(user string) string { return modelstore.Key(store.Entity{Name: user}) }

// left lists what is below users.
func (w *world) left(users ...string) (all []string) {
	for _, u := range users {
		for _, p := range w.s.Below("User", "", key(u)) {
			all = append(all, u+"/"+p)
		}
	}
	return all
}

func (w *world) run(cfg orphans.Config) orphans.Result {
	w.t.Helper()
	res, err := orphans.Run(w.t.Context(), cfg)
	if err != nil || !res.Complete || res.StoppedAt != nil {
		w.t.Fatalf("complete %v, stopped at %v, held %q, %v", res.Complete, res.StoppedAt, res.Held, err)
	}
	return res
}

func (w *world) wants(got, want []string) {
	w.t.Helper()
	if !slices.Equal(got, want) {
		w.t.Errorf("left: %q\nwant: %q", got, want)
	}
}

// Orphans are what is below missing entities, at any depth; what has an expiry of its own stays, with all
// that is below it.
func TestFindsAndDeletes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.user("p2", "q")
		paths := []string{"notes/a", "notes/a/lines/1", "notes/b", "tags/mine+", "tags/mine/x/1", "tags/plain",
			"ReaperTarget/users", "ReaperTarget/users/x/1"}
		w.below("p", paths...)
		w.below("p2", paths...)
		w.below("p!", "notes/a")
		w.below("p~", "notes/x/lines/1")
		w.below("p😀", "notes/a")
		alive := w.left("p2")
		writes := w.s.Writes()
		cfg := w.config()
		cfg.Sweep.Apply = false
		dry := w.run(cfg)
		if w.s.Writes() != writes {
			t.Error("a dry run writes")
		}
		want := orphans.Counts{Read: dry.Read, Entities: 2, Missing: 4, Orphans: 7, Owned: 4}
		if dry.Counts != want || dry.Apply || dry.Written != nil || len(dry.Samples) != 3 ||
			fmt.Sprint(dry.Kinds) != "[{notes 4 0} {lines 2 0} {tags 1 1} {ReaperTarget 0 1} {x 0 2}]" {
			t.Errorf("dry run: %+v", dry)
		}
		want.Deleted = 7
		if res := w.run(w.config()); res.Counts != want || res.Operations.Deletes != 7 {
			t.Errorf("run: %+v", res)
		}
		stay := []string{"p/ReaperTarget/users", "p/ReaperTarget/users/x/1", "p/tags/mine", "p/tags/mine/x/1"}
		w.wants(w.left("p", "p!", "p~", "p😀"), stay)
		w.wants(w.left("p2"), alive)
		if n := len(w.s.Entities("User", "")); n != 2 {
			t.Errorf("%d users are left", n)
		}
		if res := w.run(w.config()); res.Orphans != 0 || res.Deleted != 0 || res.Missing != 0 || res.Owned != 4 {
			t.Errorf("again: %+v", res)
		}
	})
}

// An entity of the target that is below a missing one stays, and so does what is below it; below one that
// is missing, too, nothing does.
func TestNested(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.user("live")
		w.below("gone", "User/a", "User/a/notes/1", "User/b/notes/2", "notes/3/User/c/notes/4")
		w.below("live", "User/d/notes/5", "notes/6")
		cfg := w.config()
		cfg.Everywhere = true
		res := w.run(cfg)
		if res.Missing != 3 || res.Deleted != 3 || res.Owned != 1 || res.Entities != 2 {
			t.Errorf("%+v", res)
		}
		w.wants(w.left("gone", "live"), []string{"gone/User/a", "gone/User/a/notes/1", "live/notes/6"})
		if res := w.run(w.config()); len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "--everywhere") {
			t.Errorf("warnings %q", res.Warnings)
		}
	})
}

// deletes are the keys that transactions deleted, in their order.
func (w *world) deletes() *[][]string {
	var list [][]string
	var mu sync.Mutex
	w.s.After = func(_ context.Context, c modelstore.Call) error {
		if c.Method == "DeleteOrphans" && len(c.Paths) > 0 {
			mu.Lock()
			defer mu.Unlock()
			list = append(list, c.Paths)
		}
		return nil
	}
	return &list
}

// Pages and batches may end anywhere in a tree: nothing is deleted before all that is below it.
func TestChildrenFirst(t *testing.T) {
	for n := 496; n <= 501; n++ {
		in(t, func(t *testing.T, w *world) {
			// a chain, whose top comes first and is deleted last, with leaves at every depth
			var paths []string
			at := "c/0"
			for i := range n {
				paths = append(paths, at, fmt.Sprintf("%s/leaf/%d", at, i))
				if i%7 == 0 {
					at = fmt.Sprintf("%s/c/%d", at, i)
				}
			}
			w.below("gone", paths...)
			want := len(w.left("gone"))
			list := w.deletes()
			if res := w.run(w.config()); int(res.Deleted) != want || len(w.left("gone")) > 0 {
				t.Fatalf("%d of %d deleted", res.Deleted, want)
			}
			seen := map[string]int{}
			for i, keys := range *list {
				if len(keys) >= store.MaxPage {
					t.Fatalf("a batch of %d", len(keys))
				}
				for _, k := range keys {
					seen[k] = i
				}
			}
			for k, i := range seen {
				for above := k; strings.Contains(above, "/"); above = above[:strings.LastIndexByte(above, '/')] {
					if j, ok := seen[above]; ok && j < i {
						t.Fatalf("%s went with batch %d, and %s only with %d", above, j, k, i)
					}
				}
			}
		})
	}
}

// A page may end at any name, and a part at any root: the result is the same.
func TestEveryPageBoundary(t *testing.T) {
	for live := range 12 {
		for most := range 7 {
			in(t, func(t *testing.T, w *world) {
				var want []string
				for i := range 12 {
					u := fmt.Sprintf("u%02d", i)
					for j := range (i * 5) % 4 {
						w.below(u, fmt.Sprintf("n/%d", j), fmt.Sprintf("n/%d/m/1", j))
					}
					if i%3 == live%3 || i == live {
						w.user(u)
						want = append(want, w.left(u)...)
					}
				}
				cfg := w.config()
				cfg.Sweep.Store = &narrow{w.s, most + 1}
				w.run(cfg)
				var got []string
				for i := range 12 {
					got = append(got, w.left(fmt.Sprintf("u%02d", i))...)
				}
				w.wants(got, want)
			})
		}
	}
}

// narrow is a store whose pages have few names.
type narrow struct {
	*modelstore.Store
	most int
}

func (n *narrow) Lineage(ctx context.Context, q store.LineageQuery, page *store.Lineage) error {
	q.Limit = min(q.Limit, n.most)
	return n.Store.Lineage(ctx, q, page)
}

// An entity that comes into being between the look and the delete keeps what is below it, and so does one
// that comes while its orphans are being deleted.
func TestSavedByItsParent(t *testing.T) {
	for after := range 4 { // batches of its orphans
		in(t, func(t *testing.T, w *world) {
			for i := range 3 * 499 {
				w.below("late", fmt.Sprintf("n/%05d", i))
			}
			w.below("later", "n/1")
			n := 0
			w.s.Before = func(_ context.Context, c modelstore.Call) error {
				if c.Method != "DeleteOrphans" || !strings.HasPrefix(c.Paths[0], key("late")+"/") {
					return nil
				}
				if n++; n > after {
					w.user("late")
				}
				return nil
			}
			res := w.run(w.config())
			if left := len(w.left("late")); left != (3-min(3, after))*499 || len(w.left("later")) > 0 {
				t.Errorf("%d are left", left)
			}
			if want := int64(0); res.Saved == want && after < 3 || res.Deleted != int64(min(3, after)*499+1) {
				t.Errorf("%+v", res.Counts)
			}
		})
	}
}

// What gets an expiry of its own between the look and the delete stays.
func TestOwnedMeanwhile(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.below("gone", "n/1", "tags/a", "tags/a/x/1", "tags/b")
		var once sync.Once
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "DeleteOrphans" {
				once.Do(func() { w.below("gone", "tags/a+") })
			}
			return nil
		}
		if res := w.run(w.config()); res.Deleted != 2 || res.Orphans != 2 || res.Owned != 2 {
			t.Errorf("%+v", res.Counts)
		}
		w.wants(w.left("gone"), []string{"gone/tags/a", "gone/tags/a/x/1"})
	})
}

// scatter writes users, some of them missing, and returns what is to stay.
func (w *world) scatter(seed uint64, n int) (users, stay []string) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		u := fmt.Sprintf("u%03d", i)
		users = append(users, u)
		for range r.IntN(6) {
			p := fmt.Sprintf("n/%d", r.IntN(9))
			for r.IntN(2) == 0 {
				p += fmt.Sprintf("/%s/%d", []string{"n", "tags"}[r.IntN(2)], r.IntN(3))
			}
			if strings.HasPrefix(p[strings.LastIndexByte(p[:strings.LastIndexByte(p, '/')], '/')+1:], "tags/") && r.IntN(2) == 0 {
				p += "+"
			}
			w.below(u, p)
		}
		if r.IntN(2) == 0 {
			w.user(u)
		}
	}
	exists := w.s.Entities("User", "")
	for _, u := range users {
		_, alive := exists[key(u)]
		var owned []string
		for _, p := range w.s.Below("User", "", key(u)) {
			below := slices.ContainsFunc(owned, func(o string) bool { return strings.HasPrefix(p, o+"/") })
			isOwned := w.isOwned(u, p)
			if isOwned {
				owned = append(owned, p)
			}
			if alive || isOwned || below {
				stay = append(stay, u+"/"+p)
			}
		}
	}
	return users, stay
}

// isOwned asks the store whether something has an expiry of its own.
func (w *world) isOwned(user, path string) bool {
	parts := strings.Split(path, "/")
	list := []store.Relative{{Key: key(user) + "/" + path, Kind: parts[len(parts)-2]}}
	q := store.LineageQuery{Target: w.target.Target, Owners: []store.Target{w.target.Target, w.tags}}
	if err := w.s.Claim(w.t.Context(), q, list); err != nil {
		w.t.Fatal(err)
	}
	return list[0].Owner != ""
}

// A run that is killed before or after any of its calls leaves what the next run finds; and calls that
// fail for a moment change nothing.
func TestKilledAtEveryCall(t *testing.T) {
	errKilled := fmt.Errorf("%w: killed", store.ErrDenied)
	for _, failure := range []error{errKilled, store.ErrUnavailable, store.ErrContention, store.ErrDeadline} {
		for kill := 1; ; kill++ {
			done := false
			in(t, func(t *testing.T, w *world) {
				users, stay := w.scatter(uint64(kill), 25)
				calls := 0
				at := func(context.Context, modelstore.Call) error {
					if calls++; calls == kill || calls > kill && errors.Is(failure, errKilled) {
						return failure
					}
					return nil
				}
				w.s.Before, w.s.After = at, at
				if errors.Is(failure, store.ErrContention) {
					w.s.After = nil // nothing was written then
				}
				cfg := w.config()
				cfg.Sweep.Workers = 1
				cfg.Sweep.Store = &narrow{w.s, 1 + kill%5}
				res, err := orphans.Run(t.Context(), cfg)
				done = calls < kill
				w.s.Before, w.s.After = nil, nil
				if (err == nil) != (done || !errors.Is(failure, errKilled)) || res.Complete != (err == nil) {
					t.Fatalf("kill %d: complete %v, %v", kill, res.Complete, err)
				}
				if err != nil {
					cfg = w.config()
					if kill%2 == 0 && res.StoppedAt != nil {
						cfg.From = *res.StoppedAt
					}
					w.run(cfg)
				}
				w.wants(w.left(users...), stay)
			})
			if done {
				if kill < 20 {
					t.Errorf("only %d calls", kill)
				}
				break
			}
			if t.Failed() {
				return
			}
		}
	}
}

// Several runs at once, over a store that fails now and then, delete all orphans and nothing else.
func TestTwoAtOnce(t *testing.T) {
	for seed := range uint64(nightly.Size(t, 200, 30)) {
		in(t, func(t *testing.T, w *world) {
			users, stay := w.scatter(seed, 40)
			r := rand.New(rand.NewPCG(seed, 2))
			var mu sync.Mutex
			at := func(context.Context, modelstore.Call) error {
				mu.Lock()
				defer mu.Unlock()
				if r.IntN(20) == 0 {
					return []error{store.ErrUnavailable, store.ErrDeadline, store.ErrPushback}[r.IntN(3)]
				}
				return nil
			}
			w.s.Before, w.s.After = at, at
			var group sync.WaitGroup
			for i := range 2 {
				group.Go(func() {
					cfg := w.config()
					cfg.Sweep.Store = &narrow{w.s, 3 + 4*i}
					if res, err := orphans.Run(t.Context(), cfg); err != nil || !res.Complete {
						t.Errorf("seed %d: complete %v, %v", seed, res.Complete, err)
					}
				})
			}
			group.Wait()
			w.wants(w.left(users...), stay)
		})
	}
}

// A run stops after so many deletes, in all its workers together.
func TestMax(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 40 {
			for j := range 30 {
				w.below(fmt.Sprintf("u%02d", i), fmt.Sprintf("n/%d", j))
			}
		}
		cfg := w.config()
		cfg.Unlimited, cfg.Max, cfg.Sweep.Workers = false, 1000, 16
		res, err := orphans.Run(t.Context(), cfg)
		if !errors.Is(err, orphans.ErrMax) || res.Complete || res.Deleted != 1000 {
			t.Fatalf("%+v, %v", res, err)
		}
		cfg.Max = 200
		if res := w.run(cfg); res.Deleted != 200 || len(res.Warnings) > 0 {
			t.Errorf("the rest: %+v", res)
		}
		cfg.Sweep.Apply = false
		w.below("more", "n/1", "n/2")
		cfg.Max = 1
		if res := w.run(cfg); res.Orphans != 2 || len(res.Warnings) != 1 {
			t.Errorf("dry run: %+v", res)
		}
	})
}

// The rate is that of all workers together.
func TestRate(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 3000 {
			w.below(fmt.Sprintf("u%02d", i%50), fmt.Sprintf("n/%d", i))
		}
		cfg := w.config()
		cfg.Rate = throttle.Limits{Start: 100, Max: 100}
		began := time.Now()
		if res := w.run(cfg); res.Deleted != 3000 {
			t.Errorf("%+v", res)
		}
		if took := time.Since(began); took < 25*time.Second || took > 40*time.Second {
			t.Errorf("3000 deletes at 100/s took %v", took)
		}
	})
}

// A paused target, a closed gate and an open breaker hold the deletes; a dry run goes on.
func TestHeld(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.below("gone", "n/1")
		_, _, err := sweep.EnsureRecord(t.Context(), w.config().Sweep, w.target)
		if err != nil {
			t.Fatal(err)
		}
		rec, _, err := generation.Load(t.Context(), w.s, "users")
		if err != nil {
			t.Fatal(err)
		}
		rec.Paused, rec.PauseNote.Reason = true, "a restore"
		rec, err = generation.Save(t.Context(), w.s, rec)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		res, err := orphans.Run(t.Context(), w.config())
		if err != nil || res.Complete || res.Deleted != 0 || res.Held != "paused a restore" || res.Tripped {
			t.Errorf("paused: %+v, %v", res, err)
		}
		if took := time.Since(began); took < w.target.Lease || took > w.target.Lease+10*time.Second {
			t.Errorf("waited %v", took)
		}
		cfg := w.config()
		cfg.Sweep.Apply = false
		if res := w.run(cfg); res.Orphans != 1 {
			t.Errorf("dry run: %+v", res)
		}
		rec.Paused = false
		rec = rec.Tripped(breaker.Trip{ID: "1", Rule: breaker.Burst, At: time.Now()})
		if rec, err = generation.Save(t.Context(), w.s, rec); err != nil {
			t.Fatal(err)
		}
		if res, err := orphans.Run(t.Context(), w.config()); err != nil || res.Deleted != 0 || !res.Tripped {
			t.Errorf("tripped: %+v, %v", res, err)
		}
		rec.Paused, rec.Trip = false, breaker.Trip{}
		if _, err = generation.Save(t.Context(), w.s, rec); err != nil {
			t.Fatal(err)
		}
		cfg = w.config()
		opens := time.Now().Add(12 * time.Second)
		cfg.Target.Gate = func(context.Context) error {
			if time.Now().Before(opens) {
				return errors.New("gate closed")
			}
			return nil
		}
		if res := w.run(cfg); res.Deleted != 1 || res.Held != "" {
			t.Errorf("gate: %+v", res)
		}
	})
}

// A run that is asked to stop ends in good order, and says from where another one can go on.
func TestStopped(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 40 {
			w.below(fmt.Sprintf("u%02d", i), "n/1", "n/2")
		}
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "DeleteOrphans" {
				if n++; n == 15 {
					cancel()
				}
			}
			return nil
		}
		cfg := w.config()
		cfg.Sweep.Workers = 1
		res, err := orphans.Run(ctx, cfg)
		if err != nil || res.Complete || res.Deleted != 30 || res.StoppedAt == nil || res.StoppedAt.Key != key("u14") {
			t.Fatalf("%+v at %+v, %v", res.Counts, res.StoppedAt, err)
		}
		cfg = w.config()
		cfg.From = *res.StoppedAt
		if res := w.run(cfg); res.Deleted != 50 || res.Read != 50 {
			t.Errorf("the rest: %+v", res.Counts)
		}
	})
}

// A run does not go on in the midst of what lies below a root: an entity before that place may be why the rest stays.
func TestFromTheMidst(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.below("b", "n/1", "tags/x+", "tags/x/n/1", "tags/x/n/2", "z/1")
		w.below("c", "n/1")
		before := w.left("b", "c")
		cfg := w.config()
		for _, from := range []string{"/n/1", "/tags/x", "/tags/x/n/1"} {
			if cfg.From.Key = key("b") + from; strings.HasPrefix(from, "/tags/x/") {
				cfg.Everywhere = true
			}
			if _, err := orphans.Run(t.Context(), cfg); !errors.Is(err, orphans.ErrMidst) {
				t.Errorf("from %s: %v", cfg.From.Key, err)
			}
			w.wants(w.left("b", "c"), before)
		}
		cfg.From.Key = key("b") + "/z/1" // nothing follows
		w.run(cfg)
		w.wants(w.left("b", "c"), before[:len(before)-1])
	})
}

// A wide store has one root, below which many entities of the target do not exist: each has two orphans.
type wide struct {
	*modelstore.Store
	n     int
	heaps []uint64 // in use, after the first page and at the last one
}

func (s *wide) IsScattered(context.Context, store.Target, string) (bool, error) { return true, nil }

func (s *wide) Roots(context.Context, store.LineageQuery, int) ([]string, error) { return nil, nil }

func (s *wide) Lineage(_ context.Context, q store.LineageQuery, page *store.Lineage) error {
	first := 0
	if q.After != "" {
		if _, err := fmt.Sscanf(q.After, "tenant/user/%d", &first); err != nil {
			return err
		}
		first++
	}
	*page = store.Lineage{}
	for i := first; i < min(s.n, first+q.Limit/2); i++ {
		of := fmt.Sprintf("tenant/user/%08d", i)
		for _, leaf := range []string{"/n/1", "/n/2"} {
			page.List = append(page.List, store.Relative{Key: of + leaf, Kind: "n", Root: "tenant", Of: of})
		}
	}
	page.More = first+q.Limit/2 < s.n
	if len(s.heaps) == 0 && first > 0 || !page.More {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		s.heaps = append(s.heaps, m.HeapAlloc)
	}
	return nil
}

// However many entities are missing below one root, they are counted without a list of them.
func TestManyMissingBelowOneRoot(t *testing.T) {
	w := newWorld(t)
	s := &wide{Store: w.s, n: 100_000}
	cfg := w.config()
	cfg.Sweep.Store, cfg.Sweep.Apply, cfg.Everywhere = s, false, true
	if res := w.run(cfg); res.Missing != int64(s.n) || res.Orphans != 2*int64(s.n) {
		t.Errorf("%+v", res.Counts)
	}
	if before, after := s.heaps[0], s.heaps[1]; after > before+2<<20 {
		t.Errorf("%d bytes were in use at the beginning, and %d at the end", before, after)
	}
}

// What lies below an entity that exists is not read name by name.
func TestSkipsBelowTheLiving(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 20 {
			u := fmt.Sprintf("u%02d", i)
			w.user(u)
			for j := range 1000 {
				w.below(u, fmt.Sprintf("n/%03d", j))
			}
		}
		cfg := w.config()
		cfg.Sweep.Apply, cfg.Sweep.Workers = false, 1
		// without a skip it would be 20,020
		if res := w.run(cfg); res.Entities != 20 || res.Operations.Reads > 2500 {
			t.Errorf("%+v, %+v", res.Counts, res.Operations)
		}
	})
}

// The history tells who has deleted orphans, and how many.
func TestHistory(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.below("gone", "n/1", "n/2")
		w.run(w.config())
		w.run(w.config()) // finds nothing, and tells nothing
		list, err := history.Read(t.Context(), w.s, "users", time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range list.Records {
			if r.Kind == history.KindAction {
				got = append(got, r.By.Actor+": "+r.Change.What+": "+r.Change.After)
			}
		}
		slices.Sort(got)
		if want := []string{"ann: orphans end: deleted 2", "ann: orphans: deletes without a limit"}; !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
	})
}

// spaced is a store with namespaces.
type spaced struct {
	*modelstore.Store
}

func (spaced) Namespaces(context.Context) ([]string, error) { return []string{"", "eu", "us"}, nil }

func TestNamespaces(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for _, ns := range []string{"", "eu", "us", "asia"} {
			w.s.PutBelow("User", ns, key("gone"), modelstore.Kin{Path: "n/1"})
		}
		left := func() (n []string) {
			for _, ns := range []string{"", "eu", "us", "asia"} {
				if len(w.s.Below("User", ns, key("gone"))) > 0 {
					n = append(n, ns)
				}
			}
			return n
		}
		cfg := w.config()
		cfg.Target.Namespaces = []string{"", "us"}
		cfg.From.Namespace = "us"
		w.run(cfg)
		w.wants(left(), []string{"", "eu", "asia"})
		cfg.From.Namespace = "eu"
		if _, err := orphans.Run(t.Context(), cfg); !errors.Is(err, orphans.ErrNamespace) {
			t.Error(err)
		}
		cfg.Sweep.Store, cfg.Target.Namespaces, cfg.From = spaced{w.s}, []string{"*"}, orphans.Place{}
		w.run(cfg)
		w.wants(left(), []string{"asia"})
	})
}

// plain is a store without descendants.
type plain struct{ store.Store }

func TestUnfit(t *testing.T) {
	w := newWorld(t)
	cfg := w.config()
	cfg.Sweep.Store = plain{w.s}
	if _, err := orphans.Run(t.Context(), cfg); !errors.Is(err, orphans.ErrUnsupported) {
		t.Error(err)
	}
	cfg = w.config()
	cfg.Target.Group = true
	if _, err := orphans.Run(t.Context(), cfg); !errors.Is(err, orphans.ErrScattered) {
		t.Error(err)
	}
}

// An orphan that the store refuses to delete, or that somebody writes again and again, is found among the others, and
// stays alone.
func TestRefused(t *testing.T) {
	for _, why := range []error{store.ErrTooLarge, store.ErrContention} {
		in(t, func(t *testing.T, w *world) {
			for i := range 100 {
				w.below("gone", fmt.Sprintf("n/%02d", i))
			}
			w.s.Before = func(_ context.Context, c modelstore.Call) error {
				if slices.Contains(c.Paths, key("gone")+"/n/42") {
					return why
				}
				return nil
			}
			cfg := w.config()
			cfg.Unlimited, cfg.Max = false, 100
			res, err := orphans.Run(t.Context(), cfg)
			if !errors.Is(err, orphans.ErrPartial) || !res.Complete || res.Refused != 1 || res.Deleted != 99 {
				t.Errorf("%v: %+v, %v", why, res, err)
			}
			w.wants(w.left("gone"), []string{"gone/n/42"})
		})
	}
}

// Orphans that are contended one by one are refused, as long as they are few, whatever else fails in between.
func TestHotOrphans(t *testing.T) {
	for hot, want := range map[int]int64{3: 3, 4: 3} {
		in(t, func(t *testing.T, w *world) {
			for i := range 20 {
				w.below("gone", fmt.Sprintf("n/%02d", i))
			}
			failed := map[string]bool{}
			w.s.Before = func(_ context.Context, c modelstore.Call) error {
				if c.Method != "DeleteOrphans" {
					return nil
				}
				for i := range hot {
					if slices.Contains(c.Paths, fmt.Sprintf("%s/n/%02d", key("gone"), i+5)) {
						return store.ErrContention
					}
				}
				if !failed[c.Paths[0]] {
					failed[c.Paths[0]] = true
					return store.ErrUnavailable
				}
				return nil
			}
			cfg := w.config()
			cfg.Sweep.Workers = 1
			res, err := orphans.Run(t.Context(), cfg)
			if res.Refused != want || errors.Is(err, store.ErrContention) != (hot > 3) || res.Complete != (hot <= 3) {
				t.Errorf("%d are contended: %+v, %v", hot, res, err)
			}
			if hot <= 3 && len(w.left("gone")) != hot {
				t.Errorf("left: %v", w.left("gone"))
			}
		})
	}
}

// What lies above an orphan that somebody writes again and again stays with it, whatever calls it comes in, and though
// another missing entity lies between.
func TestNothingAboveAHotOrphanIsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		paths   []string
		hot     string
		refused int64
		left    []string
	}{
		"one missing": {[]string{"n/1", "n/1/m/1", "n/1/m/2", "n/2"}, "n/1/m/1", 2, []string{"gone/n/1", "gone/n/1/m/1"}},
		"two missing": {[]string{"n/3", "n/3/User/c/n/4", "n/5"}, "n/3/User/c/n/4", 2, []string{"gone/n/3", "gone/n/3/User/c/n/4"}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				for _, path := range c.paths {
					w.below("gone", path)
				}
				w.s.Before = func(_ context.Context, call modelstore.Call) error {
					if call.Method == "DeleteOrphans" && slices.Contains(call.Paths, key("gone")+"/"+c.hot) {
						return store.ErrContention
					}
					return nil
				}
				cfg := w.config()
				cfg.Everywhere = true
				res, err := orphans.Run(t.Context(), cfg)
				if !errors.Is(err, orphans.ErrPartial) || !res.Complete || res.Refused != c.refused ||
					res.Deleted != int64(len(c.paths))-c.refused {
					t.Errorf("%+v, %v", res, err)
				}
				w.wants(w.left("gone"), c.left)
			})
		})
	}
}

// Where every delete is contended, the run ends: it does not wait for two minutes with each orphan.
func TestAllOrphansAreContended(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 40 {
			w.below(fmt.Sprintf("gone-%02d", i), "n/1")
		}
		w.s.Before = func(_ context.Context, call modelstore.Call) error {
			if call.Method == "DeleteOrphans" {
				return store.ErrContention
			}
			return nil
		}
		cfg := w.config()
		cfg.Sweep.Workers = 2
		began := time.Now()
		res, err := orphans.Run(t.Context(), cfg)
		if took := time.Since(began); !errors.Is(err, store.ErrContention) || res.Complete || took > 12*time.Minute {
			t.Errorf("after %v: %+v, %v", took, res, err)
		}
	})
}
