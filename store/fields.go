package store

import (
	"errors"
	"fmt"
	"time"
)

// A FieldReader reads the fields of a record, and remembers all errors in them. A
// missing field reads as the zero value. A field of another type, or an instant that
// does not parse, is an error that names the field.
type FieldReader struct {
	what   string
	fields Fields
	errs   []error
}

// Reader returns a FieldReader; what names the record in its errors.
func (f Fields) Reader(what string) *FieldReader { return &FieldReader{what: what, fields: f} }

// Err returns all problems found so far, joined.
func (r *FieldReader) Err() error { return errors.Join(r.errs...) }

// Fail adds a problem with a field that only the caller can see.
func (r *FieldReader) Fail(name, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: field %s: %s", r.what, name, fmt.Sprintf(format, args...)))
}

// Schema reads the version of the record, and fails with an error that wraps newer if
// this program, which knows versions up to known, is older. What names the record.
func (r *FieldReader) Schema(known int, what string, newer error) error {
	switch v := r.Int("schema"); {
	case v > int64(known):
		return fmt.Errorf("%s has schema %d, this program knows %d: %w", what, v, known, newer)
	case v < 1:
		r.Fail("schema", "%d is not a version", v)
	}
	return nil
}

// Text reads a string.
func (r *FieldReader) Text(name string) string { return read[string](r, name) }

// Int reads an integer.
func (r *FieldReader) Int(name string) int64 { return read[int64](r, name) }

// Bool reads a boolean.
func (r *FieldReader) Bool(name string) bool { return read[bool](r, name) }

// Float reads a number, which may be stored as an integer.
func (r *FieldReader) Float(name string) float64 {
	if n, ok := r.fields[name].(int64); ok {
		return float64(n)
	}
	return read[float64](r, name)
}

// Time reads an instant; an empty string is the zero time.
func (r *FieldReader) Time(name string) time.Time {
	s := r.Text(name)
	if s == "" {
		return time.Time{}
	}
	if t, ok := parseInstant(s); ok && !t.IsZero() { // which is the empty text
		return t
	}
	r.Fail(name, "%q is not an instant like %s", s, TimeLayout)
	t, _ := time.Parse(TimeLayout, s) // it takes a comma for the point, too
	return t
}

// List reads nested fields.
func (r *FieldReader) List(name string) []Fields { return read[[]Fields](r, name) }

func read[T any](r *FieldReader, name string) (v T) {
	raw, ok := r.fields[name]
	if !ok || raw == nil {
		return v
	}
	v, ok = raw.(T)
	if !ok {
		r.Fail(name, "%v is a %T, not a %T", raw, raw, v)
	}
	return v
}

// FormatTime returns an instant as records hold it; the zero time is empty.
func FormatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	t = t.UTC()
	if year := t.Year(); year < 0 || year > 9999 {
		return t.Format(TimeLayout)
	}
	return formatInstant(t)
}
