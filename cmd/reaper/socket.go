package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	// socketName is the socket in the directory of an embedded store through which the
	// process that has it open answers commands.
	socketName = "reaper.sock"
	// mostSocketPath is the longest path of a unix socket that every system takes: macOS
	// has room for 104 bytes with the final zero, Linux for 108.
	mostSocketPath = 103
)

// socketAddress returns a name of a file in a directory that is short enough for a unix
// socket. It holds until done is called.
func socketAddress(dir, name string) (address string, done func(), err error) {
	nothing := func() {}
	path := filepath.Join(dir, name)
	if len(path) <= mostSocketPath {
		return path, nothing, nil
	}
	if cwd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(cwd, path); err == nil && len(rel) <= mostSocketPath {
			return rel, nothing, nil
		}
	}
	if runtime.GOOS != "linux" {
		return "", nil, fmt.Errorf("the path %s has %d bytes, and that of a unix socket at most %d: "+
			"give the store a shorter path, or run this in or near its directory", path, len(path), mostSocketPath)
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name), func() { _ = d.Close() }, nil
}

// listenIn listens on the socket of a store's directory. The caller has the store open, so
// a socket that is there was left by a process that is gone, and is replaced. Nobody else
// can connect at any time: the socket appears under its name when its mode is set. Remove
// removes it.
func listenIn(ctx context.Context, dir string) (l net.Listener, remove func(), err error) {
	path := filepath.Join(dir, socketName)
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket == 0 {
		return nil, nil, fmt.Errorf("%s is not a socket, but stands in its place: remove it", path)
	}
	removeLeft(dir)
	private, err := os.MkdirTemp(dir, socketName+".") // mode 0700
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	const name = "s"
	address, done, err := socketAddress(private, name)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	l, err = new(net.ListenConfig).Listen(ctx, "unix", address)
	if err != nil {
		return nil, nil, err
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // it has another name by then
	}
	made := filepath.Join(private, name)
	if err = os.Chmod(made, 0o600); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, func() { _ = os.Remove(path) }, nil
}

// removeLeft removes what processes have left that died while they made their sockets.
func removeLeft(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), socketName+".") {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}

// dialIn connects to the process that has the store in a directory open.
func dialIn(ctx context.Context, dir string) (net.Conn, error) {
	address, done, err := socketAddress(dir, socketName)
	if err != nil {
		return nil, err
	}
	defer done()
	return new(net.Dialer).DialContext(ctx, "unix", address)
}
