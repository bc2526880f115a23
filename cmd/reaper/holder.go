package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
)

// An embedded store can be open in one process only. While reaper serve has it, that
// process answers these commands: a process that runs one of them sends it there, and prints
// what comes back.
var answered = []string{"status", "explain", "list", "history", "pause", "resume", "pace", "breaker", "doctor", "plan"}

// answerTimeout is how long the process that has the store open may take before it says
// anything at all.
const answerTimeout = 5 * time.Second

// A request is a command for the process that has the store open.
type request struct {
	Args     []string     `json:"args"`
	File     *targetsFile `json:"file"`
	Terminal bool         `json:"terminal"` // stdout is one
}

// A targetsFile is the targets file of the process that sends a command.
type targetsFile struct {
	Name string `json:"name"`
	Text []byte `json:"text"`
}

// A piece is a part of what a command prints, or its end.
type piece struct {
	Out  []byte `json:"out,omitempty"`
	Log  []byte `json:"log,omitempty"`
	Code *int   `json:"code,omitempty"`
}

// A holder says who has a store open.
type holder struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	Page    string    `json:"page"` // where it shows its page; empty without one
}

func (h holder) String() string {
	return fmt.Sprintf("reaper serve %s, process %d on %s since %s", h.Version, h.PID, h.Host, timeText(h.Since))
}

// A served is the request that an app works on in the process that has the store open, and
// that store.
type served struct {
	request
	db store.Store
}

// openFile opens the targets file, and keeps what it holds for the process that may have
// the store open. In that process it is the one that came with the request.
func (a *app) openFile(name string) (io.ReadCloser, error) {
	if a.served != nil {
		if f := a.served.File; f != nil && f.Name == name {
			return io.NopCloser(bytes.NewReader(f.Text)), nil
		}
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	a.file, a.fileText = name, new(bytes.Buffer)
	return struct {
		io.Reader
		io.Closer
	}{io.TeeReader(f, a.fileText), f}, nil
}

// delegate has a command answered by the process that has its store open. Locked is what
// opening the store failed with.
func (a *app) delegate(cmd *cobra.Command, locked error) error {
	dir := a.locked
	if a.served != nil || dir == "" {
		return locked
	}
	client := &http.Client{Transport: &http.Transport{ResponseHeaderTimeout: answerTimeout, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialIn(ctx, dir) }}}
	var who holder
	if err := ask(cmd.Context(), client, http.MethodGet, "holder", nil, func(r io.Reader) error {
		return json.NewDecoder(r).Decode(&who)
	}); err != nil {
		return unanswered(dir, err)
	}
	if wordsOf(cmd)[0] == "page" && who.Page != "" {
		return fmt.Errorf("open embedded store %s: %w: %v has it, and shows the page itself: %s", dir, store.ErrLocked, who,
			who.Page)
	}
	if !slices.Contains(answered, wordsOf(cmd)[0]) {
		return fmt.Errorf("open embedded store %s: %w: %v has it. Stop it first for %s; it answers %s itself", dir,
			store.ErrLocked, who, strings.Join(wordsOf(cmd), " "), strings.Join(answered, ", "))
	}
	body, err := json.Marshal(a.requestOf(cmd))
	if err != nil {
		return err
	}
	code := -1
	err = ask(cmd.Context(), client, http.MethodPost, "command", bytes.NewReader(body), func(r io.Reader) (err error) {
		code, err = a.relay(r)
		return err
	})
	switch watch := cmd.Flags().Lookup("watch"); {
	case err == nil:
		return &exit{code, nil}
	case cmd.Context().Err() != nil && watch != nil && watch.Changed: // that is how a person ends it
		return nil
	}
	return fmt.Errorf("%v has %s open, and did not answer to the end: %w", who, dir, err)
}

// wordsOf returns the words that name a command, such as breaker and show.
func wordsOf(cmd *cobra.Command) []string { return strings.Fields(cmd.CommandPath())[1:] }

// unanswered returns the error of a command whose store another process has open that
// does not answer.
func unanswered(dir string, err error) error {
	path := filepath.Join(dir, socketName)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("open embedded store %s: %w, which answers no commands, as reaper serve would: it is another "+
			"reaper command, such as load or sweep, or is just beginning or ending. Try again once it has ended", dir,
			store.ErrLocked)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("open embedded store %s: %w: only its user may use %s (mode 0600): %w", dir, store.ErrLocked, path,
			err)
	}
	return fmt.Errorf("open embedded store %s: %w, which did not answer on %s: %w", dir, store.ErrLocked, path, err)
}

// ask sends a request to the process that has the store open.
func ask(ctx context.Context, c *http.Client, method, what string, body io.Reader, take func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://reaper/"+what, body)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1000))
		return fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	return take(res.Body)
}

