package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
)

// maxLine is the longest line that load reads: an entity has at most 1 MiB.
const maxLine = 1 << 20

// A line is one entity as load reads it and dump prints it.
type line struct {
	Target    string          `json:"target,omitempty"`    // dump, if it prints several targets
	Namespace string          `json:"namespace,omitempty"` // if it is not the default one
	Parent    string          `json:"parent,omitempty"`    // of an entity with ancestors
	ID        json.RawMessage `json:"id"`
	Expires   *string         `json:"expires,omitempty"` // nil: it never does
	Shard     json.RawMessage `json:"shard,omitempty"`   // with layout sharded-timestamp
	Data      json.RawMessage `json:"data,omitempty"`
	Key       json.RawMessage `json:"key,omitempty"` // dump; load ignores it and stamps again
}

// An entity is a parsed line.
type entity struct {
	namespace string
	parent    string
	name      string // empty if the id is a number
	number    int64
	expires   *time.Time  // nil if it never does
	shard     store.Value // Missing if the line has none
	data      []byte
	weight    int // bytes that it has at most in a request of a store
}

// parseLine parses one line. Its data must not contain the properties that hold the expiry
// and the shard.
func parseLine(text []byte, t config.Target) (entity, error) {
	var e entity
	if !utf8.Valid(text) {
		return e, errors.New("it is not UTF-8")
	}
	var l line
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return e, fmt.Errorf("it is not a JSON object with id, expires and data: %w", plain(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return e, errors.New("there is something after the JSON object")
	}
	var err error
	if e.weight, err = weigh(text); err != nil {
		return e, err
	}
	e.namespace, e.parent = l.Namespace, l.Parent
	if err := e.setID(l.ID); err != nil {
		return e, err
	}
	if l.Expires != nil {
		at, err := time.Parse(time.RFC3339Nano, *l.Expires)
		if err != nil {
			return e, fmt.Errorf("expires: %q is not an instant such as 2026-11-21T00:07:30.855Z; "+
				"what never expires has no expires", *l.Expires)
		}
		e.expires = &at
	}
	if len(l.Data) > 0 {
		var data map[string]json.RawMessage
		if err := json.Unmarshal(l.Data, &data); err != nil || data == nil {
			return e, errors.New("data: it is not an object")
		}
		if _, ok := data[t.Property]; ok {
			return e, fmt.Errorf("data: %q is the expiry property, which only expires may set", t.Property)
		}
		if _, ok := data[t.ShardProperty]; ok && t.ShardProperty != "" {
			return e, fmt.Errorf("data: %q is the shard property, which only shard may set", t.ShardProperty)
		}
		e.data = l.Data
	}
	return e, e.setShard(l.Shard)
}

// The bytes that a value, and an entity, have at most in a request in addition to their
// texts: tags, lengths, numbers, flags, the key's other parts, and a target's properties.
const (
	valueWeight  = 32
	entityWeight = 512
)

// A level is an object or a list of a line whose end was not read yet.
type level struct {
	keys    map[string]bool // nil for a list
	key     string          // the last one
	inValue bool            // what comes next is the value of key
}

// weigh goes over a line that is known to be JSON. It returns how many bytes the entity has
// in a request at most. It refuses a key that an object has twice: readers of JSON differ
// in which of the values they take.
func weigh(text []byte) (weight int, err error) {
	weight = entityWeight
	var open []level
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // a number may be larger than any type
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return weight, nil
		}
		if err != nil {
			return 0, plain(err)
		}
		s, isText := token.(string)
		weight += len(s)
		if n := len(open); n > 0 && open[n-1].keys != nil {
			top := &open[n-1]
			if isText && !top.inValue {
				if n == 1 {
					s = strings.ToLower(strings.ToUpper(s)) // encoding/json takes ID for id, and ſ for s
				}
				if top.keys[s] {
					return 0, fmt.Errorf("the key %s appears twice", path(open, s))
				}
				top.keys[s], top.key, top.inValue = true, s, true
				continue
			}
			top.inValue = false
		}
		switch token {
		case json.Delim('{'):
			open = append(open, level{keys: map[string]bool{}})
		case json.Delim('['):
			open = append(open, level{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
			continue
		}
		weight += valueWeight
	}
}

// path names a key by the keys of the objects around it, cut to what fits into a message.
func path(open []level, key string) string {
	const most = 5
	var b strings.Builder
	for i, l := range open[:len(open)-1] {
		if i == most {
			b.WriteString("….")
			break
		}
		if l.keys != nil {
			fmt.Fprintf(&b, "%.40s.", l.key)
		}
	}
	return strconv.Quote(fmt.Sprintf("%s%.80s", &b, key))
}

func (e *entity) setShard(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		e.shard = store.TextValue(s)
		return nil
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return fmt.Errorf("shard: %.40s is neither a string nor an integer", raw)
	}
	e.shard = store.IntegerValue(n)
	return nil
}

