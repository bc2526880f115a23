package shardread

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"unicode/utf8"
)

// MaxValues is the most shards that a reader takes. A read opens all of them at
// once, so that more would make even the smallest one slow and dear.
const MaxValues = 9999

// Numbers returns the shard values 0 to n-1.
func Numbers(n int) []any {
	values := make([]any, 0, max(n, 0))
	for i := range int64(n) {
		values = append(values, i)
	}
	return values
}

// Strings returns the shard values given.
func Strings(values ...string) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}

// Group splits shard values into groups of at most most, each for one query. It
// takes integers of any Go type, which become int64, or strings, and refuses
// what would make a reader miss shards or read one twice.
func Group(values []any, most int) ([][]any, error) {
	if len(values) == 0 {
		return nil, errors.New("there are no shard values; a reader needs all that writers use")
	}
	if len(values) > MaxValues {
		return nil, fmt.Errorf("there are %d shard values; a reader takes at most %d", len(values), MaxValues)
	}
	if most < 1 {
		return nil, fmt.Errorf("a query is to have %d shard values; it needs at least one", most)
	}
	seen := make(map[any]bool, len(values))
	var groups [][]any
	for i, value := range values {
		v, err := shardValue(value)
		if err != nil {
			return nil, fmt.Errorf("shard value %d of %d: %w", i+1, len(values), err)
		}
		if seen[v] {
			return nil, fmt.Errorf("shard value %d of %d: %#v is there twice", i+1, len(values), v)
		}
		seen[v] = true
		if i%most == 0 {
			groups = append(groups, nil)
		}
		last := &groups[len(groups)-1]
		*last = append(*last, v)
		if first := groups[0][0]; reflect.TypeOf(v) != reflect.TypeOf(first) {
			return nil, fmt.Errorf("shard value %d of %d: %#v is %T, while the first one is %T; mixed types are not supported",
				i+1, len(values), v, v, first)
		}
	}
	return groups, nil
}

// shardValue returns the value as the stores have it: an int64 or a string.
func shardValue(value any) (any, error) {
	switch v := reflect.ValueOf(value); {
	case !v.IsValid():
		return nil, errors.New("nil is neither an integer nor a string")
	case v.CanInt():
		return v.Int(), nil
	case v.CanUint():
		if v.Uint() > math.MaxInt64 {
			return nil, fmt.Errorf("%d is larger than the stores' integers", v.Uint())
		}
		return int64(v.Uint()), nil
	case v.Kind() == reflect.String:
		if !utf8.ValidString(v.String()) {
			return nil, fmt.Errorf("%q is not valid UTF-8", v.String())
		}
		return v.String(), nil
	}
	return nil, fmt.Errorf("%v (%T) is neither an integer nor a string", value, value)
}
