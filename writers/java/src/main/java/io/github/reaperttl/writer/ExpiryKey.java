package io.github.reaperttl.writer;

import java.time.Instant;

/** The parts of an expiry key. */
public record ExpiryKey(int generation, int shard, Instant expires) {}
