package datastore

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

var _ store.Orphaner = (*DB)(nil)

// firstOf returns the key before all others of a kind without an ancestor.
func firstOf(namespace, kind string) *sdk.Key {
	return &sdk.Key{Kind: kind, ID: math.MinInt64, Namespace: namespace}
}

// IsScattered implements [store.Orphaner], by two queries for the keys of entities of the kind whose
// ancestors are of other kinds.
func (d *DB) IsScattered(ctx context.Context, t store.Target, namespace string) (bool, error) {
	for op, key := range map[string]*sdk.Key{
		"<": firstOf(namespace, t.Kind), ">=": firstOf(namespace, store.NextName(t.Kind)),
	} {
		query := sdk.NewQuery(t.Kind).Namespace(namespace).KeysOnly().FilterField("__key__", op, key)
		keys, err := d.client.GetAll(ctx, query.Order("__key__").Limit(1), nil)
		if err != nil {
			return false, d.fail(ctx, "look for ancestors of "+where(t, namespace), err)
		}
		if len(keys) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// Lineage implements [store.Orphaner], by a query without a kind for the keys between two keys. It
// bills one read, however many it finds.
func (d *DB) Lineage(ctx context.Context, q store.LineageQuery, page *store.Lineage) error {
	*page = store.Lineage{List: page.List[:0]}
	op := "list keys of " + where(q.Target, q.Namespace)
	query, err := lineage(q)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	keys, err := d.client.GetAll(ctx, query, nil)
	if err != nil {
		return d.fail(ctx, op, err)
	}
	for _, k := range keys {
		page.List = append(page.List, relative(q, k))
	}
	page.More = len(keys) == q.Limit
	return nil
}

// lineage returns the query of a page.
func lineage(q store.LineageQuery) (*sdk.Query, error) {
	if q.Limit < 1 || q.Limit > store.MaxPage {
		return nil, fmt.Errorf("%w: a page of %d names, not of 1 to %d", store.ErrInvalid, q.Limit, store.MaxPage)
	}
	bounds := map[string]*sdk.Key{}
	if !q.Whole {
		bounds[">="], bounds["<"] = firstOf(q.Namespace, q.Target.Kind), firstOf(q.Namespace, store.NextName(q.Target.Kind))
	}
	for _, text := range []string{q.After, q.Until} {
		if text == "" {
			continue
		}
		key, err := ParseKey(q.Namespace, text)
		if err != nil {
			return nil, err
		}
		if root := elements(key)[0]; !q.Whole && root.Kind != q.Target.Kind {
			return nil, fmt.Errorf("%w: %q is not below an entity of %s", store.ErrInvalid, text, q.Target.Kind)
		}
	}
	if q.Until != "" {
		key, _ := ParseKey(q.Namespace, q.Until) // it was parsed above
		bounds["<"] = behind(key)
	}
	if q.After != "" {
		key, _ := ParseKey(q.Namespace, q.After)
		delete(bounds, ">=")
		if q.Behind {
			bounds[">="] = behind(key)
		} else {
			bounds[">"] = key
		}
	}
	query := sdk.NewQuery("").Namespace(q.Namespace).KeysOnly().Order("__key__").Limit(q.Limit)
	for op, key := range bounds {
		query = query.FilterField("__key__", op, key)
	}
	return query, nil
}

// behind returns the first key behind an entity and all that lies below it.
func behind(k *sdk.Key) *sdk.Key {
	next := &sdk.Key{Kind: k.Kind, Parent: k.Parent, Namespace: k.Namespace}
	switch {
	case k.Name != "":
		next.Name = store.NextName(k.Name)
	case k.ID == math.MaxInt64:
		next.Name = store.NextName("") // names come behind all numbers
	case k.ID == -1:
		next.ID = 1 // no key has the number 0
	default:
		next.ID = k.ID + 1
	}
	return next
}

// relative returns an entity as a lineage shows it.
func relative(q store.LineageQuery, k *sdk.Key) store.Relative {
	path := elements(k)
	r := store.Relative{Key: FormatKey(k), Kind: k.Kind, Root: FormatKey(path[0]), Own: k.Kind == q.Target.Kind}
	for at := k.Parent; at != nil; at = at.Parent {
		if at.Kind == q.Target.Kind {
			r.Of = FormatKey(at)
			break
		}
	}
	switch {
	case store.IsRecordKind(k.Kind):
		r.Owner = store.OwnerReaper
	case !r.Own:
		r.Unsure = mayHaveOwner(q.Owners, k.Kind)
	}
	return r
}

func mayHaveOwner(owners []store.Target, kind string) bool {
	return slices.ContainsFunc(owners, func(t store.Target) bool { return t.Kind == kind })
}

// Roots implements [store.Orphaner].
func (d *DB) Roots(ctx context.Context, q store.LineageQuery, most int) ([]string, error) {
	op := "part the keys of " + where(q.Target, q.Namespace)
	q.Limit = 1
	if _, err := lineage(q); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	texts, err := d.Splits(ctx, q.Target, q.Namespace, most)
	if err != nil {
		return nil, err
	}
	// Entities that exist are where the splits are. What lies below missing ones may be elsewhere.
	_, err = google.SampleKeys(ctx, most, func(ctx context.Context, path []string) ([]string, error) {
		at := q
		if len(path) > 0 {
			at.After, at.Behind = strings.Join(path, "/"), false
		}
		if !isPlace(at) {
			return nil, nil
		}
		var page store.Lineage
		if err := d.Lineage(ctx, at, &page); err != nil || len(page.List) == 0 {
			return nil, err
		}
		texts = append(texts, page.List[0].Root)
		return strings.Split(page.List[0].Root, "/"), nil
	})
	if err != nil {
		return nil, d.fail(ctx, op, err)
	}
	after, _ := ParseKey(q.Namespace, q.After) // lineage has parsed them, if there are any
	until, _ := ParseKey(q.Namespace, q.Until)
	var roots []*sdk.Key
	for _, text := range texts {
		key, err := ParseKey(q.Namespace, text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		root := elements(key)[0]
		if (q.After == "" || compareKeys(root, after) > 0) && (q.Until == "" || compareKeys(root, until) < 0) &&
			(q.Whole || root.Kind == q.Target.Kind) {
			roots = append(roots, root)
		}
	}
	slices.SortFunc(roots, compareKeys)
	roots = slices.CompactFunc(roots, func(a, b *sdk.Key) bool { return compareKeys(a, b) == 0 })
	var out []string
	for _, k := range store.Evenly(roots, most) {
		out = append(out, FormatKey(k))
	}
	return out, nil
}

// isPlace reports whether a query may begin at its key: replaced letters may not make one.
func isPlace(q store.LineageQuery) bool {
	_, err := lineage(q)
	return err == nil
}

// Claim implements [store.Orphaner], by lookups of the owners' properties.
func (d *DB) Claim(ctx context.Context, q store.LineageQuery, list []store.Relative) error {
	if _, err := d.claim(ctx, nil, &call{}, q, list); err != nil {
		return d.fail(ctx, fmt.Sprintf("look for owners of %d of %s", len(list), where(q.Target, q.Namespace)), err)
	}
	return nil
}

// claim reads those of a list that may have an owner, within a transaction unless tx is nil, and sets
// their owners. c is the call of the transaction.
func (d *DB) claim(
	ctx context.Context, tx *sdk.Transaction, c *call, q store.LineageQuery, list []store.Relative,
) (claimed bool, err error) {
	for _, t := range q.Owners {
		var keys []*sdk.Key
		var at []int
		for i, r := range list {
			if !r.Unsure && tx == nil || r.Kind != t.Kind || r.Owner != "" {
				continue
			}
			key, err := ParseKey(q.Namespace, r.Key)
			if err != nil {
				return false, err
			}
			keys, at = append(keys, key), append(at, i)
		}
		carry, err := d.carry(ctx, tx, c, t.Property, keys)
		if err != nil {
			return false, err
		}
		for n := range keys {
			if carry[n] {
				list[at[n]].Owner, claimed = t.Name, true
			}
		}
	}
	for i := range list {
		list[i].Unsure = false
	}
	return claimed, nil
}

// claimIn claims a list, and what is between the entity above and those of the list but not in it: what lies below
// an entity that got an owner goes with that owner.
func (d *DB) claimIn(
	ctx context.Context, tx *sdk.Transaction, c *call, q store.LineageQuery, above *sdk.Key, keys []*sdk.Key,
	list []store.Relative,
) (claimed bool, err error) {
	if claimed, err = d.claim(ctx, tx, c, q, list); err != nil {
		return false, err
	}
	seen := map[string]bool{}
	for _, r := range list {
		seen[r.Key] = true
	}
	var between []store.Relative
	for _, k := range keys {
		for at := range keysBetween(above, k) {
			if text := FormatKey(at); !seen[text] && mayHaveOwner(q.Owners, at.Kind) {
				seen[text] = true
				between = append(between, store.Relative{Key: text, Kind: at.Kind})
			}
		}
	}
	if _, err := d.claim(ctx, tx, c, q, between); err != nil {
		return false, err
	}
	for _, b := range between {
		claimed = google.ClaimBelow(list, b.Key, b.Owner) || claimed
	}
	return claimed, nil
}

// DeleteOrphans implements [store.Orphaner].
func (d *DB) DeleteOrphans(
	ctx context.Context, q store.LineageQuery, above string, list []store.Relative,
) (store.Outcome, error) {
	op := fmt.Sprintf("delete %d below %s of %s", len(list), above, where(q.Target, q.Namespace))
	if len(list) >= store.MaxPage { // they are of one entity group
		return store.Unknown, fmt.Errorf("%s: %w: more than %d", op, store.ErrTooLarge, store.MaxPage-1)
	}
	o, err := d.deleteOrphans(ctx, q, above, list)
	if err != nil {
		return store.Unknown, d.fail(ctx, op, err)
	}
	return o, nil
}

func (d *DB) deleteOrphans(
	ctx context.Context, q store.LineageQuery, above string, list []store.Relative,
) (store.Outcome, error) {
	parent, err := ParseKey(q.Namespace, above)
	if err != nil {
		return store.Unknown, err
	}
	keys := make([]*sdk.Key, len(list))
	for i, r := range list {
		if keys[i], err = ParseKey(q.Namespace, r.Key); err != nil {
			return store.Unknown, err
		}
	}
	// The transaction remembers its context, and with it the mask, which changes from one lookup to the next.
	c := &call{mask: q.Target.Property}
	ctx = withCall(ctx, c)
	tx, err := d.begin(ctx)
	if err != nil {
		return store.Unknown, err
	}
	committed := false
	defer func() {
		if !committed {
			rollback(tx)
		}
	}()
	_, found, err := d.look(ctx, tx, q.Target.Property, "", []*sdk.Key{parent})
	if err != nil {
		return store.Unknown, err
	}
	if found[0] {
		return store.Kept, nil
	}
	claimed, err := d.claimIn(ctx, tx, c, q, parent, keys, list)
	switch {
	case err != nil:
		return store.Unknown, err
	case claimed:
		return store.Changed, nil
	}
	if q.Archive != nil {
		if keys, err = d.keepAll(ctx, c.tx, q.Target, keys, q.Archive); err != nil {
			return store.Unknown, err
		}
	}
	if len(keys) == 0 {
		return store.Deleted, nil
	}
	if err := deleteIn(tx, keys); err != nil {
		return store.Unknown, err
	}
	if err := ctx.Err(); err != nil {
		return store.Unknown, err
	}
	if _, err := tx.Commit(); err != nil {
		return store.Unknown, err
	}
	committed = true
	return store.Deleted, nil
}
