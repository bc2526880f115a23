package io.github.reaperttl.writer;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The six names of a writer of entities that Reaper deletes when they expire. docs/key-format.md and
 * docs/generations.md of Reaper are the specification; docs/writer-vectors.json holds all languages to it.
 */
public final class ReaperWriter {
    static final int MAX_GENERATION = 99_999_999;
    static final int MAX_SHARD = 9_999;

    private static final long FIRST = Instant.parse("0001-01-01T00:00:00Z").getEpochSecond();
    private static final long LAST = Instant.parse("9999-12-31T23:59:59Z").getEpochSecond();
    private static final Pattern NUMERIC = Pattern.compile("__id(-?[0-9]+)__");
    private static final Pattern KEY = Pattern.compile(
            "([0-9]{8})\\.([0-9]{4})\\.([0-9]{4})([0-9]{2})([0-9]{2})"
                    + "T([0-9]{2})([0-9]{2})([0-9]{2})\\.([0-9]{3})Z");

    private ReaperWriter() {}

    /** Returns the expiry key of an entity in generation 0 with 16 shards. */
    public static String nurseryKey(String id, Instant expires) {
        return nurseryKey(id, expires, 16);
    }

    /** Returns the expiry key of an entity in generation 0, which is always right. */
    public static String nurseryKey(String id, Instant expires, int shards) {
        return key(0, shardOf(id, shards), expires);
    }

    /** Returns the expiry key of an entity with a numeric id in generation 0. */
    public static String nurseryKey(long id, Instant expires, int shards) {
        return nurseryKey(Long.toString(id), expires, shards);
    }

    /** Returns the expiry key with these parts. The instant is rounded up to a millisecond. */
    public static String key(int generation, int shard, Instant expires) {
        checkBetween("generation", generation, 0, MAX_GENERATION);
        checkBetween("shard", shard, 0, MAX_SHARD);
        long second = expires.getEpochSecond();
        int milli = (expires.getNano() + 999_999) / 1_000_000; // up: nothing may expire early
        if (milli == 1000) {
            second++;
            milli = 0;
        }
        if (second < FIRST || second > LAST) {
            throw new IllegalArgumentException("expires " + expires + " is not in the years 1 to 9999");
        }
        LocalDateTime t = LocalDateTime.ofEpochSecond(second, 0, ZoneOffset.UTC);
        StringBuilder out = new StringBuilder(34);
        digits(out, generation, 8).append('.');
        digits(out, shard, 4).append('.');
        digits(out, t.getYear(), 4);
        digits(out, t.getMonthValue(), 2);
        digits(out, t.getDayOfMonth(), 2).append('T');
        digits(out, t.getHour(), 2);
        digits(out, t.getMinute(), 2);
        digits(out, t.getSecond(), 2).append('.');
        return digits(out, milli, 3).append('Z').toString();
    }

    /** Returns the parts of an expiry key; any other text is an error. */
    public static ExpiryKey parse(String text) {
        Matcher m = KEY.matcher(text);
        if (m.matches() && number(m, 3) > 0) {
            try {
                LocalDateTime at = LocalDateTime.of(number(m, 3), number(m, 4), number(m, 5),
                        number(m, 6), number(m, 7), number(m, 8), number(m, 9) * 1_000_000);
                return new ExpiryKey(number(m, 1), number(m, 2), at.toInstant(ZoneOffset.UTC));
            } catch (DateTimeException e) {
                // The instant does not exist.
            }
        }
        throw new IllegalArgumentException("malformed expiry key \"" + text.substring(0, Math.min(text.length(), 80))
                + "\": want 00000042.0007.20261121T000730.855Z");
    }

    /** Returns the shard of an entity, from 0 to shards - 1. */
    public static int shardOf(String id, int shards) {
        checkBetween("shards", shards, 1, MAX_SHARD + 1);
        return Integer.remainderUnsigned(fnv1a32(idText(id)), shards);
    }

    /** Returns the shard of an entity with a numeric id. */
    public static int shardOf(long id, int shards) {
        return shardOf(Long.toString(id), shards);
    }

    /** Returns whether an entity is among the first percent (0 to 100) of all. Raising it takes no entity out. */
    public static boolean inRollout(String id, String salt, double percent) {
        try {
            byte[] sum = MessageDigest.getInstance("SHA-256").digest(utf8(salt + "\n" + idText(id)));
            long bucket = Long.remainderUnsigned(ByteBuffer.wrap(sum).getLong(), 10_000);
            return bucket < Math.floor(percent * 100 + 0.5);
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("every Java has SHA-256", e);
        }
    }

    /** Returns whether an entity with a numeric id is among the first percent of all. */
    public static boolean inRollout(long id, String salt, double percent) {
        return inRollout(Long.toString(id), salt, percent);
    }

    /** Follows the generations of a target by reads in the background. Never waits for one. */
    public static Follower follow(TargetReader reader) {
        return follow(reader, FollowOptions.DEFAULT);
    }

    /** Follows the generations of a target by reads in the background. Never waits for one. */
    public static Follower follow(TargetReader reader, FollowOptions options) {
        Follower follower = new Follower(reader, options, Follower.SYSTEM);
        follower.start();
        return follower;
    }

    /** Returns the text that an id is hashed by: native mode writes a numeric id as __id7__. */
    static String idText(String id) {
        Matcher m = NUMERIC.matcher(id);
        return m.matches() ? m.group(1) : id;
    }

    /** Encodes a text. A surrogate without its other half becomes U+FFFD, as in every language. */
    static byte[] utf8(String text) {
        try {
            ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder()
                    .onMalformedInput(CodingErrorAction.REPLACE)
                    .replaceWith(new byte[] {(byte) 0xEF, (byte) 0xBF, (byte) 0xBD})
                    .encode(CharBuffer.wrap(text));
            byte[] out = new byte[bytes.remaining()];
            bytes.get(out);
            return out;
        } catch (CharacterCodingException e) {
            throw new IllegalStateException("what is malformed is replaced", e);
        }
    }

    /** FNV-1a (32 bit) over the UTF-8 bytes; the result is unsigned. */
    static int fnv1a32(String text) {
        int h = 0x811c9dc5;
        for (byte b : utf8(text)) {
            h = (h ^ (b & 0xff)) * 0x01000193;
        }
        return h;
    }

    static void checkBetween(String what, long n, long least, long most) {
        if (n < least || n > most) {
            throw new IllegalArgumentException(what + " " + n + " is not between " + least + " and " + most);
        }
    }

    static StringBuilder digits(StringBuilder out, int n, int width) {
        String text = Integer.toString(n);
        return out.append("0".repeat(width - text.length())).append(text);
    }

    private static int number(Matcher m, int group) {
        return Integer.parseInt(m.group(group));
    }
}
