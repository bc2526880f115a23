package google

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/api/option"
	htransport "google.golang.org/api/transport/http"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
)

// An Admin asks the administration of a database, over HTTP: a few small answers need no
// client of their own. It only reads. An emulator has no administration.
type Admin struct {
	options  []option.ClientOption
	project  string
	database string // its id, such as (default)
	emulated bool

	connect sync.Once
	client  *http.Client
	err     error // why there is no client
}

// NewAdmin returns what asks the administration of a database. It sends nothing.
func (s Service) NewAdmin(o Options, database string) *Admin {
	return &Admin{options: o.ClientOptions, project: o.Project, database: cmp.Or(database, "(default)"),
		emulated: s.IsEmulated(o)}
}

const (
	// mostAnswer is far above what these calls answer.
	mostAnswer = 4 << 20
	cloudScope = "https://www.googleapis.com/auth/cloud-platform"
)

// call sends one request and decodes its answer. Service is the first label of the host.
func (a *Admin) call(ctx context.Context, method, service, path string, body, answer any) (err error) {
	op := fmt.Sprintf("ask %s for %s", service, path)
	if a.emulated {
		return fmt.Errorf("%s: %w", op, facts.ErrEmulated)
	}
	a.connect.Do(func() {
		options := append([]option.ClientOption{option.WithScopes(cloudScope)}, a.options...)
		a.client, _, a.err = htransport.NewClient(context.WithoutCancel(ctx), options...)
	})
	if a.err != nil {
		return store.WithHint(fmt.Errorf("%s: %w: %w", op, store.ErrDenied, a.err), Credentials)
	}
	var text []byte
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	address := "https://" + service + "." + cmp.Or(os.Getenv(universeEnv), "googleapis.com") + path
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%s: %w: %w", op, store.ErrInvalid, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", op, store.ErrUnavailable, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return fmt.Errorf("%s: %w: %w", op, store.ErrUnavailable, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %w: %s", op, sentinelOfHTTP(resp.StatusCode), messageOf(resp.Status, got))
	}
	if err := json.Unmarshal(got, answer); err != nil {
		return fmt.Errorf("%s: %w: %w", op, store.ErrFailed, err)
	}
	return nil
}

// sentinelOfHTTP maps a status to an error of the contract.
func sentinelOfHTTP(code int) error {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return store.ErrDenied
	case http.StatusNotFound:
		return store.ErrNotFound
	case http.StatusTooManyRequests:
		return store.ErrPushback
	case http.StatusBadRequest:
		return store.ErrInvalid
	}
	if code >= http.StatusInternalServerError {
		return store.ErrUnavailable
	}
	return store.ErrFailed
}

// messageOf returns what a service says of a refusal, in one line.
func messageOf(status string, body []byte) string {
	var refusal struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &refusal) != nil || refusal.Error.Message == "" {
		return status
	}
	return strings.Join(strings.Fields(refusal.Error.Message), " ")
}

func (a *Admin) path() string {
	return "/v1/projects/" + url.PathEscape(a.project) + "/databases/" + url.PathEscape(a.database)
}

