package io.github.reaperttl.writer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Follows a target over the REST interface of Google's emulator, and writes entities there: one for each line of
 * input, which holds an id and the seconds of its expiry. It prints the key of each. emulator_test.go runs it.
 */
final class Rest {
    private final HttpClient client = HttpClient.newHttpClient();
    private final boolean isNative;
    private final String base;

    private Rest(String mode, String host, String project) {
        isNative = mode.equals("native");
        base = "http://" + host + "/v1/projects/" + project;
    }

    private String documents() {
        return base + "/databases/(default)/documents";
    }

    private Map<?, ?> call(String method, String url, String body) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url))
                .header("Authorization", "Bearer owner").header("Content-Type", "application/json")
                .method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
        if (response.statusCode() == 404) {
            return null;
        }
        if (response.statusCode() != 200) {
            throw new IOException(method + " " + url + ": " + response.statusCode() + " " + response.body());
        }
        return (Map<?, ?>) Json.parse(response.body());
    }

    private static Object value(Map<?, ?> v) {
        if (v.get("integerValue") instanceof String digits) {
            return Long.valueOf(digits);
        }
        if (v.get("arrayValue") instanceof Map<?, ?> array) {
            List<Object> list = new ArrayList<>();
            if (array.get("values") instanceof List<?> values) {
                values.forEach(one -> list.add(value((Map<?, ?>) one)));
            }
            return list;
        }
        if (v.get("mapValue") instanceof Map<?, ?> map) {
            return fields(map.get("fields"));
        }
        if (v.get("entityValue") instanceof Map<?, ?> entity) {
            return fields(entity.get("properties"));
        }
        return v.values().stream().filter(one -> !(one instanceof Map)).findFirst().orElse(null);
    }

    private static Map<String, Object> fields(Object named) {
        Map<String, Object> fields = new HashMap<>();
        if (named instanceof Map<?, ?> map) {
            map.forEach((name, v) -> fields.put((String) name, value((Map<?, ?>) v)));
        }
        return fields;
    }

    private Map<String, ?> read() throws IOException, InterruptedException {
        if (isNative) {
            Map<?, ?> document = call("GET", documents() + "/ReaperTarget/sessions", "");
            return document == null ? null : fields(document.get("fields"));
        }
        Map<?, ?> answer = call("POST", base + ":lookup",
                "{\"keys\": [{\"path\": [{\"kind\": \"ReaperTarget\", \"name\": \"sessions\"}]}]}");
        if (answer.get("found") instanceof List<?> found && !found.isEmpty()) {
            Map<?, ?> entity = (Map<?, ?>) ((Map<?, ?>) found.get(0)).get("entity");
            return fields(entity.get("properties"));
        }
        return null;
    }

    private void write(String id, String key) throws IOException, InterruptedException {
        String values = "{\"expiry_key\": {\"stringValue\": \"" + key + "\"}}";
        if (isNative) {
            call("PATCH", documents() + "/Session/" + id, "{\"fields\": " + values + "}");
            return;
        }
        call("POST", base + ":commit", "{\"mode\": \"NON_TRANSACTIONAL\", \"mutations\": [{\"upsert\": {\"key\": {\"path\": "
                + "[{\"kind\": \"Session\", \"name\": \"" + id + "\"}]}, \"properties\": " + values + "}}]}");
    }

    public static void main(String[] args) throws Exception {
        Rest rest = new Rest(args[0], args[1], args[2]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        FollowOptions options = new FollowOptions(16, System.err::println);
        try (Follower follower = ReaperWriter.follow(rest::read, options)) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] field = line.split("\t");
                String key = follower.key(field[0], Instant.ofEpochSecond(Long.parseLong(field[1])));
                rest.write(field[0], key);
                System.out.println(key);
            }
        }
    }
}
