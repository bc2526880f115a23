package badproxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// A wire is a client's connection through a proxy, and the server's end of it.
type wire struct {
	t              *testing.T
	proxy          *Proxy
	client, server net.Conn
}

func newWire(t *testing.T) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p, err := New(l.Addr().String(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	w := &wire{t: t, proxy: p}
	if w.client, err = net.Dial("tcp", p.Addr()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.client.Close() })
	if w.server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.server.Close() })
	w.say(w.client, w.server, "hello") // the proxy knows of the connection
	w.say(w.server, w.client, "welcome")
	return w
}

// say sends a text and wants it to arrive.
func (w *wire) say(from, to net.Conn, text string) {
	w.t.Helper()
	w.send(from, text)
	w.hear(to, text)
}

func (w *wire) send(from net.Conn, text string) {
	w.t.Helper()
	if _, err := io.WriteString(from, text); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) hear(to net.Conn, text string) {
	w.t.Helper()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		w.t.Fatalf("arrived: %q, %v, want %q", got, err, text)
	}
}

// silent wants nothing to arrive for a moment.
func (w *wire) silent(to net.Conn) {
	w.t.Helper()
	if err := to.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		w.t.Fatal(err)
	}
	if n, err := to.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		w.t.Fatalf("%d bytes arrived, %v", n, err)
	}
	if err := to.SetReadDeadline(time.Time{}); err != nil {
		w.t.Fatal(err)
	}
}

// broken wants the connection to be reset after at most a prefix of the text, and
// not to end as if all had been said.
func (w *wire) broken(to net.Conn, prefix string) {
	w.t.Helper()
	got, err := io.ReadAll(to)
	if err == nil || !bytes.HasPrefix([]byte(prefix), got) {
		w.t.Fatalf("arrived: %q, %v, want at most %q and an error", got, err, prefix)
	}
}

func TestDelay(t *testing.T) {
	w := newWire(t)
	const delay = 30 * time.Millisecond
	w.proxy.Delay(delay, 2*delay)
	began := time.Now()
	w.say(w.client, w.server, "question")
	w.say(w.server, w.client, "answer")
	if took := time.Since(began); took < 2*delay {
		t.Errorf("there and back took %v, want at least %v", took, 2*delay)
	}
	w.proxy.Heal()
	w.say(w.client, w.server, "question")
}

func TestHoldAndHeal(t *testing.T) {
	for _, d := range []Direction{Requests, Replies, Both} {
		w := newWire(t)
		w.proxy.Hold(d)
		w.send(w.client, "question")
		w.send(w.server, "answer")
		for _, half := range []struct {
			d    Direction
			to   net.Conn
			text string
		}{{Requests, w.server, "question"}, {Replies, w.client, "answer"}} {
			if d&half.d == 0 {
				w.hear(half.to, half.text)
				continue
			}
			w.silent(half.to)
			defer w.hear(half.to, half.text)
		}
		w.proxy.Heal()
	}
}

func TestCutLosesWhatIsHeld(t *testing.T) {
	w := newWire(t)
	w.proxy.Hold(Replies)
	w.say(w.client, w.server, "question") // it arrived and took effect,
	w.send(w.server, "answer")            // and nobody will know
	w.silent(w.client)
	if n := w.proxy.Cut(); n != 1 {
		t.Errorf("%d connections cut, want 1", n)
	}
	w.broken(w.client, "")
	w.broken(w.server, "")
	w.proxy.Heal()
	if n := w.proxy.Cut(); n > 1 {
		t.Errorf("%d connections are open", n)
	}
}

func TestCutInMidStream(t *testing.T) {
	w := newWire(t)
	w.proxy.CutAfter(Replies, 7)
	w.say(w.server, w.client, "whole")
	w.send(w.server, "broken")
	w.broken(w.client, "br")
	w.broken(w.server, "")
}

func TestHalfClose(t *testing.T) {
	w := newWire(t)
	w.proxy.HalfClose(Replies)
	if rest, err := io.ReadAll(w.client); err != nil || len(rest) > 0 {
		t.Fatalf("replies: %q, %v, want their end", rest, err)
	}
	w.say(w.client, w.server, "still there")
	w.send(w.server, "to nobody")
	w.say(w.client, w.server, "still there")

	w = newWire(t)
	w.proxy.HalfClose(Requests)
	if rest, err := io.ReadAll(w.server); err != nil || len(rest) > 0 {
		t.Fatalf("requests: %q, %v, want their end", rest, err)
	}
	w.say(w.server, w.client, "still there")
}

// What a peer ends, the other one sees end, and not break.
func TestEndsAreForwarded(t *testing.T) {
	w := newWire(t)
	w.send(w.client, "last words")
	if err := w.client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(w.server); err != nil || string(got) != "last words" {
		t.Errorf("%q, %v", got, err)
	}
	w.say(w.server, w.client, "answer")
}

func TestCloseEndsAll(t *testing.T) {
	w := newWire(t)
	w.proxy.Hold(Both)
	w.send(w.client, "question")
	w.proxy.Close()
	w.broken(w.client, "")
	if c, err := net.Dial("tcp", w.proxy.Addr()); err == nil {
		c.Close()
		t.Error("it still listens")
	}
}
