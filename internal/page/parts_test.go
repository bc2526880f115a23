package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
)

// manyRanges returns the status of a target with so many ranges.
func manyRanges(generations, shards, namespaces int, now time.Time) inspect.TargetStatus {
	n := int64(generations * shards)
	oldest := now.Add(-26 * time.Hour)
	st := inspect.TargetStatus{Name: "sessions", Layout: "generation", Verdict: inspect.Behind, Why: "the oldest was due 26h ago",
		Backlog: &n, Rate: 400, OldestDue: &oldest}
	r := 500.0
	for g := generations; g >= 1; g-- {
		state := "sealed"
		if g == generations {
			state = "filling"
		}
		st.Generations = append(st.Generations, inspect.GenerationStatus{Number: g, State: state, Shards: shards,
			Opened: now.Add(-time.Duration(generations-g) * 24 * time.Hour)})
		for s := range shards {
			for ns := range namespaces {
				one := inspect.RangeStatus{Generation: g, Shard: fmt.Sprintf("%04d", s), Rate: &r, Swept: &now, Deleted: int64(1000 * s)}
				if namespaces > 1 {
					one.Namespace = fmt.Sprintf("tenant-%02d", ns)
				}
				if k := (g*31 + s*17 + ns) % 23; k < 9 {
					due := now.Add(-time.Duration(1<<k) * 20 * time.Second)
					one.OldestDue, one.ThrottledBy = &due, []string{"ramp", "max", "", "pushback", "total"}[k%5]
					until := now.Add(20 * time.Second)
					one.Owner, one.LeaseUntil = "reaper-7f9c/1/QX4KPA", &until
				}
				st.Ranges = append(st.Ranges, one)
			}
		}
	}
	return st
}

// The page of a target with ten thousand ranges is small, and made in a moment.
func TestTenThousandRanges(t *testing.T) {
	cfg := newWorld(t).page()
	cfg.Source = sayingAlways(manyRanges(10, 1000, 1, time.Now()))
	s := serve(t, cfg)
	s.until("targets/sessions", "10,000 ranges")
	began := time.Now()
	body := s.want("targets/sessions", "A cell stands for up to 21 shards")
	t.Logf("10,000 ranges: %v, %d bytes", time.Since(began), len(body))
	if len(body) > 400<<10 {
		t.Errorf("the page has %d bytes", len(body))
	}
}

// A copy is read at most once in an interval, by the first viewer, whatever the clock does; and
// it is forgotten.
func TestCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var jump atomic.Int64
		r := &reader{ctx: ctx, now: func() time.Time { return time.Now().Add(time.Duration(jump.Load())).Round(0) }, turns: make(chan struct{}, 1)}
		c := newCopies[int](r, 2)
		reads, fails := 0, false
		get := func() copied[int] {
			got := c.get(ctx, "k", readEvery, func(_ context.Context, last int) (int, error) {
				reads++
				if fails {
					return 0, errors.New("no")
				}
				return last + 1, nil
			})
			synctest.Wait()
			return got
		}
		want := func(what string, got copied[int], value, n int) {
			t.Helper()
			if got.Value != value || reads != n {
				t.Errorf("%s: value %d after %d reads, want %d after %d", what, got.Value, reads, value, n)
			}
		}
		want("the first", get(), 1, 1)
		time.Sleep(readEvery - time.Second)
		want("soon after", get(), 1, 1)
		time.Sleep(time.Second)
		get() // shows what there is, and reads
		want("later", get(), 2, 2)
		time.Sleep(time.Minute)
		want("after a pause it waits", get(), 3, 3)
		jump.Store(int64(-24 * time.Hour))
		want("the clock is set back", get(), 3, 4)
		jump.Store(0)
		want("and forth", get(), 5, 5)
		fails = true
		time.Sleep(readEvery)
		asked := r.now()
		get()
		time.Sleep(readEvery)
		if got := get(); got.Value != 5 || got.Err == nil || !got.Asked.Equal(asked) {
			t.Errorf("%+v", got)
		}
		time.Sleep(2 * forgetAfter)
		kept := func() int {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.entries)
		}
		if kept() != 0 {
			t.Error("nothing is forgotten")
		}
		for i := range 5 {
			c.get(ctx, fmt.Sprint(i), readEvery, func(context.Context, int) (int, error) { return i, nil })
		}
		if n := kept(); n != 2 {
			t.Errorf("%d copies are kept, not 2", n)
		}
		cancel()
		r.all.Wait()
	})
}

