package nodewriter

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// TestTheDocumentedFollower runs the code in docs/generations.md against the test
// vectors next to it.
func TestTheDocumentedFollower(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		emulator.Unavailable(t, "node is not installed")
	}
	doc, err := os.ReadFile("../../docs/generations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, code, found := strings.Cut(string(doc), "```js\n")
	code, _, closed := strings.Cut(code, "```")
	if !found || !closed {
		t.Fatal("docs/generations.md has no JavaScript")
	}
	code += `
import fs from "node:fs";
const v = JSON.parse(fs.readFileSync("../../docs/generation-vectors.json"));
const opened = "2026-11-21T00:00:00.000000Z";
const record = { nursery_shards: 4, generations: [
  { number: 1, shards: 4, opened, closed: "", ramp_ms: 0 }, { number: 2, shards: 4, opened, closed: "", ramp_ms: 3600000 }] };
const wrong = [
  ...v.hashes.filter((c) => moveHash(c.id, c.generation) !== c.hash),
  ...v.shares.filter((c) => Math.abs(share(c.elapsed_ms, c.ramp_ms) - c.share) > 1e-12),
  ...v.stamps.filter((c) => generationFor(record, c.id, Date.parse(opened) + c.elapsed_ms).number !== c.generation),
];
console.log(v.hashes.length + v.shares.length + v.stamps.length, "vectors,", wrong.length, "wrong", wrong);
process.exit(wrong.length);
`
	cmd := exec.CommandContext(t.Context(), node, "--input-type=module", "-")
	cmd.Stdin = strings.NewReader(code)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "42 vectors, 0 wrong") {
		t.Errorf("%v\n%s", err, out)
	}
}
