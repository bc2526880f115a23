// Package orphans finds what lies below entities of a target that do not exist, and deletes it:
// what a deleter left behind that took the entity first and died, or never looked below it.
//
// The invariant is that only an orphan is deleted. It is below an entity of the target, and the
// nearest such entity does not exist: the commit that deletes the orphan makes sure of that. It
// does not carry the expiry of a target, is not one of the reaper's own records, and no entity of
// either sort is above it and below the missing one. What is below an orphan is deleted before
// it or together with it.
//
// A run keeps no record. One that is killed leaves orphans, which the next run finds.
//
// Limits: finding orphans takes a look at all names of the target, since no index has what does
// not exist. What lies below an entity that exists is skipped, unless the whole namespace is read;
// so an entity of the target that is missing below another one of the target is found only there.
package orphans
