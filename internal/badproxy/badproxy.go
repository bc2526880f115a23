// Package badproxy is a TCP proxy with a bad network behind it, for tests: it
// delays what it forwards, holds it back for a while, closes one direction of a
// connection, and cuts connections in the middle of what they say.
//
// The invariant is that of TCP: what arrives is a prefix of what was sent, in
// order, and nothing is lost from the middle. What was held back arrives when the
// proxy is healed, however late, or never if the connection is cut first.
//
// Limits: it knows nothing of the protocol above TCP. Each piece that it reads is delayed
// by itself, so much data takes many delays.
package badproxy

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// A Direction is one half of a connection, or both.
type Direction uint8

const (
	Requests Direction = 1 << iota // from clients to the server
	Replies                        // from the server to clients
	Both     = Requests | Replies
)

// A Proxy listens on a port of its own and forwards to one server. It is safe for
// concurrent use.
type Proxy struct {
	server   string
	listener net.Listener
	running  sync.WaitGroup

	mu          sync.Mutex
	rand        *rand.Rand
	least, most time.Duration // the delay of a piece
	held        Direction
	changed     chan struct{} // closed when held changes
	links       map[*link]struct{}
	closed      bool
}

// New starts a proxy for the server at host:port. Delays are drawn from the seed.
func New(server string, seed uint64) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for clients of %s: %w", server, err)
	}
	p := &Proxy{server: server, listener: l, rand: rand.New(rand.NewPCG(seed, 0)), changed: make(chan struct{}),
		links: map[*link]struct{}{}}
	p.running.Add(1)
	go p.accept()
	return p, nil
}

// Addr returns the host:port at which the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close cuts all connections and stops listening. It returns when all goroutines have ended.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.listener.Close()
	p.Cut()
	p.running.Wait()
}

// Delay makes each piece wait between least and most before it is forwarded.
func (p *Proxy) Delay(least, most time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.least, p.most = least, max(least, most)
}

// Hold forwards nothing in the given direction from now on: neither on the
// connections that are open, nor on new ones. The other direction continues.
func (p *Proxy) Hold(d Direction) { p.hold(d) }

// Heal ends delay and hold, and forwards what was held back.
func (p *Proxy) Heal() {
	p.Delay(0, 0)
	p.hold(0)
}

func (p *Proxy) hold(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = d
	close(p.changed)
	p.changed = make(chan struct{})
}

// Cut resets all connections that are open, with whatever is held back in them,
// and returns how many there were.
func (p *Proxy) Cut() int {
	all := p.open()
	for _, l := range all {
		l.reset()
	}
	return len(all)
}

// CutAfter resets each connection that is open now, once the given number of bytes has
// passed in one direction: most likely in the middle of a message.
func (p *Proxy) CutAfter(d Direction, bytes int) int {
	all := p.open()
	for _, l := range all {
		half := l.half(d)
		half.mu.Lock()
		half.cutting, half.left = true, bytes
		half.mu.Unlock()
	}
	return len(all)
}

// HalfClose ends one direction of all connections that are open, as if its sender
// had closed it. The other direction continues.
func (p *Proxy) HalfClose(d Direction) int {
	all := p.open()
	for _, l := range all {
		if d&Requests != 0 {
			l.requests.end()
		}
		if d&Replies != 0 {
			l.replies.end()
		}
	}
	return len(all)
}

func (p *Proxy) open() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*link, 0, len(p.links))
	for l := range p.links {
		all = append(all, l)
	}
	return all
}

func (p *Proxy) accept() {
	defer p.running.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			client.Close()
			continue
		}
		c, s := client.(*net.TCPConn), server.(*net.TCPConn) // both were made for "tcp"
		l := &link{client: c, server: s, done: make(chan struct{})}
		l.requests = &half{proxy: p, link: l, direction: Requests, from: c, to: s}
		l.replies = &half{proxy: p, link: l, direction: Replies, from: s, to: c}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			l.reset()
			continue
		}
		p.links[l] = struct{}{}
		p.running.Add(1)
		p.mu.Unlock()
		go func() {
			defer p.running.Done()
			l.run()
			p.mu.Lock()
			delete(p.links, l)
			p.mu.Unlock()
		}()
	}
}

// A link is a client's connection, and the one to the server that belongs to it.
type link struct {
	client, server    *net.TCPConn
	requests, replies *half
	once              sync.Once
	done              chan struct{} // closed by reset
}

func (l *link) half(d Direction) *half {
	if d == Requests {
		return l.requests
	}
	return l.replies
}

// run forwards in both directions until both have ended.
func (l *link) run() {
	var both sync.WaitGroup
	both.Go(l.requests.run)
	both.Go(l.replies.run)
	both.Wait()
	l.client.Close()
	l.server.Close()
}

// reset closes both connections so that either peer sees a reset, not an end.
func (l *link) reset() {
	l.once.Do(func() {
		close(l.done)
		for _, c := range []*net.TCPConn{l.client, l.server} {
			_ = c.SetLinger(0) // a connection that is closed already needs no reset
			c.Close()
		}
	})
}

// A half is one direction of a link.
type half struct {
	proxy     *Proxy
	link      *link
	direction Direction
	from, to  *net.TCPConn

	mu      sync.Mutex
	ended   bool // further data is discarded
	cutting bool // the link is reset once left bytes have passed
	left    int
}

func (h *half) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	_ = h.to.CloseWrite() // it may be closed already
}

// run forwards until the sender ends its direction, or the link is reset.
func (h *half) run() {
	piece := make([]byte, 16<<10)
	for {
		n, err := h.from.Read(piece)
		if n > 0 && (!h.pass() || !h.write(piece[:n])) {
			h.link.reset()
			return
		}
		if err == io.EOF { //nolint:errorlint // Read returns it as it is
			if h.pass() {
				h.end()
			}
			return
		}
		if err != nil {
			h.link.reset()
			return
		}
	}
}

// pass waits until a piece may be forwarded. It reports false when the link is reset.
func (h *half) pass() bool {
	p := h.proxy
	p.mu.Lock()
	wait := p.least
	if spread := p.most - p.least; spread > 0 {
		wait += time.Duration(p.rand.Int64N(int64(spread)))
	}
	p.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	if wait > 0 {
		select {
		case <-timer.C:
		case <-h.link.done:
			return false
		}
	}
	for {
		p.mu.Lock()
		held, changed := p.held&h.direction != 0, p.changed
		p.mu.Unlock()
		if !held {
			return true
		}
		select {
		case <-changed:
		case <-h.link.done:
			return false
		}
	}
}

// write forwards a piece, or the part that may pass. It reports false if the link must be
// reset.
func (h *half) write(piece []byte) bool {
	h.mu.Lock()
	ended, cut := h.ended, h.cutting && len(piece) >= h.left
	if cut {
		piece = piece[:h.left]
	}
	h.left -= len(piece)
	h.mu.Unlock()
	if ended {
		return true
	}
	_, err := h.to.Write(piece)
	h.mu.Lock()
	defer h.mu.Unlock()
	return !cut && (err == nil || h.ended)
}
