package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version and commit are set by the linker for releases, and for builds in which Go finds no
// version control, such as those of a source archive.
var version, commit string

// A versionResult is what version --json prints.
type versionResult struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"` // empty if it is not known
	GoVersion string `json:"go_version"`
}

func versionCommand(c *console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionResult{buildVersion(), buildCommit(), runtime.Version()}
			return c.print(v, func(w io.Writer) error {
				built := v.GoVersion
				if v.Commit != "" {
					built = "commit " + v.Commit + ", " + built
				}
				fmt.Fprintf(w, "reaper %s (%s)\n", v.Version, built)
				return nil
			})
		},
	}
	c.addJSON(cmd)
	return cmd
}

// buildVersion returns the linker's version, or that of the module if the program
// was installed as one.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" && info.Main.Version != "" {
		return info.Main.Version
	}
	return cmp.Or(version, "(devel)")
}

// buildCommit returns the linker's commit, or the one that the build knows of, with
// "-dirty" if files were changed since.
func buildCommit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || commit != "" {
		return commit
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + dirty
}
