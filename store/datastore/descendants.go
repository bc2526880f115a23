package datastore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

// Descendants implements [store.Descender]. A page is one query of keys, of all kinds, and one look-up if any
// are of the kind of an owner. The last page may be an empty one.
func (d *DB) Descendants(ctx context.Context, q store.DescendantQuery, page *store.Descendants) error {
	page.List, page.More = page.List[:0], false
	if err := d.descendants(ctx, q, page); err != nil {
		page.List, page.More = page.List[:0], false
		return d.fail(ctx, fmt.Sprintf("list what is below %s of %s", q.Key, where(q.Target, q.Namespace)), err)
	}
	return nil
}

func (d *DB) descendants(ctx context.Context, q store.DescendantQuery, page *store.Descendants) error {
	if err := google.CheckDescendantQuery(q); err != nil {
		return err
	}
	above, err := ParseKey(q.Namespace, q.Key)
	if err != nil {
		return err
	}
	after := above // which an ancestor query would include
	if q.After != "" {
		if after, err = ParseKey(q.Namespace, q.After); err != nil {
			return err
		}
	}
	// Never in a transaction: there the emulators refuse queries without a kind.
	query := sdk.NewQuery("").Namespace(q.Namespace).Ancestor(above).KeysOnly().
		FilterField("__key__", ">", after).Order("__key__").Limit(q.Limit)
	keys, err := d.client.GetAll(ctx, query, nil)
	if err != nil {
		return err
	}
	owners, err := d.ownersOf(ctx, q.Owners, keys)
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	for i, key := range keys {
		one := store.Descendant{Key: FormatKey(key), Owner: owners[i]}
		if listed[one.Key] = true; one.Owner == "" {
			own := strings.Join(propertiesOf(q.Owners, key.Kind), "\x00")
			one.Premise = google.AddBetween(own, betweenOf(q.Owners, above, key, listed))
		}
		page.List = append(page.List, one)
	}
	google.MarkAbove(page.List)
	page.More = len(page.List) >= q.Limit
	return nil
}

// propertiesOf returns the properties that what is of a kind must not carry when it is deleted.
func propertiesOf(owners []store.Target, kind string) []string {
	return google.PropertiesOf(owners, func(t store.Target) bool { return t.Kind == kind })
}

// betweenOf returns what is between an entity and its descendant, may get an owner, and was not listed.
func betweenOf(owners []store.Target, above, key *sdk.Key, listed map[string]bool) (list []google.Between) {
	for at := range keysBetween(above, key) {
		if properties := propertiesOf(owners, at.Kind); len(properties) > 0 && !listed[FormatKey(at)] {
			list = append(list, google.Between{Key: FormatKey(at), Properties: properties})
		}
	}
	return list
}

// keysBetween returns the keys between an entity's and its descendant's, innermost first.
func keysBetween(above, key *sdk.Key) iter.Seq[*sdk.Key] {
	return func(yield func(*sdk.Key) bool) {
		for at := key.Parent; at != nil && !at.Equal(above); at = at.Parent {
			if !yield(at) {
				return
			}
		}
	}
}

// checkPremises fails if any of a list, or what is between, carries a property that it must not, read in a
// transaction.
func (d *DB) checkPremises(ctx context.Context, in *transacting, namespace string, list []store.Descendant) error {
	all := google.Betweens(list)
	for _, below := range list {
		if own := google.OwnPremise(below.Premise); own != "" {
			all = append(all, google.Between{Key: below.Key, Properties: strings.Split(own, "\x00")})
		}
	}
	byProperty := map[string][]*sdk.Key{}
	for _, one := range all {
		key, err := ParseKey(namespace, one.Key)
		if err != nil {
			return err
		}
		for _, property := range one.Properties {
			byProperty[property] = append(byProperty[property], key)
		}
	}
	for property, keys := range byProperty {
		carry, err := d.carry(ctx, in.tx, in.call, property, keys)
		if err != nil {
			return err
		}
		if i := slices.Index(carry, true); i >= 0 {
			return fmt.Errorf("%w: %s has an expiry of its own by now", store.ErrContention, FormatKey(keys[i]))
		}
	}
	return nil
}

// carry reports of each key whether its entity exists and carries a property. In a transaction the client reads by
// the call that began it.
func (d *DB) carry(
	ctx context.Context, tx *sdk.Transaction, c *call, property string, keys []*sdk.Key,
) ([]bool, error) {
	c.mask = property
	carry := make([]bool, len(keys))
	for _, g := range groups(keys) {
		cells, found, err := d.look(ctx, tx, property, "", pick(keys, g))
		if err != nil {
			return nil, err
		}
		for i, n := range g {
			carry[n] = found[i] && stored(cells[i].value).Type != store.Missing
		}
	}
	return carry, nil
}