// requestOf returns a command as it is to be run elsewhere: with its flags, with what this
// process's environment says of the same settings, and with its targets file.
func (a *app) requestOf(cmd *cobra.Command) request {
	o := request{Args: wordsOf(cmd), Terminal: a.screen.redraw}
	given := map[string]bool{"config": true}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name == "config" {
			return
		}
		given[f.Name] = true
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				o.Args = append(o.Args, "--"+f.Name+"="+v)
			}
			return
		}
		o.Args = append(o.Args, "--"+f.Name+"="+f.Value.String())
	})
	for _, s := range config.Settings() {
		f := cmd.Flags().Lookup(s.Flag)
		value, set := os.LookupEnv(s.Env)
		switch {
		case given[s.Flag] || f == nil || isAlone(f):
			continue
		case !set && s.Flag == "actor":
			value = actor(config.Config{Store: config.Store{Driver: config.Embedded}}, os.Getenv)
		case !set && s.Flag == "log-format":
			value = string(defaultFormat(a.stderr))
		case !set:
			continue
		}
		o.Args = append(o.Args, "--"+s.Flag+"="+value)
	}
	if a.fileText != nil {
		o.File = &targetsFile{a.file, a.fileText.Bytes()}
		o.Args = append(o.Args, "--config="+a.file)
	}
	o.Args = append(o.Args, "--")
	o.Args = append(o.Args, cmd.Flags().Args()...)
	return o
}

// relay prints what a command prints elsewhere, and returns its exit code.
func (c *console) relay(r io.Reader) (code int, err error) {
	for in := json.NewDecoder(r); ; {
		var p piece
		if err := in.Decode(&p); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("it ended before the command did")
			}
			return 0, err
		}
		_, oerr := c.stdout.Write(p.Out)
		_, lerr := c.stderr.Write(p.Log)
		if err := errors.Join(oerr, lerr); err != nil {
			return 0, err
		}
		if p.Code != nil {
			return *p.Code, nil
		}
	}
}

// answer answers commands through the socket in the store's directory, until stop is
// called. Without a socket the daemon works anyway.
func (d *daemon) answer(ctx context.Context) (stop func()) {
	if d.Store.Driver != config.Embedded {
		return func() {}
	}
	l, remove, err := listenIn(ctx, d.Store.Dir)
	if err != nil {
		d.log.WarnContext(ctx, "no socket: other commands cannot use the store while this process has it", "error", err)
		return func() {}
	}
	host, _ := os.Hostname()
	who := holder{os.Getpid(), host, buildVersion(), d.now().UTC().Round(0), d.page}
	ctx, cancel := context.WithCancel(ctx)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /holder", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(who) })
	mux.HandleFunc("POST /command", d.answerOne)
	// Without a ReadTimeout, which would end a command that takes longer.
	server := &http.Server{Handler: mux, ReadHeaderTimeout: httpTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(d.log.Handler(), slog.LevelDebug)}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = server.Serve(l)
	}()
	return func() {
		remove() // while the store is still ours: the next process makes its own
		cancel()
		ending, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer done()
		if server.Shutdown(ending) != nil {
			_ = server.Close()
		}
		<-gone
	}
}

// mostRequest bounds a request, with its targets file.
const mostRequest = 16 << 20

// answerOne runs one command, and sends back what it prints.
func (d *daemon) answerOne(w http.ResponseWriter, r *http.Request) {
	var o request
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostRequest)) // to its end: then a client that goes is noticed
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if len(o.Args) == 0 || !slices.Contains(answered, o.Args[0]) {
		http.Error(w, "this process does not answer that command", http.StatusForbidden)
		return
	}
	to := &pieces{to: json.NewEncoder(w), flush: http.NewResponseController(w).Flush}
	_ = to.write(piece{}) // the client learns at once that somebody works on it
	a := &app{console: &console{stdin: strings.NewReader(""), stdout: pieceWriter{to, false},
		stderr: pieceWriter{to, true}, screen: newScreen(o.Terminal)}, now: d.now, served: &served{o, d.db.Store}}
	d.log.DebugContext(r.Context(), "answering a command", "command", o.Args[0])
	code := a.execute(r.Context(), o.Args)
	_ = to.write(piece{Code: &code}) // the client may be gone
}

// Pieces are sent one by one.
type pieces struct {
	mu    sync.Mutex
	to    *json.Encoder
	flush func() error
}

func (p *pieces) write(one piece) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.to.Encode(one), p.flush())
}

type pieceWriter struct {
	to  *pieces
	log bool
}

func (w pieceWriter) Write(text []byte) (int, error) {
	one := piece{Out: text}
	if w.log {
		one = piece{Log: text}
	}
	return len(text), w.to.write(one)
}
