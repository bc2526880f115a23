package io.github.reaperttl.writer;

import java.io.IOException;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/** What no vector shows: ids and instants of Java's own types, and following in the background. */
final class WriterTest {
    private static final Instant AT = Instant.parse("2026-11-21T00:07:30.855Z");

    private WriterTest() {}

    private static Map<String, Object> record(String field, Object value) {
        Map<String, Object> generation = new HashMap<>(Map.of("number", 7, "shards", 32, "ramp_ms", 0,
                "opened", "2020-01-01T00:00:00.000000Z", "closed", ""));
        Map<String, Object> record = new HashMap<>(Map.of("schema", 1L, "nursery_shards", 16L, "staleness_ms", 1000L));
        record.put("generations", List.of(generation));
        (generation.containsKey(field) ? generation : record).put(field, value);
        return record;
    }

    private static boolean stamps(Follower f, String prefix) {
        return f.key("a", AT).startsWith(prefix);
    }

    static void instants() {
        String want = "00000042.0007.20261121T000730.855Z";
        Check.equal(ReaperWriter.key(42, 7, AT), want, "a whole millisecond");
        Check.equal(ReaperWriter.key(42, 7, AT.minusNanos(999_999)), want, "a nanosecond after the one before");
        Check.refused(() -> ReaperWriter.key(0, 0, Instant.MAX), "the last instant of Java");
        Check.refused(() -> ReaperWriter.key(0, 0, Instant.MIN), "the first instant of Java");
        Check.equal(ReaperWriter.nurseryKey("s-1842", AT), "00000000.0006.20261121T000730.855Z", "16 shards");
    }

    static void ids() {
        Check.equal(ReaperWriter.shardOf(1842, 16), 14, "a number");
        Check.equal(ReaperWriter.shardOf(Long.MAX_VALUE, 9999),
                ReaperWriter.shardOf("__id9223372036854775807__", 9999), "the largest number");
        Check.equal(ReaperWriter.inRollout(1842, "a", 50), ReaperWriter.inRollout("1842", "a", 50), "a rollout");
        Check.equal(ReaperWriter.nurseryKey(1842, AT, 16), ReaperWriter.nurseryKey("1842", AT, 16), "a nursery key");
        for (int wrong : new int[] {0, -1, 10_001}) {
            Check.refused(() -> ReaperWriter.shardOf("a", wrong), wrong + " shards");
        }
        for (double none : new double[] {Double.NaN, -5, Double.NEGATIVE_INFINITY}) {
            Check.equal(ReaperWriter.inRollout("a", "b", none), false, none);
        }
    }

    static void stampsAtOnceAndLearnsInTheBackground() throws Exception {
        CountDownLatch answer = new CountDownLatch(1);
        TargetReader reader = () -> {
            answer.await();
            return record("number", 7L);
        };
        try (Follower f = ReaperWriter.follow(reader, new FollowOptions(4, error -> {}))) {
            Check.isTrue(stamps(f, "00000000."), "the nursery before the answer");
            answer.countDown();
            Check.until(() -> stamps(f, "00000007."));
            Check.equal(f.key(1842, AT), ReaperWriter.key(7, ReaperWriter.shardOf(1842, 32), AT), "a number");
        }
    }

    static void goesOnAfterEveryFailure() throws Exception {
        Queue<TargetReader> answers = new ArrayDeque<>(List.of(
                () -> record("number", 7),
                () -> {
                    throw new IOException("unavailable");
                },
                () -> {
                    throw new NoClassDefFoundError("an error");
                },
                () -> null,
                Map::of,
                () -> record("staleness_ms", "soon")));
        AtomicReference<Map<String, Object>> last = new AtomicReference<>(record("number", 8));
        Queue<Throwable> errors = new ConcurrentLinkedQueue<>();
        FollowOptions options = new FollowOptions(16, error -> {
            errors.add(error);
            throw new IllegalStateException("a handler that fails");
        });
        TargetReader reader = () -> answers.isEmpty() ? last.get() : answers.remove().read();
        try (Follower f = ReaperWriter.follow(reader, options)) {
            Check.until(() -> stamps(f, "00000008."));
            last.set(null);
            Check.until(() -> stamps(f, "00000000.")); // no record since: too old
        }
        Check.equal(errors.peek().getMessage(), "unavailable", "the first error");
        Check.isTrue(errors.size() >= 5, "every failure is told");
    }

    static void readThatHangsHoldsUpNoLaterOne() throws Exception {
        AtomicInteger reads = new AtomicInteger();
        AtomicInteger interrupts = new AtomicInteger();
        Queue<Throwable> errors = new ConcurrentLinkedQueue<>();
        CountDownLatch never = new CountDownLatch(1);
        TargetReader reader = () -> {
            if (reads.incrementAndGet() == 2) {
                try {
                    never.await();
                } catch (InterruptedException e) {
                    interrupts.incrementAndGet();
                    throw e;
                }
            }
            return record("staleness_ms", 400);
        };
        try (Follower f = ReaperWriter.follow(reader, new FollowOptions(16, errors::add))) {
            Check.until(() -> reads.get() > 3 && interrupts.get() == 1);
            Check.until(() -> stamps(f, "00000007."));
        }
        Check.isTrue(errors.stream().anyMatch(e -> e instanceof TimeoutException), errors);
    }

    static void aCallerThatIsInterruptedStaysSo() {
        TargetReader reader = () -> {
            Thread.sleep(1); // as a client does that waits for an answer
            return record("number", 7);
        };
        Follower f = new Follower(reader, FollowOptions.DEFAULT, Follower.SYSTEM);
        Thread.currentThread().interrupt();
        Check.isTrue(!f.refresh(), "the read is interrupted");
        Check.isTrue(Thread.interrupted(), "the caller is interrupted");
        Check.isTrue(f.refresh(), "the next read is not");
    }

    static void keepsNoProcessAlive() throws Exception {
        CountDownLatch hangs = new CountDownLatch(1);
        CountDownLatch never = new CountDownLatch(1);
        TargetReader reader = () -> {
            hangs.countDown();
            never.await();
            return null;
        };
        try (Follower f = ReaperWriter.follow(reader)) {
            hangs.await();
            Check.isTrue(stamps(f, "00000000."), "it stamps meanwhile");
            Set<Thread> threads = Thread.getAllStackTraces().keySet();
            for (String name : List.of("reaper-writer", "reaper-writer-read")) {
                Check.isTrue(threads.stream().anyMatch(t -> t.getName().equals(name)), name + " runs");
                Check.isTrue(threads.stream().allMatch(t -> t.isDaemon() || !t.getName().equals(name)), name + " is a daemon");
            }
        }
    }

    static void badOptions() {
        Check.refused(() -> ReaperWriter.follow(() -> null, new FollowOptions(0, error -> {})), "no shards");
    }
}
