package emulator_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

const childEnv = "EMULATOR_TEST_CHILD"

func TestMain(m *testing.M) { emulator.Main(m) }

func TestStartIsShared(t *testing.T) {
	for _, mode := range []emulator.Mode{emulator.Datastore, emulator.Native} {
		e := emulator.Start(t, mode)
		if again := emulator.Start(t, mode); again != e {
			t.Errorf("%s: second Start returned another emulator, at %s instead of %s", mode, again.Host, e.Host)
		}
		if a, b := e.Project(t), e.Project(t); a == b {
			t.Errorf("%s: two projects have the id %s", mode, a)
		}
		resp, err := http.Get("http://" + e.Host + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", mode, resp.Status, body)
		}
	}
}

// TestEndsWithItsTestBinary kills a test binary that has an emulator, with a
// signal that it cannot handle, and waits for the emulator to be gone.
func TestEndsWithItsTestBinary(t *testing.T) {
	if os.Getenv(childEnv) == "1" {
		e := emulator.Start(t, emulator.Datastore)
		_, _ = os.Stdout.WriteString("host " + e.Host + "\n")
		_, _ = io.Copy(io.Discard, os.Stdin) // until killed
		return
	}
	emulator.Start(t, emulator.Datastore) // or skip
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEndsWithItsTestBinary$")
	child.Env = append(emulator.Alone(os.Environ()), childEnv+"=1")
	if _, err := child.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	host := ""
	for lines := bufio.NewScanner(out); host == "" && lines.Scan(); {
		host, _ = strings.CutPrefix(lines.Text(), "host ")
	}
	if host == "" {
		t.Fatal("the child did not say where its emulator is")
	}
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatalf("the child's emulator: %v", err)
	}
	defer conn.Close()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // "signal: killed"
	ended := make(chan struct{})
	go func() { // the connection ends when the emulator does
		_, _ = io.Copy(io.Discard, conn)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(3 * time.Minute): // on a busy machine
		t.Fatalf("the emulator at %s outlived its test binary", host)
	}
	// A dying process closes its files one by one: the listener may come last.
	for deadline := time.Now().Add(time.Minute); ; {
		again, err := net.Dial("tcp", host)
		if err != nil {
			break
		}
		again.Close()
		if time.Now().After(deadline) {
			t.Fatalf("the emulator at %s closed a connection but still listens", host)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
