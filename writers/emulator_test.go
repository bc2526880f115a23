package writers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/firestore"
)

func TestMain(m *testing.M) { emulator.Main(m) }

// A writing process stamps an entity, stores it, and tells its key.
type writing func(id string, expires time.Time) string

// Writers in all four languages write at the same time and without a break, while their target
// goes through ten generations, each with another number of shards. All move to each new
// generation. Once one has been closed for as long as a copy of the record is good, none of
// them stamps it; so none stamps one that has retired, which is later still.
func TestFourFollowersInTenGenerations(t *testing.T) {
	classes := compileJava(t)
	for _, mode := range []emulator.Mode{emulator.Native, emulator.Datastore} {
		t.Run(string(mode), func(t *testing.T) {
			e := emulator.Start(t, mode)
			w := world{t: t, mode: mode, host: e.Host, project: e.Project(t)}
			t.Parallel()
			w.open()
			h := &history{
				closed: map[int]time.Time{},
				shards: map[int][]int{expirykey.Nursery: {16}}, // as long as no record was read
				newest: map[string]int{},
			}
			r := w.save(h, generation.New("sessions", "Session", "expiry_key", 3, true, time.Now()).WithWriterBounds(bounds))
			ctx, stop := context.WithCancel(t.Context())
			var group sync.WaitGroup
			defer group.Wait()
			defer stop()
			for language, write := range w.writers(classes) {
				group.Go(func() {
					defer h.leave(language)
					w.work(ctx, h, language, write)
				})
			}
			generations := 10
			if testing.Short() {
				generations = 3
			}
			for n := 1; n <= generations; n++ {
				if n > 1 {
					r = w.save(h, next(t, r, 4+7*n))
				}
				h.await(t, n)
			}
			<-time.After(tooOld) // by then every copy of the records before is too old, while all go on
			w.remove(r)
			h.close(generations)
			h.await(t, expirykey.Nursery)
		})
	}
}

// A history is what writers may stamp, and what each of them stamped last.
type history struct {
	sync.Mutex
	closed map[int]time.Time // when a generation was surely marked closed in the store
	shards map[int][]int     // the numbers of shards that a generation may have
	newest map[string]int
	gone   []string // writers that have ended
}

func (h *history) open(g, shards int) {
	h.Lock()
	defer h.Unlock()
	h.shards[g] = append(h.shards[g], shards)
}

func (h *history) close(g int) {
	h.Lock()
	defer h.Unlock()
	if h.closed[g].IsZero() {
		h.closed[g] = time.Now()
	}
}

func (h *history) leave(language string) {
	h.Lock()
	defer h.Unlock()
	h.gone = append(h.gone, language)
}

// check reports what is wrong with a key that was asked for at some instant.
func (h *history) check(language, id string, k expirykey.Key, asked time.Time) error {
	h.Lock()
	defer h.Unlock()
	h.newest[language] = k.Generation
	if !slices.ContainsFunc(h.shards[k.Generation], func(n int) bool { return k.Shard == ShardOf(id, n) }) {
		return fmt.Errorf("%s stamps %s with %v; that generation has %v shards",
			language, id, k, h.shards[k.Generation])
	}
	if closed := h.closed[k.Generation]; !closed.IsZero() && asked.After(closed.Add(tooOld)) {
		return fmt.Errorf("%s stamps %s with %v; that generation was closed %v before",
			language, id, k, asked.Sub(closed))
	}
	return nil
}

// await waits until all four writers stamp a generation.
func (h *history) await(t *testing.T, g int) {
	t.Helper()
	for done := false; !done; <-time.After(10 * time.Millisecond) {
		h.Lock()
		reached := 0
		for _, n := range h.newest {
			if n == g {
				reached++
			}
		}
		done = reached == 4
		gone := slices.Clone(h.gone)
		h.Unlock()
		if len(gone) > 0 {
			t.Fatalf("%v ended before all stamped generation %d", gone, g)
		}
	}
}

var bounds = generation.Policy{Staleness: time.Second, Slack: time.Second, Shards: 3}

// tooOld is an age at which no copy is good any more, also by a clock of milliseconds.
const tooOld = time.Second + 10*time.Millisecond

// next returns the record with one more generation and all others closed, of which the
// older ones have retired.
func next(t *testing.T, r generation.Record, shards int) generation.Record {
	t.Helper()
	p := bounds
	p.Shards = shards
	r, err := r.Advance(p, time.Now(), true)
	if err != nil {
		t.Fatal(err)
	}
	newest := len(r.Generations) - 1
	for i := range newest {
		if r.Generations[i].Closed.IsZero() {
			r.Generations[i].Closed = r.Generations[newest].Opened
		}
	}
	r.Generations = r.Generations[max(0, newest-1):]
	return r
}

type world struct {
	t             *testing.T
	mode          emulator.Mode
	host, project string
	db            interface {
		store.Store
		io.Closer
	}
}

func (w *world) open() {
	w.t.Helper()
	var err error
	if w.mode == emulator.Native {
		w.db, err = firestore.Open(w.t.Context(), firestore.Options{Project: w.project, Emulator: w.host})
	} else {
		w.db, err = datastore.Open(w.t.Context(), datastore.Options{Project: w.project, Emulator: w.host})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.db.Close() })
}

