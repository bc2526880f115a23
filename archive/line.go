package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/store"
)

// A line is an entity as objects have it. Fields that are not known are ignored: see [Header].
type line struct {
	Key       string          `json:"key"`
	Namespace string          `json:"namespace"`
	Version   string          `json:"version,omitempty"`
	Created   time.Time       `json:"created,omitzero"`
	Updated   time.Time       `json:"updated,omitzero"`
	Expiry    *value          `json:"expiry,omitempty"` // nil for the zero Value
	At        time.Time       `json:"at"`
	Data      json.RawMessage `json:"data,omitempty"`
}

// A value is a [store.Value] with a type that people can read.
type value struct {
	Type string    `json:"type"`
	Text string    `json:"text,omitempty"`
	Time time.Time `json:"time,omitzero"`
}

// valueTypes are the names of types in objects: never change them.
var valueTypes = map[store.Type]string{store.Missing: "missing", store.Text: "text", store.Instant: "instant",
	store.List: "list", store.Other: "other"}

// An end is the last line of an object. The hash is of all bytes of the lines before it.
type end struct {
	Lines  int    `json:"lines"` // entities, without header and end
	SHA256 string `json:"sha256"`
}

// A record is any line but the first.
type record struct {
	line
	End *end `json:"end,omitempty"`
}

// encodeLine adds the line of an entity to b.
func encodeLine(b *bytes.Buffer, mode Mode, namespace string, c store.Copy, at time.Time) error {
	for _, text := range []string{c.Key, namespace, c.Version, c.Expiry.Text} {
		if !utf8.ValidString(text) { // it would come back as another text
			return fmt.Errorf("%s: not UTF-8: %q", c.Key, text)
		}
	}
	if c.Key == "" {
		return errors.New("an entity without a key")
	}
	if mode == Full && len(c.Data) == 0 {
		return fmt.Errorf("%s: no data", c.Key)
	}
	before := b.Len()
	text, err := appendMeta(b.AvailableBuffer(), namespace, c, at)
	b.Write(text)
	if err == nil && mode == Full {
		b.WriteString(`,"data":`)
		err = json.Compact(b, c.Data) // which also says whether it is JSON
	}
	b.WriteString("}\n")
	if n := b.Len() - before; err == nil && n > MaxLine {
		err = fmt.Errorf("a line of %d bytes is more than %d", n, MaxLine)
	}
	if err != nil {
		b.Truncate(before)
		return fmt.Errorf("%s: %w", c.Key, err)
	}
	return nil
}

// appendMeta appends a [line] up to its data, as encoding/json writes it: by hand, since the machine that deletes
// has little else to do.
func appendMeta(b []byte, namespace string, c store.Copy, at time.Time) ([]byte, error) {
	b = appendText(append(b, `{"key":`...), c.Key)
	b = appendText(append(b, `,"namespace":`...), namespace)
	if c.Version != "" {
		b = appendText(append(b, `,"version":`...), c.Version)
	}
	b, created := appendTime(b, `,"created":`, c.Created.UTC())
	b, updated := appendTime(b, `,"updated":`, c.Updated.UTC())
	err := errors.Join(created, updated)
	if c.Expiry != (store.Value{}) {
		name := valueTypes[c.Expiry.Type]
		if name == "" {
			return b, fmt.Errorf("unknown type %d of the expiry", c.Expiry.Type)
		}
		b = appendText(append(b, `,"expiry":{"type":`...), name)
		if c.Expiry.Text != "" {
			b = appendText(append(b, `,"text":`...), c.Expiry.Text)
		}
		var expires error
		b, expires = appendTime(b, `,"time":`, c.Expiry.Time)
		b, err = append(b, '}'), errors.Join(err, expires)
	}
	b, kept := at.UTC().AppendText(append(b, `,"at":"`...))
	return append(b, '"'), errors.Join(err, kept)
}

// appendTime appends a field that is a time, unless that is zero.
func appendTime(b []byte, field string, t time.Time) ([]byte, error) {
	if t.IsZero() {
		return b, nil
	}
	b, err := t.AppendText(append(append(b, field...), '"'))
	return append(b, '"'), err
}

// appendText appends a string, which is UTF-8. The keys of stores have quotes.
func appendText(b []byte, s string) []byte {
	before := len(b)
	b = append(b, '"')
	from := 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(append(b, s[from:i]...), '\\')
			from = i
		case c < ' ' || c > '~':
			text, err := encode(s)
			if err != nil {
				panic(fmt.Sprintf("a string does not marshal: %v", err))
			}
			return append(b[:before], bytes.TrimSuffix(text, []byte("\n"))...)
		}
	}
	return append(append(b, s[from:]...), '"')
}

// AppendLine adds a whole entity to b as a line of an object has it.
func AppendLine(b []byte, namespace string, c store.Copy, at time.Time) ([]byte, error) {
	text := bytes.NewBuffer(b)
	err := encodeLine(text, Full, namespace, c, at)
	return text.Bytes(), err
}

// ParseLine reads a line that [AppendLine] has written.
func ParseLine(text []byte) (Line, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return Line{}, err
	}
	if len(l.Data) == 0 {
		return Line{}, errors.New("no data: it is no whole entity")
	}
	return l.decode()
}

// decode returns what a line says of its entity.
func (l line) decode() (Line, error) {
	if l.Key == "" {
		return Line{}, errors.New("no key")
	}
	res := Line{Namespace: l.Namespace, At: l.At,
		Copy: store.Copy{Key: l.Key, Data: l.Data, Version: l.Version, Created: l.Created, Updated: l.Updated}}
	if l.Expiry == nil {
		return res, nil
	}
	for t, name := range valueTypes {
		if name == l.Expiry.Type {
			res.Expiry = store.Value{Type: t, Text: l.Expiry.Text, Time: l.Expiry.Time}
			return res, nil
		}
	}
	return res, fmt.Errorf("unknown type %q of the expiry", l.Expiry.Type)
}

// encode returns v as a line.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	err := to.Encode(v)
	return b.Bytes(), err
}
