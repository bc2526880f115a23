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
	l := line{Key: c.Key, Namespace: namespace, Version: c.Version, Created: c.Created.UTC(), Updated: c.Updated.UTC(),
		At: at.UTC()}
	if c.Expiry != (store.Value{}) {
		l.Expiry = &value{valueTypes[c.Expiry.Type], c.Expiry.Text, c.Expiry.Time}
		if l.Expiry.Type == "" {
			return fmt.Errorf("%s: unknown type %d of the expiry", c.Key, c.Expiry.Type)
		}
	}
	if mode == Full {
		if len(c.Data) == 0 {
			return fmt.Errorf("%s: no data", c.Key)
		}
		l.Data = c.Data
	}
	before := b.Len()
	to := json.NewEncoder(b) // it ends the line
	to.SetEscapeHTML(false)
	if err := to.Encode(l); err != nil {
		return fmt.Errorf("%s: %w", c.Key, err)
	}
	if b.Len()-before > MaxLine {
		return fmt.Errorf("%s: a line of %d bytes is more than %d", c.Key, b.Len()-before, MaxLine)
	}
	return nil
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
