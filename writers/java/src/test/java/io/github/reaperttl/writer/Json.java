package io.github.reaperttl.writer;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads JSON for the tests: texts keep lone surrogates, integers are Long. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Object parse(String text) {
        Json json = new Json(text);
        Object value = json.value();
        json.space();
        if (json.at != text.length()) {
            throw new IllegalArgumentException("more follows at " + json.at);
        }
        return value;
    }

    private Object value() {
        space();
        switch (text.charAt(at)) {
            case '{':
                return map();
            case '[':
                return list();
            case '"':
                return string();
            default:
                int start = at;
                while (at < text.length() && ",]} \n".indexOf(text.charAt(at)) < 0) {
                    at++;
                }
                return literal(text.substring(start, at));
        }
    }

    private static Object literal(String word) {
        switch (word) {
            case "null":
                return null;
            case "true":
                return true;
            case "false":
                return false;
            default:
                if (word.matches("-?[0-9]+")) {
                    return Long.valueOf(word);
                }
                return Double.valueOf(word);
        }
    }

    private Map<String, Object> map() {
        Map<String, Object> map = new LinkedHashMap<>();
        at++;
        while (!take('}')) {
            space();
            String name = string();
            if (!take(':')) {
                throw new IllegalArgumentException("no colon at " + at);
            }
            map.put(name, value());
            take(',');
        }
        return map;
    }

    private List<Object> list() {
        List<Object> list = new ArrayList<>();
        at++;
        while (!take(']')) {
            list.add(value());
            take(',');
        }
        return list;
    }

    private String string() {
        StringBuilder out = new StringBuilder();
        at++;
        for (char c = text.charAt(at++); c != '"'; c = text.charAt(at++)) {
            if (c != '\\') {
                out.append(c);
                continue;
            }
            char escaped = text.charAt(at++);
            switch (escaped) {
                case 'n' -> out.append('\n');
                case 't' -> out.append('\t');
                case 'r' -> out.append('\r');
                case 'b' -> out.append('\b');
                case 'f' -> out.append('\f');
                case 'u' -> {
                    out.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                    at += 4;
                }
                default -> out.append(escaped);
            }
        }
        return out.toString();
    }

    private boolean take(char c) {
        space();
        if (text.charAt(at) != c) {
            return false;
        }
        at++;
        return true;
    }

    private void space() {
        while (at < text.length() && Character.isWhitespace(text.charAt(at))) {
            at++;
        }
    }
}
