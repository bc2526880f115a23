package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/page/draw"
)

const (
	// mostStreams is how many viewers get events; the others poll.
	mostStreams = 64
	// beat is how often a stream is told what has changed.
	beat = time.Second
	// keepAlive is how often a stream is written to if nothing has changed, so that proxies keep
	// it, and a viewer that is gone is noticed.
	keepAlive = 15 * time.Second
	// eventTimeout is how long a viewer may take to receive one event.
	eventTimeout = 5 * time.Second
	// streamRoom is how many events a viewer may be behind before its stream is ended. It comes
	// back, and then begins with the present state.
	streamRoom = 4
)

// A pulse is what changes from second to second: Version names what the page was made of, Live the
// texts that this process knows by itself, and Cells those of the map that it works on, by their ids.
type pulse struct {
	Version string                   `json:"version"`
	Live    map[string]string        `json:"live"`
	Cells   map[string]draw.LiveCell `json:"cells,omitempty"`
}

// A hub sends pulses to all streams. It makes each one once for all viewers of a subject: a
// target, or the overview, whose name is empty. Nothing runs while there is no stream.
type hub struct {
	make    func(subject string) pulse
	mu      sync.Mutex
	streams map[*stream]bool
	closed  bool
	stop    chan struct{} // ends the goroutine that sends; nil while none runs
	all     sync.WaitGroup
}

type stream struct {
	subject string
	events  chan []byte // closed when the stream has to end
}

func newHub(make func(string) pulse) *hub { return &hub{make: make, streams: map[*stream]bool{}} }

// join returns a new stream; nil if there are too many.
func (h *hub) join(subject string) *stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.streams) >= mostStreams {
		return nil
	}
	st := &stream{subject, make(chan []byte, streamRoom)}
	h.streams[st] = true
	if h.stop == nil {
		h.stop = make(chan struct{})
		stop := h.stop
		h.all.Go(func() { h.send(stop) })
	}
	return st
}

// leave ends a stream, unless it has ended.
func (h *hub) leave(st *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.streams[st] {
		return
	}
	delete(h.streams, st)
	close(st.events)
	if len(h.streams) == 0 && h.stop != nil {
		close(h.stop)
		h.stop = nil
	}
}

// close ends all streams, and waits until nothing runs any more.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	list := make([]*stream, 0, len(h.streams))
	for st := range h.streams {
		list = append(list, st)
	}
	h.mu.Unlock()
	for _, st := range list {
		h.leave(st)
	}
	h.all.Wait()
}

// subjects lists what streams are about.
func (h *hub) subjects() map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string]bool{}
	for st := range h.streams {
		all[st.subject] = true
	}
	return all
}

// send sends what has changed, each second.
func (h *hub) send(stop <-chan struct{}) {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	last := map[string][]byte{}
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		changed := map[string][]byte{}
		for subject := range h.subjects() {
			if event := h.event(subject); !bytes.Equal(event, last[subject]) {
				changed[subject], last[subject] = event, event
			}
		}
		h.deliver(changed)
	}
}

// event returns the event that shows the present state of a subject.
func (h *hub) event(subject string) []byte {
	text, err := json.Marshal(h.make(subject))
	if err != nil {
		return nil // it has nothing but texts
	}
	return fmt.Appendf(nil, "data: %s\n\n", text)
}

// deliver gives each stream its event. It waits for none: one that is too far behind ends.
func (h *hub) deliver(bySubject map[string][]byte) {
	h.mu.Lock()
	var late []*stream
	for st := range h.streams {
		event := bySubject[st.subject]
		if event == nil {
			continue
		}
		select {
		case st.events <- event:
		default:
			late = append(late, st)
		}
	}
	h.mu.Unlock()
	for _, st := range late {
		h.leave(st)
	}
}

// serveEvents sends events until the viewer goes, is too slow, or the process stops.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	subject := r.URL.Query().Get("target")
	if _, ok := s.target(subject); !ok && subject != "" {
		s.fail(w, r, http.StatusNotFound, "there is no such target")
		return
	}
	st := s.hub.join(subject)
	if st == nil {
		w.Header().Set("Retry-After", "15")
		http.Error(w, "enough viewers get events: poll events.json", http.StatusServiceUnavailable)
		return
	}
	defer s.hub.leave(st)
	to := http.NewResponseController(w)
	_ = to.SetReadDeadline(time.Time{}) // that of requests would end the stream
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // of proxies
	write := func(event []byte) bool {
		if to.SetWriteDeadline(time.Now().Add(eventTimeout)) != nil {
			return false
		}
		_, err := w.Write(event)
		return err == nil && to.Flush() == nil
	}
	if !write(append([]byte("retry: 5000\n"), s.hub.event(subject)...)) {
		return
	}
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		event := []byte(": alive\n\n")
		select {
		case <-r.Context().Done():
			return
		case <-alive.C:
		case next, ok := <-st.events:
			if !ok {
				return
			}
			event = next
		}
		if !write(event) {
			return
		}
	}
}

// pollEvents answers a viewer that gets no events.
func (s *Server) pollEvents(w http.ResponseWriter, r *http.Request) {
	subject := r.URL.Query().Get("target")
	if _, ok := s.target(subject); !ok && subject != "" {
		s.fail(w, r, http.StatusNotFound, "there is no such target")
		return
	}
	s.answer(w, s.pulse(subject))
}

// pulse returns the present state of a subject. Since somebody looks, it has records read again
// that are old, and does not wait for them.
func (s *Server) pulse(subject string) pulse {
	p := pulse{Live: map[string]string{}}
	states := s.states()
	versions, held := 0, ""
	for _, t := range s.Targets {
		if subject != "" && t.Name != subject {
			continue
		}
		s.looks.touch(t.Name, s.every(), s.readTarget(t.Name))
		versions += s.looks.peek(t.Name).Version
		if subject != "" {
			s.histories.touch(t.Name, historyEvery, s.readHistory(t.Name))
			versions += s.histories.peek(t.Name).Version
			p.Cells = s.liveCells(t.Name)
		}
		st, ok := states[t.Name]
		if !ok {
			continue
		}
		held += t.Name + "=" + string(st.Held) + ";"
		for name, text := range s.liveTexts(st) {
			p.Live[t.Name+"."+name] = text
		}
	}
	p.Version = fmt.Sprintf("%d;%s", versions, held)
	return p
}
