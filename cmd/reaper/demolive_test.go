package main

import (
	"bufio"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/nightly"
)

// The live demo shows what it promises, ends in good order by a signal or by itself, and draws a picture.
func TestDemoLive(t *testing.T) {
	t.Parallel()
	whole := nightly.Run()
	b := newWorkdir(t, oneTarget)
	cmd, _, log := b.command(nil, "demo", "--live", "--record", "demo.svg", "--dir", "kept")
	cmd.Stdout = nil
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for in := bufio.NewScanner(pipe); in.Scan(); {
		out.WriteString(in.Text() + "\n")
		if !whole && strings.Contains(in.Text(), "12,000 may go") {
			// What has been seen by then is enough for a picture.
			time.AfterFunc(2*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGINT) })
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), log)
	}
	want := []string{"reaper breaker approve ", "12,000 may go", "stopped"}
	if whole {
		want = []string{"12,000 may go", "The store refuses deletes", "The store accepts deletes again", "A mistake in the application",
			"The breaker has held them", "Verified one by one"}
	}
	for _, text := range want {
		if !strings.Contains(out.String(), text) {
			t.Errorf("%q is not in:\n%s", text, out.String())
		}
	}
	file, err := os.Open(filepath.Join(b.dir, "demo.svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	elements := 0
	for d := xml.NewDecoder(bufio.NewReader(file)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
		if _, ok := token.(xml.StartElement); ok {
			elements++
		}
	}
	if elements < 15 {
		t.Errorf("the picture has %d elements", elements)
	}
	b.dir = filepath.Join(b.dir, "kept")
	b.env = []string{"REAPER_STORE=embedded:store"}
	if st := b.status(); len(st.Generations) < 2 {
		t.Errorf("status: %+v", st)
	}
}

func TestDemoLiveRefuses(t *testing.T) {
	b := newWorkdir(t, oneTarget)
	for _, args := range [][]string{
		{"--record", "x.svg"}, {"--live", "--entities", "5000"}, {"--live", "--json"}, {"--live", "--layout", "sharded"},
		{"--live", "--dir", "reaper.yaml"}, {"--live", "--store", "embedded:x"},
	} {
		if r := b.run(nil, append([]string{"demo"}, args...)...); r.code != exitUsage || r.out != "" {
			t.Errorf("%v: exit code %d, stdout %q", args, r.code, r.out)
		}
	}
}
