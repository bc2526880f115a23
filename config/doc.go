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
// YAML, one document, UTF-8, at most 1 MiB, with one field: targets, a list.
// The fields of a target, with their defaults:
//
//	name                       required; [a-z][a-z0-9-]{0,62}, unique
//	kind                       required; Datastore kind, Firestore collection path, embedded table
//	group           false      Firestore: kind is a collection group
//	namespaces      [""]       Datastore: names, or ["*"] for all
//	layout          generation generation, sharded, sharded-timestamp or timestamp
//	property        expiry_key the indexed property; required for the two timestamp layouts
//	single_valued   false      promise that the property is always one plain text, never a list, blob
//	                           or map: allows guard query
//	shard_property  shard      sharded-timestamp only
//	shard_values               sharded-timestamp only, and required there: texts or whole
//	                           numbers, at most 9999, each once
//	shards          16         generation and sharded only: 1 to 9999
//	retention       0s         kept this long past its expiry
//	max_age         1825d      an expiry older than this is suspect; longer than retention
//	rewind          24h        how often a range that is never sealed is read from its start; at least 1s
//	overlap         10s        a saved cursor stays this much behind the horizon; shorter than rewind
//	page            500        1 to 500
//	guard           auto       auto, lookup or query; query needs single_valued and an expiry key;
//	                           other stores than Datastore ignore it
//	lease           30s        3s to 1h
//	max_clock_skew  10s        100ms to 1h
//	schedule        ""         this target's own; "" for the process's
//	generations                layout generation only:
//	  every         24h        at least 1m
//	  ramp          60m        0s to every
//	  staleness     1m         1s to 1h, and at most every
//	  slack         10m        1s to 7d
//	  settle        0          0 to 1000
//	  keep          32         1 to 1000
//	pace                       entities a second, 0.01 to 1000000000, or unlimited:
//	  start         500        per range; at most max, and by default max where that is less; embedded: max
//	  max           5000       per range; embedded: unlimited
//	  total         unlimited  per target
//	  gate          ""         none
//	limits
//	  max_deletes   unlimited  or at least 1
//	  max_fraction  unlimited  or above 0 and at most 1
//
// Durations are Go's with whole days in front if wanted: 90s, 36h, 7d, 1d12h.
// No number is read in another base than ten, and none may have a leading
// zero. Anchors may stand in the file, but neither aliases nor merge keys, so
// that every value stands where a message says it does, and a small file
// cannot unfold into a large one.
//
// Names follow the rules of the store that is in use: UTF-8, at most 1,500
// bytes, no slash, not "." or "..", not __.*__, no control characters; property
// names moreover without points, brackets, asterisks and backticks; namespaces
// have 1 to 100 letters, digits, points, underscores and hyphens; a Firestore
// collection's path has an odd number of segments, and a collection group no
// slash.
package config
