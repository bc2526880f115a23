package page

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/page/draw"
	"github.com/reaper-ttl/reaper/sweep"
)

// A piped listener connects viewers in memory, without any buffer in between: a viewer that reads
// nothing is noticed at once, and a bubble has its clock.
type piped struct {
	next chan net.Conn
	gone chan struct{}
	once sync.Once
}

func newPiped() *piped { return &piped{next: make(chan net.Conn), gone: make(chan struct{})} }

func (p *piped) Accept() (net.Conn, error) {
	select {
	case c := <-p.next:
		return c, nil
	case <-p.gone:
		return nil, net.ErrClosed
	}
}

func (p *piped) Close() error   { p.once.Do(func() { close(p.gone) }); return nil }
func (p *piped) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9465} }

// dial connects a viewer.
func (p *piped) dial() net.Conn {
	here, there := net.Pipe()
	p.next <- there
	return here
}

// follow begins a stream of events, and returns what it sends.
func follow(t *testing.T, c net.Conn, target string) *bufio.Reader {
	t.Helper()
	if _, err := io.WriteString(c, "GET /events?target="+target+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("no stream: %s", res.Status)
	}
	return bufio.NewReader(res.Body)
}

// nextEvent returns the data of the next event; empty if the stream ends before.
func nextEvent(in *bufio.Reader) string {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return ""
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return data
		}
	}
}

// drain reads a stream to its end, and returns how many events it had.
func drain(in *bufio.Reader) (events int) {
	for nextEvent(in) != "" {
		events++
	}
	return events
}

// inBubble serves a page to viewers in memory.
func inBubble(t *testing.T, cfg Config, test func(l *piped, stop func())) {
	t.Helper()
	l := newPiped()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, cfg) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the page ended with %v", err)
		}
	})
	test(l, stop)
	stop()
}

// collecting returns a page of a process that deletes one entity a millisecond.
func collecting(w *world) Config {
	cfg := w.page()
	began := time.Now()
	cfg.Mode = Deletes
	cfg.States = func() []sweep.State {
		return []sweep.State{{Target: "sessions", Deleted: time.Since(began).Milliseconds()}}
	}
	return cfg
}

// Sixty-four viewers cost the store what one costs, the next one polls, and nothing is read once
// nobody looks.
func TestViewersShareReads(t *testing.T) {
	reads := map[int]int64{}
	for _, viewers := range []int{1, mostStreams} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.fill(40)
			w.sweep()
			inBubble(t, collecting(w), func(l *piped, _ func()) {
				before := w.reads.Load()
				var conns []net.Conn
				for range viewers {
					c := l.dial()
					conns = append(conns, c)
					in := follow(t, c, "sessions")
					go func() {
						drain(in)
					}()
				}
				if viewers == mostStreams {
					wantStatus(t, l, "/events", http.StatusServiceUnavailable)
					wantStatus(t, l, "/events.json", http.StatusOK)
				}
				time.Sleep(10*time.Minute + readEvery/2) // no read is due just then
				reads[viewers] = w.reads.Load() - before
				for _, c := range conns {
					_ = c.Close()
				}
				time.Sleep(time.Minute)
				before = w.reads.Load()
				time.Sleep(time.Hour)
				if n := w.reads.Load() - before; n > 0 {
					t.Errorf("%d reads while nobody looks", n)
				}
			})
		})
	}
	t.Logf("in ten minutes one viewer costs %d reads, and %d cost %d", reads[1], mostStreams, reads[mostStreams])
	if reads[1] == 0 || reads[mostStreams] != reads[1] {
		t.Errorf("one viewer costs %d reads, and %d cost %d", reads[1], mostStreams, reads[mostStreams])
	}
}

func wantStatus(t *testing.T, l *piped, path string, code int) {
	t.Helper()
	c := l.dial()
	defer c.Close()
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != code {
		t.Errorf("%s: %s, want %d", path, res.Status, code)
	}
	_, _ = io.Copy(io.Discard, res.Body)
}

// A viewer that reads nothing loses its stream, and holds up no other one.
func TestSlowViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		inBubble(t, collecting(w), func(l *piped, _ func()) {
			slow, quick := l.dial(), l.dial()
			follow(t, slow, "") // and reads no event
			in := follow(t, quick, "")
			for i := range 60 {
				began := time.Now()
				if nextEvent(in) == "" {
					t.Fatalf("the quick viewer lost its stream after %d events", i)
				}
				if waited := time.Since(began); waited > 2*beat {
					t.Fatalf("event %d came after %v", i, waited)
				}
			}
			_ = slow.SetReadDeadline(time.Now().Add(time.Second))
			rest, err := io.ReadAll(slow)
			if err != nil {
				t.Errorf("the slow viewer still has its stream: %v", err)
			}
			if n := strings.Count(string(rest), "data: "); n > streamRoom+2 {
				t.Errorf("%d events were kept for it", n)
			}
			_ = quick.Close()
		})
	})
}

