package archive

// PruneAny is Prune for any bucket, so that tests can have one that fails.
var PruneAny = prune
