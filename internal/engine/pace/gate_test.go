package pace_test

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/reaper-ttl/reaper/internal/engine/pace"
)

// FuzzGate lets a gate's server answer anything, and a gate's file have any name. Deletes
// are allowed only if the server answers 200, or if the file does not exist.
func FuzzGate(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 503 busy\r\n\r\nlater", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200\r\n\r\n",
		"HTTP/1.1 0200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "200", "",
	} {
		f.Add("gone", []byte(s))
	}
	f.Add(".", []byte("HTTP/1.1 101 Switching Protocols\r\n\r\n"))
	f.Add("a\x00b", []byte("HTTP/1.1 200 OK\r\n\r\n"))
	f.Add("https:/x", []byte("\n"))
	var answer atomic.Pointer[[]byte]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096)) // the question, so that no reset overtakes the answer
			_, _ = c.Write(*answer.Load())
			c.Close()
		}
	}()
	ask := pace.OpenGate("http://" + l.Addr().String() + "/may/I")
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		answer.Store(&text)
		switch err := ask(t.Context()); {
		case err == nil && !bytes.Contains(text, []byte("200")):
			t.Errorf("the gate is open after %q", text)
		case err != nil && !strings.HasPrefix(err.Error(), "gate"):
			t.Errorf("%q: %v", text, err)
		}
		if name == "" || strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
			return
		}
		_, missing := os.Stat(name)
		if err := pace.OpenGate(name)(t.Context()); (err == nil) != os.IsNotExist(missing) {
			t.Errorf("%q: %v, where %v", name, err, missing)
		}
	})
}

// A redirect closes the gate, even if it leads to a page that answers 200.
func TestGateThatRedirects(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1); r.URL.Path == "/may/I" {
			http.Redirect(w, r, "/login", http.StatusFound)
		}
	}))
	defer s.Close()
	if err := pace.OpenGate(s.URL + "/may/I")(t.Context()); err == nil || !strings.Contains(err.Error(), "302") || asked.Load() != 1 {
		t.Errorf("%v, asked %d times", err, asked.Load())
	}
	if err := pace.OpenGate(s.URL + "/yes")(t.Context()); err != nil {
		t.Error(err)
	}
}
