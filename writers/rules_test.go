package writers

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// The example of security rules lets clients write their documents, and keeps them from
// choosing when these expire.
func TestRulesKeepClientsFromTheirEnd(t *testing.T) {
	e := emulator.Start(t, emulator.Native)
	project := e.Project(t)
	content, err := os.ReadFile("firestore.rules")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := json.Marshal(map[string]any{"rules": map[string]any{
		"files": []any{map[string]any{"name": "firestore.rules", "content": string(content)}}}})
	if err != nil {
		t.Fatal(err)
	}
	c := client{t: t, base: "http://" + e.Host}
	if got := c.call("owner", http.MethodPut, "/emulator/v1/projects/"+project+":securityRules", string(rules)); got != http.StatusOK {
		t.Fatalf("the emulator refuses the rules: %d %s", got, c.reply)
	}
	database := "/v1/projects/" + project + "/databases/(default)/documents"
	const end = `"expiry_key": {"stringValue": "00000000.0006.20261121T000730.855Z"}`
	const later = `"expiry_key": {"stringValue": "00000000.0006.99991231T235959.999Z"}`
	document := func(fields ...string) string { return `{"fields": {` + strings.Join(fields, ", ") + `}}` }
	alice, text := `"user": {"stringValue": "alice"}`, `"text": {"stringValue": "new"}`
	for _, path := range []string{"/sessions/s1", "/drafts/d1", "/ReaperTarget/sessions"} {
		if got := c.call("owner", http.MethodPatch, database+path, document(alice, end)); got != http.StatusOK {
			t.Fatalf("a server writes %s: %d %s", path, got, c.reply)
		}
	}
	// A stamp by the server's clock comes as a transformation of the field.
	transform := func(field string) string {
		return fmt.Sprintf(`{"writes": [{"transform": {"document": %q, "fieldTransforms": [{"fieldPath": %q, "setToServerValue": "REQUEST_TIME"}]}}]}`,
			strings.TrimPrefix(database, "/v1/")+"/sessions/s1", field)
	}
	const ok, denied = http.StatusOK, http.StatusForbidden
	for _, s := range []struct {
		name, as, method, path, body string
		want                         int
	}{
		{"reads", "alice", "GET", "/sessions/s1", "", ok},
		{"reads what is of others", "bob", "GET", "/sessions/s1", "", denied},
		{"changes the text", "alice", "PATCH", "/sessions/s1?updateMask.fieldPaths=text", document(text), ok},
		{"writes the same end", "alice", "PATCH", "/sessions/s1", document(alice, text, end), ok},
		{"changes the end", "alice", "PATCH", "/sessions/s1", document(alice, text, later), denied},
		{"changes the end alone", "alice", "PATCH", "/sessions/s1?updateMask.fieldPaths=expiry_key", document(later), denied},
		{"removes the end", "alice", "PATCH", "/sessions/s1?updateMask.fieldPaths=expiry_key", document(), denied},
		{"nulls the end", "alice", "PATCH", "/sessions/s1?updateMask.fieldPaths=expiry_key", document(`"expiry_key": {"nullValue": null}`), denied},
		{"overwrites without the end", "alice", "PATCH", "/sessions/s1", document(alice, text), denied},
		{"adds a timestamp", "alice", "PATCH", "/sessions/s1", document(alice, end, `"expires": {"timestampValue": "2999-01-01T00:00:00Z"}`), denied},
		{"transforms the end", "alice", "POST", ":commit", transform("expiry_key"), denied},
		{"transforms the text", "alice", "POST", ":commit", transform("text"), ok},
		{"gives it away", "alice", "PATCH", "/sessions/s1?updateMask.fieldPaths=user", document(`"user": {"stringValue": "bob"}`), denied},
		{"creates a session with an end", "alice", "PATCH", "/sessions/s2", document(alice, later), denied},
		{"creates a session without an end", "alice", "PATCH", "/sessions/s2", document(alice), denied},
		{"creates a draft with an end", "alice", "PATCH", "/drafts/d2", document(alice, later), denied},
		{"creates a draft without an end", "alice", "PATCH", "/drafts/d2", document(alice), ok},
		{"sets the end of its draft", "alice", "PATCH", "/drafts/d2", document(alice, later), denied},
		{"changes a stamped draft", "alice", "PATCH", "/drafts/d1", document(alice, text, end), ok},
		{"removes the end of a draft", "alice", "PATCH", "/drafts/d1", document(alice, text), denied},
		{"deletes a draft, to create it again", "alice", "DELETE", "/drafts/d1", "", denied},
		{"reads the target record", "alice", "GET", "/ReaperTarget/sessions", "", denied},
		{"writes the target record", "alice", "PATCH", "/ReaperTarget/sessions", document(alice), denied},
		{"writes a cursor", "alice", "PATCH", "/ReaperCursor/x", document(alice), denied},
		{"deletes a heartbeat", "alice", "DELETE", "/ReaperWorker/x", "", denied},
		{"adds to what may be deleted", "alice", "PATCH", "/ReaperBudget/sessions", document(alice), denied},
		{"extends it", "owner", "PATCH", "/sessions/s1?updateMask.fieldPaths=expiry_key", document(later), ok},
		{"ends the session", "alice", "DELETE", "/sessions/s1", "", ok},
	} {
		if got := c.call(s.as, s.method, database+s.path, s.body); got != s.want {
			t.Errorf("%s %s: %d, want %d\n%s", s.as, s.name, got, s.want, c.reply)
		}
	}
}

// A client sends requests as a user whom the emulator believes, or as the owner, whom no
// rule binds.
type client struct {
	t     *testing.T
	base  string
	reply string
}

func (c *client) call(user, method, path, body string) (status int) {
	c.t.Helper()
	token := user
	if user != "owner" {
		encode := base64.RawURLEncoding.EncodeToString
		token = encode([]byte(`{"alg":"none","typ":"JWT"}`)) + "." +
			encode(fmt.Appendf(nil, `{"sub":%q,"user_id":%q,"iat":0,"exp":4102444800}`, user, user)) + "."
	}
	request, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	c.reply = string(text)
	return response.StatusCode
}
