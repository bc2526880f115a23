package writers

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
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

// Writers in all four languages follow one target on Google's emulator through ten
// generations, each with another number of shards. Once a generation has been closed for
// as long as a copy of the record is good, none of them stamps it.
func TestFourFollowersInTenGenerations(t *testing.T) {
	classes := compileJava(t)
	for _, mode := range []emulator.Mode{emulator.Native, emulator.Datastore} {
		t.Run(string(mode), func(t *testing.T) {
			e := emulator.Start(t, mode)
			w := world{t: t, mode: mode, host: e.Host, project: e.Project(t)}
			t.Parallel()
			w.open()
			r := w.save(generation.New("sessions", "Session", "expiry_key", 3, true, time.Now()).WithWriterBounds(bounds))
			writers := w.writers(classes)
			generations := 10
			if testing.Short() {
				generations = 3
			}
			for n := 1; n <= generations; n++ {
				if n > 1 {
					r = w.save(next(t, r, 4+7*n))
				}
				<-time.After(tooOld) // by then every copy of the record before is too old
				w.round(writers, r)
			}
			w.remove(r)
			<-time.After(tooOld)
			w.round(writers, generation.Record{NurseryShards: r.NurseryShards})
		})
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
	written int
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

func (w *world) save(r generation.Record) generation.Record {
	w.t.Helper()
	r, err := generation.Save(w.t.Context(), w.db, r)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
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

// round lets each writer stamp, until it stamps the newest generation of the record, or
// the nursery if it has none; it must not stamp any other one meanwhile.
func (w *world) round(writers map[string]writing, r generation.Record) {
	w.t.Helper()
	newest := r.Stamper()
	for language, write := range writers {
		for done := false; !done; {
			w.written++
			id := fmt.Sprintf("%s-%d", language, w.written)
			text := write(id, time.Now().Add(time.Hour))
			k, err := Parse(text)
			if err != nil {
				w.t.Fatalf("%s: %v", language, err)
			}
			// A follower that has read no record yet knows no better number than 16.
			nursery := k.Generation == expirykey.Nursery &&
				(k.Shard == ShardOf(id, r.NurseryShards) || k.Shard == ShardOf(id, 16))
			if isNewest := k.Generation == newest.Generation && k.Shard == ShardOf(id, newest.Shards); !isNewest && !nursery {
				w.t.Fatalf("%s stamps %s with %v; the newest generation is %d, with %d shards",
					language, id, k, newest.Generation, newest.Shards)
			}
			if stored := w.stored(id); language != "go" && !strings.Contains(stored, text) {
				w.t.Fatalf("%s printed %s for %s, but stored %s", language, text, id, stored)
			}
			done = k.Generation == newest.Generation
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
