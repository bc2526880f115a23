package nodewriter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
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
}

// Read starts a Node process and returns a function that reads the next page with it: the
// names of its entities or documents, and whether there may be another page. The names are
// paths in native mode, and /Kind:"name" or /Kind:#id for each part of a key in Datastore mode.
func Read(t testing.TB, o ReadOptions) (page func() (names []string, more bool)) {
	t.Helper()
	ask := talk(t, "read", o.Mode, o.Emulator, o)
	return func() ([]string, bool) {
		t.Helper()
		var p struct {
			Names []string
			More  bool
		}
		if line := ask(""); json.Unmarshal(line, &p) != nil {
			t.Fatalf("the Node reader's page: %s", line)
		}
		return p.Names, p.More
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
