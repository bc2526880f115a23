// Package chaos runs real reaper processes against Google's real emulators while
// everything around them breaks, and compares what is stored, entity by entity,
// with what must be. It holds nothing but the test, `make chaos`:
//
//   - Three processes, one of them `reaper serve`, sweep again and again, each through
//     a proxy of its own that delays, holds back, cuts and half-closes its connections. They are killed,
//     told to stop, and frozen for longer than a lease. An operator opens
//     generations, with other numbers of shards, pauses and resumes. Two more processes adopt.
//   - Writers create, extend, shorten, patch, delete and re-create entities with
//     Google's own clients: blindly and in transactions, stamped by followers and in the
//     nursery, most of all at about the time that an entity expires.
//     Some of them have a bad network, too. One knows nothing of expiry: the adoption gives
//     its entities keys, and it replaces them, or extends them and leaves the key.
//   - Forty-five entities at a time come to be due at once. The breaker trips, and an
//     operator approves all of it, or a part first, or restores the entities and clears.
//   - The oracle knows what each entity must be. While all this goes on a reader
//     checks that nothing live is lost or changed (S1 to S4), that nothing comes back, and
//     that no cursor stands past an entity that it should have disposed of (L2), that of an
//     event no more is gone than may go before its approval (B1), and that keys of an adoption
//     are the rule's (M1). At the end, once everything is healed, all that expired must be gone and all
//     else be there byte for byte (L1). Nothing may be left to adopt, and the history must
//     have all deletes: those that the processes logged, and those that the oracle counted,
//     but for the last minute before a kill.
//
// The invariant is that the oracle only claims what was acknowledged: a write whose
// outcome is unknown is followed by one that settles it, in a transaction, before
// the entity is looked at again. The seed gives the plan, not the outcome: these are real
// processes in real time.
//
// Limits: the emulators are no Bigtable. They serialise queries, have no quotas
// and keep the locks of dead transactions for a minute, so that a run has
// some hundreds of entities at a time and tens of writes a second.
package chaos
