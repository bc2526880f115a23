package io.github.reaperttl.writer;

import java.lang.reflect.InvocationTargetException;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** The tests of {@link Tests} for JUnit 5, which Maven and editors run. It is the only class that needs JUnit. */
final class JUnitTest {
    @TestFactory
    Stream<DynamicTest> tests() {
        return Tests.all().stream().map(m -> DynamicTest.dynamicTest(Tests.name(m), () -> {
            try {
                m.invoke(null);
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
        }));
    }
}
