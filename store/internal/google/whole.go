package google

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/reaper-ttl/reaper/store"
)

const (
	// firstRead is how many entities are read at once before their size is known: as many of the largest are 4 MiB.
	firstRead = 4
	// growth is how many times as many are read by a request as before it, since the next ones may be larger.
	growth = 16
)

// Sizes remember how large the whole entities of a kind were that were read last: their mean, and large ones
// for longer. The zero value is ready, and it is safe for concurrent use.
type Sizes struct{ means sync.Map }

// A Reading says which of a list of entities to read next, so that about [store.CopyBytes] are read: how large
// an entity is shows only once it has been read, and is billed.
type Reading struct {
	sizes *Sizes
	kind  string
	known int // the size by then; 0 if it is unknown
	read  []bool
	done  int // the first so many are read
	most  int // of one request
	spent int // bytes of CopyBytes that others take up
	count int // of those that exist
	bytes int
}

// Read returns the reading of n entities of a kind.
func (s *Sizes) Read(kind string, n int) *Reading {
	known, _ := s.means.Load(kind)
	size, _ := known.(int)
	return &Reading{sizes: s, kind: kind, known: size, read: make([]bool, n), most: store.MaxPage}
}

// Next returns the indexes of what to read with the next request, in order; none if all were read, or enough.
func (r *Reading) Next() (next []int) {
	if r.Full() {
		return nil
	}
	n, size := firstRead, r.known
	if r.count > 0 {
		size = r.bytes / r.count
		if r.count < firstRead {
			size = max(size, r.known)
		}
	}
	if size > 0 {
		n = max(1, (store.CopyBytes-r.spent-r.bytes)/size)
	}
	if r.count > 0 {
		n = min(n, growth*r.count)
	}
	for i := r.done; i < len(r.read) && len(next) < min(n, r.most); i++ {
		if !r.read[i] {
			next = append(next, i)
		}
	}
	return next
}

// Got notes that an entity was read, and its size; 0 if it does not exist.
func (r *Reading) Got(i, size int) {
	r.read[i] = true
	for r.done < len(r.read) && r.read[r.done] {
		r.done++
	}
	if size > 0 {
		r.count, r.bytes = r.count+1, r.bytes+size
		r.sizes.means.Store(r.kind, max(r.bytes/r.count, r.known-r.known/4))
	}
}

// Full reports whether enough was read, the first of the list included.
func (r *Reading) Full() bool { return r.done > 0 && r.spent+r.bytes >= store.CopyBytes }

// Spend leaves so many bytes less for this reading: its first entity is read in any case.
func (r *Reading) Spend(bytes int) { r.spent += bytes }

// Halve makes requests half as large as one that was too large. It reports whether there is anything to halve.
func (r *Reading) Halve(n int) bool {
	r.most = max(1, n/2)
	return n > 1
}

// EncodeJSON returns a message as JSON in one line, the same each time: protojson varies its spaces at random.
// It refuses what it would leave out.
func EncodeJSON(m proto.Message) ([]byte, error) {
	if hasUnknown(m.ProtoReflect()) {
		return nil, fmt.Errorf("%w: it holds something that this program is too old to know", store.ErrFailed)
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrFailed, err)
	}
	var line bytes.Buffer
	line.Grow(len(text))
	if err := json.Compact(&line, text); err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrFailed, err)
	}
	return line.Bytes(), nil
}

// hasUnknown reports whether a message, or one inside it, has fields that are not in its definition.
func hasUnknown(m protoreflect.Message) bool {
	found := len(m.GetUnknown()) > 0
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case found:
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, e protoreflect.Value) bool {
					found = hasUnknown(e.Message())
					return !found
				})
			}
		case f.Message() == nil:
		case f.IsList():
			for i := 0; i < v.List().Len() && !found; i++ {
				found = hasUnknown(v.List().Get(i).Message())
			}
		default:
			found = hasUnknown(v.Message())
		}
		return !found
	})
	return found
}

// DecodeJSON reads what EncodeJSON returned. It refuses fields that it does not know.
func DecodeJSON(text []byte, m proto.Message) error {
	if err := protojson.Unmarshal(text, m); err != nil {
		return fmt.Errorf("%w: %w", store.ErrInvalid, err)
	}
	return nil
}

// Keep gives copies to an archive. Its error wraps one of the contract's, or is the context's.
func Keep(ctx context.Context, a store.Archive, list []store.Copy) error {
	if len(list) == 0 {
		return nil
	}
	err := a.Keep(ctx, list)
	switch {
	case err == nil:
		return ctx.Err() // nothing is written once it is done
	case store.IsMapped(err) || ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return fmt.Errorf("keep %d copies: %w", len(list), err)
	}
	return fmt.Errorf("keep %d copies: %w: %w", len(list), store.ErrFailed, err)
}

// CheckInsertions refuses a list that no store inserts, and forgets what an earlier call made of it.
func CheckInsertions(list []store.Insertion) error {
	if len(list) > store.MaxPage {
		return fmt.Errorf("%w: more than %d", store.ErrInvalid, store.MaxPage)
	}
	seen := make(map[string]bool, len(list))
	for i := range list {
		list[i].Outcome, list[i].Stripped = store.Unknown, ""
		if key := list[i].Key; seen[key] {
			return fmt.Errorf("%w: %s appears twice", store.ErrInvalid, key)
		}
		seen[list[i].Key] = true
	}
	return nil
}

// Unique returns the texts of a list, each once, and for each text of the list its place in the result.
func Unique(list []string) (unique []string, at []int) {
	seen := make(map[string]int, len(list))
	for _, text := range list {
		n, ok := seen[text]
		if !ok {
			n = len(unique)
			unique, seen[text] = append(unique, text), n
		}
		at = append(at, n)
	}
	return unique, at
}
