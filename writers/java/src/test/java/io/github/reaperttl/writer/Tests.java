package io.github.reaperttl.writer;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;

/**
 * Runs every test: each static method without a result or parameters of the classes below. The package has no
 * dependency, not even for its tests, so that a JDK is all that they need.
 */
final class Tests {
    private Tests() {}

    public static void main(String[] args) throws Exception {
        int failed = 0;
        int passed = 0;
        for (Class<?> tests : new Class<?>[] {VectorsTest.class, WriterTest.class}) {
            for (Method m : tests.getDeclaredMethods()) {
                boolean isTest = Modifier.isStatic(m.getModifiers()) && !Modifier.isPrivate(m.getModifiers())
                        && m.getParameterCount() == 0 && m.getReturnType() == void.class && !m.isSynthetic();
                if (!isTest) {
                    continue;
                }
                try {
                    m.invoke(null);
                    passed++;
                    System.out.println("ok     " + tests.getSimpleName() + "." + m.getName());
                } catch (InvocationTargetException e) {
                    failed++;
                    System.out.println("FAILED " + tests.getSimpleName() + "." + m.getName());
                    e.getCause().printStackTrace(System.out);
                }
            }
        }
        System.out.println(passed + " passed, " + failed + " failed");
        System.exit(failed == 0 && passed > 0 ? 0 : 1);
    }
}
