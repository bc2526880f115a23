package io.github.reaperttl.writer;

import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/** What writers need of a target record. Instants and lengths of time are in microseconds. */
record TargetRecord(List<Generation> generations, int nurseryShards, long staleness) {
    static final long DEFAULT_STALENESS = 60_000_000;

    private static final int NEWEST_SCHEMA = 2; // what writers read means the same in 1 and 2
    private static final long MAX_MILLIS = 9_223_372_036_854L; // as many as 64 bits of nanoseconds hold
    private static final Pattern INSTANT =
            Pattern.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}Z");

    record Generation(int number, int shards, long opened, long ramp, Long closed) {}

    /** Refuses a record that makes no sense: a guess could stamp a generation that is closed. */
    static TargetRecord decode(Map<?, ?> fields) {
        between(fields, "schema", 1, NEWEST_SCHEMA);
        Object value = fields.get("generations");
        if (value != null && !(value instanceof List)) {
            throw new IllegalArgumentException("target record: generations is not a list");
        }
        List<?> list = value == null ? List.of() : (List<?>) value;
        long nursery = between(fields, "nursery_shards", list.isEmpty() ? 0 : 1, ReaperWriter.MAX_SHARD + 1);
        long staleness = between(fields, "staleness_ms", 0, MAX_MILLIS) * 1000;
        List<Generation> generations = new ArrayList<>();
        Generation before = new Generation(0, 1, Long.MIN_VALUE, 0, null);
        for (int i = 0; i < list.size(); i++) {
            if (!(list.get(i) instanceof Map<?, ?> g)) {
                throw new IllegalArgumentException("target record: generations[" + i + "] is not a map");
            }
            Long opened = instant(g, "opened");
            Long closed = instant(g, "closed");
            if (opened == null || opened < before.opened) {
                throw new IllegalArgumentException("target record: generations[" + i + "]: opened is wrong");
            }
            if (closed != null && (closed < opened || i == list.size() - 1)) {
                throw new IllegalArgumentException("target record: generations[" + i + "]: closed is wrong");
            }
            before = new Generation(
                    (int) between(g, "number", before.number + 1, ReaperWriter.MAX_GENERATION),
                    (int) between(g, "shards", 1, ReaperWriter.MAX_SHARD + 1),
                    opened, between(g, "ramp_ms", 0, MAX_MILLIS) * 1000, closed);
            generations.add(before);
        }
        return new TargetRecord(List.copyOf(generations), (int) nursery,
                staleness == 0 ? DEFAULT_STALENESS : staleness);
    }

    private static long between(Map<?, ?> fields, String name, long least, long most) {
        Object value = fields.get(name);
        if (value != null && !(value instanceof Long) && !(value instanceof Integer)) {
            throw new IllegalArgumentException("target record: " + name + " is " + value + ", not an integer");
        }
        long n = value == null ? 0 : ((Number) value).longValue();
        ReaperWriter.checkBetween("target record: " + name, n, least, most);
        return n;
    }

    private static Long instant(Map<?, ?> fields, String name) {
        Object value = fields.get(name);
        if (value == null || value.equals("")) {
            return null;
        }
        try {
            if (value instanceof String text && INSTANT.matcher(text).matches()) {
                // Instant.parse would take 24:00 for the next day, and a leap second for the second before it.
                LocalDateTime at = LocalDateTime.parse(text.substring(0, text.length() - 1));
                return micros(at.toInstant(ZoneOffset.UTC));
            }
        } catch (DateTimeException e) {
            // The instant does not exist.
        }
        throw new IllegalArgumentException("target record: " + name + " is " + value + ", not an instant");
    }

    /** Returns the microseconds since 1970. ChronoUnit counts in nanoseconds, which a long cannot hold for all years. */
    static long micros(Instant at) {
        return at.getEpochSecond() * 1_000_000 + at.getNano() / 1000;
    }

    /** Returns the generation that an entity is stamped with at an instant; null is the nursery. */
    Generation generationFor(String id, long now) {
        for (int i = generations.size() - 1; i >= 0; i--) {
            Generation g = generations.get(i);
            boolean oldest = i == 0 || generations.get(i - 1).closed != null;
            double moved = share(now - g.opened, g.ramp);
            if (oldest || moved >= 1 || Integer.toUnsignedLong(moveHash(id, g.number)) < moved * 0x1p32) {
                return g;
            }
        }
        return null;
    }

    /**
     * A hash of id and generation decides who moves when, so that all writers agree, and those that move first are
     * others each time.
     */
    static int moveHash(String id, int generation) {
        int h = ReaperWriter.fnv1a32(ReaperWriter.digits(new StringBuilder(id), generation, 8).toString());
        h = (h ^ (h >>> 16)) * 0x85ebca6b;
        h = (h ^ (h >>> 13)) * 0xc2b2ae35;
        return h ^ (h >>> 16);
    }

    /** The share of entities that have moved grows by a half in each twelfth of the ramp. */
    static double share(long elapsed, long ramp) {
        return elapsed >= ramp ? 1 : Math.pow(1.5, 12 * ((double) Math.max(0, elapsed) / ramp - 1));
    }
}
