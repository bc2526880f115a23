package io.github.reaperttl.writer;

import java.util.function.Consumer;

/**
 * How a follower works.
 *
 * @param shards of the nursery while no record is known
 * @param onError is called after a read that failed
 */
public record FollowOptions(int shards, Consumer<Throwable> onError) {
    /** 16 shards, and errors are not reported. */
    public static final FollowOptions DEFAULT = new FollowOptions(16, error -> {});
}
