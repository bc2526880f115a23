// Package metrics counts what sweeps do, for Prometheus. [Metrics] is what a
// process that keeps running shows on /metrics; [Push] leaves the outcome of a
// one-shot run at a Pushgateway; [Watchdog] notices ranges that get nowhere.
//
// The invariant is that a label holds a target's name as configured, or a word
// from a fixed list, and nothing else: never an entity's id, key or value, not
// even where a caller passes one by mistake. What is on no list counts as
// "other", a target that was not announced as "_other", which no target can be
// called. So the number of series is bounded, too.
//
// Limits: counters begin at zero with the process. Every series whose labels are
// known beforehand exists from the start, so that a first increase is seen.
// Gauges of several replicas are each replica's own view of the same target.
package metrics
