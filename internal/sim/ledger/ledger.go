// Package ledger remembers which simulated lives ran on which version of the program, in a
// file outside the repository, so that "so many seeds have passed on the version that is
// here" is a sum and no guess.
//
// The file has a line of JSON for each run of consecutive seeds. Lines are only added, each
// by one write, so that several processes may share a file, and a process that is killed
// leaves at most one torn line, which readers skip and say so.
package ledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A Run is some consecutive seeds that ran on one version.
type Run struct {
	Version    string    `json:"version"`              // see [Version]
	Commit     string    `json:"commit,omitempty"`     // for people: the commit that was checked out
	First      uint64    `json:"first"`                // seed
	Count      int       `json:"count"`                // of seeds
	Steps      int       `json:"steps"`                // calls of the store
	Violations []uint64  `json:"violations,omitempty"` // the seeds that broke a rule
	Hung       []uint64  `json:"hung,omitempty"`       // those that did not end
	Ended      time.Time `json:"ended"`
	Seconds    float64   `json:"seconds"`
}

// Path returns where the ledger is unless somebody says otherwise: in the user's cache.
func Path() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a place for the ledger: %w", err)
	}
	return filepath.Join(dir, "reaper", "proof.ndjson"), nil
}

// Append adds a run.
func Append(path string, r Run) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make a folder for the ledger: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("open the ledger: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode a run: %w", err)
	}
	line = append(line, '\n')
	last := make([]byte, 1)
	if end, err := f.Seek(0, io.SeekEnd); err == nil && end > 0 {
		if _, err := f.ReadAt(last, end-1); err == nil && last[0] != '\n' { // somebody was killed while he wrote
			line = append([]byte{'\n'}, line...)
		}
	}
	if _, err := f.Write(line); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	return f.Sync()
}

// Read returns all runs, and how many lines could not be read. Without a file there is no run.
func Read(path string) (runs []Run, damaged int, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the ledger: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		var r Run
		switch err := json.Unmarshal(lines.Bytes(), &r); {
		case len(lines.Bytes()) == 0:
		case err != nil || r.Version == "" || r.Count < 1:
			damaged++
		default:
			runs = append(runs, r)
		}
	}
	return runs, damaged, lines.Err()
}

// A Sum is what has run on one version.
type Sum struct {
	Version    string
	Commit     string // of the latest run
	Seeds      uint64 // each counts once, however often it ran
	Violations []uint64
	Last       time.Time
}

// Sums adds up the runs of each version, the latest version first.
func Sums(runs []Run) (list []Sum) {
	byVersion := map[string][]Run{}
	for _, r := range runs {
		byVersion[r.Version] = append(byVersion[r.Version], r)
	}
	for version, runs := range byVersion {
		s := Sum{Version: version, Seeds: distinct(runs)}
		for _, r := range runs {
			if r.Ended.After(s.Last) {
				s.Last, s.Commit = r.Ended, r.Commit
			}
			s.Violations = append(append(s.Violations, r.Violations...), r.Hung...)
		}
		slices.Sort(s.Violations)
		s.Violations = slices.Compact(s.Violations)
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Sum) int { return b.Last.Compare(a.Last) })
	return list
}

// distinct counts the seeds of runs that may overlap.
func distinct(runs []Run) (n uint64) {
	runs = slices.SortedFunc(slices.Values(runs), func(a, b Run) int {
		if a.First < b.First {
			return -1
		}
		return 1
	})
	var end uint64 // what lies before it is counted
	for _, r := range runs {
		from, to := max(r.First, end), r.First+uint64(r.Count)
		if to > from {
			n += to - from
			end = to
		}
	}
	return n
}

// Fresh returns a seed at or after first from which on so many seeds are in no run of any version.
func Fresh(runs []Run, first uint64, count uint64) uint64 {
	for moved := true; moved; {
		moved = false
		for _, r := range runs {
			if end := r.First + uint64(r.Count); r.First < first+count && first < end {
				first, moved = end, true
			}
		}
	}
	return first
}
