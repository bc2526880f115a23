package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker for releases.
var version string

// A versionResult is what version --json prints.
type versionResult struct {
	Version   string `json:"version"`
	GoVersion string `json:"go_version"`
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionResult{buildVersion(), runtime.Version()}
			if a.json {
				return a.printJSON(v)
			}
			fmt.Fprintf(a.stdout, "reaper %s (%s)\n", v.Version, v.GoVersion)
			return nil
		},
	}
	a.addJSON(cmd)
	return cmd
}

// buildVersion returns the linker's version, or that of the module where it was
// installed as one.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" && info.Main.Version != "" {
		return info.Main.Version
	}
	return cmp.Or(version, "(devel)")
}
