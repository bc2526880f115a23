// Package doctor looks for what keeps a target from being swept rightly, and says how each
// fault is mended. It is what `reaper doctor` prints.
//
// The invariants are that it writes nothing, that no check keeps another one from being
// made, that it ends within the time that it is given, whatever the store does, and that it
// says of each check which it could not make why it could not: silence means that all is
// well. Each finding rests on evidence that was read, never on what is merely likely, and
// has one id, which docs/doctor.md explains.
//
// Limits: each finding was true at some instant during the call. Entities are sampled, so
// a fault of a few among many may not show. What only the service's administration knows
// is not available on an emulator.
package doctor
