// Package schedule decides when each range and each chore of each target has its turn, for one
// sweep, for an audit, or for as long as a daemon runs.
//
// One goroutine runs it, and that goroutine alone touches the items. At most Config.Workers
// steps run at a time, over all targets, and waiting takes no worker. Slow steps have at most
// half of the workers, but always one. What has been ready for longest runs first.
package schedule