// ownersOf returns the owner of each key. It looks up the entities that are of an owner's kind.
func (d *DB) ownersOf(ctx context.Context, owners []store.Target, keys []*sdk.Key) ([]string, error) {
	names := make([]string, len(keys))
	var candidates []int
	for i, key := range keys {
		if store.IsRecordKind(key.Kind) {
			names[i] = store.OwnerReaper
		}
		if slices.ContainsFunc(owners, func(t store.Target) bool { return t.Kind == key.Kind }) {
			candidates = append(candidates, i)
		}
	}
	if len(candidates) == 0 {
		return names, nil
	}
	some := pick(keys, candidates)
	for _, g := range groups(some) {
		found, err := d.carriedBy(ctx, owners, pick(some, g))
		if err != nil {
			return nil, err
		}
		for n, has := range found {
			i := candidates[g[n]]
			for _, t := range owners {
				if t.Kind == keys[i].Kind && slices.Contains(has.names, t.Property) {
					names[i] = t.Name
					break
				}
			}
		}
	}
	return names, nil
}

// carriedBy looks entities up, whose keys the client must be able to tell apart, and returns which of the
// owners' properties each carries: none if it does not exist.
func (d *DB) carriedBy(ctx context.Context, owners []store.Target, keys []*sdk.Key) ([]carried, error) {
	c := &call{mask: owners[0].Property}
	for _, t := range owners[1:] {
		if t.Property != c.mask && !slices.Contains(c.others, t.Property) {
			c.others = append(c.others, t.Property)
		}
	}
	found := make([]carried, len(keys))
	err := d.client.GetMulti(withCall(ctx, c), keys, found)
	var multi sdk.MultiError
	if !errors.As(err, &multi) {
		return found, err
	}
	for _, e := range multi {
		if e != nil && !errors.Is(e, sdk.ErrNoSuchEntity) {
			return nil, e
		}
	}
	return found, nil
}

// A carried loads the names of the properties that an entity has and that are not null.
type carried struct{ names []string }

// Load implements the client's PropertyLoadSaver.
func (c *carried) Load(ps []sdk.Property) error {
	c.names = nil
	for i := range ps {
		if stored(ps[i].Value).Type != store.Missing {
			c.names = append(c.names, ps[i].Name)
		}
	}
	return nil
}

// Save implements the client's PropertyLoadSaver; nothing calls it.
func (c *carried) Save() ([]sdk.Property, error) {
	return nil, errors.New("these properties are only read")
}

// DeleteBelow implements [store.Descender]. The entity and what is below it are one entity group, so that a
// database with such groups takes a list of any length in one transaction, about once a second.
func (d *DB) DeleteBelow(
	ctx context.Context, q store.Query, e store.Entry, list []store.Descendant, isDue func(store.Value) bool,
) (store.Outcome, error) {
	op := fmt.Sprintf("delete %d below %s of %s", len(list), e.Key, where(q.Target, q.Namespace))
	if err := google.CheckBelow(e.Key, list); err != nil {
		return store.Unknown, fmt.Errorf("%s: %w", op, err)
	}
	key, err := keyOf(q.Namespace, e)
	if err != nil {
		return store.Unknown, fmt.Errorf("%s: %w", op, err)
	}
	doomed := make([]*sdk.Key, 0, len(list))
	for _, below := range slices.Backward(list) { // the deepest first
		if below.Stays {
			continue
		}
		k, err := ParseKey(q.Namespace, below.Key)
		if err != nil {
			return store.Unknown, fmt.Errorf("%s: %w", op, err)
		}
		doomed = append(doomed, k)
	}
	o, err := d.transact(ctx, q.Target, key, nil, func(in *transacting) (store.Outcome, error) {
		if !isDue(in.now) {
			return store.Kept, nil
		}
		if err := d.checkPremises(ctx, in, q.Namespace, list); err != nil {
			return store.Unknown, err
		}
		if q.Archive != nil {
			var err error
			if doomed, err = d.keepAll(ctx, in.id, q.Target, doomed, q.Archive); err != nil {
				return store.Unknown, err
			}
		}
		return store.Deleted, deleteIn(in.tx, doomed)
	})
	if err != nil {
		return store.Unknown, d.fail(ctx, op, err)
	}
	return o, nil
}
