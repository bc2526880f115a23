package nodewriter

import (
	"testing"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// MigrantOptions say which database a migrant works on, and which target its writer follows.
type MigrantOptions struct {
	Emulator *emulator.Emulator `json:"-"`
	Mode     string             `json:"mode"` // native or datastore
	Project  string             `json:"project"`
	Target   string             `json:"target"`
}

// Stamps are how a writer says when a session expires, in the property expires, in expiry_key, or in both.
type Stamps struct {
	Old       string `json:"old"` // in expires: empty for nothing, timestamp, or key in generation 0
	OldShards int    `json:"oldShards"`
	Key       string `json:"key"` // in expiry_key: empty for nothing, nursery, or follow for the current generation
	Shards    int    `json:"shards"`
}

// A Migrant is a Node process that creates sessions, some of which expire soon, and extends some, while
// their target moves to another layout. At the same time it reads all sessions page by page, in passes, by the
// Node package's reader of sharded data: those have their shard and their time of creation in properties
// that no migration touches.
type Migrant struct{ application Application }

// StartMigrant starts one, which ends with the test.
func StartMigrant(t testing.TB, o MigrantOptions, s Stamps) *Migrant {
	t.Helper()
	m := &Migrant{Application{t, talk(t, "migrant", o.Mode, o.Emulator, o)}}
	m.application.do("start", map[string]any{"stamps": s}, nil)
	return m
}

// Phase changes how it stamps, and waits until it has stamped each live session so.
func (m *Migrant) Phase(s Stamps) {
	m.application.t.Helper()
	m.application.do("phase", map[string]any{"stamps": s}, nil)
}

// AwaitPasses waits until it has begun and ended so many passes.
func (m *Migrant) AwaitPasses(more int) {
	m.application.t.Helper()
	m.application.do("passes", map[string]any{"more": more}, nil)
}

// Found is what a migrant found wrong, and what it did.
type Found struct {
	Turns, Passes, Pages int

	Gaps    []string // its own sessions that were live before and after a pass, and not in it
	Between []string // sessions of anybody that were in the pass before and in the one after, and not in one
	Twice   []string // those that were twice in a pass
	Lost    []string // its own sessions that were live and gone when it extended them

	Expires map[string]int64 // when its own sessions expire, in Unix milliseconds
}

// Stop ends its writing and reading.
func (m *Migrant) Stop() (f Found) {
	m.application.t.Helper()
	m.application.do("stop", nil, &f)
	return f
}
