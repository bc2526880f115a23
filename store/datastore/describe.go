package datastore

import (
	"context"
	"fmt"
	"strings"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
)

// Describe returns what the service's administration says of the database. The emulator has
// no administration: the error is then [facts.ErrEmulated].
func (d *DB) Describe(ctx context.Context) (facts.Database, error) { return d.admin.Describe(ctx) }

// Fields returns the properties of a kind that have a TTL policy.
func (d *DB) Fields(ctx context.Context, kind string) ([]facts.Field, error) {
	return d.admin.Fields(ctx, kind)
}

// Permitted returns those of the given permissions that the credentials have on the project.
func (d *DB) Permitted(ctx context.Context, permissions []string) ([]string, error) {
	return d.admin.Permitted(ctx, permissions)
}

// Kinds lists kinds that have entities in the default namespace, at most so many, in order.
func (d *DB) Kinds(ctx context.Context, most int) ([]string, error) {
	keys, err := d.client.GetAll(ctx, sdk.NewQuery("__kind__").KeysOnly().Limit(most), nil)
	if err != nil {
		return nil, d.fail(ctx, "list kinds", err)
	}
	var names []string
	for _, k := range keys {
		if !strings.HasPrefix(k.Name, "__") {
			names = append(names, k.Name)
		}
	}
	return names, nil
}

// RecordedTargets lists the targets that have a record, at most so many, in order.
func (d *DB) RecordedTargets(ctx context.Context, most int) ([]string, error) {
	query := sdk.NewQuery(string(store.TargetRecord)).KeysOnly().Order("__key__").Limit(most)
	keys, err := d.client.GetAll(ctx, query, nil)
	if err != nil {
		return nil, d.fail(ctx, fmt.Sprintf("list %s", store.TargetRecord), err)
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.Name
	}
	return names, nil
}
