// Package schedule decides when each range and each chore of each target has its turn, for one
// sweep, for an audit, or for as long as a daemon runs.
//
// One goroutine runs it, which alone touches the items. At most Config.Workers steps run at a
// time, over all targets, and waiting takes no worker. What is slow has at most half of them.
package schedule
