package datastore

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/reaper-ttl/reaper/store"
)

// FormatKey returns the canonical text of a key's path, without its namespace:
//
//	Session/s-1842            a name
//	Session/#1842             a number
//	User/#7/Session/s-1842    with ancestors
//
// In kinds and names a percent sign with two hexadecimal digits stands for '/',
// for '%', for control characters, for bytes that are no UTF-8, and for a '#'
// that begins a name. [ParseKey] reads it back.
func FormatKey(k *sdk.Key) string {
	if k == nil {
		return ""
	}
	return string(appendKey(make([]byte, 0, 64), k))
}

func appendKey(dst []byte, k *sdk.Key) []byte {
	if k.Parent != nil {
		dst = append(appendKey(dst, k.Parent), '/')
	}
	dst = append(appendEscaped(dst, k.Kind), '/')
	if k.Name == "" && k.ID != 0 {
		return strconv.AppendInt(append(dst, '#'), k.ID, 10)
	}
	name := k.Name
	if strings.HasPrefix(name, "#") {
		dst, name = append(dst, "%23"...), name[1:]
	}
	return appendEscaped(dst, name)
}

func appendEscaped(dst []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		// The set is fixed, whatever newer editions of Unicode call printable:
		// positions in cursor records are written this way.
		plain := r >= ' ' && r != '%' && r != '/' && (r < 0x7f || r > 0x9f) && (r != utf8.RuneError || n > 1)
		for _, c := range []byte(s[i : i+n]) {
			if plain {
				dst = append(dst, c)
			} else {
				dst = append(dst, '%', hex[c>>4], hex[c&15])
			}
		}
		i += n
	}
	return dst
}

// ParseKey returns the key that [FormatKey] printed, in a namespace. It accepts
// nothing else: there is one text for each key.
func ParseKey(namespace, text string) (*sdk.Key, error) {
	parts := strings.Split(text, "/")
	if len(parts)%2 != 0 {
		return nil, fmt.Errorf("key %q: %w: it is not pairs of kind and name or #number", text, store.ErrInvalid)
	}
	var key *sdk.Key
	for ; len(parts) > 0; parts = parts[2:] {
		kind, err := unescape(parts[0])
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", text, err)
		}
		key = &sdk.Key{Kind: kind, Parent: key, Namespace: namespace}
		if digits, ok := strings.CutPrefix(parts[1], "#"); ok {
			key.ID, err = strconv.ParseInt(digits, 10, 64)
		} else {
			key.Name, err = unescape(parts[1])
		}
		if err != nil {
			return nil, fmt.Errorf("key %q: %w: %w", text, store.ErrInvalid, err)
		}
		if key.Kind == "" || key.Incomplete() {
			return nil, fmt.Errorf("key %q: %w: a kind, name or number is missing", text, store.ErrInvalid)
		}
	}
	if canonical := FormatKey(key); canonical != text {
		return nil, fmt.Errorf("key %q: %w: it should be written %q", text, store.ErrInvalid, canonical)
	}
	return key, nil
}

func unescape(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 {
		return s, nil
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			out = append(out, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("%w: an escape is cut off", store.ErrInvalid)
		}
		c, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", fmt.Errorf("%w: %q is no escape", store.ErrInvalid, s[i:i+3])
		}
		out = append(out, byte(c))
		i += 2
	}
	return string(out), nil
}

// keyOf returns an entry's key: the one in Ref or, after a restart, the one that its
// text names.
func keyOf(namespace string, e store.Entry) (*sdk.Key, error) {
	if k, ok := e.Ref.(*sdk.Key); ok && k.Namespace == namespace {
		return k, nil
	}
	return ParseKey(namespace, e.Key)
}

// clientKey returns a key of the service in the client's form.
func clientKey(k *pb.Key) (key *sdk.Key) {
	for _, e := range k.GetPath() {
		key = &sdk.Key{Kind: e.GetKind(), Name: e.GetName(), ID: e.GetId(), Parent: key,
			Namespace: k.GetPartitionId().GetNamespaceId()}
	}
	return key
}

// serviceKey returns a key in the service's form, in the database of this connection.
func (d *DB) serviceKey(k *sdk.Key) *pb.Key {
	out := &pb.Key{PartitionId: &pb.PartitionId{
		ProjectId: d.project, DatabaseId: d.database, NamespaceId: k.Namespace}}
	for _, e := range elements(k) {
		at := &pb.Key_PathElement{Kind: e.Kind, IdType: &pb.Key_PathElement_Name{Name: e.Name}}
		if e.Name == "" {
			at.IdType = &pb.Key_PathElement_Id{Id: e.ID}
		}
		out.Path = append(out.Path, at)
	}
	return out
}

// groups splits keys, which must differ, into lists of indexes, so that the client can
// tell the keys of each list apart. The client drops duplicates, and matches replies to
// requests, by its own text of a key. That text is the same for the name "7" and the
// number 7, and does not escape slashes and commas in names: in one call with both, it
// would take the expiry of one entity for the other's. Without such keys there is a
// single group.
func groups(keys []*sdk.Key) [][]int {
	seen := make(map[string]int, len(keys))
	var out [][]int
	var buf []byte
	for i, k := range keys {
		buf = appendClientText(buf[:0], k)
		n := seen[string(buf)]
		seen[string(buf)] = n + 1
		if n == len(out) {
			out = append(out, make([]int, 0, len(keys)-i))
		}
		out[n] = append(out[n], i)
	}
	return out
}

// appendClientText appends the client's internal text of a key.
func appendClientText(dst []byte, k *sdk.Key) []byte {
	if k.Parent != nil {
		dst = appendClientText(dst, k.Parent)
	}
	dst = append(append(append(dst, '/'), k.Kind...), ',')
	if k.Name != "" {
		dst = append(dst, k.Name...)
	} else {
		dst = strconv.AppendInt(dst, k.ID, 10)
	}
	if k.Namespace != "" {
		dst = append(append(dst, ','), k.Namespace...)
	}
	return dst
}

// pick returns the elements of a slice at the given indexes.
func pick[T any](all []T, at []int) []T {
	if len(at) == len(all) {
		return all // the usual single group, which is in order
	}
	out := make([]T, len(at))
	for i, n := range at {
		out[i] = all[n]
	}
	return out
}