// Describe returns what the administration says of the database.
func (a *Admin) Describe(ctx context.Context) (d facts.Database, err error) {
	var got struct {
		Type        string    `json:"type"`
		Edition     string    `json:"databaseEdition"`
		Location    string    `json:"locationId"`
		Concurrency string    `json:"concurrencyMode"`
		Recovery    string    `json:"pointInTimeRecoveryEnablement"`
		Earliest    time.Time `json:"earliestVersionTime"`
		Protection  string    `json:"deleteProtectionState"`
		Deleted     time.Time `json:"deleteTime"`
	}
	if err := a.call(ctx, http.MethodGet, "firestore", a.path(), nil, &got); err != nil {
		return d, err
	}
	const suffix = "_ENABLED"
	isOn := func(state string) *bool {
		if state == "" || strings.HasSuffix(state, "_UNSPECIFIED") {
			return nil
		}
		on := strings.HasSuffix(state, suffix)
		return &on
	}
	known := func(value string, names map[string]string) string {
		if name, ok := names[value]; ok {
			return name
		}
		return strings.ReplaceAll(strings.ToLower(value), "_", " ")
	}
	return facts.Database{
		Mode: known(got.Type, map[string]string{"DATABASE_TYPE_UNSPECIFIED": "",
			"FIRESTORE_NATIVE": facts.NativeMode, "DATASTORE_MODE": facts.DatastoreMode}),
		Edition: known(got.Edition, map[string]string{"DATABASE_EDITION_UNSPECIFIED": ""}), Location: got.Location,
		Concurrency: known(got.Concurrency, map[string]string{"CONCURRENCY_MODE_UNSPECIFIED": "",
			"OPTIMISTIC_WITH_ENTITY_GROUPS": facts.OptimisticWithGroups}),
		Recovery: isOn(got.Recovery), Earliest: got.Earliest, Protected: isOn(got.Protection), Deleted: got.Deleted,
	}, nil
}

// ownFields selects the fields with indexes of their own, or a TTL policy.
const ownFields = "indexConfig.usesAncestorConfig:false OR ttlConfig:*"

// mostFields bounds how many fields of a kind are read.
const mostFields = 1000

// Fields returns the fields of a kind that have a policy or indexes of their own.
func (a *Admin) Fields(ctx context.Context, kind string) (list []facts.Field, err error) {
	type answer struct {
		Fields []struct {
			Name  string `json:"name"`
			Index struct {
				Inherits bool `json:"usesAncestorConfig"`
				Indexes  []struct {
					Scope  string `json:"queryScope"`
					Fields []struct {
						Order string `json:"order"`
					} `json:"fields"`
				} `json:"indexes"`
			} `json:"indexConfig"`
			TTL struct {
				State string `json:"state"`
			} `json:"ttlConfig"`
		} `json:"fields"`
		Next string `json:"nextPageToken"`
	}
	id := kind[strings.LastIndexByte(kind, '/')+1:] // what a collection group goes by
	for token := ""; ; {
		var got answer
		path := fmt.Sprintf("%s/collectionGroups/%s/fields?filter=%s&pageSize=300&pageToken=%s",
			a.path(), url.PathEscape(id), url.QueryEscape(ownFields), url.QueryEscape(token))
		if err := a.call(ctx, http.MethodGet, "firestore", path, nil, &got); err != nil {
			return nil, err
		}
		for _, f := range got.Fields {
			one := facts.Field{Name: strings.Trim(f.Name[strings.LastIndexByte(f.Name, '/')+1:], "`"),
				TTL: f.TTL.State == "ACTIVE" || f.TTL.State == "CREATING", Own: !f.Index.Inherits}
			for _, x := range f.Index.Indexes {
				isAscending := len(x.Fields) > 0 && x.Fields[0].Order == "ASCENDING"
				one.Ascending = one.Ascending || isAscending && x.Scope == "COLLECTION"
				one.AscendingGroup = one.AscendingGroup || isAscending && x.Scope == "COLLECTION_GROUP"
			}
			list = append(list, one)
		}
		if token = got.Next; token == "" || len(list) > mostFields {
			return list, nil
		}
	}
}

// Permitted returns those of the given permissions that the credentials have on the project.
// A role that is limited to one database by a condition may not show.
func (a *Admin) Permitted(ctx context.Context, permissions []string) ([]string, error) {
	var got struct {
		Permissions []string `json:"permissions"`
	}
	path := "/v1/projects/" + url.PathEscape(a.project) + ":testIamPermissions"
	asked := map[string][]string{"permissions": permissions}
	err := a.call(ctx, http.MethodPost, "cloudresourcemanager", path, asked, &got)
	return got.Permissions, err
}
