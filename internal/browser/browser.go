// Package browser visits pages in headless Chromium, for tests: a Node program on
// puppeteer-core looks at them as a person's browser does, and axe-core checks them for
// barriers.
//
// The invariant is that a visit reports all that a browser complains of: messages of the
// console, scripts and styles that a policy has blocked, answers that are errors, and each
// request that does not go to the visited server.
//
// It needs Chromium, as Debian's package chromium has it, Node 20 or later, and two packages
// that are not part of the repository:
//
//	(cd internal/browser && npm ci)
//
// Without them a test skips and says so, unless EMULATOR_REQUIRED=1 is set.
//
// Limits: Chromium runs without its sandbox, so it must visit nothing but a test's own server.
package browser

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// A Visit says what to look at, and how.
type Visit struct {
	URL      string   `json:"url"`
	Width    int      `json:"width"`
	Height   int      `json:"height"`
	Dark     bool     `json:"dark"`
	NoScript bool     `json:"noScript"`
	Keys     []string `json:"keys"`  // that are pressed once it is loaded
	Await    []string `json:"await"` // expressions in JavaScript that have to become true, one after the other
	Eval     string   `json:"eval"`  // an expression whose value is wanted at the end
	Axe      bool     `json:"axe"`   // look for barriers
	Shot     string   `json:"shot"`  // the file for a screenshot; empty for none
	Whole    bool     `json:"whole"` // of the whole page, not only of what fits in the window
}

// A Seen is what became of a visit.
type Seen struct {
	Console    []string        `json:"console"`    // messages, errors and failed requests
	Elsewhere  []string        `json:"elsewhere"`  // requests to other servers
	Violations []string        `json:"violations"` // barriers
	Value      json.RawMessage `json:"value"`
	Wide       int             `json:"wide"` // by how many pixels the page is wider than the window
	LoadMS     int             `json:"loadMs"`
}

// patience is how long an expression may take to become true, on a busy machine.
const patience = 2 * time.Minute

// Look makes visits, one after the other, in one browser. It skips the test if something that it
// needs is missing.
func Look(t testing.TB, visits ...Visit) (seen []Seen) {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Dir(file)
	node, err := exec.LookPath("node")
	if err != nil {
		emulator.Unavailable(t, "no page can be visited: %v", err)
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		emulator.Unavailable(t, "no page can be visited: %v (apt-get install chromium)", err)
	}
	for _, need := range []string{"puppeteer-core", "axe-core"} {
		if _, err := os.Stat(filepath.Join(dir, "node_modules", need)); err != nil {
			emulator.Unavailable(t, "no page can be visited: %v (cd internal/browser && npm ci)", err)
		}
	}
	for i := range visits {
		visits[i].Keys = append([]string{}, visits[i].Keys...) // an empty list, not null
		visits[i].Await = append([]string{}, visits[i].Await...)
	}
	order, err := json.Marshal(map[string]any{"chromium": chromium, "patienceMs": patience.Milliseconds(),
		"visits": visits})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node, filepath.Join(dir, "drive.mjs"), string(order))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("the browser: %v: %.3000s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	if err := json.Unmarshal(stdout.Bytes(), &seen); err != nil {
		t.Fatalf("the browser: %v: %.500s", err, stdout.Bytes())
	}
	return seen
}
