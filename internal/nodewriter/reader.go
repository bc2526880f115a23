package nodewriter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"testing"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// ReadOptions say what to read by the Node package's reader of sharded data, with Google's
// client for the mode of the emulator.
type ReadOptions struct {
	Emulator  *emulator.Emulator `json:"-"`
	Mode      string             `json:"mode"` // native or datastore
	Project   string             `json:"project"`
	Database  string             `json:"database,omitempty"` // empty for the default one
	Namespace string             `json:"namespace,omitempty"`
	Kind      string             `json:"kind"` // or the collection
	Group     bool               `json:"group,omitempty"`
	Ancestor  []string           `json:"ancestor,omitempty"` // kinds and names
	Where     map[string]any     `json:"where,omitempty"`
	Order     string             `json:"order,omitempty"` // of the query that is read, which is refused

	Shard  string   `json:"shard"`
	Time   string   `json:"time"`
	Shards int      `json:"shards,omitempty"` // its values are 0 to Shards-1
	Values []string `json:"values,omitempty"` // or these

	Newest   bool   `json:"newest,omitempty"`
	From     string `json:"from,omitempty"`
	Until    string `json:"until,omitempty"`
	Limit    int    `json:"limit"`
	PerQuery int    `json:"perQuery,omitempty"`
	Page     int    `json:"page,omitempty"`
	After    string `json:"after,omitempty"` // the token of the first page
}

// A page is what the Node process answers.
type page struct {
	Names []string
	More  bool
	Error string
}

func start(t testing.TB, o ReadOptions) (next func() page) {
	t.Helper()
	ask := talk(t, "read", o.Mode, o.Emulator, o)
	return func() (p page) {
		t.Helper()
		if line := ask(""); json.Unmarshal(line, &p) != nil {
			t.Fatalf("the Node reader's page: %s", line)
		}
		return p
	}
}

// ReadError reads a page, and returns the error that this gives.
func ReadError(t testing.TB, o ReadOptions) string {
	t.Helper()
	p := start(t, o)()
	if p.Error == "" {
		t.Errorf("the Node reader has no error, but reads %q", p.Names)
	}
	return p.Error
}

// Read starts a Node process and returns a function that reads the next page with it: the
// names of its entities or documents, and whether there may be another page. The names are
// paths in native mode, and /Kind:"name" or /Kind:#id for each part of a key in Datastore mode.
func Read(t testing.TB, o ReadOptions) (page func() (names []string, more bool)) {
	t.Helper()
	next := start(t, o)
	return func() ([]string, bool) {
		t.Helper()
		p := next()
		if p.Error != "" {
			t.Fatalf("the Node reader: %s", p.Error)
		}
		return p.Names, p.More
	}
}

// ReadAll reads all pages that are not empty.
func ReadAll(t testing.TB, o ReadOptions) (pages [][]string) {
	t.Helper()
	page := Read(t, o)
	for more := true; more; {
		var names []string
		if names, more = page(); len(names) > 0 {
			pages = append(pages, names)
		}
	}
	return pages
}

// CheckReadWhile reads page by page, and writes before each page and while it is read. It
// reports an error unless what is stable, because it is there all the time, comes in its
// order, and nothing comes twice.
func CheckReadWhile(t *testing.T, o ReadOptions, write func(), isStable map[string]bool, inOrder []string) {
	t.Helper()
	page := Read(t, o)
	var got []string
	isSeen := map[string]bool{}
	for more := true; more; {
		write()
		done := make(chan struct{})
		go func() { // while the page is read
			defer close(done)
			write()
		}()
		var names []string
		names, more = page()
		<-done
		for _, s := range names {
			if isSeen[s] {
				t.Errorf("%s came twice", s)
			}
			isSeen[s] = true
		}
		got = append(got, names...)
	}
	t.Logf("%d came, %d of them were there all the time", len(got), len(inOrder))
	if len(got) == len(inOrder) {
		t.Error("nothing was written meanwhile")
	}
	if got = slices.DeleteFunc(got, func(s string) bool { return !isStable[s] }); !slices.Equal(got, inOrder) {
		t.Errorf("of what was there all the time came %d, want %d in their order", len(got), len(inOrder))
	}
}

// talk starts a program, which ends with the test, and returns a function that sends it a line
// and returns its answer.
func talk(t testing.TB, program, mode string, e *emulator.Emulator, options any) (ask func(line string) []byte) {
	t.Helper()
	env := map[string]string{"native": "FIRESTORE_EMULATOR_HOST=", "datastore": "DATASTORE_EMULATOR_HOST="}[mode] + e.Host
	args, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(t, program, "firestore", env, string(args))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() // the process ends with its input
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s.mjs: %v: %s", program, err, bytes.TrimSpace(stderr.Bytes()))
		}
	})
	lines := bufio.NewReader(out)
	return func(line string) []byte {
		t.Helper()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatalf("ask %s.mjs: %v", program, err)
		}
		answer, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatalf("%s.mjs has no answer: %v", program, err)
		}
		return bytes.TrimSpace(answer)
	}
}
