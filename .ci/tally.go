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

	output := map[string][]string{} // by package and test, until it passes
	var passed, failed, skipped int
	bad := false
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Print(line) // not a test's: the go command itself speaks
				continue
			}
			key := e.Package + " " + e.Test
			switch e.Action {
			case "start":
				output[key] = nil
			case "output":
				output[key] = append(output[key], e.Output)
			case "build-output":
				fmt.Print(e.Output)
			case "build-fail":
				bad = true
			case "pass":
				if e.Test != "" {
					passed++
				} else {
					fmt.Printf("ok   %7.1fs %s\n", e.Elapsed, e.Package)
				}
				delete(output, key)
			case "fail":
				bad = true
				if e.Test != "" {
					failed++
				} else {
					fmt.Printf("FAIL %7.1fs %s\n", e.Elapsed, e.Package)
				}
				fmt.Print(strings.Join(output[key], ""))
				delete(output, key)
			case "skip":
				if e.Test != "" { // a package without tests skips too
					skipped++
					fmt.Printf("skipped: %s\n%s", key, strings.Join(output[key], ""))
				}
				delete(output, key)
			}
		}
		if err != nil {
			break
		}
	}
	// A panic, a race at exit or a timeout leaves tests without an end, and a killed go
	// command whole packages.
	for key, lines := range output {
		bad = true
		failed++
		fmt.Printf("never ended: %s\n%s", key, strings.Join(lines, ""))
	}
	if *counts != "" {
		f, err := os.OpenFile(*counts, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err == nil {
			_, err = fmt.Fprintln(f, passed, failed, skipped)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "tally:", err)
			os.Exit(1)
		}
	}
	fmt.Printf("%d tests passed, %d failed, %d skipped\n", passed, failed, skipped)
	if skipped > 0 && !*allowSkips {
		fmt.Println("a test that skips proves nothing: no skips are allowed here")
		bad = true
	}
	if passed == 0 {
		fmt.Println("no test ran")
		bad = true
	}
	if bad {
		os.Exit(1)
	}
}
