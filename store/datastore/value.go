package datastore

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

// leastInteger sorts before every value but null.
const leastInteger = int64(math.MinInt64)

// quote protects a property's name from the client's own syntax in filters and
// orders. A leading minus sign, for instance, would reverse the order.
func quote(property string) string { return strconv.Quote(property) }

// A cell loads one property of an entity.
type cell struct {
	property string
	value    any    // nil if it is missing or null, which mean the same
	also     string // a second property; may be empty
	second   any    // its value
}

// Load implements the client's PropertyLoadSaver.
func (c *cell) Load(ps []sdk.Property) error {
	c.value, c.second = nil, nil
	for i := range ps {
		if ps[i].Name == c.property {
			c.value = ps[i].Value
		}
		if ps[i].Name == c.also {
			c.second = ps[i].Value
		}
	}
	return nil
}

// Save implements the client's PropertyLoadSaver; nothing calls it.
func (c *cell) Save() ([]sdk.Property, error) {
	return nil, errors.New("a cell is only read")
}

// indexed returns what a projection showed of a property of the given type.
func indexed(raw any, t store.Type) store.Value {
	if n, ok := raw.(int64); ok && t == store.Instant {
		return store.Value{Type: store.Instant, Time: time.UnixMicro(n).UTC()}
	}
	return stored(raw)
}

// stored returns the value that an entity holds.
func stored(raw any) store.Value {
	switch v := raw.(type) {
	case nil:
		return store.Value{}
	case string:
		return store.TextValue(v)
	case time.Time:
		return store.Value{Type: store.Instant, Time: v.UTC().Truncate(time.Microsecond)}
	case []any:
		return store.Value{Type: store.List, Text: jsonText(v)}
	default:
		return store.Value{Type: store.Other, Text: jsonText(v)}
	}
}

// same reports whether an expiry still is what the scan saw.
func same(saw, now store.Value) bool {
	switch saw.Type {
	case store.Text:
		return now.Type == store.Text && now.Text == saw.Text
	case store.Instant:
		return now.Type == store.Instant && now.Time.Equal(saw.Time)
	default: // a list or an integer is malformed, and no reason to delete
		return false
	}
}

// compare orders two values of one type as the index does.
func compare(a, b store.Value) int {
	if a.Type == store.Instant {
		return a.Time.Compare(b.Time)
	}
	return strings.Compare(a.Text, b.Text)
}

// operand converts a value to a filter's form.
func operand(v store.Value) (any, error) {
	switch v.Type {
	case store.Text:
		return v.Text, nil
	case store.Instant:
		return v.Time.UTC(), nil
	default:
		return nil, fmt.Errorf("%w: a bound is neither a text nor an instant but of type %d", store.ErrInvalid, v.Type)
	}
}

// shardOperand converts a shard's value to a filter's form.
func shardOperand(v store.Value) (any, error) {
	if n, ok := v.Integer(); ok {
		return n, nil
	}
	if v.Type != store.Text {
		return nil, fmt.Errorf("%w: a shard is a text or an integer, not of type %d", store.ErrInvalid, v.Type)
	}
	return v.Text, nil
}

// jsonText returns a value of the client as JSON. A type that JSON does not have becomes
// a readable string: bytes in base 64, instants in RFC 3339, keys as FormatKey prints
// them, NaN and the infinities by name.
func jsonText(raw any) string { return google.JSONText(jsonValue(raw)) }

func jsonValue(raw any) any {
	switch v := raw.(type) {
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	case *sdk.Key:
		return FormatKey(v)
	case sdk.GeoPoint:
		return map[string]any{"lat": google.Float(v.Lat), "lng": google.Float(v.Lng)}
	case float64:
		return google.Float(v)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = jsonValue(e)
		}
		return out
	case *sdk.Entity:
		return jsonObject(v.Properties)
	default:
		return raw
	}
}

// jsonObject returns properties as a JSON object.
func jsonObject(ps []sdk.Property) map[string]any {
	out := make(map[string]any, len(ps))
	for _, p := range ps {
		out[p.Name] = jsonValue(p.Value)
	}
	return out
}

// parseJSON converts the text of one JSON value to the client's form.
func parseJSON(text []byte) (any, error) {
	raw, err := google.ParseJSON(text)
	if err != nil {
		return nil, err
	}
	return clientValue(raw), nil
}

// clientValue converts a value that google.ParseJSON returned. No property is indexed.
func clientValue(raw any) any {
	switch v := raw.(type) {
	case []any:
		for i, e := range v {
			v[i] = clientValue(e)
		}
		return v
	case map[string]any:
		ps := make([]sdk.Property, 0, len(v)+1)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			ps = append(ps, sdk.Property{Name: name, Value: clientValue(v[name]), NoIndex: true})
		}
		return &sdk.Entity{Properties: ps}
	default:
		return raw
	}
}
