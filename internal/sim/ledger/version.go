package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Version names the program whose lives are simulated: a hash of the Go sources of this
// module that the package is built of, of what go.mod and go.sum say of all others, and of
// the toolchain. A change of tests, of docs or of anything else is no other version. Dir is in the
// module.
func Version(ctx context.Context, dir, pkg string) (string, error) {
	list := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Dir,GoFiles,Module", pkg)
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("list the packages of %s: %w", pkg, err)
	}
	sum := sha256.New()
	_, _ = io.WriteString(sum, runtime.Version()+"\n")
	root := ""
	for packages := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			Dir     string
			GoFiles []string
			Module  *struct {
				Main bool
				Dir  string
			}
		}
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", fmt.Errorf("list the packages of %s: %w", pkg, err)
		}
		if p.Module == nil || !p.Module.Main {
			continue
		}
		root = p.Module.Dir
		for _, name := range p.GoFiles {
			if err := add(sum, root, filepath.Join(p.Dir, name)); err != nil {
				return "", err
			}
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} { // go.sum may list versions that are not used
		if err := add(sum, root, filepath.Join(root, name)); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

func add(sum io.Writer, root, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read a source: %w", err)
	}
	name, err := filepath.Rel(root, file)
	if err != nil {
		return fmt.Errorf("name a source: %w", err)
	}
	_, err = fmt.Fprintf(sum, "%s %d\n%s\n", filepath.ToSlash(name), len(text), text)
	return err
}

// Commit names the commit that is checked out in dir, for people; empty without git.
func Commit(ctx context.Context, dir string) string {
	describe := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude", "*")
	describe.Dir = dir
	out, err := describe.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
