package io.github.reaperttl.writer;

import java.util.Objects;
import java.util.function.BooleanSupplier;

/** What the tests check with. */
final class Check {
    private Check() {}

    /** Something that may fail. */
    interface Action {
        void run() throws Exception;
    }

    static void equal(Object got, Object want, Object what) {
        if (!Objects.equals(got, want)) {
            throw new AssertionError(what + ": got " + got + ", want " + want);
        }
    }

    static void isTrue(boolean condition, Object what) {
        equal(condition, true, what);
    }

    static void refused(Action action, Object what) {
        try {
            action.run();
        } catch (IllegalArgumentException e) {
            return;
        } catch (Exception e) {
            throw new AssertionError(what + ": another error than for bad arguments", e);
        }
        throw new AssertionError(what + ": no error");
    }

    /** Waits for a state, however long that takes. */
    static void until(BooleanSupplier condition) throws InterruptedException {
        while (!condition.getAsBoolean()) {
            Thread.sleep(5);
        }
    }
}
