package nodewriter

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// ApplicationOptions say what an application keeps its sessions in.
type ApplicationOptions struct {
	Emulator *emulator.Emulator `json:"-"`
	Mode     string             `json:"mode"` // native or datastore
	Project  string             `json:"project"`
	Target   string             `json:"target"`
	Shards   int                `json:"shards"` // of each of its generations
}

// First are the sessions that an application begins with: N, of which every other one was created
// forty days before Now, and the others about an hour before it. The rule of their adoption is a
// life of thirty days.
type First struct {
	N   int
	Now time.Time
}

// An Application is a Node process that keeps sessions with properties of every type, by Google's
// own client, and knows nothing of Go. It creates and extends them, or reads all and compares.
type Application struct {
	t   testing.TB
	ask func(line string) []byte
}

// StartApplication starts one, which ends with the test.
func StartApplication(t testing.TB, o ApplicationOptions) *Application {
	t.Helper()
	return &Application{t, talk(t, "application", o.Mode, o.Emulator, o)}
}

// do sends a command with its arguments, and reads the answer.
func (a *Application) do(command string, arguments map[string]any, answer any) {
	a.t.Helper()
	send := map[string]any{"command": command}
	for name, v := range arguments {
		send[name] = v
	}
	line, err := json.Marshal(send)
	if err != nil {
		a.t.Fatal(err)
	}
	text := a.ask(string(line))
	var failed struct{ Error string }
	if err := json.Unmarshal(text, &failed); err != nil {
		a.t.Fatalf("the Node application: %v\n%.500s", err, text)
	}
	if failed.Error != "" {
		a.t.Fatalf("the Node application: %s", failed.Error)
	}
	if answer == nil {
		return
	}
	if err := json.Unmarshal(text, answer); err != nil {
		a.t.Fatalf("the Node application: %v\n%.500s", err, text)
	}
}

// Few is how many there are of something, and some of them.
type Few struct {
	N   int
	Few []string
}

// A Copy is what an application has read.
type Copy struct {
	Sessions int
	Keyed    int // how many have an expiry key
	Outside  Few // those that have a key and are not in the share
}

// Fill writes the first sessions.
func (a *Application) Fill(f First) {
	a.t.Helper()
	a.do("fill", map[string]any{"n": f.N, "now": f.Now.UnixMilli()}, nil)
}

// Read reads all sessions and keeps them under a name. The share of those that may have a key is
// chosen by the salt.
func (a *Application) Read(as, salt string, percent float64) (c Copy) {
	a.t.Helper()
	a.do("read", map[string]any{"as": as, "salt": salt, "percent": percent}, &c)
	return c
}

// Compare returns how two copies differ, in keys too.
func (a *Application) Compare(one, other string) Few {
	a.t.Helper()
	var answer struct{ Different Few }
	a.do("compare", map[string]any{"a": one, "b": other}, &answer)
	return answer.Different
}

// Audit reads all sessions, and returns what is wrong with them: the copy was read when only the first
// sessions were there, and the wrote are of all writers. Exactly those that have expired may be gone,
// every property of all others must be what was written, and each must have the key of the rule.
func (a *Application) Audit(f First, copied string, wrote []Written) (sessions int, wrong Few) {
	a.t.Helper()
	var answer struct {
		Sessions int
		Wrong    Few
	}
	a.do("audit", map[string]any{"before": copied, "n": f.N, "now": f.Now.UnixMilli(), "writers": wrote}, &answer)
	return answer.Sessions, answer.Wrong
}

// Write begins to create sessions, and to extend its part of the first ones, without keys.
func (a *Application) Write(name string, f First, part, parts int) {
	a.t.Helper()
	a.do("start", map[string]any{"name": name, "n": f.N, "now": f.Now.UnixMilli(), "part": part, "parts": parts}, nil)
}

// AwaitTurns waits until it has made some more turns, each of which creates a session, replaces one and
// updates one.
func (a *Application) AwaitTurns(more int) {
	a.t.Helper()
	a.do("turns", map[string]any{"more": more}, nil)
}

// LeaveKey extends a session whose key says that it has expired, and leaves the key as it is. It
// returns the session's id.
func (a *Application) LeaveKey() string {
	a.t.Helper()
	var answer struct{ ID string }
	a.do("leaveKey", nil, &answer)
	return answer.ID
}

// GiveKeys lets it write keys from now on, and write each of its sessions once more.
func (a *Application) GiveKeys() {
	a.t.Helper()
	a.do("giveKeys", nil, nil)
}

// Written is what an application knows of its own sessions.
type Written struct {
	Turns int               `json:"turns"`
	Lost  []string          `json:"lost"` // gone, although they were live
	Gone  []string          `json:"gone"` // expired and gone before it could extend them
	Known []json.RawMessage `json:"known"`
}

// StopWriting ends its writing.
func (a *Application) StopWriting() (w Written) {
	a.t.Helper()
	a.do("stop", nil, &w)
	return w
}