// A copy is kept as long as somebody looks at it, whenever it was read, and is forgotten afterwards, also after the
// clock was set back: only so many are kept.
func TestCopiesAreForgotten(t *testing.T) {
	for _, jump := range []time.Duration{0, -24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var jumped, reads atomic.Int64
			r := &reader{ctx: ctx, now: func() time.Time { return time.Now().Add(time.Duration(jumped.Load())).Round(0) }, turns: make(chan struct{}, 1)}
			c := newCopies[int](r, 1)
			get := func(key string) copied[int] {
				return c.get(ctx, key, time.Hour, func(context.Context, int) (int, error) { reads.Add(1); return 1, nil })
			}
			for range 10 { // within the hour
				get("a")
				time.Sleep(forgetAfter - time.Second)
			}
			if got := get("a"); !got.Known() || reads.Load() != 1 {
				t.Errorf("while somebody looks: %+v after %d reads", got, reads.Load())
			}
			if get("b").Known() {
				t.Error("more copies are kept than may be")
			}
			jumped.Store(int64(jump))
			time.Sleep(forgetAfter + time.Second)
			if c.peek("a").Known() || !get("b").Known() {
				t.Errorf("after a jump of %v the first copy is not forgotten", jump)
			}
			cancel()
			r.all.Wait()
		})
	}
}

// A copy is not forgotten during a read, or another read would begin at the same time.
func TestCopiesAreNotForgottenWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var reads atomic.Int64
		r := &reader{ctx: ctx, now: time.Now, turns: make(chan struct{}, readsAtOnce)}
		c := newCopies[int](r, 1)
		get := func() copied[int] {
			return c.get(ctx, "a", readEvery, func(context.Context, int) (int, error) {
				reads.Add(1)
				time.Sleep(5 * forgetAfter / 2)
				return 1, nil
			})
		}
		get()
		time.Sleep(2 * forgetAfter)
		if get(); reads.Load() != 1 {
			t.Errorf("%d reads at the same time", reads.Load())
		}
		time.Sleep(5 * forgetAfter)
		if c.peek("a").Known() {
			t.Error("nothing is forgotten after a long read")
		}
		cancel()
		r.all.Wait()
	})
}

// How often targets are read depends on how many ranges they have at present, and not on how often they were read.
func TestRangesAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cfg := newWorld(t).page()
		cfg.Targets = []Target{{Name: "sessions"}, {Name: "carts"}}
		var shards atomic.Int64
		cfg.Source = said{status: func(context.Context) (inspect.TargetStatus, error) {
			return manyRanges(10, int(shards.Load()), 1, time.Now()), nil
		}}
		s := newServer(ctx, cfg)
		for _, n := range []int64{1000, 1000, 500, 1} {
			shards.Store(n)
			for _, target := range cfg.Targets {
				s.lookAt(ctx, target.Name)
			}
			synctest.Wait()
			if want := max(readEvery, time.Duration(2*10*n)*perRange); s.every() != want {
				t.Errorf("with %d shards targets are read every %v, want %v", n, s.every(), want)
			}
			time.Sleep(time.Hour) // until the copies are forgotten
		}
		cancel()
		s.reader.all.Wait()
	})
}

