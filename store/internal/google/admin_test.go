package google

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/api/option"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
)

// answers are what an administration says, by the path and query of a request.
type answers map[string]string

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	body, ok := a[r.Method+" "+r.URL.Host+r.URL.Path+r.URL.Query().Get("pageToken")]
	code := http.StatusOK
	switch {
	case !ok:
		code, body = http.StatusNotFound, `{"error": {"message": "there is nothing at this path"}}`
	case strings.HasPrefix(body, "DENY "):
		code, body = http.StatusForbidden, fmt.Sprintf(`{"error": {"message": %q}}`, body[5:])
	}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Header: http.Header{}, Request: r,
		Body: io.NopCloser(strings.NewReader(body))}, nil
}

func adminWith(a answers) *Admin {
	s := Service{Name: "datastore", EmulatorEnv: "NO_SUCH_VARIABLE"}
	return s.NewAdmin(Options{Project: "p", ClientOptions: []option.ClientOption{
		option.WithHTTPClient(&http.Client{Transport: a})}}, "")
}

const where = "GET firestore.googleapis.com/v1/projects/p/databases/(default)"

func TestDescribe(t *testing.T) {
	got, err := adminWith(answers{where: `{"type": "DATASTORE_MODE", "databaseEdition": "STANDARD", "locationId": "eur3",
		"concurrencyMode": "OPTIMISTIC_WITH_ENTITY_GROUPS", "pointInTimeRecoveryEnablement": "POINT_IN_TIME_RECOVERY_DISABLED",
		"deleteProtectionState": "DELETE_PROTECTION_ENABLED", "earliestVersionTime": "2026-11-21T00:07:30.855Z"}`}).Describe(t.Context())
	if err != nil || got.Mode != facts.DatastoreMode || got.Edition != facts.Standard || got.Location != "eur3" ||
		got.Concurrency != facts.OptimisticWithGroups || got.Recovery == nil || *got.Recovery || got.Protected == nil ||
		!*got.Protected || got.Earliest.Year() != 2026 || !got.Deleted.IsZero() {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = adminWith(answers{where: `{"type": "FIRESTORE_NATIVE", "databaseEdition": "ENTERPRISE"}`}).Describe(t.Context())
	if err != nil || got.Mode != facts.NativeMode || got.Edition != facts.Enterprise || got.Recovery != nil || got.Protected != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFieldsOfAllPages(t *testing.T) {
	path := where + "/collectionGroups/items/fields"
	field := func(name, rest string) string {
		return fmt.Sprintf(`{"name": "projects/p/databases/(default)/collectionGroups/items/fields/%s", %s}`, name, rest)
	}
	got, err := adminWith(answers{
		path: `{"fields": [` + field("expires", `"ttlConfig": {"state": "ACTIVE"}, "indexConfig": {"usesAncestorConfig": true}`) +
			`], "nextPageToken": "two"}`,
		path + "two": `{"fields": [` + field("key", `"indexConfig": {"indexes": [
			{"queryScope": "COLLECTION", "fields": [{"fieldPath": "key", "order": "DESCENDING"}]},
			{"queryScope": "COLLECTION_GROUP", "fields": [{"fieldPath": "key", "order": "ASCENDING"}]}]}`) + `]}`,
	}).Fields(t.Context(), "users/a/items")
	want := []facts.Field{{Name: "expires", TTL: true}, {Name: "key", Own: true, AscendingGroup: true}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPermitted(t *testing.T) {
	a := adminWith(answers{"POST cloudresourcemanager.googleapis.com/v1/projects/p:testIamPermissions": `{"permissions": ["a"]}`})
	if got, err := a.Permitted(t.Context(), []string{"a", "b"}); err != nil || !slices.Equal(got, []string{"a"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// A refusal is an error of the contract, with the service's words; an emulator is asked nothing.
func TestAdministrationRefuses(t *testing.T) {
	_, err := adminWith(answers{where: "DENY the API is\nswitched off"}).Describe(t.Context())
	if !errors.Is(err, store.ErrDenied) || !strings.Contains(err.Error(), "the API is switched off") {
		t.Error(err)
	}
	if _, err := adminWith(answers{}).Describe(t.Context()); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
	if _, err := adminWith(answers{where: "nonsense"}).Describe(t.Context()); !errors.Is(err, store.ErrFailed) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := Service{Name: "datastore", EmulatorEnv: "NO_SUCH_VARIABLE"}
	emulated := s.NewAdmin(Options{Project: "p", Emulator: "127.0.0.1:1"}, "")
	if _, err := emulated.Describe(ctx); !errors.Is(err, facts.ErrEmulated) {
		t.Error(err)
	}
	var any json.RawMessage
	if err := emulated.call(ctx, http.MethodGet, "firestore", "/", nil, &any); !errors.Is(err, facts.ErrEmulated) {
		t.Error(err)
	}
}
