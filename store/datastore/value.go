package datastore

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/store"
)

// leastInteger sorts before every value but null.
const leastInteger = int64(math.MinInt64)

// quote protects a property's name from the client's own syntax in filters and
// orders, where a leading minus sign, say, turns the order around.
func quote(property string) string { return strconv.Quote(property) }

// A cell takes one property out of an entity.
type cell struct {
	property string
	value    any // nil where it is missing or null, which comes to the same
}

// Load implements the client's PropertyLoadSaver.
func (c *cell) Load(ps []sdk.Property) error {
	c.value = nil
	for i := range ps {
		if ps[i].Name == c.property {
			c.value = ps[i].Value
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
	default: // a list or an integer is malformed, and nobody should delete for it
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

// operand returns a value as a filter takes it.
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

// shardOperand returns a shard's value as a filter takes it.
func shardOperand(v store.Value) (any, error) {
	if n, ok := v.Integer(); ok {
		return n, nil
	}
	if v.Type != store.Text {
		return nil, fmt.Errorf("%w: a shard is a text or an integer, not of type %d", store.ErrInvalid, v.Type)
	}
	return v.Text, nil
}

// jsonText returns a value of the client as JSON. What JSON has no form for is
// a string that a person can read: bytes in base 64, instants in RFC 3339, keys
// as FormatKey prints them, NaN and the infinities by name.
func jsonText(raw any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(jsonValue(raw)); err != nil {
		return strconv.Quote(fmt.Sprintf("%v", raw)) // of a type that the client does not have today
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func jsonValue(raw any) any {
	switch v := raw.(type) {
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	case *sdk.Key:
		return FormatKey(v)
	case sdk.GeoPoint:
		return map[string]any{"lat": v.Lat, "lng": v.Lng}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return strconv.FormatFloat(v, 'g', -1, 64)
		}
		return v
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

// parseJSON returns one JSON value as the client takes it.
func parseJSON(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var raw any
	if err := d.Decode(&raw); err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrInvalid, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: there is more after the JSON value", store.ErrInvalid)
	}
	return clientValue(raw)
}

// clientValue converts what encoding/json made. A number becomes an integer
// where it is written as one and fits, else a float.
func clientValue(raw any) (any, error) {
	switch v := raw.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n, nil
		}
		f, err := v.Float64()
		if err != nil {
			return nil, fmt.Errorf("%w: number %s: %w", store.ErrInvalid, v, err)
		}
		return f, nil
	case []any:
		for i, e := range v {
			var err error
			if v[i], err = clientValue(e); err != nil {
				return nil, err
			}
			if _, nested := v[i].([]any); nested {
				return nil, fmt.Errorf("%w: an array in an array, which the service does not store", store.ErrInvalid)
			}
		}
		return v, nil
	case map[string]any:
		ps, err := properties(v)
		if err != nil {
			return nil, err
		}
		return &sdk.Entity{Properties: ps}, nil
	default:
		return raw, nil
	}
}

// properties converts an object; none of them is indexed.
func properties(object map[string]any) ([]sdk.Property, error) {
	ps := make([]sdk.Property, 0, len(object)+1)
	for _, name := range slices.Sorted(maps.Keys(object)) {
		// The client drops __key__ silently, and the service reserves the others.
		if name == "" || strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") {
			return nil, fmt.Errorf("%w: no property can be called %q", store.ErrInvalid, name)
		}
		v, err := clientValue(object[name])
		if err != nil {
			return nil, fmt.Errorf("property %s: %w", name, err)
		}
		ps = append(ps, sdk.Property{Name: name, Value: v, NoIndex: true})
	}
	return ps, nil
}
