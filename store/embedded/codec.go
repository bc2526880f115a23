package embedded

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/store"
)

// The first byte of every row's key.
const (
	rowEntity  = 'e'
	rowIndex   = 'i'
	rowRecord  = 'r'
	rowDropped = 'd'
)

// The first byte of an encoded value, in the order of types.
const (
	tagBool    = 0x10
	tagNumber  = 0x20
	tagInstant = 0x30
	tagText    = 0x40
	tagRest    = 0x50
)

// The first byte of an encoded entity key. A key is the last part of its row's
// key, so a name needs no terminator.
const (
	keyNumber = 0x01
	keyName   = 0x02
	keyEnd    = 0x03 // after every key
)

// maxIndexed is the longest name and the longest indexed string.
const maxIndexed = 1500

// listMark is the value of an index row that stands for one element of a list.
var listMark = []byte{1}

// twoMark is the value of the index rows of an entity that has two indexed properties: what
// deletes one row must delete the other, too.
var twoMark = []byte{2}

// appendTerm appends s so that the order of the encoded forms is the order of
// the strings even when more bytes follow: a zero byte becomes 00 FF, and the
// end is 00 01.
func appendTerm[S string | []byte](dst []byte, s S) []byte {
	for {
		i := 0
		for i < len(s) && s[i] != 0 {
			i++
		}
		dst = append(dst, s[:i]...)
		if i == len(s) {
			return append(dst, 0x00, 0x01)
		}
		dst = append(dst, 0x00, 0xff)
		s = s[i+1:]
	}
}

var errRow = errors.New("a row of the store does not decode")

// cutTerm appends to dst what [appendTerm] encoded at the start of b, and
// returns what follows it.
func cutTerm(dst, b []byte) (text, rest []byte, err error) {
	for {
		i := bytes.IndexByte(b, 0)
		if i < 0 || i+1 == len(b) {
			return dst, nil, errRow
		}
		dst = append(dst, b[:i]...)
		switch b[i+1] {
		case 0x01:
			return dst, b[i+2:], nil
		case 0xff:
			dst = append(dst, 0)
			b = b[i+2:]
		default:
			return dst, nil, errRow
		}
	}
}

// entityPrefix appends what the rows of a table's entities begin with.
func entityPrefix(dst []byte, kind string) []byte {
	return appendTerm(append(dst, rowEntity), kind)
}

// indexPrefix appends what the rows of a target's index begin with.
func indexPrefix(dst []byte, t store.Target) []byte {
	return appendIndexName(appendTerm(append(dst, rowIndex), t.Kind), t.Property, t.ShardProperty)
}

// appendIndexName appends the name of the index on a property or, where there
// is a shard property, of that on both: no property's name holds a zero byte.
func appendIndexName[S string | []byte](dst []byte, property, shardProperty S) []byte {
	if len(shardProperty) == 0 {
		return appendTerm(dst, property)
	}
	return appendTerm(dst, string(property)+"\x00"+string(shardProperty))
}

// prefixEnd turns a prefix that ends in a terminator into the first key that
// sorts after everything that begins with it.
func prefixEnd(prefix []byte) []byte {
	prefix[len(prefix)-1]++
	return prefix
}

// appendValue appends the order-preserving form of an indexable value. Its
// inverse is [cutValue].
func appendValue(dst []byte, v store.Value) ([]byte, error) {
	switch v.Type {
	case store.Text:
		return appendTerm(append(dst, tagText), v.Text), nil
	case store.Instant:
		return binary.BigEndian.AppendUint64(append(dst, tagInstant), uint64(v.Time.UnixMicro())^(1<<63)), nil
	case store.Other:
		switch {
		case v.Text == "false":
			return append(dst, tagBool, 0), nil
		case v.Text == "true":
			return append(dst, tagBool, 1), nil
		case strings.HasPrefix(v.Text, "{"), strings.HasPrefix(v.Text, "["):
			return appendTerm(append(dst, tagRest), v.Text), nil
		}
		f, err := strconv.ParseFloat(v.Text, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) || math.IsNaN(f) {
			return dst, fmt.Errorf("value %.80q is no JSON that an index holds", v.Text)
		}
		if f == 0 {
			f = 0 // minus zero is zero
		}
		bits := math.Float64bits(f)
		if bits>>63 == 1 {
			bits = ^bits
		} else {
			bits |= 1 << 63
		}
		dst = binary.BigEndian.AppendUint64(append(dst, tagNumber), bits)
		return appendTerm(dst, v.Text), nil
	}
	return dst, fmt.Errorf("a value of type %d has no place in an index", v.Type)
}