// save saves a record, and tells the history: of what is new before it can be read, of what
// is closed once nothing older can be read any more.
func (w *world) save(h *history, r generation.Record) generation.Record {
	w.t.Helper()
	h.open(expirykey.Nursery, r.NurseryShards)
	newest := r.Generations[len(r.Generations)-1]
	h.open(newest.Number, newest.Shards) // each save opens one
	saved, err := generation.Save(w.t.Context(), w.db, r)
	// On a busy machine a save may take too long, and be done anyway, now or later.
	for errors.Is(err, store.ErrDeadline) || errors.Is(err, store.ErrConflict) {
		stored, _, lost := generation.Load(w.t.Context(), w.db, r.Target)
		switch {
		case lost == nil && stored.Generations[len(stored.Generations)-1].Number == newest.Number:
			saved, err = stored, nil
		case lost == nil || errors.Is(lost, generation.ErrMissing):
			saved, err = generation.Save(w.t.Context(), w.db, r)
		case !errors.Is(lost, store.ErrDeadline):
			err = lost
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
	for g := 1; g < newest.Number; g++ {
		h.close(g)
	}
	return saved
}

// remove removes the record, as an operator would in the console.
func (w *world) remove(r generation.Record) {
	w.t.Helper()
	if w.mode == emulator.Native {
		w.call(http.MethodDelete, w.path("/databases/(default)/documents/ReaperTarget/"+r.Target), "")
		return
	}
	w.call(http.MethodPost, w.path(":commit"), fmt.Sprintf(
		`{"mode": "NON_TRANSACTIONAL", "mutations": [{"delete": {"path": [{"kind": "ReaperTarget", "name": %q}]}}]}`, r.Target))
}

// work lets a writer write until the context ends. It writes often enough to be at work
// whenever the record changes.
func (w *world) work(ctx context.Context, h *history, language string, write writing) {
	for i := 0; ctx.Err() == nil; i++ {
		id, asked := fmt.Sprintf("%s-%d", language, i), time.Now()
		text := write(id, asked.Add(time.Hour))
		k, err := Parse(text)
		if err == nil {
			err = h.check(language, id, k, asked)
		}
		if err != nil {
			w.t.Error(err)
			return
		}
		if stored := w.stored(id); language != "go" && !strings.Contains(stored, text) {
			w.t.Errorf("%s printed %s for %s, but stored %s", language, text, id, stored)
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// writers starts a process of each language, and a follower in Go.
func (w *world) writers(classes string) map[string]writing {
	mode := map[emulator.Mode]string{emulator.Native: "native", emulator.Datastore: "datastore"}[w.mode]
	f := Follow(w.t.Context(), func(ctx context.Context) (map[string]any, error) {
		got, err := w.db.Load(ctx, store.RecordQuery{Sort: store.TargetRecord, Target: "sessions", Keys: []string{"sessions"}})
		if err != nil || len(got.List) == 0 {
			return nil, err
		}
		return got.List[0].Fields, nil
	}, Options{})
	w.t.Cleanup(f.Close)
	return map[string]writing{
		"go": func(id string, expires time.Time) string {
			k, err := f.Key(id, expires)
			if err != nil {
				w.t.Fatal(err)
			}
			return k.String()
		},
		"node":   w.start("node", "node/testdata/rest.js", mode, w.host, w.project),
		"python": w.start("python3", "python/tests/rest.py", mode, w.host, w.project),
		"java":   w.start("java", "-cp", classes, "io.github.reaperttl.writer.Rest", mode, w.host, w.project),
	}
}

func (w *world) start(program string, args ...string) writing {
	w.t.Helper()
	cmd := command(w.t, program, args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH=python", "PYTHONUTF8=1", "PYTHONDONTWRITEBYTECODE=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			in.Close() // the process ends with its input
			if err := cmd.Wait(); err != nil {
				w.t.Errorf("%s: %v\n%s", program, err, stderr.String())
			}
		}
	}
	w.t.Cleanup(end)
	lines := bufio.NewScanner(out)
	return func(id string, expires time.Time) string {
		w.t.Helper()
		fmt.Fprintf(in, "%s\t%d\n", id, expires.Unix())
		if !lines.Scan() {
			end()
			w.t.Fatalf("%s says nothing more", program)
		}
		return lines.Text()
	}
}

// stored returns an entity as the emulator's REST interface shows it.
func (w *world) stored(id string) string {
	w.t.Helper()
	if w.mode == emulator.Native {
		return w.call(http.MethodGet, w.path("/databases/(default)/documents/Session/"+id), "")
	}
	return w.call(http.MethodPost, w.path(":lookup"), fmt.Sprintf(`{"keys": [{"path": [{"kind": "Session", "name": %q}]}]}`, id))
}

func (w *world) path(rest string) string {
	return "http://" + w.host + "/v1/projects/" + w.project + rest
}

func (w *world) call(method, url, body string) string {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer owner")
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK && response.StatusCode != http.StatusNotFound {
		w.t.Fatalf("%s %s: %s, %v\n%s", method, url, response.Status, err, text)
	}
	return string(text)
}
