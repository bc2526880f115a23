package io.github.reaperttl.writer;

import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;

/** Stamps entities by the generation that is current. All methods are safe for threads. */
public final class Follower implements AutoCloseable {
    /** The clocks of this process, in microseconds. */
    interface Clocks {
        long wall();

        long monotonic();
    }

    static final Clocks SYSTEM = new Clocks() {
        @Override
        public long wall() {
            return TargetRecord.micros(Instant.now());
        }

        @Override
        public long monotonic() {
            return System.nanoTime() / 1000;
        }
    };

    private static final long SHORTEST_WAIT = 100_000; // whatever the record says, it is not read more often
    private static final long LONGEST_WAIT = TimeUnit.DAYS.toMicros(1);
    private static final int MAX_HANGING = 4; // reads that never return: no more than that are given up

    /** A record as it was read, and both clocks from before the read was sent. */
    private record Copy(TargetRecord record, long wall, long monotonic) {}

    private final TargetReader reader;
    private final FollowOptions options;
    private final Clocks clocks;
    private final AtomicReference<Copy> copy = new AtomicReference<>();
    private final CountDownLatch closed = new CountDownLatch(1);
    private final List<Thread> hanging = new ArrayList<>(); // only the background thread uses it

    Follower(TargetReader reader, FollowOptions options, Clocks clocks) {
        this.reader = Objects.requireNonNull(reader, "follow: want a function that reads the target record");
        this.options = options;
        this.clocks = clocks;
        ReaperWriter.checkBetween("shards", options.shards(), 1, ReaperWriter.MAX_SHARD + 1);
    }

    void start() {
        Thread thread = new Thread(this::run, "reaper-writer");
        thread.setDaemon(true);
        try {
            thread.start();
        } catch (Throwable error) { // no thread can be started: entities are stamped with the nursery
            report(error);
        }
    }

    /** Returns the expiry key of an entity that is written now. It reads nothing. */
    public String key(String id, Instant expires) {
        String text = ReaperWriter.idText(id);
        Copy known = copy.get();
        if (known == null) {
            return ReaperWriter.nurseryKey(text, expires, options.shards());
        }
        // The larger of two measures: one clock may have stood still while the machine
        // slept, the other may have been set.
        long wall = clocks.wall() - known.wall;
        long elapsed = clocks.monotonic() - known.monotonic;
        TargetRecord record = known.record;
        TargetRecord.Generation g = wall < 0 || Math.max(wall, elapsed) > record.staleness()
                ? null
                : record.generationFor(text, known.wall + elapsed);
        if (g == null) {
            return ReaperWriter.nurseryKey(text, expires, Math.max(1, record.nurseryShards()));
        }
        return ReaperWriter.key(g.number(), ReaperWriter.shardOf(text, g.shards()), expires);
    }

    /** Returns the expiry key of an entity with a numeric id. */
    public String key(long id, Instant expires) {
        return key(Long.toString(id), expires);
    }

    /** Reads the record now, and returns whether that was possible. It waits for the read. */
    public boolean refresh() {
        try {
            long wall = clocks.wall(); // before the read is sent: the copy may be as old as that
            long monotonic = clocks.monotonic();
            Map<String, ?> fields = reader.read();
            if (fields == null) {
                throw new IllegalStateException("there is no target record");
            }
            Copy read = new Copy(TargetRecord.decode(fields), wall, monotonic);
            // One that was given up meanwhile may return after a later one.
            copy.accumulateAndGet(read, (old, one) -> old == null || old.monotonic <= one.monotonic ? one : old);
            return true;
        } catch (Throwable error) { // whatever it is, writers go on
            if (error instanceof InterruptedException) {
                Thread.currentThread().interrupt(); // the caller has to know
            }
            report(error);
            return false;
        }
    }

    /** Ends the reads in the background. It does not wait for one that is under way. */
    @Override
    public void close() {
        closed.countDown();
    }

    private void report(Throwable error) {
        try {
            options.onError().accept(error);
        } catch (Throwable ignored) {
            // A handler that fails must not end the refreshes.
        }
    }

    private long staleness() {
        Copy known = copy.get();
        return known == null ? TargetRecord.DEFAULT_STALENESS : known.record.staleness();
    }

    private static long bounded(long wait) {
        return Math.min(Math.max(wait, SHORTEST_WAIT), LONGEST_WAIT);
    }

    private void run() {
        try {
            boolean ended = false;
            while (!ended) {
                boolean read = refreshBounded();
                long wait = bounded(staleness() / (read ? 2 : 8)); // after a failure it tries again sooner
                ended = closed.await(wait, TimeUnit.MICROSECONDS); // by the monotonic clock
            }
        } catch (InterruptedException e) {
            // Nobody but the process's end interrupts this thread.
        }
    }

    /** Reads the record in a thread of its own, so that a read that hangs holds up no later one. */
    private boolean refreshBounded() throws InterruptedException {
        hanging.removeIf(t -> !t.isAlive());
        if (hanging.size() >= MAX_HANGING) {
            report(new TimeoutException(MAX_HANGING + " reads of the target record hang: waiting for one to end"));
            return false;
        }
        boolean[] result = new boolean[1]; // read only after the thread has ended
        Thread thread = new Thread(() -> result[0] = refresh(), "reaper-writer-read");
        thread.setDaemon(true);
        long limit = bounded(staleness() / 2);
        try {
            thread.start();
        } catch (Throwable error) {
            report(error);
            return false;
        }
        thread.join(limit / 1000);
        if (thread.isAlive()) {
            hanging.add(thread);
            thread.interrupt();
            report(new TimeoutException("reading the target record takes longer than " + limit / 1000 + " ms"));
            return false;
        }
        return result[0];
    }
}
