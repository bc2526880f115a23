// Package page serves the status page: what is due, what holds it back, what went, and who
// did what, for people and as JSON.
//
// The invariant is that it only shows: no request changes anything in the store or in the
// process, and what changes something is printed as a command to copy. Looking costs the
// store little, too: each part of the page is one copy that all viewers share, which is read
// again only if somebody looks, and at most every 15 seconds.
//
// Limits: it has no login, so ids of entities are shown only if [Config].IDs is set, and a
// request that names a host other than this one is refused. At most 64 viewers get events;
// the others poll. What this process does is from memory and a second old; ranges are from
// the records, and as old as their copy.
package page