// No parameter breaks a page, or gets into it as it is.
func FuzzParameters(f *testing.F) {
	for _, seed := range []string{"", "sessions", "1.0", "24h", "-1", "99999999999999999999", hostile, "%00", "\xff\xfe", "../../x",
		strings.Repeat("a", 1501), "0.0.0", "\u202e", `{"a":1}`, "1e9"} {
		f.Add(seed, seed)
	}
	cfg := Config{Store: "model:fuzz", Source: sayingAlways(manyRanges(2, 4, 2, time.Now())), IDs: true, Now: time.Now,
		Targets: []Target{{Name: "sessions"}, {Name: "carts"}}, Log: newWorld(&testing.T{}).page().Log}
	h := newServer(context.Background(), cfg).handler()
	pages := []string{"/", "/index.json", "/targets/sessions", "/history", "/history.json", "/doctor", "/plan", "/explain",
		"/plan.json", "/explain.json", "/events.json", "/targets/"}
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, page := range pages {
			if page == "/targets/" {
				page += url.PathEscape(a)
			}
			for _, q := range []url.Values{
				{"cell": {a}, "target": {b}, "refresh": {a}, "id": {a}, "namespace": {b}},
				{"since": {a}, "target": {"sessions"}, "only": {b}, "limit": {a}, "number": {b}},
				{"limit": {a}, "target": {"sessions"}, "id": {b}, "parent": {a}},
				{"only": {a}, "target": {"sessions"}, "id": {a}, "number": {"1"}},
			} {
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.Host = unescape(page), page, q.Encode(), "localhost"
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code >= 500 && w.Code != http.StatusServiceUnavailable {
					t.Fatalf("%s?%s: %d %s", page, q.Encode(), w.Code, w.Body)
				}
				isPage := strings.HasPrefix(w.Header().Get("Content-Type"), "text/html")
				for _, bad := range []string{"<script>a", "<img", "\u202e", "\x00"} {
					if isPage && bytes.Contains(w.Body.Bytes(), []byte(bad)) {
						t.Fatalf("%s?%s: the page has %q", page, q.Encode(), bad)
					}
				}
			}
		}
	})
}

func unescape(path string) string {
	plain, err := url.PathUnescape(path)
	if err != nil {
		return path
	}
	return plain
}

// Viewers that ask at the same time share a page, also if the first of them leaves; a second later, and
// for another question, there is a new one. A viewer that asks for more and more pages fills no memory.
func TestPagesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int64
		s := shelf{now: time.Now, ended: func() int64 { return 0 }, pages: map[string]*sharedPage{}}
		h := s.forViewers(func(w http.ResponseWriter, r *http.Request) {
			n := made.Add(1)
			time.Sleep(100 * time.Millisecond)
			w.Header().Set("X-Made", fmt.Sprint(n))
			w.WriteHeader(http.StatusTeapot)
			_, _ = fmt.Fprintf(w, "%d, ended %v", n, r.Context().Err() != nil)
		})
		ask := func(ctx context.Context, path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			h(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
			return w
		}
		leaving, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { ask(leaving, "/a") })
		synctest.Wait()
		leave()
		for range 10 {
			all.Go(func() {
				if w := ask(t.Context(), "/a"); w.Code != http.StatusTeapot || w.Body.String() != "1, ended false" || w.Header().Get("X-Made") != "1" {
					t.Errorf("%d %q", w.Code, w.Body)
				}
			})
		}
		all.Wait()
		if w := ask(t.Context(), "/a?b"); w.Body.String() != "2, ended false" {
			t.Errorf("another question: %q", w.Body)
		}
		time.Sleep(sharedFor)
		if w := ask(t.Context(), "/a"); w.Body.String() != "3, ended false" {
			t.Errorf("a second later: %q", w.Body)
		}
		for i := range 10 * mostShared {
			all.Go(func() { ask(t.Context(), fmt.Sprint("/", i)) })
		}
		all.Wait()
		if n := len(s.pages); n > mostShared || made.Load() != 3+10*mostShared {
			t.Errorf("%d pages are kept, %d were made", n, made.Load())
		}
	})
}
