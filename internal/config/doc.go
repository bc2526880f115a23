// Package config reads what a process is told: flags, environment and the
// targets file, each winning over the next, and defaults after them.
//
// The invariant is that nothing is guessed. A value that is misspelt, of the
// wrong type, out of range or at odds with another one is an error, never a
// default, since this program deletes other people's data; and the zero
// [Config] deletes nothing. All problems are found in one go, each with its
// place, as [Problems].
//
// # Settings
//
// Each is a flag and a variable; see [Settings].
//
//	--store           REAPER_STORE           embedded:DIR, datastore:PROJECT[/DATABASE] or firestore:PROJECT[/DATABASE]
//	--config          REAPER_CONFIG          the targets file; reaper.yaml if it exists
//	--apply           REAPER_APPLY           false; true or false and nothing else
//	--workers         REAPER_WORKERS         16; 1 to 10000
//	--max-duration    REAPER_MAX_DURATION    unlimited, or a duration above 0
//	--schedule        REAPER_SCHEDULE        */5 * * * *, in UTC
//	--listen          REAPER_LISTEN          :9464
//	--pushgateway     REAPER_PUSHGATEWAY     none
//	--log-level       REAPER_LOG_LEVEL       info; debug, info, warn or error
//	--log-format      REAPER_LOG_FORMAT      text on a terminal, else json
//	--actor           REAPER_ACTOR           the credentials' e-mail, or user@host
//	--shutdown-grace  REAPER_SHUTDOWN_GRACE  8s; 100ms to 1h
//
// An unknown variable with the prefix is an error that names the nearest known
// one, except those that Kubernetes injects for Services. A variable that is
// set but empty is an error too (REAPER_PUSHGATEWAY excepted, whose default is
// empty). No message repeats the value of a variable, which may be a secret
// that went into the wrong one.
//
// # Targets file
//
// YAML, one document, UTF-8, at most 1 MiB, with one field: targets, a list. [Sample] has
// every field of a target, with its default and what it may be; the rows in fields.go are
// where a field is defined.
//
// Durations are Go's with whole days in front if wanted: 90s, 36h, 7d, 1d12h.
// No number is read in another base than ten, and none may have a leading
// zero. Anchors may stand in the file, but neither aliases nor merge keys, so
// that every value stands where a message says it does, and a small file
// cannot unfold into a large one.
//
// Names follow the rules of the store that is in use: UTF-8, at most 1,500
// bytes, no slash, not "." or "..", not __.*__, no control characters. Property
// names also have no points, brackets, asterisks or backticks. Namespaces
// have 1 to 100 letters, digits, points, underscores and hyphens. A Firestore
// collection's path has an odd number of segments; a collection group's name has
// no slash.
package config
