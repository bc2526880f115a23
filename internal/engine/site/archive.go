package site

import (
	"context"
	"fmt"

	"github.com/reaper-ttl/reaper/store"
)

// An Archive keeps what is about to be deleted. It is safe for concurrent use.
type Archive interface {
	// IsWhole reports whether it keeps whole entities, and not only their keys.
	IsWhole() bool

	// Reserve waits until there is memory for about so many bytes of whole entities.
	Reserve(ctx context.Context, bytes int64) (release func(), err error)

	// Keep returns once copies are safe. Sweep is the id of the run in the history; empty without a history.
	// Ended tells afterwards what became of each: Unknown says that it may have been deleted, and all but that
	// and Deleted that it was not.
	Keep(ctx context.Context, sweep, namespace string, list []store.Copy) (
		ended func(fate func(key string) store.Outcome), err error)

	// Failing returns why it cannot keep anything at present; nil if it can. It is cheap, and
	// finds out by itself once it can again.
	Failing() error
}

// ArchiveFault begins the text of a fault of an archive.
const ArchiveFault = "the archive cannot be written: "

// archiveFault returns why the archive keeps nothing at present.
func (c *Site) archiveFault() error {
	if c.Cfg.Archive == nil {
		return nil
	}
	if err := c.Cfg.Archive.Failing(); err != nil {
		return fmt.Errorf(ArchiveFault+"%w", err)
	}
	return nil
}

// Fault returns what is wrong that holds the target: with a record, or with the archive.
func (c *Site) Fault() error {
	if err := c.RecordFault(); err != nil {
		return err
	}
	return c.archiveFault()
}
