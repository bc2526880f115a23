package google

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/reaper-ttl/reaper/store"
)

// ParseJSON returns one JSON value, as encoding/json makes it, but for numbers:
// one that is written as an integer, and fits, is an int64.
func ParseJSON(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var raw any
	if err := d.Decode(&raw); err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrInvalid, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: there is more after the JSON value", store.ErrInvalid)
	}
	return numbers(raw, false)
}

// numbers also refuses what neither service stores.
func numbers(raw any, inArray bool) (any, error) {
	var err error
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
		if inArray {
			return nil, fmt.Errorf("%w: an array in an array, which the service does not store", store.ErrInvalid)
		}
		for i := range v {
			if v[i], err = numbers(v[i], true); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for name := range v {
			if name == "" || strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") {
				return nil, fmt.Errorf("%w: no property can be called %q", store.ErrInvalid, name)
			}
			if v[name], err = numbers(v[name], false); err != nil {
				return nil, fmt.Errorf("property %s: %w", name, err)
			}
		}
	}
	return raw, nil
}

// Float returns a floating-point number for encoding as JSON. A whole number gets
// a fraction, since it would otherwise be read back as an integer. A number that
// JSON has no form for becomes a string.
func Float(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	text, err := json.Marshal(f)
	if err != nil || bytes.ContainsAny(text, ".e") {
		return f
	}
	return json.RawMessage(append(text, ".0"...))
}

// JSONText returns a tree of Go values as JSON, with <, > and & as they are.
func JSONText(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // of a type that the clients do not have today
		b.Reset()
		_ = e.Encode(fmt.Sprintf("%v", v)) // a string always has a form
	}
	return strings.TrimSuffix(b.String(), "\n")
}
