package datastore

import (
	"context"
	"fmt"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/store"
)

// A condition is one filter of a count.
type condition struct {
	property string
	op       string
	value    any
}

// Count implements [store.Counter]. A list counts once for each element in the
// span: the service counts rows of the index. A span over several shards takes
// up to three queries. Each counts up to what is left of the bound after the ones
// before.
func (d *DB) Count(
	ctx context.Context, t store.Target, namespace string, s store.Span, upTo int64,
) (int64, error) {
	op := fmt.Sprintf("count %s of %s", t.Property, where(t, namespace))
	pieces, err := pieces(t, s)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	var sum int64
	for _, conditions := range pieces {
		q := sdk.NewQuery(t.Kind).Namespace(namespace)
		for _, c := range conditions {
			q = q.FilterField(quote(c.property), c.op, c.value)
		}
		if t.ShardProperty != "" && conditions[len(conditions)-1].op != "=" {
			q = q.Order(quote(t.ShardProperty)) // several shards, by the index on both
		}
		// Without a bound, the rest stays zero or less.
		n, err := d.count(ctx, op, q.Order(quote(t.Property)), upTo-sum)
		if err != nil {
			return 0, err
		}
		if sum += n; upTo > 0 && sum >= upTo {
			break
		}
	}
	return sum, nil
}

// count counts the rows of one query, up to a bound if that is more than zero.
func (d *DB) count(ctx context.Context, op string, q *sdk.Query, upTo int64) (int64, error) {
	const alias = "n"
	ctx = withCall(ctx, &call{upTo: upTo})
	result, err := d.client.RunAggregationQuery(ctx, q.NewAggregationQuery().WithCount(alias))
	if err != nil {
		return 0, d.fail(ctx, op, err)
	}
	n, ok := result[alias].(interface{ GetIntegerValue() int64 })
	if !ok {
		return 0, fmt.Errorf("%s: %w: the reply holds no count but %v", op, store.ErrUnavailable, result)
	}
	return n.GetIntegerValue(), nil
}

// pieces splits a span into conjunctions of conditions, one query each, which
// do not overlap. In a conjunction for a single shard, the condition on the shard
// is the last. Filters cannot compare pairs. So a span from within one shard to
// within another becomes three pieces: the end of the first shard, the shards
// between, and the beginning of the last.
func pieces(t store.Target, s store.Span) ([][]condition, error) {
	if t.ShardProperty == "" {
		c, err := between(t.Property, s.From.Value, s.From.After, s.To.Value, s.To.After)
		return [][]condition{c}, err
	}
	for _, p := range []store.Point{s.From, s.To} {
		if p == (store.Point{}) {
			continue
		}
		if _, err := shardOperand(p.Shard); err != nil {
			return nil, err
		}
	}
	open := store.Value{}
	within := func(shard, from store.Value, after bool, to store.Value, toAfter bool) ([]condition, error) {
		value, err := shardOperand(shard)
		if err != nil {
			return nil, err
		}
		c, err := between(t.Property, from, after, to, toAfter)
		return append(c, condition{t.ShardProperty, "=", value}), err
	}
	if s.From.Shard == s.To.Shard && s.From.Shard.Type != store.Missing {
		if s.From.After && s.From.Value == open || !s.To.After && s.To.Value == open {
			return nil, nil
		}
		c, err := within(s.From.Shard, s.From.Value, s.From.After, s.To.Value, s.To.After)
		return [][]condition{c}, err
	}
	var all [][]condition
	if s.From.Value != open {
		c, err := within(s.From.Shard, s.From.Value, s.From.After, open, false)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	// A shard of which a part has its own query is not among the shards between.
	middle, err := between(t.ShardProperty, s.From.Shard, s.From.After || s.From.Value != open,
		s.To.Shard, s.To.After && s.To.Value == open)
	if err != nil {
		return nil, err
	}
	all = append(all, append(middle, condition{t.Property, ">=", leastInteger}))
	if s.To.Value != open {
		c, err := within(s.To.Shard, open, false, s.To.Value, s.To.After)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// between returns the conditions on one property. A missing bound is open, but excludes
// null.
func between(property string, from store.Value, after bool, to store.Value, toAfter bool) ([]condition, error) {
	// Nothing sorts between null and the least integer.
	c := []condition{{property, ">=", leastInteger}}
	if from.Type != store.Missing {
		v, err := bound(from)
		if err != nil {
			return nil, err
		}
		c[0].value = v
		if after {
			c[0].op = ">"
		}
	}
	if to.Type != store.Missing {
		v, err := bound(to)
		if err != nil {
			return nil, err
		}
		op := "<"
		if toAfter {
			op = "<="
		}
		c = append(c, condition{property, op, v})
	}
	return c, nil
}

// bound converts the value of a span's end to a filter's form.
func bound(v store.Value) (any, error) {
	if n, ok := v.Integer(); ok {
		return n, nil
	}
	return operand(v)
}
