// Package sim runs the real sweep, cursor, generation and throttle through lives that
// one number decides: the seed. It draws a store and what goes wrong with it, a target
// and its layout, writers, sweepers, an operator and everybody's clocks, lets them work
// for a virtual four to forty minutes in a synctest bubble, stops the faults, and sees whether
// everything comes right. A plain map that shares no code with store or program knows
// what should be there; it is told of each write as it takes effect, and holds the
// invariants of the design at that instant:
//
//   - S1, S3 what is deleted was due then by what the store held then
//   - S2 a carry changes generation and shard, to one that is open and the shard that
//     its name has there, and nothing else
//   - S4 what is malformed or suspect stays
//   - L1 once faults stop, what is due is gone after one sweep, stragglers after the
//     next rewind or seal, strays after a round of the audit; and what is left is, byte
//     for byte, what was written
//   - L2 no saved cursor stands past what was not disposed of
//   - L3 tokens never fall, no lease is taken before it is over, nobody writes in a
//     range that another holds
//   - L4 no generation retires, or counts as sealed, while a writer that keeps to the
//     bounds may still write there
//   - P2 no range and no target gets more than its pace, in any window; nobody uses a share
//     of a total without a heartbeat that is in force, or before all who were there before
//     have told that they count it, and nobody tells that too early
//   - a dry run writes nothing, nothing calls the store after a sweep has returned, and
//     nothing panics or waits for ever
//
// Stores are of four kinds: Datastore with each guard, native, embedded. A call travels,
// takes effect at an instant of its own, and its reply travels back. It may be refused,
// stall, do its work in part, lose its reply, or take effect after its caller has given
// up. Processes are killed, stopped, frozen for longer than a lease, or put to sleep with
// their monotonic clock. Target records are removed, now and then with cursor records.
// Wall clocks are wrong, and jump; in some lives the sweepers' clocks run at 0.9 or 1.1 of
// the store's speed (drift.go says which bounds are off then, and by how much). Scans may
// show the index as it was some seconds ago, where the target settles.
//
// Somebody restamps many entities at once, of a target with a breaker, and again while the
// event waits for its approval or is deleted by it: what is deleted of it by other keys must
// be charged to the approval. Deployments of one target list different namespaces, for the
// whole life or from an instant on: disjoint ones, overlapping ones, all that there are next
// to some, one more or one less. L1 then holds in what somebody lists in the end, after each
// deployment has swept; L4 in what a deployment lists that has come recently; what a
// generation left behind elsewhere as it retired is the audit's. Another targets file is
// rolled out, sweeper by sweeper, and perhaps taken back (overlap.go).
//
// Every random number is drawn from the seed and from what it is for, every call takes a
// latency of its own to the nanosecond, and steps and releases that a sweep begins at one
// instant are held apart by up to a millisecond: a seed that runs again does the same again
// (TestSeedsRepeat). So a run that breaks a rule can be cut down (Shrink) and looked at
// (prove -seed).
//
// In some lives the database is restored from an export, all of it or entities or records
// alone, and in some people remove or edit records by hand. The operator then does what
// docs/operations.md says.
//
// What is not simulated: the drivers and the services behind them, for which
// store/storetest and the emulators stand; tombstones, and so P1 and compaction; memory
// (P3) and the cost of idle sweeps (P4); gates; a target whose layout changes to
// another form of key, or changes while its breaker is on or its record is lost; a
// record that somebody edits while its holder works, beyond what a console leaves of it;
// clocks of writers that run at another speed than the store's, and timers that do: those
// of a process fire by the store's time; clocks that are set back while their machine
// sleeps; a total while machines sleep or clocks drift, which package throttle leaves out;
// records and deletes of one embedded store after a power failure. A life has at most one
// of: a restore or edits, overlapping targets files, different lists, restamps. Writers
// follow the bounds that they are told or break them knowingly: a library that breaks
// them unknowingly is found by the tests of generation.Follower, which runs here, too.
//
// The rule that a target record's save takes effect no later than its deadline is the
// store's: servers know deadlines. A later one would begin a generation's staleness late.
package sim
