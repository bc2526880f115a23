//go:build unix

package emulator

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the command the leader of a new process group, which its
// watchdog can then end as a whole without hitting the test binary.
func ownGroup(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return nil
}