// cutValue decodes the value at the start of b, except for its text, which it
// appends to text. It returns what follows the value.
func cutValue(text, b []byte) (v store.Value, full, rest []byte, err error) {
	if len(b) == 0 {
		return v, text, nil, errRow
	}
	tag, b := b[0], b[1:]
	switch tag {
	case tagText:
		v.Type = store.Text
		full, rest, err = cutTerm(text, b)
		return v, full, rest, err
	case tagInstant:
		if len(b) < 8 {
			return v, text, nil, errRow
		}
		v.Type = store.Instant
		v.Time = time.UnixMicro(int64(binary.BigEndian.Uint64(b) ^ (1 << 63))).UTC()
		return v, text, b[8:], nil
	case tagBool:
		if len(b) < 1 {
			return v, text, nil, errRow
		}
		v.Type = store.Other
		return v, strconv.AppendBool(text, b[0] == 1), b[1:], nil
	case tagNumber:
		if len(b) < 8 {
			return v, text, nil, errRow
		}
		b = b[8:]
		fallthrough
	case tagRest:
		v.Type = store.Other
		full, rest, err = cutTerm(text, b)
		return v, full, rest, err
	}
	return v, text, nil, errRow
}

// skipValue returns what follows the value at the start of b.
func skipValue(b []byte) (rest []byte, err error) {
	skip := 1
	switch {
	case len(b) == 0:
		return nil, errRow
	case b[0] == tagBool:
		skip = 2
	case b[0] == tagInstant, b[0] == tagNumber:
		skip = 9
	}
	if len(b) < skip {
		return nil, errRow
	}
	if tag := b[0]; tag == tagBool || tag == tagInstant {
		return b[skip:], nil
	}
	for b = b[skip:]; ; {
		i := bytes.IndexByte(b, 0)
		if i < 0 || i+1 == len(b) {
			return nil, errRow
		}
		end := b[i+1] == 0x01
		if b = b[i+2:]; end {
			return b, nil
		}
	}
}

// appendID appends the encoded form of an entity's key.
func appendID(dst []byte, name string, number int64) ([]byte, error) {
	switch {
	case name == "" && number <= 0:
		return dst, fmt.Errorf("an id is a name or a positive number, not %d", number)
	case name == "":
		return binary.BigEndian.AppendUint64(append(dst, keyNumber), uint64(number)), nil
	case number != 0:
		return dst, fmt.Errorf("an id is a name or a number, not both %.80q and %d", name, number)
	case len(name) > maxIndexed:
		return dst, fmt.Errorf("id %.80q… has %d bytes, more than %d", name, len(name), maxIndexed)
	case !utf8.ValidString(name):
		return dst, fmt.Errorf("id %.80q is not UTF-8", name)
	}
	return append(append(dst, keyName), name...), nil
}

// cutID decodes the key that the rest of a row's key is.
func cutID(b []byte) (name []byte, number int64, err error) {
	switch {
	case len(b) == 9 && b[0] == keyNumber:
		return nil, int64(binary.BigEndian.Uint64(b[1:])), nil
	case len(b) > 1 && b[0] == keyName:
		return b[1:], 0, nil
	}
	return nil, 0, errRow
}

// appendKeyText appends the canonical text of the encoded key b.
func appendKeyText(dst, b []byte) ([]byte, error) {
	name, number, err := cutID(b)
	if err != nil {
		return dst, err
	}
	if name == nil {
		return strconv.AppendInt(dst, number, 10), nil
	}
	for _, c := range name {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return strconv.AppendQuote(dst, string(name)), nil
		}
	}
	dst = append(append(dst, '"'), name...)
	return append(dst, '"'), nil
}

// appendKey appends the encoded form of a key whose canonical text is s.
func appendKey(dst []byte, s string) ([]byte, error) {
	if len(s) < 2 || s[0] != '"' {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n <= 0 || strconv.FormatInt(n, 10) != s {
			return dst, fmt.Errorf("%.80q is not the text of a key", s)
		}
		return appendID(dst, "", n)
	}
	name := s[1 : len(s)-1]
	if s[len(s)-1] != '"' || strings.IndexByte(name, '\\') >= 0 {
		var err error
		if name, err = strconv.Unquote(s); err != nil {
			return dst, fmt.Errorf("%.80q is not the text of a key", s)
		}
	}
	if name == "" {
		return dst, errors.New("the text of a key names nothing")
	}
	return appendID(dst, name, 0)
}

