package io.github.reaperttl.writer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.HexFormat;
import java.util.Map;

/** Answers the questions of compare_test.go, one a line; that file describes them. */
final class Pipe implements Follower.Clocks {
    private final long start;
    private long passed; // in milliseconds

    private Pipe(long start) {
        this.start = start;
    }

    @Override
    public long wall() {
        return (start + passed) * 1000;
    }

    @Override
    public long monotonic() {
        return passed * 1000;
    }

    @SuppressWarnings("unchecked")
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Pipe clock = null;
        Follower follower = null;
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (line.startsWith("{")) {
                Map<String, Object> start = (Map<String, Object>) Json.parse(line);
                clock = new Pipe(Instant.parse((String) start.get("now")).toEpochMilli());
                follower = new Follower(() -> (Map<String, ?>) start.get("record"), FollowOptions.DEFAULT, clock);
                follower.refresh();
                continue;
            }
            String[] field = line.split("\t", -1);
            String id = new String(HexFormat.of().parseHex(field[0]), StandardCharsets.UTF_8);
            Instant expires = Instant.ofEpochSecond(Long.parseLong(field[2]), Long.parseLong(field[3]));
            clock.passed = Long.parseLong(field[5]);
            String nursery = ReaperWriter.nurseryKey(id, expires, Integer.parseInt(field[1]));
            ExpiryKey back = ReaperWriter.parse(nursery);
            boolean chosen = ReaperWriter.inRollout(id, "compare", Double.parseDouble(field[4]));
            out.append(nursery).append('\t')
                    .append(ReaperWriter.key(back.generation() + 1, back.shard(), back.expires())).append('\t')
                    .append(chosen ? "in" : "out").append('\t')
                    .append(follower.key(id, expires)).append('\n');
        }
        System.out.print(out);
    }
}
