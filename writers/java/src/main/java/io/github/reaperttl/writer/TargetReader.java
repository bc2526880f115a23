package io.github.reaperttl.writer;

import java.util.Map;

/** Reads the target record from the database. */
@FunctionalInterface
public interface TargetReader {
    /**
     * Returns the fields of the ReaperTarget record, or null if there is no record. Integers are Long or Integer,
     * {@code generations} is a list of maps. It runs in the background, and is interrupted if it takes too long.
     */
    Map<String, ?> read() throws Exception;
}
