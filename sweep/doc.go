// Package sweep deletes expired entities: once with [Run], or for as long as a process runs
// with [NewDaemon].
//
// These are the five packages that a program in Go works with:
//
//   - sweep: what to sweep, and how ([Config], [Target]); Run, [Audit] and the daemon.
//   - expirykey: the key by which an entity expires. An application writes one with each entity;
//     package generation makes it, by the record that sweeps use.
//   - shardread: reads entities that are spread over shards in one order.
//   - control: pauses a target, changes its pace, opens a generation, approves a trip.
//   - inspect: the status of a target, and why an entity is still there. It changes nothing.
//
// The command reaper does the same with flags and a targets file. It opens the database; here
// the caller does, with a driver of package store.
//
// # What a caller can rely on
//
// An entity is deleted only if its expiry is at or before the horizon when the delete commits:
// the store checks that in the same write. Nothing is deleted while the target is paused or its
// gate is closed, by limits that are out of date, or after the lease of its range has run out.
// A crash at any time may repeat work, but skips none. Without Apply, nothing is written at all.
//
// Any number of processes may sweep the same targets at the same time; each needs an Owner of its
// own.
//
// Limits: memory is bounded by two pages for each busy worker (the present one and the one that is
// read ahead), and by up to 16 entities of each range that wait for another try. At most
// Config.Workers steps run at a time, over all targets.
//
// # Inside
//
// The work is done by packages below internal/engine, its rooms. A view is an immutable snapshot of
// a target's records. A plan is a pure function of it, and says what each range and each chore needs
// next. The schedule gives them their turns. A step, of a visit or a chore, is one bounded piece of
// work. All deletes go through one place (internal/engine/dispose), which checks pace, pause, gate,
// limits and lease as late as possible. docs/architecture.md follows one key through all of them.
package sweep
