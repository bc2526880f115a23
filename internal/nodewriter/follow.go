package nodewriter

import (
	"testing"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// Follow starts a Node process that follows a target with Google's client for the mode (native
// or datastore), as the README of writers/node shows it, and returns a function that stamps an
// entity which expires in 2030.
func Follow(t testing.TB, e *emulator.Emulator, mode, project, target string) (stamp func(id string) (key string)) {
	t.Helper()
	ask := talk(t, "follow", mode, e, map[string]string{"mode": mode, "project": project, "target": target})
	return func(id string) string {
		t.Helper()
		return string(ask(id))
	}
}
