package page

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// sharedFor is for how long a page that was made for one viewer is shown to others, too, unless something
	// was read since: what this process knows by itself is no newer than a second anyway, and with many
	// viewers most of the work is to make it.
	sharedFor = time.Second
	// mostShared bounds how many pages are kept for that. Further ones are made for one viewer alone.
	mostShared = 64
)

// A shelf has the pages that were made within the last second, by what was asked for.
type shelf struct {
	now   func() time.Time
	ended func() int64 // counts the reads that have ended
	mu    sync.Mutex
	pages map[string]*sharedPage
}

// A sharedPage is an answer that is being made until done is closed.
type sharedPage struct {
	made   time.Time
	done   chan struct{}
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header, Write and WriteHeader implement [http.ResponseWriter] for what makes the page.
func (p *sharedPage) Header() http.Header  { return p.header }
func (p *sharedPage) WriteHeader(code int) { p.code = code }

func (p *sharedPage) Write(b []byte) (int, error) {
	p.code = cmp.Or(p.code, http.StatusOK)
	return p.body.Write(b)
}

// take returns the page of a key, and whether the caller has to make it; nil if there are too many.
func (s *shelf) take(key string) (p *sharedPage, isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	maps.DeleteFunc(s.pages, func(_ string, p *sharedPage) bool {
		age := now.Sub(p.made)
		return age < 0 || age >= sharedFor // less than 0: the clock was set back
	})
	if p := s.pages[key]; p != nil {
		return p, false
	}
	if len(s.pages) >= mostShared {
		return nil, false
	}
	p = &sharedPage{made: now, done: make(chan struct{}), header: http.Header{}}
	s.pages[key] = p
	return p, true
}

// forViewers answers with a page that was made within the last second, if there is one.
func (s *shelf) forViewers(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p, isNew := s.take(strconv.FormatInt(s.ended(), 10) + " " + r.URL.RequestURI())
		switch {
		case p == nil:
			next(w, r)
			return
		case isNew:
			func() {
				defer close(p.done)
				next(p, r.WithContext(context.WithoutCancel(r.Context()))) // others wait for it, too
			}()
		}
		select {
		case <-p.done:
		case <-r.Context().Done():
			return
		}
		maps.Copy(w.Header(), p.header)
		w.WriteHeader(cmp.Or(p.code, http.StatusInternalServerError)) // what makes it has panicked
		_, _ = w.Write(p.body.Bytes())                                // the viewer may be gone
	}
}
