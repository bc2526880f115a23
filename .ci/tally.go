//go:build ignore

// Tally reads the output of go test -json from standard input, prints what
// failed and how long each package took, and counts. It exits with 1 where a
// test or a package failed, and, without -allow-skips, where a test skipped.
//
//	go test -json ./... | go run .ci/tally.go -counts FILE
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
)

type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Elapsed    float64
	Output     string
}

func main() {
	allowSkips := flag.Bool("allow-skips", false, "tests may skip")
	counts := flag.String("counts", "", "append \"PASSED FAILED SKIPPED\" to this `file`")
	flag.Parse()

	t := tally{output: map[string][]string{}}
	t.read(bufio.NewReader(os.Stdin))
	t.leftovers()
	if *counts != "" {
		if err := t.save(*counts); err != nil {
			fmt.Fprintln(os.Stderr, "tally:", err)
			os.Exit(1)
		}
	}
	fmt.Printf("%d tests passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	if t.skipped > 0 && !*allowSkips {
		fmt.Println("a test that skips proves nothing: no skips are allowed here")
		t.bad = true
	}
	if t.passed == 0 {
		fmt.Println("no test ran")
		t.bad = true
	}
	if t.bad {
		os.Exit(1)
	}
}

type tally struct {
	output                  map[string][]string // by package and test, until it passes
	passed, failed, skipped int
	bad                     bool
}

func (t *tally) read(in *bufio.Reader) {
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Print(line) // not a test's: the go command itself speaks
				continue
			}
			t.count(e)
		}
		if err != nil {
			break
		}
	}
}

func (t *tally) count(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "start":
		t.output[key] = nil
	case "output":
		t.output[key] = append(t.output[key], e.Output)
	case "build-output":
		fmt.Print(e.Output)
	case "build-fail":
		t.bad = true
	case "pass":
		if e.Test != "" {
			t.passed++
		} else {
			fmt.Printf("ok   %7.1fs %s\n", e.Elapsed, e.Package)
		}
		delete(t.output, key)
	case "fail":
		t.bad = true
		if e.Test != "" {
			t.failed++
		} else {
			fmt.Printf("FAIL %7.1fs %s\n", e.Elapsed, e.Package)
		}
		fmt.Print(strings.Join(t.output[key], ""))
		delete(t.output, key)
	case "skip":
		if e.Test != "" { // a package without tests skips too
			t.skipped++
			fmt.Printf("skipped: %s\n%s", key, strings.Join(t.output[key], ""))
		}
		delete(t.output, key)
	}
}

// leftovers counts what did not end: a panic, a race at exit or a timeout leaves
// tests without an end, and a killed go command whole packages.
func (t *tally) leftovers() {
	for key, lines := range t.output {
		t.bad = true
		t.failed++
		fmt.Printf("never ended: %s\n%s", key, strings.Join(lines, ""))
	}
}

func (t *tally) save(counts string) error {
	f, err := os.OpenFile(counts, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = fmt.Fprintln(f, t.passed, t.failed, t.skipped)
	}
	if err == nil {
		err = f.Close()
	}
	return err
}
