package datastore

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// Meanings of values, which the API shows but does not explain. They come from the time of App Engine.
const (
	meaningInstant = 7  // of an integer: microseconds
	meaningText    = 15 // of a text that is in no index
	meaningVector  = 31 // of an array
)

// refusedMeanings are those that old entities may have, and that the service does not take.
var refusedMeanings = []int32{9, 14, 18, 19, 21, 24, 25, 26, 27, 28}

const (
	maxIndexed = 1500 // bytes of an indexed text or blob
	// What an integer may not mean as an instant, since there is a type for it: the years 1 to 9999.
	firstInstant, lastInstant = -62135596800_000_000, 253402300799_999_999

	mostStripped = 5 // of which an insertion tells one by one
)

// strip changes an entity so that the service takes it, although it once gave it so, and says in words what was
// lost: meanings, or being in an index.
func strip(e *pb.Entity) string {
	var s stripper
	s.entity("", e)
	if more := len(s.words) - mostStripped; more > 0 {
		s.words = append(s.words[:mostStripped], fmt.Sprintf("%d more", more))
	}
	return strings.Join(s.words, ", ")
}

type stripper struct{ words []string }

func (s *stripper) note(format string, args ...any) {
	s.words = append(s.words, fmt.Sprintf(format, args...))
}

func (s *stripper) entity(prefix string, e *pb.Entity) {
	for _, name := range slices.Sorted(maps.Keys(e.GetProperties())) {
		s.value(prefix+name, e.GetProperties()[name])
	}
}

func (s *stripper) value(path string, v *pb.Value) {
	if slices.Contains(refusedMeanings, v.GetMeaning()) {
		s.meaning(path, v)
	}
	switch x := v.GetValueType().(type) {
	case *pb.Value_StringValue:
		s.indexed(path, v, len(x.StringValue))
	case *pb.Value_BlobValue:
		s.indexed(path, v, len(x.BlobValue))
	case *pb.Value_IntegerValue:
		if n := x.IntegerValue; v.GetMeaning() == meaningInstant && firstInstant <= n && n <= lastInstant {
			s.meaning(path, v)
		}
	case *pb.Value_EntityValue:
		s.entity(path+".", x.EntityValue)
	case *pb.Value_ArrayValue:
		s.array(path, v, x.ArrayValue.GetValues())
	}
}

func (s *stripper) meaning(path string, v *pb.Value) {
	s.note("meaning %d of %s", v.GetMeaning(), path)
	v.Meaning = 0
}

func (s *stripper) indexed(path string, v *pb.Value, size int) {
	if !v.GetExcludeFromIndexes() && (size > maxIndexed || v.GetMeaning() == meaningText) {
		v.ExcludeFromIndexes = true
		s.note("index of %s", path)
	}
}

func (s *stripper) array(path string, v *pb.Value, elements []*pb.Value) {
	if v.GetMeaning() == meaningVector {
		if !v.GetExcludeFromIndexes() {
			v.ExcludeFromIndexes = true
			s.note("index of %s", path)
		}
		return
	}
	if v.GetMeaning() != 0 {
		s.meaning(path, v)
	}
	if v.GetExcludeFromIndexes() { // its elements have it instead
		v.ExcludeFromIndexes = false
		for _, e := range elements {
			e.ExcludeFromIndexes = true
		}
		s.note("exclusion from indexes of %s, which its elements have instead", path)
	}
	for _, e := range elements {
		s.value(path, e)
	}
}
