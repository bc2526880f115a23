package io.github.reaperttl.writer;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;

/** Runs every test without JUnit, so that a JDK is all that they need. JUnitTest runs the same ones by it. */
final class Tests {
    private Tests() {}

    /** Each static method without a result or parameters of the classes with tests. */
    static List<Method> all() {
        List<Method> all = new ArrayList<>();
        for (Class<?> tests : new Class<?>[] {VectorsTest.class, WriterTest.class}) {
            for (Method m : tests.getDeclaredMethods()) {
                if (Modifier.isStatic(m.getModifiers()) && !Modifier.isPrivate(m.getModifiers())
                        && m.getParameterCount() == 0 && m.getReturnType() == void.class && !m.isSynthetic()) {
                    all.add(m);
                }
            }
        }
        return all;
    }

    static String name(Method test) {
        return test.getDeclaringClass().getSimpleName() + "." + test.getName();
    }

    public static void main(String[] args) throws Exception {
        int failed = 0;
        int passed = 0;
        for (Method m : all()) {
            try {
                m.invoke(null);
                passed++;
                System.out.println("ok     " + name(m));
            } catch (InvocationTargetException e) {
                failed++;
                System.out.println("FAILED " + name(m));
                e.getCause().printStackTrace(System.out);
            }
        }
        System.out.println(passed + " passed, " + failed + " failed");
        System.exit(failed == 0 && passed > 0 ? 0 : 1);
    }
}
