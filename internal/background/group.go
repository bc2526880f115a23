package background

import "golang.org/x/sync/errgroup"

// Go runs f in a group, as group.Go does, but a panic of f becomes an error of the group: who
// answers a command must not end a daemon.
func Go(group *errgroup.Group, f func() error) {
	group.Go(func() error { return Protect(f) })
}