func (e *entity) setID(raw json.RawMessage) error {
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return errors.New("id: it is missing")
	case raw[0] == '"':
		if err := json.Unmarshal(raw, &e.name); err != nil {
			return fmt.Errorf("id: %w", plain(err))
		}
		return checkName(e.name)
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n <= 0 {
		return fmt.Errorf("id: %.40s is neither a string nor a positive integer", raw)
	}
	e.number = n
	return nil
}

func checkName(s string) error {
	switch {
	case s == "":
		return errors.New("id: it is empty")
	case len(s) > 1500:
		return fmt.Errorf("id: it has %d bytes, the stores take 1500", len(s))
	case strings.HasPrefix(s, "__") && strings.HasSuffix(s, "__") && len(s) >= 4:
		return fmt.Errorf("id: %q is reserved: names that begin and end with two underscores are the stores' own", s)
	}
	return nil
}

// checkDocument checks ids by the rules that only Firestore in native mode has:
// there they are segments of a path.
func (e *entity) checkDocument() error {
	illegal := func(id string) bool { return id == "." || id == ".." || strings.Contains(id, "/") }
	if illegal(e.name) {
		return fmt.Errorf("id: no document can have the id %q", e.name)
	}
	if e.parent == "" {
		return nil
	}
	segments := strings.Split(e.parent, "/")
	if len(segments)%2 != 0 {
		return fmt.Errorf("parent: %q is the path of a collection: a document's has an even number of segments", e.parent)
	}
	for _, s := range segments {
		if s == "" || illegal(s) {
			return fmt.Errorf("parent: %q is not the path of a document", e.parent)
		}
	}
	return nil
}

// plain leaves out the package name that encoding/json puts into its errors.
func plain(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// readUntil returns a reader of r that fails once ctx is done, even while r waits for more.
func readUntil(ctx context.Context, r io.Reader) io.Reader {
	reader, writer := io.Pipe()
	context.AfterFunc(ctx, func() { _ = writer.CloseWithError(ctx.Err()) })
	go func() {
		_, err := io.Copy(writer, r)
		_ = writer.CloseWithError(err)
	}()
	return reader
}

// A lineReader reads lines and knows their numbers. It skips a line that is too long.
type lineReader struct {
	r      *bufio.Reader
	most   int // bytes of a line
	number int
}

var errLongLine = errors.New("it is longer than any entity may be")

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), most: maxLine}
}

// next returns the next line without its end. It fails with io.EOF after the last line, and
// with errLongLine for one that it skipped.
func (l *lineReader) next() ([]byte, error) {
	l.number++
	var text []byte
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		if long = long || len(text)+len(part) > l.most+2; !long {
			text = append(text, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("read line %d: %w", l.number, err)
		case long:
			return nil, errLongLine
		case err != nil && len(text) == 0:
			return nil, io.EOF
		}
		text = bytes.TrimRight(text, "\r\n")
		if l.number == 1 {
			text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
		}
		return text, nil
	}
}