// normal checks an indexed value of a new entity, and returns the form that is stored: null
// becomes Missing, and an array a List.
func normal(v store.Value) (store.Value, error) {
	switch v.Type {
	case store.Missing:
		return store.Value{}, nil
	case store.Text:
		if len(v.Text) > maxIndexed {
			return v, fmt.Errorf("the expiry has %d bytes, more than an index takes (%d)", len(v.Text), maxIndexed)
		}
		if !utf8.ValidString(v.Text) {
			return v, fmt.Errorf("the expiry %.80q is not UTF-8", v.Text)
		}
		return store.TextValue(v.Text), nil
	case store.Instant:
		at := v.Time.Round(0).UTC().Truncate(time.Microsecond)
		if y := at.Year(); y < 1 || y > 9999 {
			return v, fmt.Errorf("the expiry is in the year %d, not between 1 and 9999", y)
		}
		return store.Value{Type: store.Instant, Time: at}, nil
	case store.Other, store.List:
		var buf bytes.Buffer
		if err := json.Compact(&buf, []byte(v.Text)); err != nil {
			return v, fmt.Errorf("the expiry %.80q is not JSON: %w", v.Text, err)
		}
		text := buf.String()
		switch {
		case text[0] == '[':
			return store.Value{Type: store.List, Text: text}, nil
		case v.Type == store.List:
			return v, fmt.Errorf("the expiry %.80q is not a list", text)
		case text == "null":
			return store.Value{}, nil
		case text[0] == '"':
			return v, fmt.Errorf("the expiry %.80q is a string: its type is Text", text)
		case len(text) > maxIndexed:
			return v, fmt.Errorf("the expiry has %d bytes, more than an index takes (%d)", len(text), maxIndexed)
		}
		return store.Value{Type: store.Other, Text: text}, nil
	}
	return v, fmt.Errorf("no expiry is of type %d", v.Type)
}

// elements returns the encoded distinct elements of a list in their order.
func elements(list string) ([][]byte, error) {
	var raw []json.RawMessage
	if err := json.Unmarshal([]byte(list), &raw); err != nil {
		return nil, err
	}
	var out [][]byte
	for _, r := range raw {
		v := store.Value{Type: store.Other, Text: string(r)}
		switch {
		case v.Text == "null":
			continue // null is in no span
		case r[0] == '"':
			var s string
			if err := json.Unmarshal(r, &s); err != nil {
				return nil, err
			}
			v = store.TextValue(s)
		}
		if len(v.Text) > maxIndexed {
			return nil, fmt.Errorf("an element of the list has %d bytes, more than an index takes (%d)", len(v.Text), maxIndexed)
		}
		enc, err := appendValue(nil, v)
		if err != nil {
			return nil, err
		}
		out = append(out, enc)
	}
	slices.SortFunc(out, bytes.Compare)
	return slices.CompactFunc(out, bytes.Equal), nil
}

// The first byte of every entity's row.
const (
	entityFormat  = 1
	shardedFormat = 2 // the shard property and its value come first
	doubleFormat  = 3 // a second indexed property comes first, then the rest as in another format
)

// An entity is the decoded row of an entity. Its parts share the row's memory.
type entity struct {
	property      []byte
	value         store.Value
	shardProperty []byte // empty if it was put without one
	shard         store.Value
	data          []byte
	// other is a second indexed property; nil if it has none. Adoption adds one to an entity
	// that was put with another property.
	other *indexed
}

// An indexed is a property without a shard property, and its value.
type indexed struct {
	property []byte
	value    store.Value
}

func appendEntity(dst []byte, e entity) []byte {
	if e.other != nil {
		dst = appendStored(appendCounted(append(dst, doubleFormat), e.other.property), e.other.value)
	}
	if len(e.shardProperty) > 0 {
		dst = appendCounted(append(dst, shardedFormat), e.shardProperty)
		dst = appendStored(dst, e.shard)
	} else {
		dst = append(dst, entityFormat)
	}
	return append(appendStored(appendCounted(dst, e.property), e.value), e.data...)
}

