package io.github.reaperttl.writer;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.format.DateTimeParseException;
import java.time.temporal.ChronoUnit;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

/** Holds this package to docs/writer-vectors.json, whose path is the property "vectors". */
final class VectorsTest {
    /** Nobody changes the vectors for one language alone. */
    private static final String HASH = "51f104959e0ffbfc21448c4ae6522902dd455fde3e1f750771a89e2897259b98";

    private VectorsTest() {}

    private static byte[] raw() throws Exception {
        return Files.readAllBytes(Path.of(System.getProperty("vectors", "../../docs/writer-vectors.json")));
    }

    @SuppressWarnings("unchecked")
    private static <T> List<T> list(String name) throws Exception {
        return (List<T>) ((Map<String, Object>) Json.parse(new String(raw(), StandardCharsets.UTF_8))).get(name);
    }

    private static int number(Map<String, Object> c, String name) {
        return ((Long) c.get(name)).intValue();
    }

    private static String text(Map<String, Object> c, String name) {
        return (String) c.get(name);
    }

    private static Instant instant(String text) {
        return OffsetDateTime.parse(text).toInstant();
    }

    static void vectorsArePinned() throws Exception {
        byte[] sum = MessageDigest.getInstance("SHA-256").digest(raw());
        Check.equal(HexFormat.of().formatHex(sum), HASH, "hash of the vectors");
    }

    static void keysAndBack() throws Exception {
        List<Map<String, Object>> keys = list("keys");
        Check.isTrue(keys.size() >= 15, "enough vectors");
        for (Map<String, Object> c : keys) {
            String want = text(c, "key");
            String got = ReaperWriter.key(number(c, "generation"), number(c, "shard"), instant(text(c, "expires")));
            Check.equal(got, want, c);
            ExpiryKey back = ReaperWriter.parse(want);
            Check.equal(back.generation(), number(c, "generation"), c);
            Check.equal(back.shard(), number(c, "shard"), c);
            Check.equal(ReaperWriter.key(back.generation(), back.shard(), back.expires()), want, c);
        }
        for (Map<String, Object> c : VectorsTest.<Map<String, Object>>list("nursery")) {
            Check.equal(ReaperWriter.nurseryKey(text(c, "id"), instant(text(c, "expires")), number(c, "shards")),
                    text(c, "key"), c);
        }
    }

    static void whatDoesNotFitOrParse() throws Exception {
        for (Map<String, Object> c : VectorsTest.<Map<String, Object>>list("bad_keys")) {
            Check.refused(() -> ReaperWriter.key(number(c, "generation"), number(c, "shard"),
                    instant(text(c, "expires"))), c);
        }
        for (String malformed : VectorsTest.<String>list("malformed")) {
            Check.refused(() -> ReaperWriter.parse(malformed), malformed);
        }
    }

    /** Java has a type of its own for what has no zone; no method here takes it. */
    static void naiveTextsAreNoInstants() throws Exception {
        for (String naive : VectorsTest.<String>list("naive").subList(0, 3)) {
            try {
                throw new AssertionError(naive + " is " + instant(naive));
            } catch (DateTimeParseException e) {
                continue;
            }
        }
    }

    static void shardsAndRollouts() throws Exception {
        for (Map<String, Object> c : VectorsTest.<Map<String, Object>>list("shards")) {
            Check.equal(ReaperWriter.shardOf(text(c, "id"), number(c, "shards")), number(c, "shard"), c);
        }
        for (Map<String, Object> c : VectorsTest.<Map<String, Object>>list("rollout")) {
            double bucket = number(c, "bucket");
            Check.equal(ReaperWriter.inRollout(text(c, "id"), text(c, "salt"), bucket / 100), false, c);
            Check.equal(ReaperWriter.inRollout(text(c, "id"), text(c, "salt"), (bucket + 1) / 100), true, c);
        }
    }

    static void replays() throws Exception {
        List<Map<String, Object>> replays = list("replays");
        Check.isTrue(replays.size() >= 10, "enough replays");
        for (Map<String, Object> replay : replays) {
            new Replay(replay).run();
        }
    }

    /** What a follower meets in the course of time, and what it gives. */
    private static final class Replay implements Follower.Clocks, TargetReader {
        private final Map<String, Object> replay;
        private Map<String, Object> step;
        private long took;

        Replay(Map<String, Object> replay) {
            this.replay = replay;
        }

        @Override
        public long wall() {
            return ChronoUnit.MICROS.between(Instant.EPOCH, instant(text(step, "at"))) + took;
        }

        @Override
        public long monotonic() {
            return (Long) step.get("mono_ms") * 1000 + took;
        }

        @Override
        @SuppressWarnings("unchecked")
        public Map<String, ?> read() throws Exception {
            took = (Long) step.getOrDefault("took_ms", 0L) * 1000;
            if (step.containsKey("fails")) {
                throw new java.io.IOException("the database does not answer");
            }
            return (Map<String, ?>) step.get("read");
        }

        @SuppressWarnings("unchecked")
        void run() {
            FollowOptions options = new FollowOptions(number(replay, "shards"), error -> {});
            Follower follower = new Follower(this, options, this);
            int stamps = 0;
            for (Object one : (List<Object>) replay.get("steps")) {
                step = (Map<String, Object>) one;
                took = 0;
                if (step.containsKey("read") || step.containsKey("fails")) {
                    follower.refresh();
                }
                took = 0;
                for (Object stamp : (List<Object>) step.getOrDefault("stamps", List.of())) {
                    Map<String, Object> s = (Map<String, Object>) stamp;
                    String got = follower.key(text(s, "id"), instant(text(replay, "expires")));
                    Check.equal(got, text(s, "key"), text(replay, "name") + ", " + text(step, "at") + ", " + s);
                    stamps++;
                }
            }
            Check.isTrue(stamps > 0, text(replay, "name") + " has stamps");
        }
    }
}