// A stream in which nothing happens is kept, and ends at once when the process stops.
func TestStreamsEndFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newWorld(t).page()
		cfg.Source = sayingAlways(inspect.TargetStatus{Name: "sessions", Verdict: inspect.Idle})
		inBubble(t, cfg, func(l *piped, stop func()) {
			c := l.dial()
			in := follow(t, c, "")
			alive := 0
			for alive < 4 {
				line, err := in.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				if line == ": alive\n" {
					alive++
				}
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				drain(in)
			}()
			began := time.Now()
			stop()
			if took := time.Since(began); took >= time.Second {
				t.Errorf("a stream held up the end for %v", took)
			}
			<-ended
		})
	})
}

// A viewer that has closed its half of the connection is gone.
func TestHalfClosedViewer(t *testing.T) {
	cfg := collecting(newWorld(t))
	h := newServer(t.Context(), cfg)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h.handler()}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := follow(t, c, "")
	if nextEvent(in) == "" {
		t.Fatal("no event")
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	drain(in)
	for range 500 { // until the handler has returned
		if len(h.hub.subjects()) == 0 {
			h.hub.close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the stream is still there")
}

// A store that does not answer keeps nobody waiting: the page loads, shows what it has, and says
// since when.
func TestStoreDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fill(20)
		w.sweep()
		inBubble(t, w.page(), func(l *piped, _ func()) {
			get := func(path string) string {
				t.Helper()
				c := l.dial()
				defer c.Close()
				began := time.Now()
				_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
				text, err := io.ReadAll(c)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > 2*patience {
					t.Errorf("%s took %v", path, took)
				}
				return string(text)
			}
			if page := get("/targets/sessions"); strings.Contains(page, "not answered") || !strings.Contains(page, "IDLE") {
				t.Errorf("while all is well: %s", page)
			}
			w.hang.Store(true)
			time.Sleep(time.Minute)
			since := time.Now()
			get("/targets/sessions")
			time.Sleep(time.Minute)
			for _, path := range []string{"/targets/sessions", "/"} {
				if page := get(path); !strings.Contains(page, "The store has not answered since "+draw.Instant(since)) ||
					!strings.Contains(page, "IDLE") {
					t.Errorf("%s: %s", path, page)
				}
			}
			get("/doctor")
			get("/history")
			w.hang.Store(false)
			time.Sleep(time.Minute)
			if page := get("/"); strings.Contains(page, "not answered") {
				t.Errorf("after it has answered: %s", page)
			}
		})
	})
}

// The first look at a store that does not answer says so, too.
func TestStoreNeverAnswers(t *testing.T) {
	cfg := newWorld(t).page()
	var asked atomic.Int64
	cfg.Source = said{err: errors.New("no answer"), status: func(ctx context.Context) (inspect.TargetStatus, error) {
		asked.Add(1)
		return inspect.TargetStatus{}, errors.New("no answer")
	}}
	s := serve(t, cfg)
	for _, p := range []string{"", "targets/sessions", "history", "doctor", "explain?id=x"} {
		s.want(p, "The store has not answered since", "no answer")
	}
	s.want("index.json", `"verdict": "UNKNOWN"`, `"error": "no answer"`)
	if n := asked.Load(); n != 1 {
		t.Errorf("it was asked %d times at once", n)
	}
}

// Streams take little memory.
func TestMemoryOfViewers(t *testing.T) {
	w := newWorld(t)
	w.fill(40)
	w.sweep()
	s := serve(t, collecting(w))
	s.until("targets/sessions", "IDLE")
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := used()
	var conns []net.Conn
	var streams []*bufio.Reader
	for range mostStreams {
		c, err := net.Dial("tcp", strings.Trim(strings.TrimPrefix(s.url, "http://"), "/"))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		streams = append(streams, follow(t, c, "sessions"))
	}
	for range 2 {
		for _, in := range streams {
			if nextEvent(in) == "" {
				t.Fatal("no event")
			}
			s.want("targets/sessions")
		}
	}
	more := int64(used()) - int64(before)
	t.Logf("%d viewers take %d KiB", mostStreams, more>>10)
	if more > 10<<20 {
		t.Errorf("%d viewers take %d bytes more", mostStreams, more)
	}
	for _, c := range conns {
		_ = c.Close()
	}
}