func appendCounted(dst, text []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// appendStored appends a value as rows of entities hold it.
func appendStored(dst []byte, v store.Value) []byte {
	dst = append(dst, byte(v.Type))
	if v.Type == store.Instant {
		return binary.BigEndian.AppendUint64(dst, uint64(v.Time.UnixMicro()))
	}
	return appendCounted(dst, []byte(v.Text))
}

func cutCounted(b []byte) (text, rest []byte, err error) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, nil, errRow
	}
	return b[used : used+int(n)], b[used+int(n):], nil
}

func decodeEntity(b []byte) (e entity, err error) {
	if len(b) > 0 && b[0] == doubleFormat {
		e.other = new(indexed)
		if e.other.property, b, err = cutCounted(b[1:]); err != nil {
			return e, err
		}
		if e.other.value, b, err = cutStored(b); err != nil {
			return e, err
		}
	}
	if len(b) == 0 || b[0] != entityFormat && b[0] != shardedFormat {
		return e, errRow
	}
	format, b := b[0], b[1:]
	if format == shardedFormat {
		if e.shardProperty, b, err = cutCounted(b); err != nil {
			return e, err
		}
		if e.shard, b, err = cutStored(b); err != nil {
			return e, err
		}
	}
	if e.property, b, err = cutCounted(b); err != nil {
		return e, err
	}
	e.value, e.data, err = cutStored(b)
	return e, err
}

// cutStored decodes what [appendStored] encoded at the start of b.
func cutStored(b []byte) (v store.Value, rest []byte, err error) {
	if len(b) == 0 || b[0] > byte(store.Other) {
		return v, nil, errRow
	}
	v.Type, b = store.Type(b[0]), b[1:]
	if v.Type == store.Instant {
		if len(b) < 8 {
			return v, nil, errRow
		}
		v.Time = time.UnixMicro(int64(binary.BigEndian.Uint64(b))).UTC()
		return v, b[8:], nil
	}
	text, rest, err := cutCounted(b)
	v.Text = string(text)
	return v, rest, err
}

// of returns the entity's value of a property. Only those that are indexed are known: the one
// that the entity was put with, and perhaps another one.
func (e entity) of(property string) store.Value {
	switch {
	case string(e.property) == property:
		return e.value
	case e.other != nil && string(e.other.property) == property:
		return e.other.value
	}
	return store.Value{}
}

// with returns the entity with another value of an indexed property. It adds the property if
// there is room for one, and reports whether that was possible. A second property that is
// Missing is left out, so that the entity is as it was before.
func (e entity) with(property string, v store.Value) (entity, bool) {
	switch {
	case string(e.property) == property:
		e.value = v
	case e.value.Type == store.Missing && len(e.shardProperty) == 0 && e.other == nil:
		e.property, e.value = []byte(property), v
	case e.other != nil && string(e.other.property) != property:
		return e, false
	case v.Type == store.Missing:
		e.other = nil
	default:
		e.other = &indexed{[]byte(property), v}
	}
	return e, true
}

// indexRows calls row with the key and the mark of each index row that belongs to an entity
// with the given encoded key. The key is valid during the call only.
func indexRows(buf []byte, kind string, e entity, id []byte, row func(key, mark []byte) error) ([]byte, error) {
	if e.other == nil {
		return rowsOf(buf, kind, e, id, nil, row)
	}
	second := entity{property: e.other.property, value: e.other.value}
	buf, err := rowsOf(buf, kind, second, id, twoMark, row)
	if err != nil {
		return buf, err
	}
	return rowsOf(buf, kind, e, id, twoMark, row)
}

// rowsOf is indexRows for the property that the entity was put with.
func rowsOf(
	buf []byte, kind string, e entity, id, plain []byte, row func(key, mark []byte) error,
) ([]byte, error) {
	buf = appendIndexName(appendTerm(append(buf[:0], rowIndex), kind), e.property, e.shardProperty)
	if len(e.shardProperty) > 0 {
		if e.shard.Type == store.Missing {
			return buf, nil // an index on both has no row for it
		}
		var err error
		if buf, err = appendValue(buf, e.shard); err != nil {
			return buf, err
		}
	}
	n := len(buf)
	switch e.value.Type {
	case store.Missing:
		return buf, nil
	case store.List:
		all, err := elements(e.value.Text)
		if err != nil {
			return buf, err
		}
		for _, enc := range all {
			buf = append(append(buf[:n], enc...), id...)
			if err := row(buf, listMark); err != nil {
				return buf, err
			}
		}
		return buf, nil
	}
	buf, err := appendValue(buf, e.value)
	if err != nil {
		return buf, err
	}
	buf = append(buf, id...)
	return buf, row(buf, plain)
}
