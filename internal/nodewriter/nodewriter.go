// Package nodewriter writes entities with another language's client, for
// tests: small Node programs on @google-cloud/datastore and
// @google-cloud/firestore build the expiry keys by themselves, as
// docs/key-format.md describes them, after checking their code against
// docs/key-vectors.json.
//
// The invariant is that a program shares nothing with the Go packages but
// that document, so that what [Run] and [RunNative] report is a second opinion.
// [Read], [Follow], [StartApplication] and [StartMigrant] try the package in writers/node with the same
// clients.
//
// It needs Node 20 or later and its packages, which are not part of the
// repository:
//
//	(cd internal/nodewriter && npm ci)
//
// Without them a test skips and says so, unless EMULATOR_REQUIRED=1 is set.
//
// Limits: it writes to emulators only, whose variable it passes to the client in
// every case.
package nodewriter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// Options say what to write. In addition to the entities there are bystanders that
// no sweep may touch: a hundred in each namespace without an expiry, fifty of
// another kind, and fifty of the kind in another namespace.
type Options struct {
	Host       string    `json:"-"` // of the emulator
	Project    string    `json:"project"`
	Database   string    `json:"database"` // empty for the default one
	Kind       string    `json:"kind"`
	Property   string    `json:"property"`
	Namespaces []string  `json:"namespaces"` // the entities are spread over them
	Elsewhere  string    `json:"elsewhere"`  // the by-standers' namespace
	Generation int       `json:"generation"`
	Shards     int       `json:"shards"`
	Entities   int       `json:"entities"` // half of them expired by Now, the others live an hour at least
	Now        time.Time `json:"now"`
}

// A Role is why an entity was written.
type Role string

const (
	Expired        Role = "expired" // the only ones that may go
	Live           Role = "live"
	NoExpiry       Role = "no expiry"
	OtherKind      Role = "other kind"
	OtherNamespace Role = "other namespace"
)

// An Entity is one that was written.
type Entity struct {
	Key    *sdk.Key
	Expiry string // the expiry key; empty without one
	Role   Role
}

// Run writes the entities and returns all of them, by-standers included.
func Run(t testing.TB, o Options) []Entity {
	t.Helper()
	entities, err := parse(run(t, "datastore", "DATASTORE_EMULATOR_HOST="+o.Host, func(vectors string) any {
		return struct {
			Options
			Vectors string `json:"vectors"`
		}{o, vectors}
	}))
	if err != nil {
		t.Fatalf("the Node writer's manifest: %v", err)
	}
	return entities
}

// run runs one of the programs on the package of the same name, with the
// arguments that are made from the path of the test vectors, and returns what it
// prints.
func run(t testing.TB, program, env string, arguments func(vectors string) any) []byte {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	args, err := json.Marshal(arguments(filepath.Join(root, "docs", "key-vectors.json")))
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(t, program, program, env, string(args))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("the Node writer: %v: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes()
}

// command returns a process of a program, or skips the test if Node or the client that the
// program needs is missing.
func command(t testing.TB, program, client, env, args string) *exec.Cmd {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		emulator.Unavailable(t, "the Node writer cannot run: %v", err)
	}
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "internal", "nodewriter")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@google-cloud", client)); err != nil {
		emulator.Unavailable(t, "the Node writer lacks its packages: %v (cd internal/nodewriter && npm ci)", err)
	}
	cmd := exec.Command(node, filepath.Join(dir, program+".mjs"), args)
	// The clients look for Google's machines otherwise.
	cmd.Env = append(os.Environ(), env, "METADATA_SERVER_DETECTION=none")
	return cmd
}

// Available reports whether Node and the packages that the programs need are there.
func Available() bool {
	root, err := moduleRoot()
	if err == nil {
		_, err = exec.LookPath("node")
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(root, "internal", "nodewriter", "node_modules", "@google-cloud", "firestore"))
	}
	return err == nil
}

// moduleRoot looks upwards from the package under test, which may be of another module: bench.
func moduleRoot() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "internal", "nodewriter", "package.json")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no internal/nodewriter in %s or above it", wd)
		}
	}
}

// parse reads the manifest. A path alternates kinds with identifiers, which
// are {"id": digits} or {"name": text}.
func parse(manifest []byte) ([]Entity, error) {
	var m struct {
		Vectors  int
		Entities []struct {
			Namespace string
			Path      []json.RawMessage
			Expiry    string
			Role      Role
		}
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, err
	}
	if m.Vectors < 16 {
		return nil, fmt.Errorf("only %d test vectors were checked", m.Vectors)
	}
	out := make([]Entity, len(m.Entities))
	for i, e := range m.Entities {
		out[i] = Entity{Expiry: e.Expiry, Role: e.Role}
		for path := e.Path; len(path) >= 2; path = path[2:] {
			key := &sdk.Key{Namespace: e.Namespace, Parent: out[i].Key}
			var id struct{ ID, Name string }
			if err := json.Unmarshal(path[0], &key.Kind); err != nil {
				return nil, err
			}
			if err := json.Unmarshal(path[1], &id); err != nil {
				return nil, err
			}
			key.Name = id.Name
			if id.ID != "" {
				n, err := strconv.ParseInt(id.ID, 10, 64)
				if err != nil {
					return nil, err
				}
				key.ID = n
			}
			out[i].Key = key
		}
	}
	return out, nil
}
