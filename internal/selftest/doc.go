// Package selftest runs the promises that the program relies on against a user's own store:
// the suite of all drivers (store/storetest), sweeps as an operator makes them, and what the
// documentation assumes of the service.
//
// The invariant is that nothing of the user's is touched. Entities are written to and deleted
// from two scratch kinds alone, whose names end in the id of the run and which must be empty
// before it; each entity carries a mark of the run, and only what carries it is deleted.
// Records belong to targets whose names no targets file has. A fence around the store refuses
// everything else, and what would cost more than [MostDollars].
//
// A run that is killed leaves a record which says what it has left; [Clean] removes all of it,
// and the next run does so for runs whose time is over.
//
// Limits: entities, money, the time of each check and of the whole run are bounded. It shows
// that a store breaks a promise, and never that it keeps it for good.
package selftest
