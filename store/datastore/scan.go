package datastore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/iterator"

	"github.com/reaper-ttl/reaper/store"
)

// Scan implements [store.Store]. A page costs one query; or two if it begins after an
// entry, and the other entries at that entry's value do not fill it.
func (d *DB) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	if err := d.scan(ctx, nil, q, page); err != nil {
		page.Entries = page.Entries[:0]
		return d.fail(ctx, fmt.Sprintf("scan %s from %s", where(q.Target, q.Namespace), text(q.Lo)), err)
	}
	return nil
}

// A place is the point of a query's span from which a scan continues. It has two phases,
// because the service cannot start after a (value, key) in one query. The first phase reads
// entries with the same value and a later key. It reads keys only: the service
// refuses to project a property that has an equality filter. The second phase reads
// later values. A place is also the Next of a page and then holds the store's
// cursor in the phase's query.
type place struct {
	query  store.Query // without After, Next and Limit: what the place belongs to
	from   store.Value
	key    *sdk.Key    // in the first phase: after this key at from
	last   *sdk.Key    // of a check: from key on, and up to this one
	beyond bool        // in the second phase: later than from, else from it on
	cursor *sdk.Cursor // where the phase continues
}

func spanOf(q store.Query) store.Query {
	q.After, q.Next, q.Limit = store.Position{}, nil, 0
	return q
}

func start(q store.Query) (place, error) {
	if q.Limit < 1 || q.Limit > store.MaxPage {
		return place{}, fmt.Errorf("%w: a page of %d entries, not of 1 to %d", store.ErrInvalid, q.Limit, store.MaxPage)
	}
	for _, v := range []store.Value{q.Lo, q.Hi} {
		if v.Type != q.Target.Type {
			return place{}, fmt.Errorf("%w: a bound is of type %d, not %d", store.ErrInvalid, v.Type, q.Target.Type)
		}
		if _, err := operand(v); err != nil {
			return place{}, err
		}
	}
	if q.Next != nil {
		at, ok := q.Next.(*place)
		if !ok || at.query != spanOf(q) {
			return place{}, fmt.Errorf("%w: the page before was read with another query", store.ErrInvalid)
		}
		return *at, nil
	}
	if q.Target.ShardProperty != "" {
		if _, err := shardOperand(q.Shard); err != nil {
			return place{}, err
		}
	}
	p := place{query: spanOf(q), from: q.Lo}
	if q.After.IsZero() {
		return p, nil
	}
	if q.After.Value.Type != q.Target.Type {
		return place{}, fmt.Errorf("%w: the position is of type %d, not %d",
			store.ErrInvalid, q.After.Value.Type, q.Target.Type)
	}
	if compare(q.After.Value, q.Lo) < 0 {
		return p, nil // before the first row: the same as none
	}
	p.from = q.After.Value
	if q.After.Key != "" {
		key, err := ParseKey(q.Namespace, q.After.Key)
		if err != nil {
			return place{}, err
		}
		p.key = key
	}
	return p, nil
}

// through reports whether no row can follow.
func (p *place) through() bool {
	c := compare(p.from, p.query.Hi)
	return c > 0 || c == 0 && p.beyond
}

// scan is Scan, within a transaction if tx is not nil.
func (d *DB) scan(ctx context.Context, tx *sdk.Transaction, q store.Query, page *store.Page) error {
	page.Entries = page.Entries[:0]
	page.More, page.Next, page.SteppedOver = false, nil, store.UnknownSteps
	at, err := start(q)
	if err != nil {
		return err
	}
	for !at.through() && len(page.Entries) < q.Limit {
		more, err := d.read(ctx, tx, &at, q.Limit, page)
		if err != nil {
			return err
		}
		if more {
			page.More, page.Next = true, &at
			return nil
		}
		if at.key == nil {
			return nil
		}
		at = place{query: at.query, from: at.from, beyond: true}
	}
	if !at.through() { // the first phase ended together with the page
		page.More, page.Next = true, &at
	}
	return nil
}

// read appends what one query returns, moves the place behind it, and says
// whether the phase has more.
func (d *DB) read(
	ctx context.Context, tx *sdk.Transaction, at *place, limit int, page *store.Page,
) (more bool, err error) {
	query, err := at.build(limit - len(page.Entries))
	if err != nil {
		return false, err
	}
	if tx != nil {
		query = query.Transaction(tx)
	}
	page.Entries = slices.Grow(page.Entries, limit-len(page.Entries))
	// One batch a call: if the service ends a batch early because of tombstones, the
	// caller gets the few entries that it found, and can check the pace.
	c := &call{single: true}
	it := d.client.Run(withCall(ctx, c), query)
	row := cell{property: at.query.Target.Property}
	for {
		key, err := it.Next(&row)
		if errors.Is(err, iterator.Done) || errors.Is(err, errStopped) {
			break
		}
		if err != nil {
			return false, err
		}
		value := at.from
		if at.key == nil {
			value = indexed(row.value, at.query.Target.Type)
		}
		page.Entries = append(page.Entries, store.Entry{Key: FormatKey(key), Value: value, Ref: key})
	}
	end, err := c.end()
	if err != nil {
		return false, err
	}
	at.cursor = &end
	return c.more != pb.QueryResultBatch_NO_MORE_RESULTS, nil
}

// build returns the query of the place's phase.
func (p *place) build(limit int) (*sdk.Query, error) {
	from, err := operand(p.from)
	if err != nil {
		return nil, err
	}
	property := quote(p.query.Target.Property)
	query := sdk.NewQuery(p.query.Target.Kind).Namespace(p.query.Namespace).Limit(limit)
	if name := p.query.Target.ShardProperty; name != "" {
		shard, err := shardOperand(p.query.Shard)
		if err != nil {
			return nil, err
		}
		query = query.FilterField(quote(name), "=", shard)
	}
	if p.key != nil {
		query = query.KeysOnly().FilterField(property, "=", from).Order("__key__")
		if p.last == nil {
			query = query.FilterField("__key__", ">", p.key)
		} else {
			query = query.FilterField("__key__", ">=", p.key).FilterField("__key__", "<=", p.last)
		}
	} else {
		to, err := operand(p.query.Hi)
		if err != nil {
			return nil, err
		}
		op := ">="
		if p.beyond {
			op = ">"
		}
		query = query.Project(p.query.Target.Property).
			FilterField(property, op, from).FilterField(property, "<=", to).
			Order(property).Order("__key__")
	}
	if p.cursor != nil {
		query = query.Start(*p.cursor)
	}
	return query, nil
}

// text shows a value in errors.
func text(v store.Value) string {
	if v.Type == store.Instant {
		return v.Time.UTC().Format(store.TimeLayout)
	}
	return fmt.Sprintf("%q", v.Text)
}
